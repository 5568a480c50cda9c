"""Policies: several policies by name, saved, loaded and evaluated as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flowrl.errors import CheckpointError, ConfigError
from flowrl.networks.loading import check_numbers
from flowrl.policies.policy import Policy
from flowrl.policies.protocols import HasModel
from flowrl.saved import Saved, load_whole

AsOne = Callable[[Mapping[str, Policy]], Any]
"""What makes one acting policy of several by name."""


class Policies(Mapping[str, Policy]):
    """The policies of a game, by name. Each acts and learns alone; their weights and states are one.

    `as_one` is what they make together in an environment of one agent, with the spaces and modes of a `Policy`; None in
    a game between agents.

    >>> from gymnasium.spaces import Box, Discrete
    >>> from flowrl.policies import DQNPolicy, PPOPolicy
    >>> spaces = Box(0, 1, (2,)), Discrete(2)
    >>> both = Policies({"left": PPOPolicy(*spaces), "right": DQNPolicy(*spaces)})
    >>> list(both), both.version, sorted(both.weights())[0].partition("/")[0]
    (['left', 'right'], 0, 'left')
    """

    def __init__(self, policies: Mapping[str, Policy], as_one: AsOne | None = None) -> None:
        self._policies = dict(policies)
        self.as_one = None if as_one is None else as_one(self)

    def __getitem__(self, name: str) -> Policy:
        return self._policies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def __repr__(self) -> str:
        return f"Policies({', '.join(f'{name}: {policy!r}' for name, policy in self.items())})"

    @property
    def version(self) -> int:
        """The updates of all of them."""
        return sum(policy.version for policy in self.values())

    @property
    def stamp(self) -> tuple[Any, ...]:
        """A value that changes with any write to weights or statistics of one of them."""
        return tuple(policy.stamp for policy in self.values())

    def weights(self) -> dict[str, Any]:
        """A copy of the tensors that acting needs, by "policy/name"."""
        return {f"{of}/{name}": value for of, policy in self.items() for name, value in policy.weights().items()}

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load what `weights` returned. Raises: CheckpointError: weights of other policies, or not finite."""
        parts: dict[str, dict[str, Any]] = {}
        for key, value in weights.items():
            of, _, name = key.partition("/")
            parts.setdefault(of, {})[name] = value
        self._check_names(parts, "the weights")
        for of, policy in self.items():
            model = policy.model if isinstance(policy, HasModel) else None
            check_numbers(model, parts[of], f"the weights of policy {of!r}")
            policy.load_weights(parts[of])

    def export(self, path: str | Path) -> None:
        """Refused: a file holds one policy. Raises: ConfigError, naming the way out."""
        raise ConfigError(
            f"{path} would hold one policy, but there are {' and '.join(self)}: export one, with --policy "
            f"{next(iter(self))}, or flowrl.load(RUN).of({next(iter(self))!r}).policy.export({str(path)!r})"
        )

    def state_dict(self) -> dict[str, Any]:
        return {name: policy.state_dict() for name, policy in self.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the states of all of them, or of none (D7)."""
        saved = Saved(state, "the saved policies")
        self._check_names(saved.state, saved.what)
        load_whole(self._load, saved.state, self.state_dict(), saved.what)

    def _load(self, state: Mapping[str, Any]) -> None:
        for name, policy in self.items():
            policy.load_state_dict(state[name])

    def _check_names(self, found: Mapping[str, Any], what: str) -> None:
        if set(found) != set(self):
            raise CheckpointError(
                f"{what} are of the policies {', '.join(map(str, found))}, here they are {', '.join(self)}"
            )
