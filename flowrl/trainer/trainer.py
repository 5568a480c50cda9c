"""The front door: an algorithm as a class, with `train`, `evaluate`, `save`, `restore` and `act`."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import FunctionType, NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import attrs

from flowrl.engine.graph import graph, paths
from flowrl.engine.operator import describe
from flowrl.engine.plan import Plan
from flowrl.engine.seeds import SeedTree
from flowrl.envs.spec import path_of
from flowrl.errors import CheckpointError, ConfigError, PlanError, did_you_mean
from flowrl.saved import Saved
from flowrl.settings import positive, resumable
from flowrl.trainer.config import Configuration, build_config
from flowrl.trainer.plan_end import with_end
from flowrl.trainer.policy_factory import PolicyFactory, check_policy
from flowrl.trainer.run_info import may_differ

if TYPE_CHECKING:
    from flowrl.engine.run import Run
    from flowrl.policies import Policy
    from flowrl.rollout import BaseWorkers
    from flowrl.trainer.trained_policy import TrainedPolicy

log = logging.getLogger("flowrl")

Result = dict[str, Any]
#: When to end training: lower bounds for entries of a result, or a predicate of a result.
Until = Mapping[str, float] | Callable[[Result], bool]

#: Counters that appear in results once learning has begun.
LEARNING = frozenset({"sampled", "trained", "updates"})


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

    Args:
        env: A name as in `Config.env`, a callable, or an environment object such as a gymnasium VectorEnv.
        config: A `Config`, or values for one.
        seed: Root of all random streams; the same as the key `seed`.
        policy: Replaces the class's `policy`: a function with its signature, or a `Policy` class.
        settings: Keys of `Config`; they override `config`.

    Raises:
        ConfigError: an unknown key (with the closest one), a bad value, no such environment.
        PlanError: `policy` does not return a policy, or `execution_plan` a plan.
    """

    Config: ClassVar[type[Configuration]] = ActingConfig

    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        seed: int | None = None,
        policy: Any = None,
        **settings: Any,
    ) -> None:
        if not isinstance(config, (Mapping, Configuration, NoneType)):
            raise ConfigError(f"config={config!r}: expected a mapping or a Config; `load_config_file` reads a file")
        values = config.to_dict() if isinstance(config, Configuration) else config or {}
        direct = {} if env is None else named(env)
        direct |= {} if seed is None else {"seed": seed}
        self.config = build_config(self.Config, values, direct, settings)
        self.workers = self.make_workers(self.config, None if isinstance(env, str) else env, policy)
        try:
            #: `algorithm` is the result of `execution_plan`, edited by the options of `config`; `plan` evaluates too
            #: if `eval_every` is set.
            plan: Any = self._own_plan()
            if not isinstance(plan, Plan):
                raise PlanError(
                    f"{type(self).__name__}.execution_plan returned a {type(plan).__name__}, expected a Plan"
                )
            self.algorithm: Plan = self.config.edited(plan, self.workers)
            self.plan = self._with_evaluation(self.algorithm)
        except BaseException:
            self.workers.close()
            raise
        self.run: Run | None = None
        self.result: Result = {}  #: the last one
        self.done = False  #: whether the plan has ended
        self._stopped = False
        self._trained: TrainedPolicy | None = None
        self._keys: set[str] = set()  # of all results so far

    def _own_plan(self) -> Any:
        from flowrl.policies.torch_rng import seeded

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

    def __repr__(self) -> str:
        clock = self.config.clock
        steps = f"{self.counters.get(clock, 0)} {clock.replace('_', ' ')}"
        return f"{type(self).__name__}({self.config.env or self.config['data']}, seed {self.config.seed}, {steps})"

    # -- what an algorithm overrides

    @staticmethod
    def policy(config: Any, observation_space: Any, action_space: Any) -> Policy:
        """The policy that acts and learns; a subclass or the argument `policy` provides it."""
        raise PlanError("there is no policy: pass policy=..., or override `policy` in a subclass of Trainer")

    @staticmethod
    def execution_plan(workers: Any, config: Any) -> Plan:
        """The plan whose items are results. By default the simplest one: act, learn once from each fragment, report."""
        from flowrl.operators import ParallelRollouts, StandardMetricsReporting, TrainOneStep

        train_op = ParallelRollouts(workers, steps=config.fragment_steps).for_each(TrainOneStep(workers))
        return StandardMetricsReporting(train_op, workers, config)

    @classmethod
    def make_workers(cls, config: Configuration, env: Any = None, policy: Any = None) -> BaseWorkers:
        """Create the workers that act; `env` and `policy`, if given, replace the configuration's and the class's."""
        from flowrl.actors.actors import Resources
        from flowrl.policies.devices import torch_threads
        from flowrl.rollout import WorkerSet

        make = cls.policy if policy is None else policy
        check_policy(make)

        # A worker process without a GPU must not ask for one.
        there = config if config.worker_gpus else attrs.evolve(config, device="cpu")
        resources = Resources(
            config.worker_cpus, config.worker_gpus, config.worker_memory, dict(config.worker_resources)
        )
        with torch_threads(config.torch_threads):
            return WorkerSet(
                env=config.env if env is None else env,
                policy=PolicyFactory(make, config),
                num_workers=config.num_workers,
                **config.for_actors,
                envs_per_worker=config.envs_per_worker,
                env_groups=config.env_groups,
                worker_policy=PolicyFactory(make, there),
                resources=resources,
                max_restarts=config.max_worker_restarts,
                on_death=config.on_worker_death,
                env_args=config.env_args,
                wrappers=config.wrappers,
                env_manager=config.env_manager,
                env_manager_args=config.env_manager_args,
                episode_seeds=config.episode_seeds,
                info_keys=config.info_keys,
                eval_env=config.eval_env,
                eval_env_args=config.eval_env_args,
                eval_wrappers=config.eval_wrappers,
                eval_env_manager=config.eval_env_manager,
                seed=config.seed,
            )

    @classmethod
    def workers_of_run(cls, config: Configuration, env: Any, about: Mapping[str, Any]) -> BaseWorkers:
        """The workers for the saved policy of a run with this run.json; by default, those of `make_workers`."""
        return cls.make_workers(config, env)

    @classmethod
    def place_of_run(cls, config: Configuration, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Settings of the environment that `workers_of_run` takes from elsewhere than the configuration."""
        return {}

    # -- training

    def train(self, until: Until | None = None) -> Result:
        """Train up to the next result and return it; with `until`, up to the first result that reaches it.

        Args:
            until: Lower bounds by name, as in `{"env_steps": 50_000, "episode_return": 475}`; the first one reached
                ends training, and `train` returns at once if the last result reaches one. Or a predicate of a result.

        When the plan ends by itself, `train` returns the last result, and `done` is True from then on. Ctrl-C raises
        KeyboardInterrupt at the end of a step; the trainer may then be saved or go on.

        Raises:
            ConfigError: `until` bounds a name that no result has, which would never be reached.
            PlanError: the trainer was stopped; or the plan is wrong, with every problem, before anything starts.
        """
        from flowrl.interrupts import Interrupts
        from flowrl.policies.devices import torch_threads

        run, bounds = self._open(), None
        if until is None:
            reached: Callable[[Result], bool] = _always
        elif callable(until):
            reached = until
        else:
            bounds = _checked(until)
            reached = self._reaches(bounds)
            if reached(self.result):
                return self.result
        ended = False
        with torch_threads(self.config.torch_threads), Interrupts(run) as interrupts:
            for result in run:
                self._take(result)
                if bounds is not None:
                    self._check_names(bounds)
                if reached(result):
                    break
            else:
                ended = True
        if interrupts.asked:
            if not ended:
                next(run, None)  # consumes the interruption, so that the next call goes on
            raise KeyboardInterrupt
        self.done = self.done or ended
        return self.result

    @property
    def counters(self) -> dict[str, int]:
        """The run's counters by unit: env_steps, sampled, trained, updates ...; empty before the first `train()`."""
        return {} if self.run is None else dict(self.run.counters)

    # -- acting and evaluating

    def act(self, obs: Any, deterministic: bool = True, **memory: Any) -> Any:
        """Return an action for `env.step`, or (action, state) of a recurrent policy; see `TrainedPolicy.act`."""
        trained = self._use()
        trained.env_steps = self.counters.get("env_steps", 0)
        return trained.act(obs, deterministic, **memory)

    def evaluate(self, episodes: int | None = None, seed: int | None = None) -> Result:
        """Play whole episodes in separate environments and return the scores; training is not affected (S3).

        See `TrainedPolicy.evaluate`.
        """
        return self._use().evaluate(episodes, seed)

    # -- saving and stopping

    def save(self, path: str | Path) -> Path:
        """Write the complete state of the run to a folder; a restored run goes on bit for bit (D3).

        Raises:
            CheckpointError: `path` holds something else, or a part of the state cannot be saved.
        """
        from flowrl.storage.checkpoint import save_checkpoint
        from flowrl.storage.files import plain

        mine = {"result": self.result, "done": self.done, "evaluates": self._evaluates}
        about = {"trainer": type(self).__name__, "config": plain(self.config.to_dict())}
        return save_checkpoint(path, {**self._open().state_dict(), "trainer": mine}, about)

    def restore(self, path: str | Path) -> None:
        """Go on exactly where `save` was called, in any process, with the same class and configuration.

        This unpickles environments in the middle of an episode, so restore only checkpoints that you trust.

        The settings that `flowrl run --resume` may change may differ here too: `eval_every`, `eval_episodes`,
        `eval_max_steps` and `checkpoint_every`; `act_backend`, `device` and `torch_threads` with a warning.

        Raises:
            CheckpointError: no checkpoint, a damaged one, or one of another plan, seed or configuration.
        """
        from flowrl.storage.checkpoint import load_checkpoint, verify_checkpoint

        run = self._open()
        about = verify_checkpoint(path).get("about", {})
        if isinstance(about.get("config"), Mapping):
            self._check_config_of(path, about)
        state = load_checkpoint(path, trusted=True)
        mine = Saved(state.pop("trainer", {}), "the saved trainer")
        result, done = mine.get("result", dict[str, Any], otherwise={}), mine.get("done", bool, otherwise=False)
        evaluated = mine.get("evaluates", str | None, otherwise=None)
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
        self.result, self.done = result, done
        self._keys = set(self.result)

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _open(self) -> Run:
        if self._stopped:
            raise PlanError(
                f"this {type(self).__name__} was stopped; create a new one, which may restore() a checkpoint"
            )
        if self.run is None:
            self.plan.check()  # reports problems before anything starts
            self.run = self.plan.run(seed=self.config.seed)
        return self.run

    def _use(self) -> TrainedPolicy:
        from flowrl.trainer.trained_policy import TrainedPolicy

        if self._trained is None:
            self._trained = TrainedPolicy(self.workers, self.config)
        return self._trained

    def _with_evaluation(self, plan: Plan) -> Plan:
        """The plan, with evaluation appended if `eval_every` is set and the plan does not evaluate itself."""
        from flowrl.operators import Evaluate

        config = self.config
        self._evaluates: str | None = None  # the path of the operator added here
        if config.eval_every is None or any(isinstance(node.op, Evaluate) for node in graph(plan)):
            return plan
        plan = with_end(plan, self.workers, config, "eval_every")
        self._evaluates = paths(plan)[id(plan)]
        return plan

    def _check_config_of(self, path: str | Path, about: Mapping[str, Any]) -> None:
        """Reject a checkpoint of other settings; warn of settings that change the last bits."""
        from flowrl.storage.files import plain

        then, now = about["config"], plain(self.config.to_dict())
        changed = [key for key in now if key in then and not _same_setting(key, then[key], now[key])]
        if refused := [key for key in changed if key not in may_differ(self.config, then)]:
            listed = ", ".join(f"{key}={then[key]!r} (here it is {now[key]!r})" for key in refused)
            free = ", ".join(sorted(resumable(self.Config, "free", "rounding")))
            name, other = type(self).__name__, about.get("trainer", type(self).__name__)
            raise CheckpointError(
                f"{path} was saved {'' if other == name else f'by {other} '}with {listed}: restore it in a {other} "
                f"with the same settings; only {free} may differ"
            )
        if rounding := [key for key in changed if key in resumable(self.Config, "rounding")]:
            log.warning("%s changed: training goes on, but not bit for bit", " and ".join(rounding))

    def _take(self, result: Any) -> None:
        self.result = dict(as_result(result, self.plan))
        self._keys |= self.result.keys()

    def _reaches(self, bounds: Mapping[str, float]) -> Callable[[Result], bool]:
        from flowrl.operators import StopWhen

        stop = StopWhen(dict(bounds))

        def reached(result: Result) -> bool:
            stop(result)
            return stop.done

        return reached

    def _check_names(self, bounds: Mapping[str, float]) -> None:
        """Reject bounds that can never be reached, at the first result and again once learning has begun."""
        from flowrl.operators import Evaluate

        coming = LEARNING if "updates" not in self._keys else frozenset()
        for name in bounds.keys() - self._keys - coming:
            if name not in self.evaluated():
                if name in Evaluate.provides:
                    raise ConfigError(
                        f"until: no result has {name!r}, since the plan does not evaluate: set eval_every=N, the env "
                        f"steps between evaluations, as in {type(self).__name__}(..., eval_every=5_000)"
                    )
                raise ConfigError(
                    f"until: no result has {name!r}; {did_you_mean(name, self._keys)}. For an entry that appears "
                    f"later, pass a function: until=lambda result: result.get({name!r}, 0) >= {bounds[name]:g}"
                )

    def evaluated(self) -> set[str]:
        """The entries that evaluation in the plan adds to some results."""
        from flowrl.operators import Confirm, Evaluate

        ops = [node.op for node in graph(self.plan)]
        return {name for op in ops if isinstance(op, (Evaluate, Confirm)) for name in op.provides}


def as_result(item: Any, plan: Plan) -> Mapping[str, Any]:
    """Check that an item of a plan is a result, and return it.

    Raises:
        PlanError: the item is no mapping.
    """
    if not isinstance(item, Mapping):
        raise PlanError(f"a plan's items must be result dicts, got {describe(item)} from {plan.name}")
    return item


def _always(result: Result) -> bool:
    return True


def named(env: Any) -> dict[str, Any]:
    """The configuration keys that follow from an environment: its name, and the size of a VectorEnv."""
    if isinstance(env, str):
        return {"env": env}
    if hasattr(env, "num_envs"):
        return {"env": type(env).__name__, "envs_per_worker": env.num_envs}
    return {"env": path_of(env)}


def _checked(until: Any) -> dict[str, float]:
    if not isinstance(until, Mapping) or not until:
        raise ConfigError(f"until={until!r}: expected lower bounds like {{'env_steps': 50_000}}, or a function")
    for name, bound in until.items():
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not math.isfinite(bound):
            raise ConfigError(f"until: the bound of {name!r} is {bound!r}, expected a number")
    return dict(until)


def _same_setting(key: str, then: Any, now: Any) -> bool:
    """Whether two values of a key are the same; __main__ matches any module, since an imported script changes name."""
    if key == "env" and isinstance(then, str) and isinstance(now, str):
        (there, _, factory), (here, _, other) = then.partition(":"), now.partition(":")
        if "__main__" in (there, here):
            return factory == other
    return bool(then == now)


def _is_method(function: FunctionType) -> bool:
    return next(iter(inspect.signature(function).parameters), None) in ("self", "cls")


def _check_config(config: Any) -> None:
    if not (isinstance(config, type) and issubclass(config, Configuration)):
        raise ConfigError(f"Config must be a subclass of flowrl.trainer.config.Configuration, got {config!r}")
    if "__attrs_attrs__" not in vars(config):  # the base's fields are inherited, its own would be ignored
        raise ConfigError("Config needs the decorator @attrs.define(kw_only=True)")
