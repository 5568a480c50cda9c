"""LearnerGroup: learning apart from the driver, in a thread or in one or several processes."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from flowrl.actors.actors import Actors
from flowrl.actors.resources import Resources
from flowrl.data import Batch
from flowrl.engine.context import Context
from flowrl.engine.schema import Schema
from flowrl.engine.workers.calls import Answer
from flowrl.engine.workers.futures import Future, wait
from flowrl.engine.workers.local import InlineWorker, ThreadWorker, all_of, ask
from flowrl.engine.workers.remote import Remote
from flowrl.errors import ConfigError, Disconnected, FlowError, PlanError, ValueLost, WorkerDied, did_you_mean, is_death
from flowrl.learners.all_reduce import rendezvous, results
from flowrl.learners.learner import Learner, LearnerReport, TargetNetwork
from flowrl.learners.training import APART, Required, Training, check_given, reported, required
from flowrl.policies.protocols import HasTarget, check_alone

log = logging.getLogger("flowrl")

WHERE = {"inline": "in this process", "thread": "in a thread, not bit-exact", "actor": "on Ray"}

if TYPE_CHECKING:
    from flowrl.policies import Policy


class PolicyOwner(Protocol):
    """The members of a WorkerSet that a LearnerGroup uses."""

    clock: ClassVar[str]
    address: str | None
    worker_timeout: float

    @property
    def policy(self) -> Policy: ...

    def policy_maker(self, *, gpus: bool) -> Callable[[], Policy]:
        """A factory of policies like this one, for any process."""
        ...

    def publish(self, version: int, weights: Any) -> None:
        """Let the workers act with these weights."""
        ...


class LearnerGroup:
    """One or several learners as a worker of the engine: `batches.call(learners, "train", in_flight=2)`.

    Their policies start as copies of the workers' policy. When the turn of a learner's answer has come, its weights are
    published to the workers; closing the run loads the newest into the workers' policy.

    Several learners compute the same as one, see `flowrl.learners.training.Training`; their policies stay identical to
    the last bit. Each receives the whole batch, in Ray's shared memory if they are on one machine.

    After a death the learner is restarted and all go on from the newest answered state; later requests are
    repeated. So no batch is lost or learned twice.

    Args:
        workers: Owner of the policy that learns.
        num_learners: Number of learners; several need where="actor".
        where: "inline": in this thread, exact. "thread": in a thread of this process. "actor": processes on Ray.
        num_sgd_iter, minibatch_size, target_kl: See `Training`.
        target_every: Updates between two moves of the target network; required if the policy has one, and
            forbidden otherwise (Q2).
        tau: target ← tau · online + (1 − tau) · target.
        resources: Resources of each process; with `gpus` it learns on a GPU, and averages over NCCL.
        address: Address of a Ray cluster; None: that of the workers.
        max_restarts: Restarts allowed per learner.
        worker_timeout: See `flowrl.actors.actors.Actors`; None: that of the workers.
        seconds: Limit of the wait of learners for each other, and of the group for learners after a failure.

    Counts: trained, updates; learner_restarts.
    Records: policy_lag of the rows learned from.
    Raises: ConfigError: several learners without where="actor", a target network without `target_every` or the reverse,
        or a policy that normalizes, since its statistics stay in this process.
    State: that of one learner; all are identical.
    """

    def __init__(
        self,
        workers: PolicyOwner,
        num_learners: int = 1,
        where: Literal["inline", "thread", "actor"] = "thread",
        *,
        num_sgd_iter: int = 1,
        minibatch_size: int | None = None,
        target_kl: float | None = None,
        target_every: int | None = None,
        tau: float = 1.0,
        resources: Resources | None = None,
        address: str | None = None,
        max_restarts: int = 10,
        worker_timeout: float | None = None,
        seconds: float = 60.0,
    ) -> None:
        if where not in WHERE:
            raise ConfigError(f"LearnerGroup: where={where!r}; {did_you_mean(where, WHERE)}")
        if num_learners < 1 or (num_learners > 1 and where != "actor"):
            raise ConfigError(f"{num_learners} learners {WHERE[where]}: take 1, or where='actor' for several")
        check_alone(workers.policy, "LearnerGroup")
        if isinstance(workers.policy, HasTarget) != (target_every is not None):
            has = "has no" if target_every is not None else "has a"
            raise ConfigError(f"target_every={target_every}, but {type(workers.policy).__name__} {has} target network")
        if workers.policy.normalizers:
            raise ConfigError(
                "the workers' policy normalizes by statistics of this process, which the learners of a LearnerGroup "
                "do not see: use TrainOneStep(workers), or do not normalize"
            )
        self.workers, self.num_learners, self.where = workers, num_learners, where
        self.takes_remote = where == "actor"
        self.training = Training(num_sgd_iter, minibatch_size, target_kl)
        self.target = None if target_every is None else TargetNetwork(target_every, tau)
        self._of_each, self._address, self._seconds = resources or Resources(), address, seconds
        self._max_restarts = max_restarts
        self._timeout = workers.worker_timeout if worker_timeout is None else worker_timeout
        self._actors: Actors | None = None
        self._local: list[Any] = []
        self._context = Context()
        self._rest: dict[str, Any] = {"generator": None, "moved": 0}  # state of a learner without the policy
        self._newest: Any = None  # newest state whose answer was received
        self._answered: dict[int, Any] = {}  # states whose answers wait for their turn, by version
        self._asked: list[tuple[int, Future[Any]]] = []  # unanswered requests: learner and future
        self._lock = threading.Lock()  # an answer and the state after it become known together

    def __repr__(self) -> str:
        return f"{self.num_learners} learner{'s' * (self.num_learners > 1)} {WHERE[self.where]}"

    @property
    def resources(self) -> list[Any]:
        """Resources that a checkpoint holds too: the workers, and with them their policy."""
        return [self.workers]

    @property
    def requires(self) -> Required:
        return required(self.workers.policy)

    @property
    def learns(self) -> Any:
        return self.workers.policy

    def schema(self, given: Schema) -> Schema:
        check_given(self.workers, given)
        return reported(self.workers.policy, given).having("scalars", APART)

    @property
    def members(self) -> list[Any]:
        """The learners as workers; empty unless a run is open."""
        return self._local if self._actors is None else self._actors.members

    @property
    def repeats(self) -> bool:
        """See `flowrl.engine.protocols.CalleeContract`: here and in a thread, it asks the learner for its state."""
        return self._actors is not None

    @property
    def silent(self) -> float:
        """See `flowrl.engine.protocols.CalleeContract`."""
        return 0.0 if self._actors is None else self._actors.silent

    # -- asking

    def submit(self, method: str, batch: Batch | Remote) -> Future[Any]:
        """Let all learners `train` on a batch."""
        if method != "train":
            raise PlanError(f"a LearnerGroup can be called to 'train', not to {method!r}")
        env_steps = self._context.counters.get(self.workers.clock, 0)
        first, *others = self.members
        if self._actors is None:
            return all_of([first.submit("train", batch, env_steps)])
        if others and not isinstance(batch, Remote):
            batch = self._actors.put(batch)
        trained = [first.submit_apart("train", batch, env_steps)]
        state = first.submit_apart("state_apart")
        trained += [worker.submit("train_along", batch, env_steps) for worker in others]
        self._asked = [each for each in self._asked if not each[1].done()]
        self._asked += zip([0, *range(self.num_learners)], [state, *trained])
        return self._kept(all_of([all_of(trained), state]))

    def _kept(self, combined: Future[Any]) -> Future[list[Any]]:
        """All learners' answers, once the state after them is safe outside the learner's process.

        A state that not all have reached is of no use: its batch is requested again.
        """
        kept: Future[list[Any]] = Future()

        def keep(combined: Future[Any]) -> None:
            if error := combined.exception():
                kept.set_exception(error)
            else:
                answers, (version, state) = combined.result()
                kept.pickling = combined.pickling
                with self._lock:
                    self._answered[version] = state
                    kept.set_result(answers)

        combined.add_done_callback(keep)
        return kept

    def receive(self, answers: list[Any]) -> Answer:
        """Handle an answer whose turn has come, in the run's thread: publish the weights, join priorities."""
        report, weights = answers[0]
        reports: list[LearnerReport] = [report, *answers[1:]]
        self._newest = self._answered.pop(report.version, self._newest)
        if report.counters:
            self.workers.publish(report.version, weights)
        scalars = dict(report.scalars)
        if "priorities" in scalars:
            scalars["priorities"] = Batch.cat([each.scalars["priorities"] for each in reports])
        return Answer(scalars, False, report.counters, report.records)

    # -- deaths

    def recover(self, error: BaseException) -> BaseException | None:
        """Bring all learners to the newest answered state; returns the error if it is not a death."""
        if self._actors is None:
            return error
        wait([future for _, future in self._asked], self._seconds)
        own: BaseException | None = None if is_death(error) or isinstance(error, Disconnected) else error
        died: dict[int, WorkerDied] = {}
        for index, future in self._asked:
            failed = future.exception() if future.done() else self._silent(index)
            if is_death(failed):
                died[index] = failed
            elif failed is not None and not isinstance(failed, Disconnected):
                own = own or failed
        self._asked.clear()
        if self.num_learners > 1 or died:
            self._mend(died)
        return own

    def _silent(self, index: int) -> WorkerDied:
        return WorkerDied(f"learner {index}", f"it did not answer within {self._seconds:g} s")

    def _mend(self, died: dict[int, WorkerDied]) -> None:
        """Restart learners that died, and load one state into all; restarts those that die meanwhile too."""
        assert self._actors is not None
        while True:
            for index, death in died.items():
                self._actors.restart(index, death)
                self._context.count("learner_restarts")
                log.warning("%s; restarted, it goes on from the newest answered state", death)
            try:
                self._go_on_from(self._latest())
                return
            except ValueLost:  # the state itself is lost
                raise
            except WorkerDied as error:
                died = {int(error.what.rpartition(" ")[2]): error}

    def _latest(self) -> Any:
        """The newest answered state, whether or not the answer's turn has come."""
        return self._answered[max(self._answered)] if self._answered else self._newest

    def _go_on_from(self, state: Any) -> None:
        """Load a state into all learners, and connect them anew."""
        stored = state if self._actors is None or isinstance(state, Remote) else self._actors.put(state)
        futures = [ask(worker, "load_state_dict", stored) for worker in self.members]
        results(futures, f"{self!r} to load their state", 2 * self._seconds)
        if self.num_learners > 1:
            rendezvous(self.members, one_batch=True, seconds=self._seconds)

    # -- the run

    def start(self, context: Context) -> None:
        """Create the learners, with the state of the workers' policy."""
        self._context = context
        if self.members:
            return
        make: Callable[[], Learner] = partial(
            Learner,
            self.workers.policy_maker(gpus=self.where != "actor" or self._of_each.gpus > 0),
            self.training,
            context.seed("minibatches"),
            self.target,
        )
        if self.where == "actor":
            self._actors = Actors(
                [make] * self.num_learners,
                kind="learner",
                remote=True,
                address=self._address or self.workers.address,
                resources=self._of_each,
                max_restarts=self._max_restarts,
                worker_timeout=self._timeout,
            )
            self._actors.start()
        else:
            self._local = [ThreadWorker(make(), "learner") if self.where == "thread" else InlineWorker(make())]
        self.load_state_dict(self._here())

    def stop(self) -> None:
        """Load the learners' state into the workers' policy, and end them."""
        if not self.members:
            return
        try:
            self._take(self.state_dict())
        except FlowError as error:
            log.warning("the last updates of %r are lost: %s", self, error)
        finally:
            actors, self._actors = self._actors, None
            local, self._local = self._local, []
            self._newest = None
            for each in local if actors is None else [actors]:
                each.close()

    close = stop

    def _here(self) -> dict[str, Any]:
        return {"policy": self.workers.policy.state_dict(), **self._rest}

    def _take(self, state: dict[str, Any]) -> None:
        self.workers.policy.load_state_dict(state["policy"])
        self._rest = {name: part for name, part in state.items() if name != "policy"}

    def state_dict(self) -> dict[str, Any]:
        if self._local:
            return dict(results([ask(self._local[0], "state_dict")], f"{self!r} to return its state")[0])
        if self._actors is None:
            return self._here()
        with self._lock:
            latest = self._latest()
        return dict(copy.deepcopy(latest))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self.members:
            self._take(state)
            return
        self._newest = state
        self._answered.clear()
        self._go_on_from(state)
