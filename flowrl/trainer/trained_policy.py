"""A trained policy in use: acting, evaluating, and loading it from the directory of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import gymnasium
import numpy as np

from flowrl.cli.directory import read_about
from flowrl.data import Batch
from flowrl.engine.seeds import SeedTree
from flowrl.envs.masks import without_choice
from flowrl.errors import ConfigError, FlowError, PlanError, SchemaError
from flowrl.policies.masks import action_mask
from flowrl.policies.weights import load_weights
from flowrl.rollout import Scores, evaluate, scores
from flowrl.rollout.acting import initial_states
from flowrl.trainer.config import Configuration, build_config, load_config_file
from flowrl.trainer.plan_file import BUILTIN, PlanFile, load_plan_file
from flowrl.trainer.trainer import named, torch_threads

if TYPE_CHECKING:
    from flowrl.envs import Environments
    from flowrl.policies import Policy
    from flowrl.rollout import WorkerSet


class TrainedPolicy:
    """A policy and the environment that it was trained in: `act` and `evaluate`.

    Attributes:
        policy: Its model is `policy.model`.
        config: What it was trained with.
        env_steps: Where exploration schedules stand when it acts stochastically.
    """

    def __init__(self, workers: WorkerSet, config: Configuration, *, env_steps: int = 0) -> None:
        self.policy: Policy = workers.policy
        self.config, self.env_steps, self._workers = config, env_steps, workers
        self._noise = SeedTree(config.seed).generator("act")

    def __repr__(self) -> str:
        return f"TrainedPolicy({self.policy!r} of {self.config.env})"

    @property
    def environments(self) -> Environments:
        """Those that it collected in."""
        return self._workers.environments

    @property
    def evaluation_env(self) -> Environments:
        """Those that it is evaluated in."""
        return self._workers.evaluation_env

    def act(self, obs: Any, deterministic: bool = True, *, state: Any = None, episode_start: Any = None) -> Any:
        """An action for `env.step`, in the numbers of the action space; of a policy with a memory, action and state.

        Such a policy is given the state back with the next observation: `action, state = act(obs, state=state)`.

        Args:
            obs: One observation, or `[N, ...]` of them for `[N, ...]` actions; a mapping where the space is a Dict,
                or a list of them.
            deterministic: The eval mode; else the collect mode, with noise from a stream of its own.
            state: What it gave with the action before; None where all episodes begin.
            episode_start: Whether an episode begins with this observation, bool or `[N]`: there no state counts.

        Raises:
            SchemaError: the observation does not fit the observation space, its action mask leaves no action, or the
                state does not fit the observations.
        """
        if isinstance(obs, tuple) and len(obs) > 1 and isinstance(obs[-1], Mapping):
            call = "env.reset(), (observation, info)" if len(obs) == 2 else "env.step(...)"
            raise SchemaError(f"act needs the observation alone, the first of what comes from {call}")
        rows, count = _rows(obs, self.policy.observation_space)
        mask = action_mask(rows)
        if mask is not None and (stuck := without_choice(mask, self.policy.action_space)).size:
            raise SchemaError(f"the action_mask leaves no valid action in observation {stuck[0]}: the episode is over")
        mode = self.policy.eval_mode if deterministic else self.policy.collect_mode
        given = self._remembered(mode, count, state, episode_start)
        columns = mode.act(rows, self._noise.random((count or 1, mode.draws)), self.env_steps, *given)
        # What the environment gets may be a clipped form of what the policy drew (G6).
        action = np.asarray(columns.get("env_action", columns["action"]))
        action = action.astype(self.policy.action_space.dtype, copy=False)
        action = action[0] if count is None else action
        return (action, columns["next_state"]) if given else action

    def _remembered(self, mode: Any, count: int | None, state: Any, episode_start: Any) -> list[Any]:
        """The states `[N, ...]` to act from, in a list that is empty where a policy has no memory."""
        initial = initial_states(mode, count or 1)
        if initial is None:
            if state is not None or episode_start is not None:
                raise SchemaError(f"{type(self.policy).__name__} has no memory: call act without state, episode_start")
            return []
        if state is None:
            return [initial]
        begins = np.broadcast_to(False if episode_start is None else np.asarray(episode_start, bool), count or 1)
        before, first = (Batch(state=each).map(np.array) for each in (state, initial))
        if [(name, each.shape) for name, each in before.leaves()] != [(n, each.shape) for n, each in first.leaves()]:
            raise SchemaError(f"the state is {before!r}, expected {first!r}: give what act gave before, for as many")
        before[begins] = first[begins]
        return [before["state"]]

    def evaluate(self, episodes: int | None = None, seed: int | None = None) -> dict[str, Any]:
        """Play whole episodes in the eval mode, in environments of their own (S3); see `flowrl.rollout.Scores`.

        Without arguments it plays the `eval_episodes` of the configuration from the starts that the plan's own
        evaluation has.

        Raises:
            ConfigError: less than one episode, or a seed below 0.
            PlanError: there is but one environment object, of which no second one can be made.
        """
        if self.evaluation_env.is_one_object:
            raise PlanError(
                "evaluating needs environments of its own (S3), but there is one environment object; "
                "give its id or a function that makes it"
            )
        episodes = self.config.eval_episodes if episodes is None else episodes
        seed = self.config.seed if seed is None else seed
        asked: tuple[tuple[str, Any, int], ...] = ("episodes", episodes, 1), ("seed", seed, 0)
        for name, value, least in asked:
            if not isinstance(value, Integral) or value < least:
                raise ConfigError(f"{name}={value!r}: expected a whole number of at least {least}")
        return attrs.asdict(self.play(episodes, SeedTree(seed).integer("evaluation/fixed")))

    def play(self, episodes: int, seed: int, max_steps: int | None = None, video: Path | None = None) -> Scores:
        """The scores of so many episodes in the eval mode; environments and noise follow from `seed` alone.

        `max_steps` and `video`: see `flowrl.rollout.evaluate`; the configuration says `eval_max_steps`.
        """
        with torch_threads(self.config.torch_threads):
            played = evaluate(
                self.policy,
                self.evaluation_env,
                episodes=episodes,
                seed=seed,
                num_envs=self.config.grouping[1],
                max_steps=max_steps or self.config.eval_max_steps,
                video=video,
            )
        return scores(played)


def load(
    run: str | Path,
    *,
    last: bool = False,
    env: Any = None,
    env_args: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> TrainedPolicy:
    """The best policy of a run, or with `last` that of its end: `flowrl.load("runs/...").act(obs)`.

    The weights are read without pickle. The plan is code and is imported: the file that was run if it is as it
    was, else the directory's copy.

    Args:
        run: A directory that `flowrl run` wrote.
        last: policy_last.pt instead of policy.pt.
        env: Another environment than the run's, which does not get the arguments of that one.
        env_args: Arguments of the environment that evaluates, besides those it has.
        device: Where to run the policy, if not where the run did.

    Raises:
        ConfigError: not a run directory, nothing saved in it yet, a plan or an environment that is not here.
        CheckpointError: a damaged file, or weights that do not fit the environment.
    """
    run = Path(run)
    if not (run / "config.json").is_file():
        what = "has no config.json" if run.is_dir() else "is no directory"
        raise ConfigError(f"{run} {what}; give the directory that `flowrl run` printed at its end")
    weights = run / ("policy_last.pt" if last else "policy.pt")
    if not weights.is_file():
        saved = ", ".join(sorted(path.name for path in run.glob("policy*.pt"))) or "none"
        raise ConfigError(
            f"{run} has no {weights.name} (saved policies: {saved}); a run writes policy.pt at its first "
            "evaluation or its end, and policy_last.pt at its end"
        )
    plan_file = _plan_of(run)
    values = load_config_file(run / "config.json")
    changed: dict[str, Any] = {} if device is None else {"device": device}
    if env is not None:
        changed |= named(env) | {"env_args": dict(env_args or {}), "eval_env": None, "eval_env_args": None}
    elif env_args:
        others = values.get("eval_env") is not None or values.get("eval_env_args") is not None
        key = "eval_env_args" if others else "env_args"
        changed[key] = {**(values.get(key) or {}), **env_args}
    config = build_config(plan_file.Config, values, changed)
    try:
        workers = plan_file.trainer.workers_of_run(config, env, read_about(run))
    except FlowError as error:
        raise ConfigError(f"{run} cannot be loaded here: {error}") from error
    workers.close()
    load_weights(workers.policy, weights)
    return TrainedPolicy(workers, config, env_steps=_env_steps(run))


def _plan_of(run: Path) -> PlanFile:
    """The plan that was run: from where it was, from the built-in ones, or from its copy in the directory."""
    try:
        about = read_about(run)
        text = (run / "plan.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{run} does not say which plan it ran: {error}") from error
    places = [Path(about["path"]), BUILTIN / f"{about['plan']}.py"]
    same = [place for place in places if place.is_file() and place.read_text(encoding="utf-8") == text]
    return load_plan_file(same[0] if same else run / "plan.py")


def _env_steps(run: Path) -> int:
    """The env steps of the last result of a run, 0 if it had none."""
    try:
        last = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
        return int(json.loads(last)["env_steps"])
    except (OSError, IndexError, KeyError, TypeError, ValueError):
        return 0


def _rows(obs: Any, space: gymnasium.Space[Any]) -> tuple[Any, int | None]:
    """Observations as rows `[N, ...]` of the space's dtype, and N; None for one observation."""
    if isinstance(space, gymnasium.spaces.Dict):
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
            raise SchemaError(f"the parts of the observation are of {' and '.join(map(str, counts))} rows")
        return Batch({name: rows for name, (rows, _) in parts.items()}), counts.pop()
    shape, dtype = space.shape, space.dtype
    assert shape is not None, "the workers have refused other spaces"
    assert dtype is not None, "the workers have refused other spaces"
    try:
        given = np.asarray(obs.detach().cpu() if hasattr(obs, "detach") else obs)  # a tensor, if need be of a GPU
    except (ValueError, TypeError, RuntimeError) as error:
        raise SchemaError(f"the observation cannot be an array of {dtype}{list(shape)}: {error}") from error
    fits = given.dtype.kind in "biu" or np.can_cast(given.dtype, dtype, "same_kind")
    single = given.shape == shape
    several = given.ndim > len(shape) and given.shape[1:] == shape
    if not (fits and (single or several)):
        raise SchemaError(
            f"the observation is {given.dtype}{list(given.shape)}, expected {dtype}{list(shape)}, "
            f"or [N, ...] of them: one or several of {space}"
        )
    rows = given.astype(dtype)  # always a copy: what a caller holds may be read-only
    return (rows[None], None) if single else (rows, len(rows))
