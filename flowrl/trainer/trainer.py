"""The front door: an algorithm as a class, with `train`, `evaluate`, `save`, `restore` and `act`."""

from __future__ import annotations

import inspect
import json
import logging
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import FunctionType, NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import attrs

from flowrl.data.multi_agent import DEFAULT_POLICY
from flowrl.engine.graph import graph, paths
from flowrl.engine.plan import Plan
from flowrl.engine.run import resources_of
from flowrl.engine.seeds import SeedTree
from flowrl.envs.spec import path_of
from flowrl.errors import CheckpointError, ConfigError, PlanError
from flowrl.runs.config import Configuration, build_config, default_of, sections, settings_text
from flowrl.runs.plan_end import ORIGINS, as_result, with_ending
from flowrl.runs.progress import Budget
from flowrl.runs.run_info import changes, described, forks_in, in_words, may_change, read_about, same_setting
from flowrl.runs.run_schedules import constant_schedules, late_start, spent_rate
from flowrl.runs.until import Result, Until, check_names, evaluation_in, lower_bounds, reaches
from flowrl.saved import Saved
from flowrl.schedules import end_schedules
from flowrl.settings import positive, resumable
from flowrl.trainer.policy_factory import PolicyFactory, check_policy

if TYPE_CHECKING:
    from flowrl.engine.run import Run
    from flowrl.policies import Policy
    from flowrl.rollout import Workers
    from flowrl.rollout.evaluation import Goal
    from flowrl.rollout.league import League
    from flowrl.rollout.policy_map import Agents
    from flowrl.runs.directory import RunDirectory
    from flowrl.runs.init_from import Source
    from flowrl.runs.kept import KeptRun
    from flowrl.runs.resume import EarlierRun
    from flowrl.trainer.trained_policy import TrainedPolicy

log = logging.getLogger("flowrl")


@attrs.frozen(kw_only=True, slots=False)
class ActingConfig(Configuration):
    """Settings of every plan that acts.

    The plan of `Trainer` itself has no others.
    """

    fragment_steps: int = positive(128, "steps per environment in a fragment")
    report_every: int = positive(1_000, "env steps between results")


class Trainer:
    """An algorithm over an environment: a policy, a plan, and the run of it.

    A subclass is an algorithm. It overrides any of `Config`, `policy` and `execution_plan`; a plan may edit its
    parent's: `return DQN.execution_plan(workers, config).insert_after("NStep", op)` in a static method, or
    `super().execution_plan(workers, config)` in a class method. Functions without a decorator become static methods.
    `execution_plan` returns the algorithm alone: the options of the configuration, such as `normalize_obs`, edit it
    afterwards, see `flowrl.settings.Option`. `policy` may be a `Policy` class too, which gets its settings from the
    configuration.

    The constructor creates environments and networks; nothing acts before the first `train()`, which checks the plan
    (see `Plan.check`) and opens `run`. A Trainer is a context manager; leaving it stops the run.

    With `eval_every=n`, results get the entries of `flowrl.operators.Evaluate` every n env steps.

    With `out`, the run is kept in that directory, as `flowrl run` keeps it: configuration, results as they come,
    regular checkpoints, the best policy and the last. It evaluates as that does, unless `eval_every=0`.
    `flowrl.load(out)` loads the policy, `flowrl.resume(out)` trains on.

    Args:
        env: A name as in `Config.env`, a callable, or an environment object such as a gymnasium VectorEnv.
        config: A `Config`, or values for one.
        out: New directory of the run; None: nothing is written.
        sinks: Other formats of the results in `out`, as `--sink` has them: "csv", "tensorboard".
        seed: Root of all random streams; the same as the key `seed`.
        policy: Replaces the class's `policy`: a function with its signature, or a `Policy` class.
        init_from: A run's directory, a checkpoint, or a file of weights to begin with; `parent` then says which. Of
            several policies a table of such by name, as in `{"left": "runs/a", "right": "runs/b:main"}`.
        init_with: What else to take from there, of "buffer" and "statistics"; "partial" leaves out what does not fit.
        settings: Keys of `Config`; they override `config`.

    Raises:
        ConfigError: an unknown key (with the closest one), a bad value, no such environment; nothing at `init_from`,
            or what does not fit.
        PlanError: `policy` does not return a policy, or `execution_plan` a plan.
    """

    Config: ClassVar[type[Configuration]] = ActingConfig

    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Any,
    ) -> None:
        if not isinstance(config, (Mapping, Configuration, NoneType)):
            raise ConfigError(f"config={config!r}: expected a mapping or a Config; `load_config_file` reads a file")
        values = config.to_dict() if isinstance(config, Configuration) else config or {}
        direct = {} if env is None else named(env)
        direct |= {} if seed is None else {"seed": seed}
        self.config = build_config(self.Config, values, direct, settings)
        self._evaluates: str | None = None  # the path of an added Evaluate
        self._directory = self._chosen(out, sinks)
        self.workers = self.make_workers(self.config, None if isinstance(env, str) else env, policy)
        self._describe()
        for line in self.workers.remarks():
            log.warning("%s: %s", self.config.env or self.config["data"], line)
        try:
            #: `algorithm` is the result of `execution_plan`, edited by the options of `config`; `plan` evaluates too
            #: if `eval_every` is set.
            plan: Any = self._own_plan()
            if not isinstance(plan, Plan):
                raise PlanError(
                    f"{type(self).__name__}.execution_plan returned a {type(plan).__name__}, expected a Plan"
                )
            self.algorithm: Plan = self.config.edited(plan, self.workers)
            self.plan = self.algorithm if self._directory is not None else self._with_evaluation(self.algorithm)
            #: What it began with, None for fresh weights: see `flowrl.runs.init_from.init_from`.
            self.parent = self._begun(init_from, init_with)
        except BaseException:
            self.workers.close()
            raise
        self.run: Run | None = None
        self.result: Result = {}  #: the last one
        self._evaluation: Result = {}  # the entries of the newest evaluation
        self.forks: list[dict[str, Any]] = []  #: settings changed at resumes, from and to what, and when
        self.done = False  #: whether the plan has ended
        self._stopped = False
        self._trained: TrainedPolicy | None = None
        self._kept: KeptRun | None = None  # of a run that is kept
        self._earlier: EarlierRun | None = None  # which it resumes
        self._goal: Goal | None = None
        self._keys: set[str] = set()  # of all results so far
        self._said_spent = False

    @classmethod
    def resume(cls, run: str | Path, env: Any = None, *, policy: Any = None, **settings: Any) -> Self:
        """Go on with a run of this class where its newest checkpoint left it: see `flowrl.resume`."""
        from flowrl.runs.directory import ClassSource, RunDirectory
        from flowrl.runs.resume import EarlierRun

        earlier, source = EarlierRun.find(run), ClassSource.of(cls)
        if earlier.about.get("builtin") and earlier.about["plan"] != source.name:
            raise ConfigError(f"{earlier.path} is a run of {earlier.about['plan']}, not of {source.name}")
        before = build_config(cls.Config, earlier.values)
        if env is not None and not same_setting("env", before.env, named(env)["env"]):
            raise ConfigError(
                f"env={env!r}: {earlier.path} is a run in {before.env}, and a resumed run keeps its settings"
            )
        config = build_config(cls.Config, earlier.values, settings)
        forked = earlier.check(config, before)
        trainer = cls(env, config, policy=policy)
        trainer.plan, trainer._earlier, trainer.parent = trainer.algorithm, earlier, earlier.about.get("from")
        trainer._directory = RunDirectory.of_earlier(earlier.path, source, config)
        try:
            trainer._open(earlier.budget(Budget()), forked)
        except BaseException:
            trainer.stop()
            raise
        return trainer

    def _begun(self, parent: Source | None, taken: Collection[str]) -> dict[str, Any] | None:
        from flowrl.runs.init_from import init_from

        if parent is None and taken:
            raise ConfigError(f"init_with={list(taken)} needs init_from, a run to take it from")
        return None if parent is None else init_from(parent, taken, self.algorithm, self.workers, self.config)

    def _own_plan(self) -> Any:
        from flowrl.networks.torch_rng import seeded

        with seeded(SeedTree(self.config.seed).integer("execution_plan")):  # the plan may create networks
            return self.execution_plan(self.workers, self.config)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("policy", "execution_plan"):
            function = vars(cls).get(name)
            if isinstance(function, FunctionType) and not _is_method(function):
                if "__class__" in function.__code__.co_freevars:
                    raise PlanError(
                        f"{cls.__name__}.{name} calls super(): make it a class method, "
                        f"with @classmethod above it and `cls` as its first argument"
                    )
                setattr(cls, name, staticmethod(function))
        if "Config" in vars(cls):
            _check_config(cls.Config)
        if isinstance(named := vars(cls).get("policies"), Mapping):
            cls.policies = classmethod(lambda _, config: _of_one_config(named, config))  # type: ignore[assignment]
        _document(cls)

    def __repr__(self) -> str:
        clock = self.config.clock
        steps = f"{self.counters.get(clock, 0)} {clock.replace('_', ' ')}"
        return f"{type(self).__name__}({self.config.env or self.config['data']}, seed {self.config.seed}, {steps})"

    # -- what an algorithm overrides

    @staticmethod
    def policy(config: Any, observation_space: Any, action_space: Any) -> Policy:
        """The policy that acts and learns; a subclass or the argument `policy` provides it."""
        raise PlanError("there is no policy: pass policy=..., or override `policy` in a subclass of Trainer")

    @classmethod
    def policies(cls, config: Any) -> dict[str, tuple[Any, Any]]:
        """In a game: the policies by name, each as what `policy` may be, and the configuration that it is made by.

        By default those that `config.agents` names, all made by `policy`, each from a seed of its own. A subclass whose
        policies have one configuration may set a dictionary instead: `policies = {"ppo": PPOPolicy.configured, ...}`.
        """
        names = config.policy_names
        if len(names) < 2:
            return {DEFAULT_POLICY: (cls.policy, config)}
        return _of_one_config(dict.fromkeys(names, cls.policy), config)

    @classmethod
    def league(cls, config: Any) -> League | None:
        """In a game: who of the policies meets whom, past selves included; None: `config.agents` says it."""
        return None

    @staticmethod
    def execution_plan(workers: Any, config: Any) -> Plan:
        """The plan whose items are results. By default the simplest one: act, learn once from each fragment, report."""
        from flowrl.operators import ParallelRollouts, StandardMetricsReporting, TrainOneStep

        train_op = ParallelRollouts(workers, steps=config.fragment_steps).for_each(TrainOneStep(workers))
        return StandardMetricsReporting(train_op, workers, config)

    @classmethod
    def make_workers(cls, config: Configuration, env: Any = None, policy: Any = None) -> Workers:
        """Create the workers that act; `env` and `policy`, if given, replace the configuration's and the class's."""
        from flowrl.actors.resources import Resources
        from flowrl.networks.devices import torch_threads
        from flowrl.rollout import WorkerSet

        makes = {name: (made[0] if policy is None else policy, made[1]) for name, made in cls.policies(config).items()}
        for make, _ in makes.values():
            check_policy(make)

        # A worker process without a GPU must not ask for one.
        device = {} if config.worker_gpus else {"device": "cpu"}
        agents = _agents(config, makes)
        resources = Resources(
            config.worker_cpus, config.worker_gpus, config.worker_memory, dict(config.worker_resources)
        )
        with torch_threads(config.torch_threads):
            return WorkerSet(
                env=config.env if env is None else env,
                policies={name: PolicyFactory(*made) for name, made in makes.items()},
                agents=agents or None,
                league=cls.league(config),
                num_workers=config.num_workers,
                **config.for_actors,
                envs_per_worker=config.envs_per_worker,
                env_groups=config.env_groups,
                worker_policy={
                    name: PolicyFactory(make, attrs.evolve(of, **device)) for name, (make, of) in makes.items()
                },
                resources=resources,
                max_restarts=config.max_worker_restarts,
                on_death=config.on_worker_death,
                env_args=config.env_args,
                wrappers=config.wrapped(config.wrappers),
                env_manager=config.env_manager,
                env_manager_args=config.env_manager_args,
                episode_seeds=config.episode_seeds,
                info_keys=config.info_keys,
                eval_env=config.eval_env,
                eval_env_args=config.eval_env_args,
                eval_wrappers=config.wrapped(config.eval_wrappers),
                eval_env_manager=config.eval_env_manager,
                seed=config.seed,
            )

    @classmethod
    def workers_of_run(cls, config: Configuration, env: Any, about: Mapping[str, Any], spaces: Any) -> Workers:
        """The workers for a saved policy, with what its file or run.json says; they make no environment.

        `spaces` are those of the policy, or of several by name. Without them, which files of earlier versions lack, one
        environment is made to look at them.
        """
        from flowrl.envs import Environments
        from flowrl.networks.devices import torch_threads
        from flowrl.rollout.game_workers import GameWorkers

        if spaces is None:
            return cls.make_workers(config, env)
        makes = cls.policies(config)
        for make, _ in makes.values():
            check_policy(make)
        place = config.env if env is None else env
        how = (
            dict(config.env_args),
            tuple(config.wrapped(config.wrappers)),
            config.env_manager,
            dict(config.env_manager_args),
        )
        league = cls.league(config)
        environments = Environments(place, *how, agents=bool(config.agents) or league is not None)
        others = config.eval_env, config.eval_env_args, config.wrapped(config.eval_wrappers), config.eval_env_manager
        evaluation = environments.for_evaluation(*others)
        with torch_threads(config.torch_threads):
            return GameWorkers(
                {name: PolicyFactory(*made) for name, made in makes.items()},
                spaces if isinstance(spaces, Mapping) else dict.fromkeys(makes, spaces),
                *(environments, evaluation, config.grouping[1]),
                agents=_agents(config, makes) if len(makes) > 1 and league is None else None,
                lead=None if league is None else league.lead,
            )

    @classmethod
    def place_of_run(cls, config: Configuration, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Settings of the environment that `workers_of_run` takes from elsewhere than the configuration."""
        return {}

    # -- training

    def train(
        self,
        until: Until | None = None,
        *,
        env_steps: int | None = None,
        updates: int | None = None,
        seconds: float | None = None,
        goal: Goal | None = None,
        progress: bool | None = None,
    ) -> Result:
        """Train up to the next result and return it; with a bound, up to the first result that reaches it.

        With a bound, what is returned has the entries of the newest evaluation too, if there was one.

        `PPO("CartPole-v1", out="runs/x").train(env_steps=100_000)` is `flowrl run ppo --stop-steps 100000`. Bounds are
        those of the whole run: a further `train(env_steps=200_000)` trains for as many steps again. When a call with a
        bound returns, the directory of the run is complete: checkpoint, policies, summary.

        Args:
            until: Lower bounds by name, as in `{"env_steps": 50_000, "episode_return": 475}`; the first one reached
                ends training, and `train` returns at once if the last result reaches one. Or a predicate of a result.
            env_steps, updates: Bounds too; the first call's is the budget of the run.
            seconds: Bound of the time that the run has been open.
            goal: Mean return of an evaluation that ends training once the saved policy confirms it, as `--stop-return`;
                in a game also those of agents, as in `{"prey": 475}`. Only of a run that is kept in `out`, and of its
                first call.
            progress: Whether to show progress; None: if the run is kept.

        The first call says how long the run is: schedules without a length of their own, as PPO's learning rate by
        default, last for the env steps in `until`. Where it says nothing, they stay constant, which is logged.

        When the plan ends by itself, `train` returns the last result, and `done` is True from then on. Ctrl-C raises
        KeyboardInterrupt at the end of a step, when everything is saved; the trainer may then go on.

        Raises:
            ConfigError: a bound of a name that no result has, which would never be reached.
            PlanError: the trainer was stopped; or the plan is wrong, with every problem, before anything starts.
        """
        from flowrl.interrupts import Interrupts
        from flowrl.networks.devices import torch_threads
        from flowrl.runs.progress import progress as shown

        lower_bounds(None, seconds=seconds)  # raises if it is none
        bounds, clock = lower_bounds(until, env_steps=env_steps, updates=updates), self.config.clock
        counts = {name: math.ceil(bound) for name, bound in bounds.items()}
        budget = Budget(*(goal, counts.get(clock), seconds), None if clock == "updates" else counts.get("updates"))
        wanted = {} if goal is None else lower_bounds(budget.wanted)
        self._plan_schedules(budget.steps)
        begins = self.run is None
        run, kept = self._open(budget), self._kept
        if goal is not None and goal != self._goal:
            raise ConfigError(
                f"goal={goal}: the run's is {self._goal}, which its first train() sets; to stop elsewhere use "
                f"until={{'eval_return': {goal}}}"
            )
        run.context.bounds.update(budget.counts(clock))
        tested = reaches(bounds, wanted)
        if tested(self.result):
            return {**self._evaluation, **self.result}
        bounded = bool(bounds) or any(bound is not None for bound in (until, seconds, goal))

        def over(result: Mapping[str, Any]) -> bool:
            self._take(result)
            if bounds:
                check_names(bounds, self._keys, self.evaluated(), type(self).__name__)
            late = seconds is not None and run.context.watch.seconds >= seconds
            return not bounded or late or tested(self.result) or (callable(until) and until(self.result))

        ended = run.interrupted = False
        quiet = not (kept is not None and bounded if progress is None else progress)
        if begins and not quiet and self._earlier is None:
            for line in self.workers.networks:
                print(line, flush=True)
        with torch_threads(self.config.torch_threads), Interrupts(run) as interrupts:
            if kept is not None:
                kept.budget = budget
                with kept.directory.log or nullcontext():
                    kept.pull(interrupts, over, quiet=quiet, final=bounded)
                ended = kept.ended
            else:
                earlier = run.context.watch.seconds
                with shown(self._title, budget, quiet=quiet, earlier=earlier, counter=clock) as display:
                    for result in run:
                        enough = over(result)
                        display.report(self.result)
                        if enough:
                            break
                    else:
                        ended = True
        if kept is not None and kept.error is not None:
            raise kept.error
        if kept is not None and bounded and not quiet:
            print(kept.words, flush=True)
        if interrupts.asked:
            if not ended:
                next(run, None)  # consumes the interruption, so that the next call goes on
            raise KeyboardInterrupt
        self.done = self.done or (ended and not run.interrupted)
        return {**self._evaluation, **self.result} if bounded else self.result

    @property
    def counters(self) -> dict[str, int]:
        """The run's counters by unit: env_steps, sampled, trained, updates ...; empty before the first `train()`."""
        return {} if self.run is None else dict(self.run.counters)

    # -- acting and evaluating

    def act(self, obs: Any, deterministic: bool = True, **memory: Any) -> Any:
        """Return an action for `env.step`, or (action, state) of a recurrent policy; see `TrainedPolicy.act`."""
        return self._use().act(obs, deterministic, **memory)

    def evaluate(
        self,
        episodes: int | None = None,
        seed: int | None = None,
        *,
        deterministic: bool | None = None,
        video: str | Path | None = None,
    ) -> Result:
        """Play whole episodes in separate environments and return the scores; training is not affected (S3).

        See `TrainedPolicy.evaluate`.
        """
        return self._use().evaluate(episodes, seed, deterministic=deterministic, video=video)

    # -- saving and stopping

    def save(self, path: str | Path) -> Path:
        """Write the complete state of the run to a folder; a restored run goes on bit for bit (D3).

        Raises:
            CheckpointError: `path` holds something else, or a part of the state cannot be saved.
        """
        from flowrl.storage.checkpoint import save_checkpoint
        from flowrl.storage.files import plain

        run = self._open()
        mine = {"result": self.result, "done": self.done, "evaluates": self._evaluates, "forks": self.forks}
        mine["evaluation"] = self._evaluation
        about = {"trainer": type(self).__name__, "config": plain(self.config.to_dict()), "forks": self.forks}
        about |= {"counters": self.counters, "policy": described(run, self.workers)}
        about |= {} if self.parent is None else {"from": self.parent}
        return save_checkpoint(path, {**run.state_dict(), "trainer": mine}, about)

    def restore(self, path: str | Path) -> None:
        """Go on exactly where `save` was called, in any process, with the same class and configuration.

        This unpickles environments in the middle of an episode, so restore only checkpoints that you trust.

        The settings that `flowrl run --resume` may change may differ here too: those of evaluations and checkpoints,
        such as `eval_every`; `act_backend`, `device` and `torch_threads` with a warning; learning rates and schedules
        as a fork, which `forks` lists. A `schedule_steps` of None takes the saved length.

        Raises:
            CheckpointError: no checkpoint, a damaged one, one of another plan, seed or configuration, or one of a run
                that is kept, which `flowrl.resume` goes on with.
        """
        from flowrl.storage.checkpoint import load_checkpoint, verify_checkpoint

        self._check_not_stopped()
        manifest = verify_checkpoint(path)
        if "session" in manifest["parts"]:
            raise CheckpointError(
                f"{path} is of a run that is kept in its directory: to go on with that run, also with other learning "
                f"rates or schedules, flowrl.resume({str(path)!r}); to begin another one with its weights, "
                f"{type(self).__name__}(..., init_from={str(path)!r})"
            )
        about, forked = manifest.get("about", {}), dict[str, Any]()
        if isinstance(about.get("config"), Mapping):
            saved = [about["config"].get(name) for name in self.config.open_spans if self.run is None]
            lengths = [steps for steps in saved if isinstance(steps, int)]
            forked = self._check_config_of(path, about, self.config.over(lengths[0]) if lengths else self.config)
            if lengths:
                self._end_schedules(lengths[0])
        run = self._open()
        state = load_checkpoint(path, trusted=True)
        mine = Saved(state.pop("trainer", {}), "the saved trainer")
        result, done = mine.get("result", dict[str, Any], otherwise={}), mine.get("done", bool, otherwise=False)
        evaluated = mine.get("evaluates", str | None, otherwise=None)
        forks = mine.get("forks", list[dict[str, Any]], otherwise=[])
        evaluation = mine.get("evaluation", dict[str, Any], otherwise=evaluation_in(result))
        if evaluated != self._evaluates:  # eval_every changed: evaluation is dropped, or begins now
            operators = Saved(state, "the saved run").get("operators", dict)
            operators.pop(evaluated, None)
            if self._evaluates is not None:
                operators[self._evaluates] = run.state_dict()["operators"][self._evaluates]
        try:
            run.load_state_dict(state)
        except CheckpointError as error:
            if about.get("trainer", type(self).__name__) == type(self).__name__:
                raise
            raise CheckpointError(f"{error}; {path} was saved by {about['trainer']}") from error
        self.result, self.done, self.forks, self._evaluation = result, done, forks, evaluation
        if forked:
            clock = self.config.clock
            self.forks = [*forks, {clock: self.counters.get(clock, 0), "settings": forked}]
            log.info("%s goes on with %s", path, in_words(forked))
        self._keys = set(self.result)

    def save_policy(self, path: str | Path) -> Path:
        """Write the policy alone, to a file of which `flowrl.load` needs nothing else."""
        self.workers.save_policy(Path(path))
        return Path(path)

    def stop(self) -> None:
        """Close the run, the environments and all processes, but not a VectorEnv that the caller passed.

        `act` and `evaluate` still work; a second call does nothing.
        """
        self._stopped = True
        with ExitStack() as closing:
            closing.callback(self.workers.close)
            if self.run is not None:
                for resource in self.run.resources.values():
                    if isinstance(resource, AbstractContextManager) and resource is not self.workers:
                        closing.push(resource)
                closing.callback(self.run.close)
                if self._kept is not None and not self.run.closed:
                    closing.callback(self._kept.end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _check_not_stopped(self) -> None:
        if self._stopped:
            raise PlanError(
                f"this {type(self).__name__} was stopped; create a new one, which may restore() a checkpoint"
            )

    def _open(self, budget: Budget | None = None, forked: Mapping[str, Any] | None = None) -> Run:
        self._check_not_stopped()
        if self.run is None:
            budget = budget or Budget()
            if self._directory is not None:
                return self._open_kept(self._directory, budget, forked or {})
            if budget.goal is not None:
                raise ConfigError(
                    f"goal={budget.goal} is confirmed with the saved policy: say where to keep it, "
                    f"{type(self).__name__}(..., out='runs/...')"
                )
            if self.config.journal:
                name = type(self).__name__
                raise ConfigError(f"journal=True writes to a directory: say where, {name}(..., out='runs/...')")
            self.plan.check()  # reports problems before anything starts
            self.run = self.plan.run(seed=self.config.seed)
        return self.run

    def _open_kept(self, directory: RunDirectory, budget: Budget, forked: Mapping[str, Any]) -> Run:
        """Open the run, with evaluation and the goal at the plan's end, in its directory."""
        from flowrl.operators import Evaluate
        from flowrl.runs.kept import KeptRun
        from flowrl.runs.plan_end import TRAINER
        from flowrl.runs.run_log import RunLog

        directory.log = RunLog()
        self._kept = kept = KeptRun.open(
            self.plan,
            self.workers,
            self.config,
            self._title,
            directory,
            budget,
            origin=TRAINER,
            command=sys.argv,
            about={} if self.parent is None else {"from": self.parent},
            earlier=self._earlier,
            forked=forked,
        )
        self.config, self.plan, self.run, self._goal = kept.config, kept.plan, kept.run, budget.goal
        ours = [node for node in graph(kept.plan) if isinstance(node.op, Evaluate) and node.site.startswith(ORIGINS)]
        self._evaluates = paths(kept.plan)[id(ours[0])] if ours else None
        self.result, self._evaluation = dict(kept.last), dict(kept.evaluation)
        self.forks = forks_in(read_about(directory.path))
        self._keys = set(self.result)
        return kept.run

    def _describe(self) -> None:
        """Let files of the policy say how to make it."""
        from flowrl.runs.directory import ClassSource, builtin

        source = ClassSource.of(type(self))
        made = {"plan": source.name, "builtin": builtin(source.path)}
        # Without settings that make no other policy, and the lengths of runs.
        free = resumable(self.Config, "free", "grouping", "rounding")
        free |= self.config.spans.keys()
        values = {key: each for key, each in self.config.to_dict().items() if key not in free and _is_json(each)}
        self.workers.described = {**made, "config": values}

    @property
    def _title(self) -> str:
        return f"{type(self).__name__} {self.config.env or self.config['data']} seed {self.config.seed}"

    def _plan_schedules(self, budget: int | None) -> None:
        """Let schedules that last as long as the run end with its budget in env steps; without one, say which.

        In a run that goes on they keep their length: if it then learns nothing, say how it does.
        """
        self._check_not_stopped()
        if self.run is not None:
            self._say_if_spent(budget)
            return
        if late := late_start(self.config):
            log.warning("%s", late)
        if budget is not None:
            self._end_schedules(max(1, budget))
        elif constant := constant_schedules(self.plan, self.config):
            log.warning("%s: train(until={'%s': N}) sets one", constant, self.config.clock)

    def _say_if_spent(self, budget: int | None) -> None:
        """Say once where a run that goes on learns nothing."""
        directory = self._directory
        call = f"{type(self).__name__}(..." if directory is None else f"flowrl.resume({str(directory.path)!r}"
        if not self._said_spent and (spent := spent_rate(self.plan, self.config, budget)):
            self._said_spent = True
            log.warning("%s %s, %s)", spent[0], call, spent[1])

    def _end_schedules(self, steps: int) -> None:
        self.config = self.config.over(steps)
        self.workers.end_schedules(steps)
        for resource in resources_of(self.plan).values():
            end_schedules(resource, steps)

    def _use(self) -> TrainedPolicy:
        from flowrl.trainer.trained_policy import TrainedPolicy

        if self._trained is None:
            self._trained = TrainedPolicy(self.workers, self.config)
        self._trained.env_steps = self.counters.get("env_steps", 0)
        return self._trained

    def _chosen(self, out: str | Path | None, sinks: Sequence[str]) -> RunDirectory | None:
        from flowrl.runs.directory import ClassSource, RunDirectory

        if out is None:
            if sinks:
                raise ConfigError(f"sinks={list(sinks)} are written beside the other results: give out='runs/...' too")
            return None
        return RunDirectory.choose(ClassSource.of(type(self)), self.config, out, sinks)

    def _with_evaluation(self, plan: Plan) -> Plan:
        """The plan, with evaluation appended if `eval_every` is set and the plan does not evaluate itself."""
        from flowrl.operators import Evaluate

        config = self.config
        if not config.eval_every or any(isinstance(node.op, Evaluate) for node in graph(plan)):
            return plan
        plan = with_ending(plan, self.workers, config, "eval_every")
        self._evaluates = paths(plan)[id(plan)]
        return plan

    def _check_config_of(
        self, path: str | Path, about: Mapping[str, Any], config: Configuration
    ) -> dict[str, dict[str, Any]]:
        """Reject other settings, warn of those that change the last bits, and return those that make it a fork."""
        from flowrl.storage.files import plain

        then, now = about["config"], plain(config.to_dict())
        found = changes(config, then)
        if found.refused:
            listed = ", ".join(f"{key}={then[key]!r} (here it is {now[key]!r})" for key in found.refused)
            name, other = type(self).__name__, about.get("trainer", type(self).__name__)
            raise CheckpointError(
                f"{path} was saved {'' if other == name else f'by {other} '}with {listed}: restore it in a {other} "
                f"with the same settings; only {may_change(self.Config)} may differ"
            )
        if found.rounding:
            log.warning("%s changed: training goes on, but not bit for bit", " and ".join(found.rounding))
        return found.forked

    def _take(self, result: Any) -> None:
        self.result = dict(as_result(result, self.plan))
        self._evaluation = evaluation_in(self.result) or self._evaluation
        self._keys |= self.result.keys()

    def evaluated(self) -> set[str]:
        """The entries that evaluation in the plan adds to some results."""
        from flowrl.operators import Confirm, Evaluate

        ops = [node.op for node in graph(self.plan)]
        return {name for op in ops if isinstance(op, (Evaluate, Confirm)) for name in op.provides}


def named(env: Any) -> dict[str, Any]:
    """The configuration keys that follow from an environment: its name, and the size of a VectorEnv."""
    if isinstance(env, str):
        return {"env": env}
    if hasattr(env, "num_envs"):
        return {"env": type(env).__name__, "envs_per_worker": env.num_envs}
    return {"env": path_of(env)}


def _of_one_config(makes: Mapping[str, Any], config: Any) -> dict[str, tuple[Any, Any]]:
    """What makes each of several policies, and its configuration: that of the run, with a seed of its own."""
    seeds = SeedTree(config.seed)
    return {name: (make, attrs.evolve(config, seed=seeds.integer(f"policy/{name}"))) for name, make in makes.items()}


def _agents(config: Configuration, policies: Collection[str]) -> Agents:
    """Which of these policies plays which agent; one plays all that `config.agents` names."""
    from flowrl.rollout.policy_map import AgentsByName

    if isinstance(config.agents, str):
        return AgentsByName(config.agents)
    return config.agents if len(policies) > 1 else dict.fromkeys(config.agents, next(iter(policies)))


def _is_json(value: Any) -> bool:
    try:
        return bool(json.dumps(value))
    except (TypeError, ValueError):
        return False


def _is_method(function: FunctionType) -> bool:
    return next(iter(inspect.signature(function).parameters), None) in ("self", "cls")


def _document(cls: type[Trainer]) -> None:
    """Show the settings of an algorithm where people look for them: in its docstring and in its signature."""
    try:
        fields = {field.name: field for _, group in sections(cls.Config) for field in group}
        text = settings_text(cls.Config)
    except NameError:  # an annotation that cannot be resolved, which `build_config` names
        return
    given = list(inspect.signature(cls.__init__).parameters.values())[1:]
    own = [each for each in given if each.kind is not each.VAR_KEYWORD]
    names = {each.name for each in own}
    for name in [name for name in fields if name not in names] if len(own) < len(given) else ():
        default, kind = default_of(fields[name]), inspect.Parameter.KEYWORD_ONLY
        default = inspect.Parameter.empty if default is attrs.NOTHING else default
        own.append(inspect.Parameter(name, kind, default=default, annotation=fields[name].type))
    cls.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    if cls.__doc__ is not None or "Config" in vars(cls):
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\nSettings, as keyword arguments or in `config`:\n{text}"


def _check_config(config: Any) -> None:
    if not (isinstance(config, type) and issubclass(config, Configuration)):
        raise ConfigError(f"Config must be a subclass of flowrl.runs.config.Configuration, got {config!r}")
    if "__attrs_attrs__" not in vars(config):  # the base's fields are inherited, its own would be ignored
        raise ConfigError("Config needs the decorator @attrs.define(kw_only=True)")
