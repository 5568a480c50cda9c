"""A trained policy in use: acting and evaluating."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
import gymnasium
import numpy as np
import torch

from flowrl.data import Batch
from flowrl.engine.seeds import SeedTree
from flowrl.envs.hybrid import HybridActions
from flowrl.envs.masks import without_choice
from flowrl.envs.spaces import first_members, keyed
from flowrl.errors import ConfigError, PlanError, SchemaError
from flowrl.networks.devices import torch_threads
from flowrl.networks.masks import action_mask
from flowrl.policies.policies import Policies
from flowrl.policies.policy import Policy
from flowrl.policies.protocols import HearsRewards
from flowrl.rollout import Scores, evaluate, scores
from flowrl.rollout.acting import initial_states
from flowrl.rollout.game_workers import GameWorkers
from flowrl.rollout.policy_map import Agents, policy_map

if TYPE_CHECKING:
    from flowrl.envs import Environments
    from flowrl.rollout import Workers
    from flowrl.runs.config import Configuration


class TrainedPolicy:
    """A policy: `act`, and `evaluate` in the environment of its training.

    Attributes:
        policy: Its model is `policy.model`. Of several a `flowrl.policies.Policies`, which `of` gives apart.
        source: The file or checkpoint that it was loaded from; None: a Trainer's.
        config: Configuration of the training.
        env_steps: Point of exploration schedules for stochastic actions.
    """

    def __init__(
        self,
        workers: Workers,
        config: Configuration,
        *,
        env_steps: int = 0,
        source: Path | None = None,
        allow: Callable[[], None] | None = None,
    ) -> None:
        self.policy: Any = workers.policy
        self.source, self._allow = source, allow
        self.config, self.env_steps, self._workers = config, env_steps, workers
        self._noise = SeedTree(config.seed).generator("act")

    def __repr__(self) -> str:
        of = self.config.env if self.source is None else f"{self.config.env}, {self.source}"
        return f"TrainedPolicy({self.policy!r} of {of})"

    @property
    def environments(self) -> Environments:
        """The environments of its training. Raises: ConfigError for code that is not trusted, see `flowrl.load`."""
        if self._allow is not None:
            self._allow()
        return self._workers.environments

    @property
    def evaluation_env(self) -> Environments:
        """The environments of its evaluation. Raises: as `environments`; or their spaces are others."""
        if self._allow is not None:
            self._allow()
            self._workers.check_evaluation("training")
            self._allow = None
        return self._workers.evaluation_env

    @property
    def alone(self) -> TrainedPolicy:
        """Of a league its first learner, which plays all agents by itself; else this."""
        lead = self._workers.lead if isinstance(self._workers, GameWorkers) else None
        return self if lead is None else self.of(lead)

    def of(self, policy: str) -> TrainedPolicy:
        """One of several policies, by name, to `act`; one of a league to `evaluate` too.

        Raises: ConfigError: there is none of this name.
        """
        if not isinstance(self._workers, GameWorkers):
            raise ConfigError(f"of({policy!r}): {self!r} is one policy")
        return TrainedPolicy(
            self._workers.of(policy), self.config, env_steps=self.env_steps, source=self.source, allow=self._allow
        )

    @property
    def agents(self) -> Agents | None:
        """Which of several policies plays which agent; None of one policy."""
        return self._workers.agents

    @property
    def players(self) -> Policy | dict[str, Policy]:
        """The policy, or of several that of each agent of the game: a player of `flowrl.rollout.payoffs`.

        Of a league it is the first learner.

        Raises: ConfigError: a function of the match chooses one of several policies for each agent.
        """
        if not isinstance(self.policy, Policies) or self.alone is not self:
            return cast("Policy", self.alone.policy)
        if callable(self.agents):
            names = ", ".join(self.policy)
            raise ConfigError(
                f"{self!r}: agents is a function of the match, so {names} are no player together: take one of them, "
                f"flowrl.load(RUN).of({next(iter(self.policy))!r}).policy"
            )
        seating = self.evaluation_env.look(self.config.grouping[1]).seating
        who = policy_map(self.evaluation_env, seating, tuple(self.policy), self._workers.agents)
        assert who is not None, "several policies play a game"
        return {agent: self.policy[name] for name in self.policy for agent in who.agents_of(name)}

    def act(
        self, obs: Any, deterministic: bool = True, *, state: Any = None, episode_start: Any = None, reward: Any = None
    ) -> Any:
        """Return an action for `env.step`, in the action space's dtype; a recurrent policy returns (action, state).

        So does a hierarchy, whose state has the goal too.

        Pass that state along with the next observation: `action, state = act(obs, state=state)`.

        Args:
            obs: One observation, or a batch `[N, ...]` for actions `[N, ...]`; for a Dict space a mapping, or a list
                of mappings; for a Tuple space a tuple, or a list of tuples. What only learning reads, such as the
                state of a whole game, may be left out.
            deterministic: Use the eval mode; else the collect mode, with noise from a separate stream.
            state: Returned with the previous action; None at the start of all episodes.
            episode_start: Whether an episode begins with this observation, bool or `[N]`; its state is reset.
            reward: What the previous action got, a number or `[N]`, for policies that hear it, as those of
                `decision_transformer`, and only with their state.

        Raises:
            SchemaError: the observation does not fit the observation space, its action mask leaves no action, or the
                state does not fit the observations, or a policy that hears rewards gets none.
        """
        policy = self.policy.as_one if isinstance(self.policy, Policies) else self.policy
        if policy is None:
            raise ConfigError(
                f"act: there are the policies {', '.join(self.policy)}: say which acts, .of(NAME).act(obs)"
            )
        space: Any = policy.observation_space
        alone = _of_tuple(space) and isinstance(space[str(len(space) - 1)], gymnasium.spaces.Dict)
        if isinstance(obs, tuple) and len(obs) > 1 and isinstance(obs[-1], Mapping) and not alone:
            call = "env.reset(), (observation, info)" if len(obs) == 2 else "env.step(...)"
            raise SchemaError(f"act needs the observation alone, the first element of {call}")
        acted_on = policy.actor_space if isinstance(policy, Policy) else space
        rows, count = _rows(_acted_on(obs, space, acted_on), acted_on)
        if not deterministic and space is not acted_on:  # drawing gives a value too, which nobody reads
            rest: Any = first_members(space, count or 1)
            rows = Batch({**rest, **rows})
        mask = action_mask(rows)
        if mask is not None and (stuck := without_choice(mask, policy.action_space)).size:
            raise SchemaError(f"the action_mask leaves no valid action in observation {stuck[0]}: the episode is over")
        mode = policy.eval_mode if deterministic else policy.collect_mode
        states = self._remembered(mode, count, state, episode_start, reward)
        columns = mode.act(rows, self._noise.random((count or 1, mode.draws)), self.env_steps, *states)
        # The environment may get a clipped form of the sampled action (G6).
        action = np.asarray(columns.get("env_action", columns["action"]))
        action = action.astype(policy.action_space.dtype, copy=False)
        action = action[0] if count is None else action
        if isinstance(policy.action_space, HybridActions):
            action = policy.action_space.to_env(action)
        return (action, columns["next_state"]) if states else action

    def _remembered(self, mode: Any, count: int | None, state: Any, episode_start: Any, reward: Any) -> list[Any]:
        """The states `[N, ...]` to act from, in a list that is empty for policies without memory."""
        initial = initial_states(mode, count or 1)
        hears, name = isinstance(mode, HearsRewards), type(self.policy).__name__
        if reward is not None and not hears:
            raise SchemaError(f"{name} hears no rewards: call act without reward")
        if initial is None:
            if state is not None or episode_start is not None:
                raise SchemaError(f"{name} has no memory: call act without state, episode_start")
            return []
        if state is None:
            return [initial]
        if hears and reward is None:
            raise SchemaError(f"{name} hears rewards: pass what the action before got, act(obs, state=..., reward=...)")
        begins = np.broadcast_to(False if episode_start is None else np.asarray(episode_start, bool), count or 1)
        before, first = (Batch(state=each).map(np.array) for each in (state, initial))
        if [(name, each.shape) for name, each in before.leaves()] != [(n, each.shape) for n, each in first.leaves()]:
            raise SchemaError(f"the state is {before!r}, expected {first!r}: pass the state that act returned before")
        if hears:
            before["state"] = mode.rewarded(before["state"], np.broadcast_to(np.asarray(reward, float), count or 1))
        before[begins] = first[begins]
        return [before["state"]]

    def evaluate(
        self,
        episodes: int | None = None,
        seed: int | None = None,
        *,
        deterministic: bool | None = None,
        video: str | Path | None = None,
    ) -> dict[str, Any]:
        """Play whole episodes in separate environments (S3); see `flowrl.rollout.Scores`.

        They are played in the eval mode; if not `deterministic`, in the collect mode, which draws or explores. None:
        as in the evaluations of its training, `eval_deterministic`. The scores say which (S8).

        Without arguments it plays the `goal_episodes` of the configuration, from the same starts at each call.
        In a game of several agents `agents` has those of each by name. Of a league the first learner plays all agents.
        `video` is a folder for films of the first episodes.

        Raises:
            ConfigError: less than one episode, or a seed below 0.
            PlanError: the environment is a single object, which cannot be created a second time.
        """
        if self.evaluation_env.is_one_object:
            raise PlanError(
                "evaluation needs separate environments (S3), but there is a single environment object; "
                "give its id or a function that creates it"
            )
        episodes = self.config.goal_episodes if episodes is None else episodes
        seed = self.config.seed if seed is None else seed
        bounds: tuple[tuple[str, Any, int], ...] = ("episodes", episodes, 1), ("seed", seed, 0)
        for name, value, least in bounds:
            if not isinstance(value, Integral) or value < least:
                raise ConfigError(f"{name}={value!r}: expected a whole number of at least {least}")
        films = None if video is None else Path(video)
        greedy = self.config.eval_deterministic if deterministic is None else deterministic
        found = self.play(episodes, SeedTree(seed).integer("evaluation/fixed"), video=films, deterministic=greedy)
        of_agents = {agent: attrs.asdict(of) for agent, of in found.items() if agent}
        values = {**attrs.asdict(found[""]), "deterministic": greedy}
        return {**values, **({"agents": of_agents} if of_agents else {})}

    def play(
        self,
        episodes: int,
        seed: int,
        max_steps: int | None = None,
        video: Path | None = None,
        *,
        deterministic: bool = True,
    ) -> dict[str, Scores]:
        """The scores of `episodes` episodes; environments and noise follow from `seed` alone.

        They are those of all agents together, under "", and in a game those of each agent by name.

        `max_steps`, `video` and `deterministic`: see `flowrl.rollout.evaluate`; `max_steps` defaults to that of the
        configuration.
        """
        with torch_threads(self.config.torch_threads):
            played = evaluate(
                self.alone.policy,
                self.evaluation_env,
                episodes=episodes,
                seed=seed,
                num_envs=self.config.grouping[1],
                max_steps=max_steps or self.config.eval_max_steps,
                video=video,
                agents=self._workers.agents,
                deterministic=deterministic,
                env_steps=self.env_steps,
            )
        return {agent: scores(played, agent) for agent in dict.fromkeys(each.agent for each in played)}


def _of_tuple(space: Any) -> bool:
    """Whether a space is the Dict in place of a Tuple: see `flowrl.envs.spaces.dict_form`."""
    return isinstance(space, gymnasium.spaces.Dict) and list(space) == [str(at) for at in range(len(space))]


def _acted_on(obs: Any, space: gymnasium.Space[Any], actor_space: gymnasium.Space[Any]) -> Any:
    """Observations, one or several, without what only learning reads."""
    if actor_space is space or not isinstance(space, gymnasium.spaces.Dict):
        return obs
    assert isinstance(actor_space, gymnasium.spaces.Dict)
    if isinstance(obs, (list, tuple)):
        return [_acted_on(each, space, actor_space) for each in obs]
    learned = set(space) - set(actor_space)
    return {name: part for name, part in obs.items() if name not in learned} if isinstance(obs, Mapping) else obs


def _rows(obs: Any, space: gymnasium.Space[Any]) -> tuple[Any, int | None]:
    """Observations as rows `[N, ...]` of the space's dtype, and N; None for one observation."""
    if isinstance(space, gymnasium.spaces.Dict):
        if _of_tuple(space):
            obs = [keyed(each) for each in obs] if isinstance(obs, list) else keyed(obs)
        if isinstance(obs, (list, tuple)) and obs and all(isinstance(each, Mapping) for each in obs):
            if all(set(each) == set(space) for each in obs):
                obs = {name: [each[name] for each in obs] for name in space}
            else:
                obs = next(each for each in obs if set(each) != set(space))  # refused below
        if not isinstance(obs, Mapping) or set(obs) != set(space):
            keys = ", ".join(map(str, obs)) if isinstance(obs, Mapping) else f"a {type(obs).__name__}"
            raise SchemaError(f"expected an observation with the keys {', '.join(space)}, got {keys}")
        parts = {name: _rows(obs[name], inner) for name, inner in space.items()}
        counts = {count for _, count in parts.values()}
        if len(counts) > 1:
            raise SchemaError(f"the parts of the observation have {' and '.join(map(str, counts))} rows")
        return Batch({name: rows for name, (rows, _) in parts.items()}), counts.pop()
    shape, dtype = space.shape, space.dtype
    assert shape is not None, "the workers have refused other spaces"
    assert dtype is not None, "the workers have refused other spaces"
    try:
        array = np.asarray(obs.detach().cpu() if isinstance(obs, torch.Tensor) else obs)
    except (ValueError, TypeError, RuntimeError) as error:
        raise SchemaError(f"the observation cannot be an array of {dtype}{list(shape)}: {error}") from error
    fits = array.dtype.kind in "biu" or np.can_cast(array.dtype, dtype, "same_kind")
    single = array.shape == shape
    several = array.ndim > len(shape) and array.shape[1:] == shape
    if not (fits and (single or several)):
        raise SchemaError(
            f"the observation is {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)}, "
            f"or [N, ...] of them: one or several of {space}"
        )
    rows = array.astype(dtype)  # always a copy: the caller's array may be read-only
    return (rows[None], None) if single else (rows, len(rows))
