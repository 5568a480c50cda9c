"""REDQ and DroQ: SAC that learns many times from each env step, with an ensemble of critics or with dropout."""

from __future__ import annotations

from typing import Any

import attrs
import gymnasium
import torch
from attrs import validators

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.critics import Critics
from flowrl.networks.distributions import ActionHead, SquashedChoice
from flowrl.policies.sac import DelaySettings, SACLearning, SACPolicy
from flowrl.settings import positive, setting

Scalars = dict[str, torch.Tensor]


class REDQPolicy(SACPolicy):
    """A `SACPolicy` for continuous actions whose targets take the minimum of few of many critics; see `REDQLearning`.

    Raises:
        ConfigError: more critics in a target than there are; see `SACPolicy` too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(DelaySettings, SACPolicy.Settings):
        """The settings of `SACPolicy`, and what makes many updates per env step safe."""

        target_critics: int = positive(
            2, "critics, drawn anew in every update, whose minimum is the target", most=1_000
        )
        policy_delay: int = 20
        dropout: float = setting(
            0.0,
            "share of the critics' hidden units that an update drops (DroQ)",
            range="0 .. 1, below it",
            validator=validators.and_(validators.ge(0), validators.lt(1)),
        )
        layer_norm: bool = setting(False, "normalize the critics' hidden layers (DroQ)")

    settings: Settings

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        critics: int = 10,
        **settings: Any,
    ) -> None:
        super().__init__(observation_space, action_space, critics=critics, **settings)

    def _choosing(self) -> ActionHead:
        given = self.settings
        if given.target_critics > self.critics:
            raise ConfigError(
                f"target_critics={given.target_critics} of critics={self.critics}: expected at most all of them"
            )
        return SquashedChoice(self.action_space, "REDQ")

    def _critics(self, size: int, outputs: int = 1, **how: Any) -> Critics:
        given = self.settings
        return super()._critics(size, outputs, dropout=given.dropout, layer_norm=given.layer_norm)

    def _learning(self) -> SACLearning:
        return REDQLearning(self)


class REDQLearning(SACLearning):
    """The loss of `SACLearning`, with the minimum in a target over few critics, and the actor's over the mean of all.

    y = r + d (min_{k in M} Q'ₖ(s_t, a') − α log π(a' | s_t)), M of `target_critics` critics, drawn for the minibatch.

    Source: Chen et al. 2021, "Randomized Ensembled Double Q-Learning: Learning Fast Without a Model", algorithm 1; with
    two critics, `dropout` and `layer_norm`: Hiraoka et al. 2022, "Dropout Q-Functions for Doubly Efficient
    Reinforcement Learning", algorithm 2.
    """

    policy: REDQPolicy
    compiles = True

    def over_minibatch(self, rows: Batch) -> Batch:
        """Add also `judges [B, target_critics]`, the same for all rows: the critics in their targets."""
        rows, policy = super().over_minibatch(rows), self.policy
        drawn = torch.from_numpy(policy.stream.normal((policy.critics,)))
        judges = drawn.argsort()[: policy.settings.target_critics].to(policy.device)
        return rows.replace(judges=judges.expand(rows.rows, -1))

    def loss(self, rows: Batch) -> tuple[torch.Tensor, Scalars]:
        """See `Learning.loss`."""
        if not self.policy.settings.dropout:
            return super().loss(rows)
        with self.policy.stream.swapped_in():
            return super().loss(rows)

    def next_value(self, rows: Batch, action: torch.Tensor) -> torch.Tensor:
        """See `SACLearning.next_value`."""
        target = self.policy.target
        return target(target.encoder(rows.next_obs), action, only=rows.judges[0]).amin(0)  # type: ignore[no-any-return]

    def actor_value(self, values: torch.Tensor) -> torch.Tensor:
        """See `SACLearning.actor_value`."""
        return values.mean(0)
