"""Small networks for any observation that is an array or a dictionary of arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import attrs
import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.data.columns import ACTION_MASK
from flowrl.envs.pictures import NATURE_SIDE, asks_for_nature, picture_of
from flowrl.envs.spaces import first_members
from flowrl.envs.spec import import_module, name_of
from flowrl.errors import ConfigError, SchemaError, closest
from flowrl.networks.distributions import Acting, Distribution, check_choices, way_out
from flowrl.networks.heads import MeanHead, ValueHead
from flowrl.networks.in_numpy import Function, in_numpy
from flowrl.networks.masks import action_mask, masked, valid_mean
from flowrl.networks.noisy import NoisyLinear, steps_of, with_noise
from flowrl.networks.normalize import Normalizer
from flowrl.networks.sampling import Array
from flowrl.settings import NATURE

#: Convolutions keep the sides of small pictures up to the first, as of boards; they halve larger ones to the second.
BOARD_SIDE, HALVED_SIDE = 10, 6


def encoder(
    space: gymnasium.Space[Any], *, normalize: bool = False, path: tuple[str, ...] = (), network: Any = None
) -> Encoder:
    """A network from observations `[B, ...]` to `[B, features]`.

    Numbers are flattened, discrete values become one-hot vectors, pictures (see `flowrl.envs.pictures.picture_of`)
    pass convolutions, and the entries of a dictionary, each encoded like this, are joined in the order of the space,
    without `action_mask`. With `normalize`, numbers pass a `Normalizer` first; `path` holds the keys that lead to the
    space. The network "nature" has the 512 units of the Atari papers; any other replaces all of this, see
    `flowrl.networks.networks.custom_encoder`.

    Raises:
        ConfigError: the space has no encoding, or the network does not fit.
    """
    if network not in (None, NATURE):
        return custom_encoder(network, space)
    made = _built_in(space, normalize, path, network == NATURE)
    if network == NATURE and not any(isinstance(each, ImageEncoder) and each.is_nature for each in made.modules()):
        raise ConfigError(
            f"network={NATURE!r} is for pictures of at least {NATURE_SIDE} pixels a side, but the observation space is "
            f"{space}: leave it out, or declare a picture by image_axes"
        )
    return made


def _built_in(space: gymnasium.Space[Any], normalize: bool, path: tuple[str, ...], nature: bool) -> Encoder:
    if isinstance(space, spaces.Dict):
        parts = {name: part for name, part in space.spaces.items() if path or name != ACTION_MASK}
        if not parts:
            raise ConfigError("the observations hold an action_mask alone: add an entry to learn from")
        return DictEncoder({name: _built_in(part, normalize, (*path, name), nature) for name, part in parts.items()})
    if picture_of(space) is not None:
        return ImageEncoder(space, nature=nature or asks_for_nature(space))
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        features = math.prod(space.shape)
        numbers = normalize and isinstance(space, spaces.Box)
        return FlatEncoder(features, Normalizer((features,), path) if numbers else None)
    if isinstance(space, spaces.Discrete):
        return OneHotEncoder([int(space.n)], [int(space.start)])
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return OneHotEncoder(space.nvec.tolist(), space.start.tolist())
    raise ConfigError(
        f"there is no network for the observation space {space}: "
        "wrap the environment with gymnasium.wrappers.FlattenObservation, or take a policy with its own model"
    )


class Encoder(nn.Module):
    """Base of encoders; `features` is the width of the output."""

    features: int

    @property
    def reads(self) -> str:
        """What it reads, and how, in words; "" if it reads no observations."""
        return ""


class FlatEncoder(Encoder):
    """Numbers as float32, flattened, and normalized if there is a normalizer."""

    def __init__(self, features: int, normalizer: Normalizer | None = None) -> None:
        super().__init__()
        self.features, self.normalizer = features, normalizer

    @property
    def reads(self) -> str:
        """See `Encoder`."""
        numbers = f"{self.features:,} number{'s' * (self.features > 1)}"
        return f"{numbers}, {'normalized, ' if self.normalizer is not None else ''}dense"

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        numbers = obs.reshape(obs.shape[0], self.features)  # also of scalars, `[B]`
        if self.normalizer is None:
            return numbers.float()
        normalized: torch.Tensor = self.normalizer(numbers)
        return normalized

    def in_numpy(self) -> Function:
        features = self.features
        if self.normalizer is not None:
            normalizer = in_numpy(self.normalizer)
            return lambda obs: normalizer(obs.reshape(len(obs), features))
        return lambda obs: obs.reshape(len(obs), features).astype(np.float32, copy=False)


def part_encoder(part: gymnasium.Space[Any], whole: gymnasium.Space[Any], *, normalize: bool, network: Any) -> Encoder:
    """The `encoder` of some entries of observations, which gets all of them."""
    encoding = encoder(part, normalize=normalize, network=network)
    if network in (None, NATURE) or part == whole:
        return encoding
    return PartEncoder(encoding, tuple(cast(spaces.Dict, part)))


def before_heads(encoder: Encoder, hidden: Sequence[int]) -> list[int]:
    """The sizes of an encoder's output and of the hidden layers behind it, of which "nature" has none."""
    return [encoder.features, *([] if isinstance(encoder, ImageEncoder) and encoder.as_in_papers else hidden)]


class PartEncoder(Encoder):
    """A user's network on some entries of a dictionary alone."""

    def __init__(self, network: Encoder, names: Sequence[str]) -> None:
        super().__init__()
        self.network, self.names, self.features = network, tuple(names), network.features

    def forward(self, obs: Any) -> torch.Tensor:
        features: torch.Tensor = self.network(self._part(obs))
        return features

    def in_numpy(self) -> Function:
        network = in_numpy(self.network)
        return lambda obs: network(self._part(obs))

    def _part(self, obs: Any) -> Batch:
        return Batch({name: obs[name] for name in self.names})


def one_hot(index: torch.Tensor, size: int) -> torch.Tensor:
    """Indices `[...]` as vectors `[..., size]` of floats; torch's own looks at numbers, which compiled code cannot."""
    return torch.zeros(*index.shape, size, device=index.device).scatter(-1, index.unsqueeze(-1), 1.0)


class OneHotEncoder(Encoder):
    """Discrete values `[B]` or `[B, k]` as one-hot vectors side by side."""

    def __init__(self, sizes: Sequence[int], starts: Sequence[int]) -> None:
        check_choices(sum(sizes), "observation")
        super().__init__()
        self.sizes, self.starts, self.features = tuple(sizes), tuple(starts), sum(sizes)

    @property
    def reads(self) -> str:
        """See `Encoder`."""
        return f"{' + '.join(map(str, self.sizes)) if len(self.sizes) < 9 else self.features} choices, one-hot, dense"

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        choices = obs.long().reshape(obs.shape[0], len(self.sizes))
        parts = [one_hot(choices[:, i] - start, size) for i, (size, start) in enumerate(zip(self.sizes, self.starts))]
        return torch.cat(parts, 1)

    def in_numpy(self) -> Function:
        starts, sizes = np.array(self.starts), np.array(self.sizes)
        first = np.cumsum([0, *self.sizes[:-1]])  # first columns of the one-hot vectors

        def forward(obs: Array) -> Array:
            choices = obs.astype(np.int64).reshape(len(obs), len(starts)) - starts
            if ((choices < 0) | (choices >= sizes)).any():
                raise SchemaError(f"a choice among the observations is not one of {self.sizes}, from {self.starts} on")
            encoded = np.zeros((len(obs), self.features), np.float32)
            np.put_along_axis(encoded, choices + first, 1, 1)
            return encoded

        return forward


class Pixels(nn.Module):
    """Pictures `[B, ...]` as numbers `[B, channels, height, width]`, divided by the largest that their space allows.

    Stacks are folded into the channels: see `flowrl.envs.pictures`.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__()
        picture = picture_of(space)
        assert picture is not None, space
        self.picture, self.shape, self.white = picture, picture.shape, picture.scale
        self._order = [0, *(1 + axis for axis in picture.order)]

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        pixels = (obs.float() / self.white).permute(self._order)
        return pixels if pixels.dim() == 4 else pixels.reshape(-1, *self.shape)


class ImageEncoder(Encoder):
    """Pictures through convolutions.

    Those of at least 36 pixels a side pass the convolutions of the Atari papers, smaller ones some of 3 x 3, which
    halve sides of more than 10 until both have at most 6. Then come 256 units; with `nature` and its convolutions the
    512 of the papers, without hidden layers behind.

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning".
    """

    def __init__(self, space: gymnasium.Space[Any], *, nature: bool = False) -> None:
        super().__init__()
        self.pixels = Pixels(space)
        channels, *sides = self.pixels.shape
        layers: list[nn.Module]
        self.is_nature = min(sides) >= NATURE_SIDE
        if self.is_nature:
            layers = [nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
            layers += [nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten()]
        else:
            layers = [nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU()]
            before, goal = 16, BOARD_SIDE if max(sides) <= BOARD_SIDE else HALVED_SIDE
            while before == 16 or max(sides) > goal:
                down, along = (2 if side > goal else 1 for side in sides)
                layers += [nn.Conv2d(before, 32, 3, (down, along), padding=1), nn.ReLU()]
                before, sides = 32, [math.ceil(sides[0] / down), math.ceil(sides[1] / along)]
            layers += [nn.Flatten()]
        with torch.no_grad():
            width = nn.Sequential(*layers)(torch.zeros(1, *self.pixels.shape)).shape[1]
        self.as_in_papers = nature and self.is_nature
        self.features = 512 if self.as_in_papers else 256
        self.layers = nn.Sequential(*layers, nn.Linear(width, self.features), nn.ReLU())

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        encoded: torch.Tensor = self.layers(self.pixels(obs))
        return encoded

    @property
    def reads(self) -> str:
        """See `Encoder`."""
        kind = "Nature convolutions" if self.is_nature else "convolutions of 3x3"
        return f"{self.pixels.picture}, {kind}, {self.features} units"


class DictEncoder(Encoder):
    """The parts of a dictionary, each encoded by its own encoder, side by side."""

    def __init__(self, parts: dict[str, Encoder]) -> None:
        super().__init__()
        self.names = tuple(parts)
        self.parts = nn.ModuleList(parts.values())  # a ModuleDict rejects names such as "a.b"
        self.features = sum(part.features for part in parts.values())

    @property
    def reads(self) -> str:
        """See `Encoder`."""
        return "; ".join(f"{name}: {part.reads}" for name, part in zip(self.names, self.parts))

    def forward(self, obs: Any) -> torch.Tensor:
        return torch.cat([part(obs[name]) for name, part in zip(self.names, self.parts)], 1)

    def in_numpy(self) -> Function:
        parts = list(zip(self.names, map(in_numpy, self.parts)))
        return lambda obs: np.concatenate([part(obs[name]) for name, part in parts], 1)


def without(space: spaces.Dict, *names: str) -> spaces.Dict:
    """The space without some of its entries."""
    return spaces.Dict({key: part for key, part in space.spaces.items() if key not in names})


def actions_of(space: gymnasium.Space[Any], algorithm: str) -> int:
    """The number of actions of a discrete space.

    Raises:
        ConfigError: the actions are not discrete.
    """
    if isinstance(space, spaces.Discrete) and space.start == 0:
        check_choices(int(space.n), "action")
        return int(space.n)
    raise ConfigError(
        f"{algorithm} chooses among discrete actions 0 .. n-1, but the environment's action space is {space}: "
        f"{way_out(space)}"
    )


def mlp(
    sizes: Sequence[int],
    activation: Callable[[], nn.Module] = nn.ReLU,
    linear: Callable[[int, int], nn.Module] = nn.Linear,
    *,
    layer_norm: bool = False,
) -> nn.Sequential:
    """Linear layers of the given sizes with an activation after each but the last; with a layer norm after each."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [linear(fan_in, fan_out), *([nn.LayerNorm(fan_out)] if layer_norm else []), activation()]
    return (Dense if linear is nn.Linear else nn.Sequential)(*layers[:-1])


class Dense(nn.Sequential):
    """A Sequential that inlines its linear layers and ReLUs: for small ones a call costs as much as the arithmetic.

    It skips the hooks of these layers.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self:
            if type(layer) is nn.Linear:
                x = nn.functional.linear(x, layer.weight, layer.bias)
            elif type(layer) is nn.ReLU:
                x = torch.relu_(x)
            else:
                x = layer(x)
        return x

    def in_numpy(self) -> Function:
        return in_numpy(nn.Sequential(*self))


def orthogonal(network: nn.Module, last: float) -> None:
    """Orthogonal weights with gain √2, `last` for the last linear layer; biases 0.

    Source: Andrychowicz et al. 2021, "What Matters In On-Policy Reinforcement Learning?", section 3.2.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, last if layer is layers[-1] else math.sqrt(2))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


class QNetwork(nn.Module):
    """Action values `[B, A]`, or other inputs of a head; optionally dueling, optionally noisy.

    Dueling: Q(s, a) = V(s) + A(s, a) − mean over the valid a' of A(s, a')  (Q3), for each number of the head.
    Noisy: all linear layers but those of the encoder are `NoisyLinear`.
    With `layer_norm` each hidden layer is normalized before its activation.

    Source: Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement Learning", eq. 9.
    """

    def __init__(
        self,
        encoder: Encoder,
        actions: int,
        hidden: Sequence[int],
        *,
        dueling: bool,
        head: ValueHead | None = None,
        noisy: bool = False,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        linear = NoisyLinear if noisy else nn.Linear
        self.head = MeanHead() if head is None else head
        width = self.head.width
        sizes = before_heads(encoder, hidden)
        layers = mlp(sizes, linear=linear, layer_norm=layer_norm)
        self.trunk = layers.insert(0, encoder).append(nn.ReLU())
        self.advantage = linear(sizes[-1], actions * width)
        self.value = linear(sizes[-1], width) if dueling else None
        steps = [step for network in self._networks for step in steps_of(network)]
        self._noise_parts = [layer.draws for layer, _ in steps if isinstance(layer, NoisyLinear)]

    @property
    def draws(self) -> int:
        """Numbers of noise per row; 0 unless the network is noisy."""
        return sum(self._noise_parts)

    @property
    def _networks(self) -> list[nn.Module]:
        return [self.trunk, self.advantage, *([] if self.value is None else [self.value])]

    def forward(
        self, obs: Any, noise: torch.Tensor | None = None, *, values: bool = True, **at: torch.Tensor
    ) -> torch.Tensor:
        """Values `[B, A]`, or the inputs of the head, `[B, A, *head.shape]`.

        `noise` is `[B, draws]` per row, `[1, draws]` for all rows, or None; `at` are further arguments of `_features`.
        """
        networks: Sequence[Function] = self._networks
        if noise is not None:
            networks = with_noise(map(steps_of, self._networks), torch.split(noise, self._noise_parts, 1))
        trunk, advantage_of, *value_of = networks
        hidden = self._features(trunk(obs), **at)
        outputs: torch.Tensor = self._of_each(advantage_of(hidden)).float()  # whatever precision the layers use
        if value_of:
            mean = self._mean(outputs, action_mask(obs))
            outputs = self._of_each(value_of[0](hidden)).float() + outputs - mean
        return self.head(outputs) if values else outputs

    def _features(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the last layers read, of the last hidden layer."""
        return hidden

    def _features_in_numpy(self) -> Function:
        """The same function on arrays."""
        return lambda hidden: hidden

    def _mean(self, outputs: Any, mask: Any) -> Any:
        """What a dueling network takes from each action's advantage; tensors or arrays."""
        return valid_mean(outputs, mask)

    def _of_each(self, numbers: Any) -> Any:
        """Reshape `[B, n * K]` to n actions, `[B, n, *head.shape]`; tensors or arrays."""
        return numbers.reshape(numbers.shape[0], -1, *self.head.shape) if self.head.shape else numbers

    def in_numpy(self) -> Function:
        """The values as a function of observations, and of noise if the network is noisy."""
        plain = [in_numpy(network) for network in self._networks]
        noisy, ends = [steps_of(network, in_numpy) for network in self._networks], np.cumsum(self._noise_parts)[:-1]
        features_of, values_of = self._features_in_numpy(), self.head.in_numpy()

        def forward(obs: Any, noise: Array | None = None) -> Array:
            networks = plain if noise is None else with_noise(noisy, np.split(noise, ends, 1))
            trunk, advantage_of, *value_of = networks
            hidden = features_of(trunk(obs))
            outputs = self._of_each(advantage_of(hidden))
            if value_of:
                mean = self._mean(outputs, action_mask(obs))
                outputs = self._of_each(value_of[0](hidden)) + outputs - mean
            values: Array = values_of(outputs)
            return values

        return forward


def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    """target ← tau · online + (1 − tau) · target, in place: parameters, and statistics of observations.

    Counters, such as the number of batches in a user's batch normalization, are copied.
    """
    learned = online.state_dict()
    with torch.no_grad():
        for name, value in target.state_dict().items():
            if value.is_floating_point():
                value.lerp_(learned[name], tau)
            else:  # a counter of a user's network
                value.copy_(learned[name])


class ActorCritic(nn.Module):
    """The outputs of an action distribution, `[B, outputs]`, and values `[B]`.

    Two networks of tanh units, which share an encoder that has weights (of images, say), unless the critic reads other
    entries of the observations by a `critic_encoder`. Invalid actions have probability 0.
    """

    def __init__(
        self,
        encoder: Encoder,
        distribution: Distribution,
        hidden: Sequence[int],
        critic_encoder: Encoder | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.distribution, self.critic_encoder = encoder, distribution, critic_encoder
        self.actor = mlp([*before_heads(encoder, hidden), distribution.outputs], nn.Tanh)
        self.critic = mlp([*before_heads(critic_encoder or encoder, hidden), 1], nn.Tanh)
        orthogonal(self.encoder, last=math.sqrt(2))
        if critic_encoder is not None:
            orthogonal(critic_encoder, last=math.sqrt(2))
        orthogonal(self.actor, last=0.01)
        orthogonal(self.critic, last=1.0)

    def forward(self, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.encoder(obs)
        seen = features if self.critic_encoder is None else self.critic_encoder(obs)
        return self._outputs(features, obs), self.critic(seen).float().squeeze(1)

    def outputs(self, obs: Any) -> torch.Tensor:
        """The outputs of the distribution alone, for which the actor's part of the observations is enough."""
        return self._outputs(self.encoder(obs), obs)

    def _outputs(self, features: torch.Tensor, obs: Any) -> torch.Tensor:
        logits: torch.Tensor = masked(self.actor(features).float(), action_mask(obs))  # whatever precision layers use
        return logits

    def value(self, obs: Any) -> torch.Tensor:
        """Values `[B]` alone."""
        value: torch.Tensor = self.critic((self.critic_encoder or self.encoder)(obs)).squeeze(1)
        return value

    def in_numpy(self) -> ActorCriticInNumpy:
        parts = in_numpy(self.encoder), in_numpy(self.actor), in_numpy(self.critic), self.distribution.in_numpy()
        return ActorCriticInNumpy(*parts, None if self.critic_encoder is None else in_numpy(self.critic_encoder))


@attrs.frozen
class ActorCriticInNumpy:
    """An `ActorCritic` on arrays, for acting."""

    encoder: Function
    actor: Function
    critic: Function
    distribution: Acting
    critic_encoder: Function | None

    def __call__(self, obs: Any) -> tuple[Array, Array]:
        features = self.encoder(obs)
        seen = features if self.critic_encoder is None else self.critic_encoder(obs)
        return masked(self.actor(features), action_mask(obs)), self.critic(seen)[:, 0]

    def outputs(self, obs: Any) -> Array:
        """The outputs of the distribution alone."""
        logits: Array = masked(self.actor(self.encoder(obs)), action_mask(obs))
        return logits

    def value(self, obs: Any) -> Array:
        """Values `[B]` alone."""
        value: Array = self.critic((self.critic_encoder or self.encoder)(obs))[:, 0]
        return value


def in_words(model: nn.Module, network: Any = None) -> str:
    """What a model with encoders reads and how many weights it has, "26 numbers, dense, 6,274 weights".

    `network` is the setting that it was made by.
    """
    found: dict[str, None] = {}
    ahead: list[nn.Module] = [model]
    while ahead:
        each = ahead.pop()
        if isinstance(each, Encoder) and each.reads:
            found[each.reads] = None
        else:
            ahead += reversed(list(each.children()))
    own = [] if network in (None, NATURE) else [f"network {name_of(network)}"]
    weights = sum(parameter.numel() for parameter in model.parameters())
    return ", ".join([*own, *found, f"{weights:,} weights" if weights < 100_000 else f"{weights / 1e6:.2g} M weights"])


#: The form of a user's network.
EXPECTED = (
    "a class, or 'module:Class', called with the observation space to make a torch.nn.Module from "
    "observations [B, ...] to [B, features], with an attribute `features`"
)


def custom_encoder(network: Any, space: gymnasium.Space[Any]) -> Encoder:
    """The network that a class, or the name of one, builds for observations of a space.

    It takes observations as tensors `[B, ...]`, a `Batch` of them for a Dict: bytes of images as bytes, numbers as
    they are. It is tested on observations of zeros, and left in eval mode.

    Raises:
        ConfigError: there is no such class, or its network does not fit.
    """
    name = name_of(network)
    made = (_named(network) if isinstance(network, str) else network)(space)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"network={name}: it made a {type(made).__name__}; expected {EXPECTED}")
    features = getattr(made, "features", None)
    if not isinstance(features, int) or features < 1:
        raise ConfigError(f"network={name}: its `features` are {features!r}, expected the width of its output")
    empty: Any = first_members(space, 2)
    zeros: Any = Batch(empty).to_torch() if isinstance(empty, Mapping) else torch.from_numpy(empty)
    try:
        with torch.no_grad():
            given = made.eval()(zeros)
    except Exception as error:
        error.add_note(f"while network={name} encoded two observations of zeros of {space}")
        raise
    shape = list(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
    if shape != [2, features]:
        raise ConfigError(
            f"network={name}: for two observations it gave {shape}, expected [2, {features}], as its `features` say"
        )
    return cast(Encoder, made)


def _named(name: str) -> Any:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"network={name!r}: expected {EXPECTED}")
    module = import_module(module_name, f"network={name!r}", EXPECTED)
    if (found := vars(module).get(attribute)) is None:
        there = [each for each, value in vars(module).items() if isinstance(value, type)]
        raise ConfigError(f"network={name!r}: {module_name} has no {attribute!r}; {closest(attribute, there)}")
    return found
