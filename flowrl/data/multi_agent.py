"""MultiAgentBatch: the experience of several policies in the same env steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from flowrl.data.batch import Batch
from flowrl.data.columns import MissingColumn
from flowrl.data.steps import joined, real_steps
from flowrl.errors import SchemaError, did_you_mean

#: The policy of a plain `Batch`.
DEFAULT_POLICY = "default_policy"


def _copied(batches: Mapping[str, Batch]) -> dict[str, Batch]:
    return dict(batches)


@attrs.frozen(repr=False)
class MultiAgentBatch:
    """A dict-like of batches by policy id, with the number of env steps that they come from.

    In one env step every agent that acts adds a row to the batch of its policy, so `rows`, the agent steps, may
    be more or fewer than `env_steps`. Selecting policies keeps `env_steps` (M3).

    Args:
        batches: The batches of those that have acted, by policy id.
        env_steps: The env steps in which they did.
        everyone: The ids of all policies, those that have not acted too; None: unknown.

    >>> import numpy as np
    >>> both = MultiAgentBatch({"cat": Batch(reward=np.ones(4)), "mouse": Batch(reward=np.ones(8))}, env_steps=4)
    >>> both
    MultiAgentBatch[4 env steps](cat=Batch[4](reward=float64[4]), mouse=Batch[8](reward=float64[8]))
    >>> both.rows, both.select(["cat"]).rows, both.select(["cat"]).env_steps
    (12, 4, 4)
    """

    batches: dict[str, Batch] = attrs.field(converter=_copied)
    env_steps: int = attrs.field(validator=attrs.validators.ge(0))
    everyone: frozenset[str] | None = attrs.field(default=None, eq=False)

    @property
    def rows(self) -> int:
        """Agent steps: the rows of all policies, without padding."""
        return sum(real_steps(batch) for batch in self.batches.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a row nor an env step."""
        return not self.env_steps and not self.rows

    def select(self, policy_ids: Iterable[str]) -> MultiAgentBatch:
        """The batches of these policies, if present, with all env steps (M3)."""
        named = list(policy_ids)
        everyone = None if self.everyone is None else self.everyone & set(named)
        return MultiAgentBatch({name: self[name] for name in named if name in self}, self.env_steps, everyone)

    def check_policy(self, policy_id: str) -> None:
        """Pass a policy that has not acted yet. Raises: SchemaError: all are known, and none has this name."""
        if self.everyone is not None and policy_id not in self.everyone:
            raise SchemaError(f"no policy {policy_id!r}: {did_you_mean(policy_id, sorted(self.everyone))}")

    def map(self, function: Any) -> MultiAgentBatch:
        """A new MultiAgentBatch of `function(batch)` for every policy."""
        return attrs.evolve(self, batches={name: function(batch) for name, batch in self.items()})

    @staticmethod
    def cat(batches: Sequence[MultiAgentBatch]) -> MultiAgentBatch:
        """Join: by policy, fragments side by side and rows one after another; env steps add up.

        A policy may be missing from some of them. Raises SchemaError if the columns of a policy differ.
        """
        if not batches:
            raise ValueError("MultiAgentBatch.cat of no batches: give at least one")
        parts: dict[str, list[Batch]] = {}
        for each in batches:
            for name, batch in each.items():
                parts.setdefault(name, []).append(batch)
        env_steps = sum(each.env_steps for each in batches)
        known = [each.everyone for each in batches if each.everyone is not None]
        everyone = frozenset[str]().union(*known) if len(known) == len(batches) else None
        return MultiAgentBatch({name: joined(of) for name, of in parts.items()}, env_steps, everyone)

    # -- as a dict of batches

    def __getitem__(self, policy_id: str) -> Batch:
        try:
            return self.batches[policy_id]
        except KeyError:
            raise MissingColumn(f"no experience of policy {policy_id!r}: {did_you_mean(policy_id, self)}") from None

    def __contains__(self, policy_id: object) -> bool:
        return policy_id in self.batches

    def __iter__(self) -> Iterator[str]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    def keys(self) -> Iterable[str]:
        """The policy ids."""
        return self.batches.keys()

    def values(self) -> Iterable[Batch]:
        """The batches."""
        return self.batches.values()

    def items(self) -> Iterable[tuple[str, Batch]]:
        """Policy ids and batches."""
        return self.batches.items()

    def get(self, policy_id: str, default: Any = None) -> Any:
        """The batch of a policy, or the default if there is none."""
        return self.batches.get(policy_id, default)

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={batch!r}" for name, batch in self.items())
        return f"MultiAgentBatch[{self.env_steps} env steps]({inner})"


def side_by_side(batches: Sequence[Batch | MultiAgentBatch]) -> Any:
    """Join the experience of several workers: fragments along their environments, rows one after the other."""
    if isinstance(batches[0], MultiAgentBatch):
        return MultiAgentBatch.cat(batches)  # type: ignore[arg-type]  # workers of one set give the same kind
    return joined(batches)  # type: ignore[arg-type]
