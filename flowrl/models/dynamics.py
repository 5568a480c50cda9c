"""Dynamics: an ensemble of probabilistic networks that learns what an environment does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.data.types import Array
from flowrl.errors import ConfigError, NotFinite
from flowrl.models.learned import LearnedModel
from flowrl.networks.clipping import blamed
from flowrl.networks.critics import ALL, Some, Stacked
from flowrl.networks.normalize import Normalizer
from flowrl.saved import Saved

#: Least share by which the error on held-out rows must fall to count as an improvement.
IMPROVEMENT = 0.01
#: Weight of the bounds of the log-variances in the loss.
BOUNDS = 0.01


class Dynamics(LearnedModel):
    """An ensemble of k networks that say which reward and observation follow an action, and whether the episode ends.

    For x = (s, a) and y = (r, s' − s), both normalized by the rows of the newest fit, member i gives a mean μᵢ, a
    log-variance ℓᵢ and the logit zᵢ of an end. With a cross entropy H,

        L = Σᵢ mean_B Σ_y [(y − μᵢ)² e^(−ℓᵢ) + ℓᵢ] / 2 + Σᵢ mean_B H(terminated, zᵢ) + 0.01 Σ (ℓ_max − ℓ_min)

    Two learned bounds limit ℓᵢ smoothly, since far from all data nothing else does. Members differ by their
    initialization and by the rows that they learn from, drawn with replacement. Those with the least error on held-out
    rows are the `elites`, which alone imagine.

    Args:
        members: k.
        elites: Number of elites.
        settings: See `LearnedModel`.

    State: also the elites.
    Raises: ConfigError for observations that are not a Box of floats, and for more elites than members.
    Source: Chua et al. 2018, "Deep Reinforcement Learning in a Handful of Trials using Probabilistic Dynamics Models",
        section 4 and appendix A.1; Janner et al. 2019, "When to Trust Your Model", which learns rewards too. Their
        environments have functions for the ends of episodes; here the networks learn them.
    """

    requires = ("obs", "action", "reward", "next_obs", "terminated")
    obs_limit: ClassVar[float] = 10.0
    model: nn.ModuleDict

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        members: int = 5,
        elites: int = 3,
        **settings: Any,
    ) -> None:
        if not isinstance(observation_space, spaces.Box) or not np.issubdtype(observation_space.dtype, np.floating):
            raise ConfigError(
                f"a model of the dynamics predicts observations that are a Box of floats, got {observation_space}: "
                "wrap the environment with gymnasium.wrappers.FlattenObservation, or take a plan without a model"
            )
        if not 1 <= elites <= members:
            raise ConfigError(f"elites is {elites}, expected 1 .. {members}, the members of the ensemble")
        self.members, self.num_elites = members, elites
        self.elites: list[int] = []  #: by error, the least first; none before the first fit
        super().__init__(observation_space, action_space, **settings)

    def _build(self) -> None:
        self.seen: Any = self._encoder()
        self.done = self._action_encoder()
        self.width = 1 + math.prod(self.observation_space.shape or ())
        sizes = [self.seen.features + self.done.features, *self.hidden, 2 * self.width + 1]
        self.layers = nn.ModuleList(Stacked(self.members, *pair) for pair in pairwise(sizes))
        self.outcome = Normalizer((self.width,), limit=math.inf)
        least, most = torch.full((self.width,), -10.0), torch.full((self.width,), 0.5)
        self.bounds = nn.ParameterDict({"least": nn.Parameter(least), "most": nn.Parameter(most)})
        self.model = nn.ModuleDict(
            {
                "seen": self.seen,
                "done": self.done,
                "layers": self.layers,
                "outcome": self.outcome,
                "bounds": self.bounds,
            }
        )

    # -- the networks

    def input(self, obs: Any, action: Any) -> torch.Tensor:
        """x, `[B, features]`."""
        return torch.cat([self.seen(obs), self.done(action)], 1)

    def outputs(self, x: torch.Tensor, only: Some = ALL) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """μ and ℓ `[k, B, 1 + numbers]`, reward first, and z `[k, B]`, from x `[k, B, features]` of `only` these."""
        hidden: list[Any] = list(self.layers)
        last = hidden.pop()
        for layer in hidden:
            x = nn.functional.silu(layer(x, only=only))
        mean, log_var, end = last(x, only=only).split([self.width, self.width, 1], 2)
        least, most = self.bounds["least"], self.bounds["most"]
        log_var = most - nn.functional.softplus(most - log_var)
        log_var = least + nn.functional.softplus(log_var - least)
        return mean, log_var, end[:, :, 0]

    def loss(self, *rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """L of `x [k, B, features]`, `y [k, B, 1 + numbers]` and `terminated [k, B]`: each member has its own rows."""
        (given,) = rows
        mean, log_var, end = self.outputs(given.x)
        likelihood = 0.5 * ((given.y - mean).square() * (-log_var).exp() + log_var).sum(2)
        ends = nn.functional.binary_cross_entropy_with_logits(end, given.terminated, reduction="none")
        loss = (likelihood + ends).mean(1).sum() + BOUNDS * (self.bounds["most"] - self.bounds["least"]).sum()
        return loss, {"model_loss": loss}

    def errors(self, rows: Batch) -> Array:
        """The error of each member on rows with `x`, `y` and `terminated`: mean (y − μ)² + mean H, `[k]`."""
        with torch.inference_mode():
            mean, _, end = self.outputs(rows.x.expand(self.members, *rows.x.shape))
            ends = nn.functional.binary_cross_entropy_with_logits(end, rows.terminated.expand_as(end), reduction="none")
            error: Array = ((rows.y - mean).square().mean((1, 2)) + ends.mean(1)).cpu().numpy()
        return error

    # -- what operators call

    def fit(
        self,
        batch: Batch,
        draw: np.random.Generator,
        *,
        holdout: float = 0.2,
        minibatch_size: int = 32,
        patience: int = 5,
        epochs: int = 100,
    ) -> tuple[int, dict[str, float]]:
        """Learn rows `[B, ...]`, from the weights as they are, until the members no longer improve.

        Each member keeps the weights after that epoch in which its error on the held-out rows was least.

        Args:
            batch: At least 2 rows.
            draw: Draws the rows to hold out, those of each member, and minibatches.
            holdout: Fraction of the rows that no member learns from; at most 5000.
            minibatch_size: Rows per optimizer step, of each member.
            patience: Epochs in which no member has improved by 1 % that end it.
            epochs: Most epochs.

        Returns: the optimizer steps, and scalars: model_loss (mean of the last epoch), model_error (mean error of the
            elites) and model_epochs.
        """
        rows = self._targets(self.rows(batch))
        order = draw.permutation(len(rows))
        held, learned = np.split(order, [min(5000, max(1, int(holdout * len(rows))))])
        mine = draw.choice(learned, (self.members, len(learned)))
        shown = rows[held]
        # Not what the old weights err: they may have learned these rows in an earlier fit.
        least, kept, steps, epoch, waited = np.full(self.members, np.inf), self._weights(), 0, 0, 0
        losses: list[float] = []
        while epoch < epochs and waited < patience:
            epoch, mine, losses = epoch + 1, draw.permuted(mine, axis=1), []
            for part in np.array_split(mine, math.ceil(len(learned) / minibatch_size), axis=1):
                losses.append(float(self.update(rows[part])["model_loss"]))
            steps += len(losses)
            errors = self.errors(shown)
            better = errors < (1 - IMPROVEMENT) * least
            least = np.where(better, errors, least)
            for best, now in zip(kept, self._weights()):
                best[better] = now[better]
            waited = 0 if better.any() else waited + 1
        with torch.no_grad():
            for layer, best in zip(self._stacked, kept):
                layer.copy_(best)
        self.elites = np.argsort(least, kind="stable")[: self.num_elites].tolist()
        error = float(least[self.elites].mean())
        return steps, {"model_loss": sum(losses) / len(losses), "model_error": error, "model_epochs": epoch}

    def imagine(self, obs: Array, action: Array, normal: Array, elite: Array) -> tuple[Array, Array, Array]:
        """Rewards `[B]`, next observations `[B, ...]` and ends `[B]` that may follow actions `[B, ...]`, float32.

        Args:
            normal: Normal numbers `[B, 1 + numbers]`.
            elite: The elite that imagines each row, `[B]`, numbers below that of elites.

        An episode ends where the member finds that likelier than not. Raises: NotFinite (X1).
        """
        given = Batch(obs=obs, action=action).to_torch(self.device)
        with torch.inference_mode():
            x = self.input(given.obs, given.action)
            only = torch.tensor(self.elites, device=self.device)
            mean, log_var, end = self.outputs(x.expand(len(only), *x.shape), only)
            at = torch.from_numpy(elite).to(self.device), torch.arange(len(obs), device=self.device)
            y = mean[at] + (0.5 * log_var[at]).exp() * torch.from_numpy(normal).to(self.device)
            outcome = (self.outcome.mean + self.outcome.std * y).cpu().numpy()
            ends: Array = (end[at] > 0).cpu().numpy()
        if not np.isfinite(outcome).all():
            raise blamed(NotFinite(f"{self!r} imagines numbers that are not finite"), Batch(obs=obs, action=action))
        following = obs + outcome[:, 1:].reshape(obs.shape)
        return outcome[:, 0].astype(np.float32), following.astype(np.float32), ends

    def _targets(self, rows: Batch) -> Batch:
        """`x`, `y` and `terminated` of rows, whose statistics normalize from now on."""
        count = len(rows)
        change = (rows.next_obs.double() - rows.obs.double()).reshape(count, -1)
        outcome = torch.cat([rows.reward.double()[:, None], change], 1)
        for normalizer, numbers, name in (
            (self.seen.normalizer, rows.obs, "obs"),
            (self.outcome, outcome, "reward and change of obs"),
        ):
            normalizer.count.zero_()
            normalizer.gather(numbers.reshape(count, -1).cpu().numpy(), name)
            normalizer.update()
        y = self.outcome(outcome)
        return Batch(x=self.input(rows.obs, rows.action), y=y, terminated=rows.terminated.float())

    @property
    def _stacked(self) -> Sequence[nn.Parameter]:
        """The weights of the members, `[k, ...]` each."""
        return list(self.layers.parameters())

    def _weights(self) -> list[torch.Tensor]:
        return [each.detach().clone() for each in self._stacked]

    # -- state

    def __repr__(self) -> str:
        return f"Dynamics(members={self.members}, elites={self.num_elites})"

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "elites": list(self.elites)}

    def _load(self, saved: Saved) -> None:
        elites = saved.get("elites", list[int])
        if elites and (len({*elites} & {*range(self.members)}) != len(elites) or len(elites) != self.num_elites):
            saved.refuse("elites", f"{self.num_elites} different members below {self.members}, or none")
        super()._load(saved)
        self.elites = list(elites)
