"""WorkerSet: a policy and the environments that it acts in, in one or several processes. A run starts it (F1)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs

from flowrl.actors.actors import HERE
from flowrl.actors.resources import Resources
from flowrl.data.multi_agent import DEFAULT_POLICY, side_by_side
from flowrl.engine.context import Context
from flowrl.engine.schema import Schema
from flowrl.engine.seeds import SeedTree
from flowrl.engine.workers.futures import Future, wait
from flowrl.engine.workers.local import DRAIN_SECONDS, WORKER_TIMEOUT, ask, wait_for
from flowrl.engine.workers.members import silent_ones
from flowrl.envs import Environments
from flowrl.envs.goals import GoalFunctions
from flowrl.envs.infos import InfoKeys, fills_of, shape_of
from flowrl.errors import CheckpointError, ConfigError, FlowError, PlanError, Stalled, WorkerDied, did_you_mean
from flowrl.policies import Policy
from flowrl.rollout.broadcast import Broadcast
from flowrl.rollout.game_workers import GameWorkers
from flowrl.rollout.groups import BEGIN_SECONDS, MATCHES, Group, GroupLayout, LocalGroup
from flowrl.rollout.league import JUDGE, League
from flowrl.rollout.policy_map import Agents, checked_names, policy_map
from flowrl.rollout.worker import RolloutWorker, collected
from flowrl.rollout.workers import PolicyFactory
from flowrl.saved import Saved
from flowrl.schedules import end_schedules

if TYPE_CHECKING:
    from flowrl.rollout.remote_groups import RemoteGroups

log = logging.getLogger("flowrl")

#: Reactions to the death of a worker process that may not be restarted.
ON_DEATH = ("stop", "go_on")
#: Stands in a state for that of a worker that did not answer.
UNHEARD = "unheard"


class WorkerSet(GameWorkers):
    """A policy and the workers that act with it.

    All environments form `env_groups` groups. Each group acts as one batch, in this process or in one of `num_workers`
    others. A plan pulls the groups, the `members`. The same groups give the same stream in any process (D2).

    Other processes have separate policies. The next request to each carries the newest weights, stored once for all
    processes, and the env steps of the run, which schedules follow.

    Args:
        env: A gymnasium id, "module:factory", a callable, or an existing environment object, such as a VectorEnv.
        policy: Factory of policies, called with the observation and the action space. The attribute `policy` learns,
            and acts if this process samples. In a game of several agents it plays all of them.
        policies: Instead, in a game: factories of several policies, by name, which `of` gives apart. The attribute
            `policy` is then a `flowrl.policies.Policies`.
        agents: Which of them plays which agent: see `flowrl.rollout.policy_map`.
        league: Instead of `agents`: who meets whom, past selves included; its learners are the policies.
        num_workers: Processes that sample, on Ray; 0: this process samples.
        envs_per_worker: Environments per worker.
        env_groups: Groups of all environments; None: one per worker.
        worker_policy: Factory of the other processes' policies, which may lack a device of `policy`; None: `policy`.
            Of `policies`: such factories by name.
        resources: Resources of each worker process.
        max_restarts: Restarts allowed per worker process.
        on_death: Reaction to a death beyond `max_restarts`: "stop" the run, or "go_on" with the others, if any.
        address, worker_timeout: See `flowrl.actors.actors.Actors`.
        env_args: Keyword arguments for the environment.
        wrappers: Wrappers of each environment, the first one innermost: see `flowrl.envs.wrapping`.
        env_manager, env_manager_args: The manager that steps them, and its keyword arguments: see
            `flowrl.envs.make_manager`.
        episode_seeds: Seeds of the episodes in turn, instead of fresh ones.
        info_keys: Keys of `info` whose numbers become columns, `info.KEY` as float64; a missing one is an error. Or a
            mapping from keys to what stands in their place, a number, or a list of the column's length.
        eval_env, eval_env_args, eval_wrappers, eval_env_manager: Settings of the evaluation environments, if
            different; another environment does not inherit `env_args`, another manager not its arguments.
        seed: Seed of the environments and the action noise; None: derived from the run's seed.

    Raises:
        ConfigError: an unknown environment, spaces that the policy cannot serve, groups that cannot be formed, or one
            environment object for several groups or another process.

    Attributes:
        members: One per group, None if it was removed; empty until a run starts them.
        lost: What the last load could not continue, by counter.

    State: that of each group (environments mid-episode, noise), in any process; the policy is a separate resource.
    """

    _started: ClassVar[weakref.WeakSet[WorkerSet]] = weakref.WeakSet()

    def __init__(
        self,
        env: Any,
        policy: PolicyFactory | None = None,
        *,
        policies: Mapping[str, PolicyFactory] | None = None,
        agents: Agents | None = None,
        league: League | None = None,
        num_workers: int = 0,
        envs_per_worker: int = 8,
        env_groups: int | None = None,
        worker_policy: PolicyFactory | Mapping[str, PolicyFactory] | None = None,
        resources: Resources | None = None,
        max_restarts: int = 10,
        on_death: str = "stop",
        address: str | None = None,
        worker_timeout: float = WORKER_TIMEOUT,
        env_args: Mapping[str, Any] | None = None,
        wrappers: Sequence[Any] = (),
        env_manager: str = "local",
        env_manager_args: Mapping[str, Any] | None = None,
        episode_seeds: Sequence[int] | None = None,
        info_keys: InfoKeys = (),
        eval_env: Any = None,
        eval_env_args: Mapping[str, Any] | None = None,
        eval_wrappers: Sequence[Any] | None = None,
        eval_env_manager: str | None = None,
        seed: int | None = None,
    ) -> None:
        self.layout = GroupLayout(num_workers, envs_per_worker, env_groups)
        if on_death not in ON_DEATH:
            raise ConfigError(f"on_death={on_death!r}: {did_you_mean(str(on_death), ON_DEATH)}")
        self.num_workers, self.envs_per_worker, self.seed = num_workers, envs_per_worker, seed
        self.resources_of_each, self.max_restarts, self.on_death = resources or Resources(), max_restarts, on_death
        environments = Environments(
            *(env, dict(env_args or {}), tuple(wrappers), env_manager, dict(env_manager_args or {}), episode_seeds),
            info_keys=info_keys,
            agents=agents is not None or league is not None,
        )
        if environments.is_one_object and (num_workers or self.layout.groups > 1):
            raise ConfigError(
                f"{environments} is an object, which acts in this process alone: with {self.layout.groups} "
                f"groups and num_workers={num_workers} pass an id or a function that creates environments"
            )
        seen = environments.look(self.layout.envs_per_group)
        self._goals = seen.goals
        others = eval_env, eval_env_args, eval_wrappers, eval_env_manager
        evaluation = environments.for_evaluation(*others)
        makes = _factories(policy, policies)
        self.league = league
        if league is not None:
            league.play(environments, seen.seating, makes, agents)
        who = (agents, ()) if league is None else (league.matches, league.frozen)
        self.policy_map = policy_map(environments, seen.seating, tuple(makes), *who)
        there = worker_policy if isinstance(worker_policy, Mapping) else dict.fromkeys(makes, worker_policy)
        super().__init__(
            makes,
            {name: seen[:2] if self.policy_map is None else self.policy_map.spaces_of(name) for name in makes},
            *(environments, evaluation, self.layout.envs_per_group),
            agents=None
            if self.policy_map is None or self.policy_map.shared or league is not None
            else self.policy_map.agents,
            lead=None if league is None else league.lead,
            worker_policies=there,
            address=address,
            worker_timeout=worker_timeout,
        )
        if league is not None:
            here = {name: part.policy_maker(gpus=True) for name, part in self.parts.items()}
            league.create(here)
        if any(setting is not None for setting in others):
            self.check_evaluation(environments)
        self._hosts: RemoteGroups | None = None
        self._context = Context()
        self._earlier = 0  # env steps of earlier runs
        self._lives: dict[int, int] = {}  # restarts of each group, by index
        self.members: list[Any] = []
        self.lost: dict[str, int] = {}

    def __repr__(self) -> str:
        layout, of = self.layout, self.resources_of_each
        where = (
            f"{self.num_workers} worker{'s' * (self.num_workers > 1)} on Ray" if self.num_workers else "this process"
        )
        groups = f" in {layout.groups} groups" if layout.groups != layout.processes else ""
        backends = {each.settings.act_backend for each in self._policies.values() if isinstance(each, Policy)}
        in_numpy = backends == {"numpy"}
        took = f", each {of}" if self.num_workers and of != Resources() else ""
        return f"{where}: {self.envs_per_worker} x {self.env}{groups}{', acts in numpy' if in_numpy else ''}{took}"

    @property
    def num_members(self) -> int:
        """Number of groups, which become the members when a run starts the set."""
        return len(self.members) or self.layout.groups

    @property
    def num_elsewhere(self) -> int:
        """Number of processes that sample beside this one."""
        return 0 if self.address == HERE else self.num_workers

    @property
    def env_steps(self) -> int:
        """Env steps of the run so far, and of earlier ones; exploration follows them (Q7)."""
        return self._earlier + self._context.counters.get("env_steps", 0)

    @property
    def env(self) -> Any:
        """The argument `env`."""
        return self.environments.spec

    def origin(self) -> dict[str, Any]:
        """See `Workers.origin`; of a game with the names of its agents, which the column `agent` numbers."""
        return super().origin() | ({} if self.policy_map is None else {"agents": list(self.game_agents)})

    @property
    def game_agents(self) -> tuple[str, ...]:
        """The names of all agents, in the order of `possible_agents`. Raises: ConfigError: there is but one."""
        if self.policy_map is None:
            raise ConfigError(f"a team needs a game of several agents, but {self.environments} has one")
        return self.policy_map.seating.agents

    def num_agents(self, policy: str | None = None) -> int:
        """The agents in a copy of the game, of one policy or of all, each with a row in a step; 1 if it is no game."""
        if self.policy_map is None:
            return 1
        return len(self.policy_map.seating.agents if policy is None else self.policy_map.agents_of(policy))

    @property
    def goal_functions(self) -> GoalFunctions:
        """The goal functions of the environment. Raises: ConfigError: it has no goals."""
        if isinstance(self._goals, str):
            raise ConfigError(
                f"hindsight needs an environment of goals, but {self.environments} {self._goals}: expected "
                "gymnasium-robotics' convention, as flowrl.envs.goals:bit_flipping has it"
            )
        return self._goals

    @property
    def env_args(self) -> dict[str, Any]:
        """The argument `env_args`."""
        return dict(self.environments.env_args)

    def schema(self) -> Schema:
        """The schema of collected items, from the spaces and the policy's answer to an observation of zeros."""
        shapes = {key: shape_of(fill) for key, fill in fills_of(self.environments.info_keys).items()}
        found = {name: collected(part.policy, part._spaces[0], shapes) for name, part in self.parts.items()}
        if self.policy_map is not None:  # seats
            found = {name: each.having(mask="bool[T, N]", agent="int64[T, N]") for name, each in found.items()}
        if len(found) > 1:  # a MultiAgentBatch
            return Schema(policies=found)
        (alone,) = found.values()
        return alone if self.policy_map is not None else attrs.evolve(alone, most={"N": self.layout.envs_per_group})

    @property
    def resources(self) -> list[Any]:
        """See `Workers.resources`: the league too."""
        return [*super().resources, *([] if self.league is None else [self.league])]

    def evaluated(self, policy: Any) -> list[tuple[Any, Agents | None]]:
        """See `Workers.evaluated`; in a league with a judge, each learner meets it, from either side in turn."""
        if self.league is None or (judge := self.league.judge) is None:
            return super().evaluated(policy)
        learners = policy if self._are_several else {self.league.lead: policy}
        return [({name: each, JUDGE: judge}, partial(self.league.sides, name)) for name, each in learners.items()]

    def end_schedules(self, steps: int) -> None:
        """See `Workers.end_schedules`."""
        super().end_schedules(steps)
        for policy in self._acting.values():
            end_schedules(policy, steps)

    @property
    def local(self) -> RolloutWorker:
        """The worker of the first group in this process.

        Raises: FlowError: other processes sample, or the set is not started.
        """
        if self.num_workers:
            raise FlowError(f"no worker is in this process: {self!r}; foreach_worker asks those in others")
        self._check_started()
        worker: RolloutWorker = next(filter(None, self.members)).target
        return worker

    @property
    def is_one_object(self) -> bool:
        """Whether `env` is an environment object, of which there is only one."""
        return self.environments.is_one_object

    def foreach_worker(self, function: Callable[[RolloutWorker], Any], *, seconds: float = 3600.0) -> list[Any]:
        """The results of a function of each worker, in their order, wherever it is; None for a removed one.

        Each has the newest weights by then. A function for other processes is pickled, with its code.

        Args:
            seconds: Limit of the wait for all of them.

        Raises: FlowError: the set is not started; Stalled: the limit has passed.
        """
        self._check_started()
        return self._ask_all("apply", [function] * len(self.members), seconds)

    def sample(self, steps: int | None = None, *, rows: int | None = None, episodes: int | None = None) -> Any:
        """Experience of all workers as one batch, without a plan; the numbers are those of `RolloutWorker.sample`.

        Counts: env_steps, which exploration follows.
        """
        request = partial(_sampled, steps=steps, rows=rows, episodes=episodes)
        found = [each for each in self.foreach_worker(request) if each is not None]
        self._context.count("env_steps", sum(env_steps for _, env_steps in found))
        return side_by_side([batch for batch, _ in found])

    def _check_started(self) -> None:
        if not self.members:
            raise FlowError(f"{self!r} is not started: call start(), or open a run of a plan with it")

    def start(self, context: Context | None = None) -> None:
        """Begin the first episodes; after an earlier run, the environments go on where they were.

        A run calls it. Without a run, the streams follow from the set's `seed`, or from 0.

        Raises:
            PlanError: another worker set, not closed yet, acts in the same environment object.
        """
        context = Context() if context is None else context
        self._earlier, self._context = self.env_steps, context
        if self.members:
            return
        if any(self._shares_environment(other) for other in list(WorkerSet._started)):
            raise PlanError(
                f"{self.env} is in use by another worker set, and each would reset the other's episodes: "
                "close() that one first, or give each a separate environment"
            )
        self._seed = context.seed("workers") if self.seed is None else self.seed
        if self.league is not None:
            self.league.matches.seed = SeedTree(self._seed).integer("matches")
            self.league.start(self._policies)
        if not (self._start_processes() if self.num_workers else self._start_here()):
            log.warning(
                "%s: its own wrappers may change rewards before flowrl sums them up to returns; those passed as "
                "`wrappers` (--wrapper) do not",
                self.env,
            )
        WorkerSet._started.add(self)

    def _start_here(self) -> bool:
        """Start the groups in this process; returns whether recorded rewards are raw (S1)."""
        workers = [self._group(index).worker(self._acting) for index in range(self.layout.groups)]
        self.members = [LocalGroup(worker, self._before_pull) for worker in workers]
        return all(worker.manager.raw_returns for worker in workers)

    def _start_processes(self) -> bool:
        from flowrl.rollout.remote_groups import RemoteGroups

        self._hosts = RemoteGroups(
            [[self._group(index) for index in self.layout.indices(k)] for k in range(self.num_workers)],
            *self._for_processes(),
            lambda: self.env_steps,
            self._lives,
            resources=self.resources_of_each,
            address=self.address,
            max_restarts=self.max_restarts,
            worker_timeout=self.worker_timeout,
        )
        raw = self._hosts.start()
        self.members = self._hosts.members
        return raw

    @property
    def _acting(self) -> dict[str, Any]:
        """All policies that act, also those of a league that do not learn."""
        return self._policies | ({} if self.league is None else self.league.policies)

    def _for_processes(self) -> tuple[dict[str, Callable[[], Policy]], dict[str, Broadcast]]:
        """Factories of all policies that act, and the sources of their newest weights, and of the odds of matches."""
        makes = {name: part.policy_maker(gpus=False) for name, part in self.parts.items()}
        broadcasts = {name: part.broadcast for name, part in self.parts.items()}
        if (league := self.league) is not None:
            makes |= league.makers(makes)
            broadcasts |= league.broadcasts | {MATCHES: Broadcast(league.matches)}
        return makes, broadcasts

    def _group(self, index: int) -> Group:
        layout, policy_map = self.layout, self.policy_map
        return Group(self.environments, layout.envs_per_group, index, layout.groups, self._seed, policy_map=policy_map)

    def _before_pull(self, worker: RolloutWorker) -> None:
        """Update a local group as a request updates a remote one: newest weights, env steps of the run."""
        self._take_newest()
        worker.observe_env_steps(self.env_steps)

    # -- workers that come and go

    def restart(self, index: int, died: WorkerDied | None = None) -> None:
        """Restart the process of a member after its death: new environments, fresh streams, the newest weights.

        New members replace it and the other groups of that process; does not wait for them. If the process may
        not be restarted, and `on_death` is "go_on", None replaces them instead.

        Counts: cut_episodes.
        Raises: WorkerDied: it was restarted `max_restarts` times already, and `on_death` is "stop" or it is the last.
        """
        hosts = self._processes("restart")
        cost = len(hosts.neighbors(index)) * self.layout.envs_per_group
        try:
            hosts.restart(index, died)
        except WorkerDied:
            if self.on_death == "stop" or not hosts.give_up(index):
                raise
        self._context.count("cut_episodes", cost)

    def add(self, workers: int = 1) -> None:
        """Add worker processes, with as many groups as the others, as new members; a running plan pulls them."""
        hosts = self._processes("add")
        for _ in range(workers):
            first = len(self.members)
            hosts.add([self._group(first + k) for k in range(self.layout.groups_per_worker)])

    def remove(self, workers: int = 1) -> None:
        """Remove the newest worker processes, which end when they have answered; None replaces their members at once.

        Raises: FlowError: none would be left.
        """
        hosts = self._processes("remove")
        if workers >= (present := len({member.process for member in self.members if member is not None})):
            raise FlowError(f"remove({workers}) of {present} workers: at least one must be left to sample")
        for _ in range(workers):
            hosts.remove()

    def _processes(self, what: str) -> RemoteGroups:
        if self._hosts is None:
            state = "samples in this process" if not self.num_workers else "is not started: start() it, or open a run"
            raise FlowError(f"cannot {what} workers: {self!r} {state}")
        return self._hosts

    def _shares_environment(self, other: WorkerSet) -> bool:
        if not (other.members and self.is_one_object and other.is_one_object):
            return False
        return bool(other.env.unwrapped is self.env.unwrapped)

    def close(self) -> None:
        """Close the environments created here, but not an environment object passed as `env`."""
        if self._hosts is not None:
            try:
                self._take_newest()  # load weights published by a learner and not loaded here yet
            except WorkerDied as error:
                log.warning("the newest weights are lost: %s", error)
            hosts, self._hosts = self._hosts, None
            hosts.close()
        else:
            for member in filter(None, self.members if not self.is_one_object else ()):
                member.target.close()
        self.members = []

    def state_dict(self) -> dict[str, Any]:
        self._take_newest()  # the policies' own states are taken after this one
        own = {"earlier_env_steps": self._earlier, "lives": dict(self._lives)}
        return {"workers": self._states(), **own}

    def _states(self) -> list[Any]:
        """The states of all groups' workers: None of a removed one, `UNHEARD` of one that does not answer."""
        silent = silent_ones(self.members)
        futures = {i: ask(each, "state_dict") for i, each in enumerate(self.members) if each is not None}
        late = wait([future for index, future in futures.items() if index not in silent], DRAIN_SECONDS)
        heard = {index: future.result() for index, future in futures.items() if future.done()}
        if (late or silent) and (not self.num_workers or any("policy" in state for state in heard.values())):
            raise Stalled(f"waited {DRAIN_SECONDS:g} s for the state of {self!r}, all of which must be saved")
        return [None if each is None else heard.get(index, UNHEARD) for index, each in enumerate(self.members)]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        fields = Saved(state, "the saved workers")
        saved = fields.get("workers", list[dict[str, Any] | Literal["unheard"] | None])  # UNHEARD
        earlier = fields.count("earlier_env_steps", otherwise=0)
        lives = fields.get("lives", dict[int, int], otherwise={})
        gone = [index for index, each in enumerate(saved) if each is None]
        if len(saved) != len(self.members) or any(saved[k] for k, each in enumerate(self.members) if each is None):
            raise CheckpointError(
                f"the state has {_count(saved)} workers, {self!r} has {_count(self.members)}"
                + ("" if self.members else ": a run starts them")
            )
        self._lives |= lives
        unheard = [index for index, each in enumerate(saved) if isinstance(each, str)]
        self._begin_anew(unheard)
        known = [None if index in unheard else each for index, each in enumerate(saved)]
        cut = sum(filter(None, self._ask_all("load", known))) + len(unheard) * self.layout.envs_per_group
        self._leave_out([index for index in gone if self.members[index] is not None])
        self._take_newest()  # drop published weights, since the policies were loaded
        self._earlier = earlier
        self.lost = {"cut_episodes": cut} if cut else {}
        if cut:
            log.warning("%d running episodes of %s could not be saved: they are cut, new ones begin", cut, self.env)

    def _begin_anew(self, indices: Sequence[int]) -> None:
        """Begin another life of groups whose state is unknown, as after a death (F10)."""
        asked: list[Future[Any]] = []
        for index in indices:
            self._lives[index] = life = self._lives.get(index, 0) + 1
            if self._hosts is not None:
                asked.append(self._hosts.begin_anew(index, life))
            else:
                self.members[index].target.close()
                self.members[index].target = attrs.evolve(self._group(index), life=life).worker(self._acting)
        wait_for(asked, "environments that begin anew", BEGIN_SECONDS)
        for future in asked:
            future.result()

    def _leave_out(self, indices: Sequence[int]) -> None:
        """Remove groups that a state lacks, because they were removed, or died for good."""
        if not indices:
            return
        log.warning("the state has no worker %s: the run goes on without", ", ".join(map(str, indices)))
        if self._hosts is not None:
            self._hosts.leave_out(indices)
            return
        for index in indices:
            self.members[index].target.close()
            self.members[index] = None

    def _ask_all(self, method: str, arguments: Sequence[Any], seconds: float = DRAIN_SECONDS) -> list[Any]:
        """The answers of all groups' workers; `arguments` has one per worker, None for a worker not to ask."""
        futures = [
            None if member is None or arguments[index] is None else ask(member, method, arguments[index])
            for index, member in enumerate(self.members)
        ]
        wait_for([future for future in futures if future is not None], f"{method!r} of {self!r}", seconds)
        return [None if future is None else future.result() for future in futures]


def _sampled(worker: RolloutWorker, **amounts: int | None) -> tuple[Any, int]:
    batch = worker.sample(**amounts)
    return batch, worker.env_steps_of(batch)


def _factories(policy: PolicyFactory | None, policies: Mapping[str, PolicyFactory] | None) -> dict[str, PolicyFactory]:
    if (policy is None) == (policies is None):
        raise ConfigError("a WorkerSet takes policy, which plays all agents, or policies by name: give one of the two")
    if policies is None:
        assert policy is not None
        return {DEFAULT_POLICY: policy}
    return {name: policies[name] for name in checked_names(policies)}


def _count(groups: Sequence[Any]) -> str:
    """
    >>> _count(["a", None, "b"]), _count(["a"])
    ('3 (of which 1 was removed)', '1')
    """
    removed = [str(index) for index, group in enumerate(groups) if group is None]
    return f"{len(groups)}" + (f" (of which {', '.join(removed)} was removed)" if removed else "")
