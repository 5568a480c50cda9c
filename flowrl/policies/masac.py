"""MASAC: soft actor-critic of a team, whose critics see the state and the actions of all."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.data.columns import STATE
from flowrl.networks.critics import Critics
from flowrl.networks.masks import action_mask
from flowrl.networks.networks import one_hot, part_encoder, without
from flowrl.policies.qmix import TeamState, check_joint, team_size
from flowrl.policies.sac import DiscreteSACLearning, SACPolicy, Scalars, SoftActorAndCritics


class MASACPolicy(SACPolicy):
    """Soft actor-critic of a team that one actor plays, seat by seat: see `SACPolicy`.

    An agent acts by its own observation. Critics, which only learning needs, judge its action by the state of the game
    and the actions of the others. It learns from rows of the team, see `JoinTeam`. Observations have an entry `agent`,
    and may have an entry `state`; without it critics read the observations of all: see the wrappers of games `AgentId`
    and `GlobalState`.

    Raises:
        ConfigError: observations that do not say who sees them; see `SACPolicy` too.
    """

    model: SoftActorAndCritics

    @property
    def actor_space(self) -> gymnasium.Space[Any]:
        """See `Policy.actor_space`: without the state."""
        assert isinstance(self.observation_space, spaces.Dict)
        return without(self.observation_space, STATE)

    def _network(self) -> SoftActorAndCritics:
        space, given, choosing = self.observation_space, self.settings, self.choosing
        self.agents = team_size(space)
        assert isinstance(space, spaces.Dict)
        self.width = choosing.outputs if self.discrete else choosing.outputs // 2
        state = TeamState(space, self.agents, normalize=self.normalize_obs)
        outputs = choosing.outputs if self.discrete else 1
        critics = Critics(state, self.agents * (1 + self.width), outputs, given.hidden, self.critics)
        seen = part_encoder(self.actor_space, space, normalize=self.normalize_obs, network=given.network)
        model = SoftActorAndCritics(critics, choosing.outputs, given.hidden, given.temperature, seen)
        model.log_temperature.requires_grad_(given.learn_temperature)
        return model

    def _learning(self) -> MASACLearning:
        return MASACLearning(self)


class MASACLearning(DiscreteSACLearning):
    """The loss of `SACLearning`, or of `DiscreteSACLearning`, for each agent i, with critics Qₖ(s, i, a₁ .. a_A).

    Rewards are the team's, the entropy is the agent's own. In the critics' errors actions are those of the row; in
    targets and in the actor's loss all agents act by their present policies, and gradients go to agent i by its own
    action alone. Of discrete actions, critics read those of the others and value every one of the agent's own, so that
    expectations over these are exact, without the bias of a relaxation such as Gumbel-softmax.

    Source: Iqbal & Sha 2019, "Actor-Attention-Critic for Multi-Agent Reinforcement Learning", eqs. 7 and 8, with plain
    layers in place of attention; Lowe et al. 2017, "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive
    Environments", section 4.1, of critics that see all.
    """

    policy: MASACPolicy
    compiles = True
    requires = ("team", *DiscreteSACLearning.requires)

    def prepare(self, batch: Batch) -> Batch:
        """See `QActorCriticLearning.prepare`. Raises: SchemaError unless rows are those of the whole team."""
        shape = () if self.policy.discrete else self.policy.action_space.shape or ()
        return check_joint(super().prepare(batch), self.policy.agents, shape)

    def over_minibatch(self, rows: Batch) -> Batch:
        """Add the `noise` and `next_noise [B, A · width]` that sample the actions of all."""
        size = self.policy.agents * self.policy.width
        return rows.replace(noise=self.normal(rows, size), next_noise=self.normal(rows, size))

    def loss(self, rows: Batch) -> tuple[torch.Tensor, Scalars]:
        """See `Learning.loss`."""
        policy, model = self.policy, self.policy.model
        alpha, agents = model.log_temperature.detach().exp(), policy.agents
        with torch.no_grad():
            value_t = self._soft_values(rows.next_obs, rows.next_noise, policy.target, alpha)[0]
        taken = self._as_numbers(rows.action)
        q = self._judged(model.critics, rows.obs, taken)
        if policy.discrete:
            q = (q * taken.reshape(-1, policy.width)).sum(2)
        soft, entropy = self._soft_values(rows.obs, rows.noise, model.critics, alpha, frozen=True)
        wanted = self.wanted(action_mask(rows.obs.flat())) if policy.discrete else policy.entropy
        names = [name for name in ("reward", "discount", "weight") if name in rows]
        each = Batch({name: rows[name].repeat_interleave(agents) for name in names})
        loss, scalars = self.with_temperature(each, q, value_t, -soft, entropy, wanted)
        if "priority" in scalars:
            scalars["priority"] = scalars["priority"].reshape(-1, agents).mean(1)
        return loss, scalars

    def _soft_values(
        self, obs: Any, noise: torch.Tensor, critics: Critics, alpha: torch.Tensor, frozen: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each agent in `obs [B, A, ...]` its expected soft value and its entropy, or samples of them, `[B · A]`."""
        policy, choosing = self.policy, self.policy.choosing
        given = policy.model(obs.flat())
        noise = noise.reshape(len(given), -1)
        if not policy.discrete:
            action, logp = choosing.sample(given, noise)  # type: ignore[attr-defined]
            values = self._judged(critics, obs, action.reshape(-1, policy.agents, policy.width), frozen).amin(0)
            return values - alpha * logp, -logp
        logp = torch.log_softmax(given, 1)
        gumbel = -(-torch.special.log_ndtr(noise)).log()  # of noise that is normal: argmax draws from the policy
        drawn = one_hot((logp + gumbel).argmax(1), policy.width)
        values = self._judged(critics, obs, drawn.reshape(-1, policy.agents, policy.width), frozen).amin(0)
        probability = logp.exp()
        entropy = -(probability * logp).sum(1)
        return (probability * values).sum(1) + alpha * entropy, entropy

    def _judged(self, critics: Critics, obs: Any, action: torch.Tensor, frozen: bool = False) -> torch.Tensor:
        """Values `[k, B · A]` of all agents' actions `[B, A, width]`, or `[k, B · A, n]` of every discrete one.

        With `frozen`, gradients flow to each agent's own action alone.
        """
        agents, features = self.policy.agents, critics.encoder(obs)
        own = torch.eye(agents, device=action.device)[None, :, :, None]  # of [B, judged agent, acting agent, width]
        everyone = action[:, None].expand(-1, agents, -1, -1)
        if self.policy.discrete:
            everyone = everyone * (1 - own)
        elif frozen:
            everyone = everyone * own + everyone.detach() * (1 - own)
        who = own.squeeze(3).expand(len(action), -1, -1)
        joint = torch.cat([who, everyone.flatten(2)], 2).flatten(0, 1)
        features = features.detach() if frozen else features
        return critics(features.repeat_interleave(agents, 0), joint, frozen=frozen)  # type: ignore[no-any-return]

    def _as_numbers(self, action: torch.Tensor) -> torch.Tensor:
        """Actions `[B, A, ...]` as the critics read them, `[B, A, width]`."""
        if self.policy.discrete:
            return one_hot(action.long(), self.policy.width)
        return action.reshape(len(action), self.policy.agents, self.policy.width)
