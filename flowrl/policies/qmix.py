"""QMIX and VDN: Q-learning of a team, whose value a mixer makes of its agents' values."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs
import gymnasium
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.data.columns import AGENT, STATE
from flowrl.errors import ConfigError, SchemaError
from flowrl.networks.heads import SquaredHead
from flowrl.networks.masks import action_mask
from flowrl.networks.networks import Encoder, QNetwork, encoder, without
from flowrl.policies.dqn import DoubleQSettings, DQNLearning, DQNPolicy, of_action, of_best, q_learning_loss
from flowrl.settings import positive, setting

Mixer = Literal["sum", "monotonic"]


class SumMixer(nn.Module):
    """Q_tot = Σ_a Q_a: what the team wins is the sum of what each agent can tell from its own observations.

    Source: Sunehag et al. 2018, "Value-Decomposition Networks For Cooperative Multi-Agent Learning", eq. 3.
    """

    def forward(self, q: torch.Tensor, obs: Batch) -> torch.Tensor:
        """`q [B, A]`, one of each agent, to `[B]`."""
        return q.sum(1)


class MonotonicMixer(nn.Module):
    """Q_tot = |w₂(s)| · elu(|W₁(s)| q + b₁(s)) + V(s): no agent's value can grow without that of the team (Q10).

    So the best action of each agent is its part of the best joint action. Networks of the state s give the weights;
    they are linear, but for V, which has a hidden layer of `width` ReLUs.

    Args:
        encoding: Of the state: see `TeamState`.
        agents: Their number.
        width: Units of the mixing layer.

    Source: Rashid et al. 2018, "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement
    Learning", section 4.
    """

    def __init__(self, encoding: TeamState, agents: int, width: int) -> None:
        super().__init__()
        features = encoding.features
        self.encoding, self.width = encoding, width
        self.first, self.first_bias = nn.Linear(features, agents * width), nn.Linear(features, width)
        self.last = nn.Linear(features, width)
        self.value = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, q: torch.Tensor, obs: Batch) -> torch.Tensor:
        """`q [B, A]`, one of each agent, in the state that `obs [B, A, ...]` tell, to `[B]`."""
        state = self.encoding(obs)
        weights = self.first(state).abs().reshape(*q.shape, self.width)
        hidden = nn.functional.elu((q[:, :, None] * weights).sum(1) + self.first_bias(state))
        mixed: torch.Tensor = (hidden * self.last(state).abs()).sum(1) + self.value(state)[:, 0]
        return mixed.float()  # whatever precision the layers use


class TeamState(Encoder):
    """The features `[B, features]` of the state of a game: its entry `state`, else all agents' observations in a row.

    Args:
        space: Observations of an agent, a Dict.
        agents: Their number.
        normalize: See `flowrl.networks.networks.encoder`.
    """

    def __init__(self, space: spaces.Dict, agents: int, *, normalize: bool) -> None:
        super().__init__()
        self.known = STATE in space.spaces
        part = space.spaces[STATE] if self.known else without(space, AGENT)
        self.encoder = encoder(part, normalize=normalize, path=(STATE,) if self.known else ())
        self.features = self.encoder.features * (1 if self.known else agents)

    def forward(self, obs: Batch) -> torch.Tensor:
        if self.known:
            return self.encoder(obs[STATE][:, 0])  # type: ignore[no-any-return]  # the same for all agents
        return self.encoder(obs.flat()).reshape(len(obs), -1)  # type: ignore[no-any-return]


def team_size(space: gymnasium.Space[Any]) -> int:
    """The number of agents of a team. Raises: ConfigError for observations that do not say who sees them."""
    who = space.spaces.get(AGENT) if isinstance(space, spaces.Dict) else None
    if isinstance(who, spaces.Discrete):
        return int(who.n)
    raise ConfigError(
        f"a team's observations need an entry 'agent', but they are {space}: take a game of several agents in "
        "the wrapper AgentId, wrappers=['AgentId', 'GlobalState']"
    )


def check_joint(rows: Batch, agents: int, shape: tuple[int, ...] = ()) -> Batch:
    """The rows. Raises: SchemaError unless their actions, each of this shape, are those of all agents of the team."""
    if rows["action"].shape[1:] != (agents, *shape):
        expected = ", ".join(map(str, ("B", agents, *shape)))
        raise SchemaError(
            f"a team of {agents} agents learns from actions [{expected}], got {list(rows['action'].shape)}: join the "
            "rows of agents with JoinTeam(workers.game_agents)"
        )
    return rows


@attrs.frozen(kw_only=True, slots=False)
class TeamSettings(DoubleQSettings):
    """Q-learning of a team."""

    mixer: Mixer = setting("monotonic", "how the team's value follows from its agents': monotonic (QMIX) or sum (VDN)")
    mixer_width: int = positive(32, "units of the monotonic mixer")


class QMIXPolicy(DQNPolicy):
    """Q-learning of a team that one network plays, seat by seat: see `DQNPolicy`.

    It acts as DQN does, by each agent's values of its own observation. It learns from rows of the team, see `JoinTeam`.
    Observations have an entry `agent`, and may have an entry `state`, which acting leaves out: see the wrappers of
    games `AgentId` and `GlobalState`.

    Raises:
        ConfigError: a `head`, which it does not support; observations that do not say who sees them; see `DQNPolicy`
            too.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(TeamSettings, DQNPolicy.Settings):
        """The settings of Q-learning, and the mixer."""

    settings: Settings
    model: Any  #: a `QNetwork` with a `mixer`, as is the target network
    target: Any

    def __init__(self, *spaces: Any, **settings: Any) -> None:
        for name in ("head", "munchausen"):
            if settings.get(name):
                raise ConfigError(f"{name}={settings[name]!r}: a team mixes the plain means of its agents' values")
        super().__init__(*spaces, **{"algorithm": "QMIX", **settings, "head": SquaredHead()})

    def _network(self, space: gymnasium.Space[Any]) -> QNetwork:
        self.agents, given = team_size(space), self.settings
        assert isinstance(space, spaces.Dict)
        network = super()._network(without(space, STATE))
        encoding = TeamState(space, self.agents, normalize=self.normalize_obs)
        monotonic = given.mixer == "monotonic"
        network.mixer = MonotonicMixer(encoding, self.agents, given.mixer_width) if monotonic else SumMixer()
        return network

    @property
    def actor_space(self) -> gymnasium.Space[Any]:
        """See `Policy.actor_space`: without the state."""
        assert isinstance(self.observation_space, spaces.Dict)
        return without(self.observation_space, STATE)

    def _build(self) -> None:
        super()._build()
        self.learn_mode = TeamLearning(self)


class TeamLearning(DQNLearning):
    """The squared error of a team's value, y = r + d · Q_tot,target(s', (argmax_u Q_a(s'_a, u))_a), as in both papers.

    A mixer may be unable to represent all values of a team, and what it makes of them depends on the loss.

    Each agent's best action is that of its own values (Q1); both networks have a mixer of their own.

    Source: Rashid et al. 2018, eq. 6; Sunehag et al. 2018, section 3.
    """

    policy: QMIXPolicy
    compiles = True
    requires: ClassVar[dict[str, str]] = {
        "team": "a team learns from what its agents do together: join their rows with JoinTeam(workers.game_agents)",
        **dict.fromkeys(DQNLearning.requires, ""),
    }

    def prepare(self, batch: Batch) -> Batch:
        """See `DQNLearning.prepare`. Raises: SchemaError unless rows are those of the whole team."""
        return check_joint(super().prepare(batch), self.policy.agents)

    @torch.no_grad()
    def target(self, rows: Batch) -> torch.Tensor:
        """Targets `[B]` of the team's value."""
        policy, obs_t = self.policy, rows.next_obs.flat()
        outputs_t = policy.target(obs_t, policy.noise())
        q_t = policy.model(obs_t, policy.noise()) if policy.settings.double else outputs_t
        best = of_best(outputs_t, q_t, action_mask(obs_t)).reshape(-1, policy.agents)
        target: torch.Tensor = rows.reward.float() + rows.discount * policy.target.mixer(best, rows.next_obs)
        return target

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """See the class."""
        policy, target = self.policy, self.target(rows)
        q = of_action(policy.model(rows.obs.flat(), policy.noise()), rows.action.reshape(-1).long())
        mixed = policy.model.mixer(q.reshape(rows.action.shape), rows.obs)
        return q_learning_loss(policy.model.head, mixed, target, rows.get("weight"))
