"""The world model of Dreamer: a recurrent state-space model with discrete latent states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from flowrl.errors import ConfigError
from flowrl.networks.networks import Encoder, Pixels, mlp
from flowrl.networks.sampling import Array

#: The outermost bins of `TwoHot`, on the scale of `symlog`: e¹⁰ − 1 is 22,025.
REACH = 10.0
#: Images with fewer pixels a side are not made smaller by convolutions.
SMALL_SIDE = 8


def symlog(x: torch.Tensor) -> torch.Tensor:
    """sign(x) log(|x| + 1): compresses numbers of any size, and leaves small ones nearly as they are.

    >>> symlog(torch.tensor([0.0, 0.1, -100.0]))
    tensor([ 0.0000,  0.0953, -4.6151])
    """
    return x.sign() * x.abs().log1p()


def symexp(x: torch.Tensor) -> torch.Tensor:
    """The inverse of `symlog`: sign(x) (exp(|x|) − 1)."""
    return x.sign() * x.abs().expm1()


class TwoHot:
    """Numbers as distributions over bins, symexp(−10) .. symexp(10), that are ever wider apart, and 0 in the middle.

    A number is split over its two neighbours so that it is their mean: a distribution that is learned from such
    targets has their mean as its own.

    Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", section "Robust predictions".

    >>> bins = TwoHot(5)
    >>> bins.shares(torch.tensor([0.0, 36.85]))
    tensor([[0.0000, 0.0000, 1.0000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.7500, 0.2500, 0.0000]])
    >>> bins.numbers(torch.log(bins.shares(torch.tensor([36.85]))))
    tensor([36.8500])
    """

    def __init__(self, bins: int, device: torch.device | str = "cpu") -> None:
        if bins < 3 or bins % 2 == 0:
            raise ConfigError(f"bins={bins}: expected an odd number of at least 3, so that one of them is 0")
        self.size, self.bins = bins, symexp(torch.linspace(-REACH, REACH, bins, device=device))

    def shares(self, numbers: torch.Tensor) -> torch.Tensor:
        """Distributions `[..., bins]` of numbers `[...]`, each over its two neighbours; beyond the ends, at them."""
        inside = numbers.clamp(self.bins[0], self.bins[-1])
        above = torch.searchsorted(self.bins, inside.contiguous()).clamp(min=1)
        low, high = self.bins[above - 1], self.bins[above]
        share = ((inside - low) / (high - low)).unsqueeze(-1)
        shares = torch.zeros(*numbers.shape, self.size, device=numbers.device)
        shares.scatter_(-1, above.unsqueeze(-1), share)
        return shares.scatter_(-1, (above - 1).unsqueeze(-1), 1 - share)

    def numbers(self, logits: torch.Tensor) -> torch.Tensor:
        """The means `[...]` of distributions with these logits `[..., bins]`."""
        with torch.autocast(logits.device.type, enabled=False):  # it would round the product to half precision
            return logits.float().softmax(-1) @ self.bins

    def cross_entropy(self, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """−Σ shares(numbers) log p, `[...]`."""
        return -(self.shares(numbers) * logits.float().log_softmax(-1)).sum(-1)


def kl(q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """KL(q | p) `[...]` of independent choices with probabilities `[..., groups, classes]`, in nats."""
    return (q * (q.log() - p.log())).sum((-2, -1))


def balanced_kl(q: torch.Tensor, p: torch.Tensor, free_nats: float) -> tuple[torch.Tensor, torch.Tensor]:
    """max(free, KL(sg(q) | p)), which teaches the prior p, and max(free, KL(q | sg(p))), for the posterior q; `[...]`.

    sg stops gradients. A divergence below `free_nats` teaches neither.

    Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", section "World model learning".
    """
    return kl(q.detach(), p).clamp(min=free_nats), kl(q, p.detach()).clamp(min=free_nats)


def layers(before: int, hidden: Sequence[int], after: int, *, zeros: bool = False) -> nn.Sequential:
    """Hidden layers with layer norm and SiLU, and a last one without; with `zeros` it gives 0 at first."""
    last = nn.Linear(hidden[-1], after)
    if zeros:
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return mlp([before, *hidden], nn.SiLU, layer_norm=True).append(nn.SiLU()).append(last)


class FlatPixels(Encoder):
    """Pictures as numbers up to 1, `[B, channels · height · width]`."""

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__()
        self.pixels = Pixels(space)
        self.shape, self.features = self.pixels.shape, math.prod(self.pixels.shape)

    @property
    def reads(self) -> str:
        """See `Encoder`."""
        return f"{self.pixels.picture}, convolutions of 4x4"

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        pixels: torch.Tensor = self.pixels(obs)
        return pixels.flatten(1)


def convolutions(shape: tuple[int, ...], depth: int) -> tuple[nn.Sequential, list[nn.Module], int]:
    """Layers from flat images `[B, channels · height · width]` to `[B, features]`, layers back, and the features.

    Each convolution halves both sides, as long as both have 8 pixels. The first one has `depth` channels, each further
    one twice as many.
    """
    channels, height, width = shape
    down: list[nn.Module] = []
    up: list[nn.Module] = []
    while min(height, width) >= SMALL_SIDE:
        odd = height % 2, width % 2
        down += [nn.Conv2d(channels, depth, 4, 2, 1), nn.SiLU()]
        up = [nn.SiLU(), nn.ConvTranspose2d(depth, channels, 4, 2, 1, odd), *up]
        channels, depth, height, width = depth, 2 * depth, height // 2, width // 2
    back = [nn.Unflatten(-1, (channels, height, width)), *up, nn.Flatten()]
    return nn.Sequential(nn.Unflatten(-1, shape), *down, nn.Flatten()), back, channels * height * width


class WorldModel(nn.Module):
    """A recurrent state-space model. A latent state is s = (h, z), a memory h and `groups` choices z of `classes`:

    h_t+1 = f(h_t, z_t, a_t)      posterior z_t ~ q(z | h_t, x_t)      prior z_t ~ p(z | h_t)
    x_t ≈ decoder(s_t)      reward_t, 1 − terminated_t from h_t+1, which knows s_t and a_t

    x are the numbers of an observation, see `seen`. Those of an image pass `convolutions` before q, and come from
    others behind the decoder's layers. f is a GRU behind a layer. The probabilities of choices are mixed with 1 %
    uniform ones.

    Source: Hafner et al. 2025, "Mastering diverse control tasks through world models"; there rewards and ends
    are predicted from s_t+1, so that they need the observation arrived in.

    Args:
        encoder: From observations to numbers, without weights of its own.
        actions: From stored actions `[B, ...]` to what the model reads of them.
        depth: Channels of the first convolution of images.
    """

    UNIFORM = 0.01
    each: torch.Tensor

    def __init__(
        self,
        encoder: Encoder,
        actions: Encoder,
        units: int,
        hidden: Sequence[int],
        groups: int,
        classes: int,
        bins: int,
        depth: int,
    ) -> None:
        super().__init__()
        self.encoder, self.actions, self.units, self.groups, self.classes = encoder, actions, units, groups, classes
        choices = groups * classes
        self.register_buffer("each", torch.arange(classes), persistent=False)
        self.width = units + choices
        back: list[nn.Module] = []
        self.look, numbers = nn.Sequential(), encoder.features
        if isinstance(encoder, FlatPixels):
            self.look, back, numbers = convolutions(encoder.shape, depth)
        self.posterior = layers(units + numbers, hidden, choices)
        self.prior = layers(units, hidden, choices)
        self.enter = mlp([choices + actions.features, *hidden], nn.SiLU, layer_norm=True).append(nn.SiLU())
        self.memory = nn.GRUCell(hidden[-1], units)
        self.decoder = layers(self.width, hidden, numbers).extend(back)
        self.reward = layers(units, hidden, bins, zeros=True)
        self.goes_on = layers(units, hidden, 1)

    def seen(self, obs: Any) -> torch.Tensor:
        """The numbers x `[B, features]` of observations: pixels as they are, others on the scale of `symlog`."""
        numbers: torch.Tensor = self.encoder(obs)
        return numbers if isinstance(self.encoder, FlatPixels) else symlog(numbers)

    def posterior_of(self, memory: torch.Tensor, looked: torch.Tensor) -> torch.Tensor:
        """The probabilities q `[B, groups, classes]`; what is `looked` at are numbers x that passed `look`."""
        return self._choices(self.posterior(torch.cat([memory, looked], -1)))

    def prior_of(self, memory: torch.Tensor) -> torch.Tensor:
        """The probabilities p `[..., groups, classes]`."""
        return self._choices(self.prior(memory))

    def _choices(self, logits: torch.Tensor) -> torch.Tensor:
        probs = logits.float().reshape(*logits.shape[:-1], self.groups, self.classes).softmax(-1)
        return (1 - self.UNIFORM) * probs + self.UNIFORM / self.classes

    def latent(self, memory: torch.Tensor, probs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Latent states `[B, width]` with choices drawn by uniform numbers `[B, groups]`.

        The gradient of a drawn choice is that of its probabilities (straight through).
        """
        bounds = probs.detach().cumsum(-1)
        index = (bounds <= uniform.unsqueeze(-1) * bounds[..., -1:]).sum(-1, keepdim=True).clamp(max=self.classes - 1)
        drawn = (index == self.each) + (probs - probs.detach())  # 0 or 1 exactly
        return torch.cat([memory, drawn.flatten(-2)], -1)

    def advance(self, latent: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """f: the memory `[B, units]` after stored actions `[B, ...]` in these states."""
        memory, choices = torch.split(latent, [self.units, self.width - self.units], 1)
        after: torch.Tensor = self.memory(self.enter(torch.cat([choices, self.actions(action)], 1)), memory)
        return after

    def unroll(
        self, looked: torch.Tensor, action: torch.Tensor, memory: torch.Tensor, uniform: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Latent states `[T, B, width]`, q `[T, B, groups, classes]`, and the memories after each step.

        Args:
            looked: `[T, B, ...]`, as for `posterior_of`. action: `[T, B, ...]`.
            memory: `[B, units]`, before the first step.
            uniform: `[T, B, groups]`.
        """
        latents, posteriors, memories = [], [], []
        for x, a, u in zip(looked, action, uniform):
            posteriors.append(self.posterior_of(memory, x))
            latents.append(self.latent(memory, posteriors[-1], u))
            memory = self.advance(latents[-1], a)
            memories.append(memory)
        return torch.stack(latents), torch.stack(posteriors), torch.stack(memories)

    def initial_memory(self) -> Array:
        """The memory that an episode begins with, `[1, units]` (T8)."""
        return np.zeros((1, self.units), np.float32)
