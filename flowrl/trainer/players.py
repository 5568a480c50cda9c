"""Players of games by name: saved policies, and those that need no run."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

import attrs

from flowrl.envs.spaces import are_alike, dict_form
from flowrl.errors import ConfigError

#: Players without a run, by name.
SCRIPTED = {
    "random": "flowrl.policies.scripted:RandomPolicy",
    "one_ply": "flowrl.policies.line_players:OnePly",
    "mcts": "flowrl.policies.line_players:MCTS",
    "perfect": "flowrl.policies.line_players:Perfect",
}


def scripted(name: str) -> Any:
    """The class of a player of `SCRIPTED`; None if it is none, or if there is a file of that name."""
    return pkgutil.resolve_name(SCRIPTED[name]) if name in SCRIPTED and not Path(name).exists() else None


@attrs.frozen
class OpponentFromRun:
    """A factory of the policy of one player, for any process, which loads it from its file.

    Args:
        name: A run, a checkpoint or a policy file, maybe with :NAME, or a name of `SCRIPTED`. Of a league without a
            name it is the first learner.

    Raises, when it is called: ConfigError, CheckpointError: see `flowrl.load`; ConfigError: several policies, or other
        spaces.
    """

    name: str

    def __call__(self, observation_space: Any, action_space: Any) -> Any:
        from flowrl.policies import Policies
        from flowrl.trainer.loading import load

        if (make := scripted(self.name)) is not None:
            return make(observation_space, action_space)
        policy = load(self.name).alone.policy
        if isinstance(policy, Policies):
            first = next(iter(policy))
            raise ConfigError(
                f"opponent {self.name!r} has several policies, {', '.join(policy)}: name one, {self.name}:{first}"
            )
        own_spaces = policy.observation_space, policy.action_space
        for role, own, theirs in zip(("observation", "action"), own_spaces, (observation_space, action_space)):
            if not are_alike(dict_form(own), dict_form(theirs)):
                raise ConfigError(f"opponent {self.name!r} has the {role} space {own}, but the game has {theirs}")
        return policy
