"""Running statistics that are part of a policy's weights, and observations normalized by them (rules O1, O2)."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import torch
from torch import nn

from flowrl.errors import SchemaError
from flowrl.networks.in_numpy import Function
from flowrl.networks.sampling import Array
from flowrl.saved import Saved

#: Default bound: normalized observations lie within ± this.
LIMIT = 10.0
#: Added to variances.
EPS = 1e-8


@attrs.frozen(eq=False)
class Moments:
    """Count of rows `[B, ...]`, and their mean and population variance `[...]`, float64.

    >>> halves = Moments.of(np.array([1.0, 2.0])), Moments.of(np.array([3.0]))
    >>> Moments.of(np.array([1.0, 2.0, 3.0])), halves[0].merged(halves[1])
    (Moments(count=3, mean=2.0, var=0.667), Moments(count=3, mean=2.0, var=0.667))
    """

    count: int
    mean: Array
    var: Array

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Moments:
        """The moments of no rows."""
        return cls(0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, rows: Array) -> Moments:
        """The moments of rows, computed relative to the first: a large mean costs no digits, equal rows vary by 0."""
        if not len(rows):
            return cls.none(rows.shape[1:])
        first = rows[0].astype(np.float64)
        beyond = rows.astype(np.float64) - first
        return cls(len(rows), first + beyond.mean(0), beyond.var(0))

    def merged(self, other: Moments) -> Moments:
        """The moments of the rows of both, in any order (O2).

        n = a + b, δ = μ_b − μ_a, μ = μ_a + δ b/n, σ² = (a σ²_a + b σ²_b + δ² a b/n) / n.

        Source: Chan, Golub & LeVeque 1983, "Algorithms for Computing the Sample Variance", eq. 2.1.
        """
        if not self.count or not other.count:
            return self if self.count else other
        count, delta = self.count + other.count, other.mean - self.mean
        share = other.count / count
        within = (1 - share) * self.var + share * other.var
        return Moments(count, self.mean + delta * share, within + delta**2 * share * (1 - share))

    def __repr__(self) -> str:
        return f"Moments(count={self.count}, mean={np.round(self.mean, 3)}, var={np.round(self.var, 3)})"


class Normalizer(nn.Module):
    """Normalizes numbers `[B, *shape]` to clip((x − μ) / σ, ± limit) as float32, where σ² = variance + 10⁻⁸.

    Before the first update μ = 0 and σ = 1; σ = 1 too while all rows were equal, since their spread is unknown.

    The statistics in use are buffers, so they are saved, copied and sent with the weights. `gather` collects rows
    that wait; `update` applies them. In between, acting and learning see the same numbers (O1). The operators
    `GatherStatistics` and `UpdateStatistics` call both for every normalizer in a policy's model.

    Args:
        shape: The shape of a row.
        path: The keys that lead to the numbers in a dictionary observation.
        limit: Largest magnitude of the output.
    """

    count: torch.Tensor
    mean: torch.Tensor
    var: torch.Tensor
    std: torch.Tensor

    def __init__(self, shape: tuple[int, ...] = (), path: tuple[str, ...] = (), limit: float = LIMIT) -> None:
        super().__init__()
        self.shape, self.path, self.limit = shape, path, limit
        for name, fill in {"count": torch.zeros(()), "mean": torch.zeros(shape), "var": torch.ones(shape)}.items():
            self.register_buffer(name, fill.double())
        self.register_buffer("std", torch.ones(shape, dtype=torch.float64))
        self.waiting = Moments.none(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = x.to(self.mean.dtype)  # torch subtracts nothing from a bool
        return ((numbers - self.mean) / self.std).clamp(-self.limit, self.limit).float()

    def in_numpy(self) -> Function:
        mean, std = self.mean.numpy(), self.std.numpy()
        return lambda x: ((x - mean) / std).clip(-self.limit, self.limit).astype(np.float32)

    def gather(self, rows: Array, name: str) -> None:
        """Add rows `[B, ...]` of this name to the waiting statistics.

        Raises:
            SchemaError: a number in them is not finite, or too large to square.
        """
        with np.errstate(invalid="ignore", over="ignore"):  # the check below rejects the result
            gathered = self.waiting.merged(Moments.of(rows.reshape(len(rows), *self.shape)))
        if not np.isfinite(gathered.var).all():
            raise SchemaError(
                f"{name} has no mean and variance: not all of its numbers are finite (number "
                f"{np.flatnonzero(~np.isfinite(gathered.var))[0]} of a row is not): clip them in a wrapper of the "
                "environment, or do not normalize"
            )
        self.waiting = gathered

    def update(self) -> None:
        """Apply the waiting statistics."""
        in_use = Moments(int(self.count), self.mean.cpu().numpy(), self.var.cpu().numpy())
        merged, self.waiting = in_use.merged(self.waiting), Moments.none(self.shape)
        if merged.count:
            self.count.fill_(merged.count)
            self.mean.copy_(torch.as_tensor(merged.mean))
            self.var.copy_(torch.as_tensor(merged.var))
            self.std.copy_(torch.where(self.var > 0, self.var + EPS, 1.0).sqrt())

    def waiting_state(self) -> dict[str, Any]:
        """The waiting statistics; the rest is in the weights."""
        return attrs.asdict(self.waiting)

    def load_waiting_state(self, state: dict[str, Any]) -> None:
        """Restore the waiting statistics. Raises: CheckpointError."""
        saved = Saved(state, "the saved statistics")
        mean, var = (saved.array(name, np.float64, self.shape) for name in ("mean", "var"))
        if not (np.isfinite(mean).all() and np.isfinite(var).all() and (var >= 0).all()):
            saved.refuse("var", "a finite mean, and a variance of at least 0")
        self.waiting = Moments(saved.count("count"), mean, var)
