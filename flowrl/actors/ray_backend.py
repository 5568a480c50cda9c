"""Actors on Ray. Only this file and tune.py import Ray, and only for remote actors."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import pickle
import select
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, ClassVar

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayError, RayTaskError
from ray.util.placement_group import get_current_placement_group

from flowrl.actors.actor_process import PRINTED, ActorProcess, versions
from flowrl.actors.address import check_answers
from flowrl.actors.resources import Make, Resources
from flowrl.actors.watchdog import Watchdog
from flowrl.engine.workers.futures import Future, wait
from flowrl.engine.workers.pickling import pack, pack_plain, refusal
from flowrl.engine.workers.remote import Remote
from flowrl.errors import ConfigError, ValueLost, WorkerDied
from flowrl.interrupts import handling

log = logging.getLogger("flowrl")
_ray: Any = ray  # for the functions without types

#: Time limits in seconds: for actors to start, for a value to arrive, for an actor to close.
START_SECONDS = 120.0
FETCH_SECONDS = 60.0
CLOSE_SECONDS = 10.0
#: Number of requests of a new process that may take START_SECONDS more: up to its first item.
FIRST_REQUESTS = 4
#: Most bytes of a request that its actor may be asked for again.
REPEATED_BYTES = 1000

_HERE = "local"
#: Environment of a Ray that flowrl starts: no usage reports, no authentication.
_OWN = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


class RayWorker:
    """An object in a Ray actor, as a worker.

    Attributes:
        began: Done when the object exists.
    """

    def __init__(self, make: Make, name: str, resources: Resources, *, reserve: bool, place: Cluster) -> None:
        packed = pack(make, name)
        self.name = name
        self._place, self._why, self._answers = place, "", 0
        self._open: set[Future[Any]] = set()
        self._pickling: dict[str, float] = {}  # seconds at both ends for the newest answer that was timed, by method
        self._heard = 0.0  # when it last answered, or was asked after it had answered everything
        needs = _needs(resources, reserve)
        options = {name: needs.pop(key) for key, name in _OPTIONS.items() if key in needs}
        # In a trial of Ray Tune actors must use the room that it has reserved.
        where = "SPREAD" if get_current_placement_group() is None else None
        actor = _ray.remote(ActorProcess).options(resources=needs, scheduling_strategy=where, **options)
        self._actor = actor.remote(name)
        calls = self._actor.do, self._actor.ask, self._actor.again
        self._calls = calls, tuple(call.options(num_returns=2) for call in calls)  # of requests with items apart, too
        self._sending, self._is_sending = threading.RLock(), False
        self._newest = b""  # the request that the actor would repeat
        made_of = versions(), sys.path, resources.threads, packed
        self.began: Future[Any] = self._answer_of("begin", self._actor.begin.remote(*made_of))

    def __repr__(self) -> str:
        return self.name

    @property
    def silent(self) -> float:
        """See `flowrl.actors.watchdog.Watched`."""
        return monotonic() - max(self._heard, self._place.watchdog.resumed) if self._open else 0.0

    @property
    def patience(self) -> float:
        """See `flowrl.actors.watchdog.Watched`; longer for the first requests, which import and compile."""
        return self._place.worker_timeout + (START_SECONDS if self._answers < FIRST_REQUESTS else 0.0)

    def give_up(self) -> None:
        """See `flowrl.actors.watchdog.Watched`."""
        self._why = f"it has not answered for {self.silent:.0f} s (worker_timeout={self._place.worker_timeout:g})"
        self.kill()

    def submit(self, method: str, *args: Any) -> Future[Any]:
        return self._submit(False, method, args)

    def submit_apart(self, method: str, *args: Any) -> Future[tuple[Any, Remote]]:
        """Request `method(*args)`, which returns `(answer, item)`: the answer comes here, the item stays there."""
        return self._submit(True, method, args)

    def _submit(self, apart: bool, method: str, args: tuple[Any, ...]) -> Future[Any]:
        sent = [arg.ref if isinstance(arg, Remote) else arg for arg in args]
        try:
            return self._answer_of(method, self._send(apart, method, sent))
        except TypeError as error:
            future: Future[Any] = Future()
            future.set_exception(refusal(sent, f"the request {method!r} to {self.name}", error))
            return future

    def _send(self, apart: bool, method: str, sent: list[Any]) -> Any:
        """Send a request; returns the references to its results.

        Ray takes as long for one argument as for the rest of a call, so the actor is asked for the same again without.
        """
        do, ask, again = self._calls[apart]
        packed = pack_plain((apart, method, *sent))
        with self._sending:
            # Garbage collection may send a request while another one is sent, which must not come between the two.
            if packed is None or self._is_sending:
                return do.remote(apart, method, *sent)
            self._is_sending = True
            try:
                if packed == self._newest:
                    return again.remote()
                self._newest = b""
                refs = ask.remote(packed)
                self._newest = packed if len(packed) <= REPEATED_BYTES else b""  # a larger one may be lost on its way
                return refs
            finally:
                self._is_sending = False

    def _answer_of(self, method: str, refs: Any) -> Future[Any]:
        """A future of the answer that these references are of."""
        future: Future[Any] = Future()
        if not self._open:
            self._heard = monotonic()
        self._open.add(future)
        _when_done(refs[0] if isinstance(refs, list) else refs, partial(self._answer, method, refs, future))
        return future

    def _answer(self, method: str, refs: Any, future: Future[Any], reply: Any) -> None:
        """Complete a future with a reply; runs in a thread of Ray."""
        _keep_thread_state()
        self._heard = monotonic()
        self._answers += 1
        self._open.discard(future)
        try:
            if isinstance(reply, Exception):
                raise reply
            first, value, error, said, last = pickle.loads(reply) if isinstance(reply, bytes) else reply
            if first is not None:
                self._pickling[method] = sum(last) - sum(first)
            future.pickling = self._pickling.get(method, 0.0)
            for level, text in said:
                if level == PRINTED:
                    print(f"{self.name}: {text}", flush=True)
                else:
                    log.log(level, "%s: %s", self.name, text)
            if error is not None:
                future.set_exception(pickle.loads(error))
            elif isinstance(refs, list):
                answer, rows, nbytes = value
                future.set_result((answer, Remote(refs[1], rows, nbytes, fetch)))
            else:
                future.set_result(value)
        except Exception as failed:
            future.set_exception(_translated(failed, self.name, self._why))

    def kill(self) -> None:
        """End the process at once; its requests fail."""
        with suppress(Exception):  # the actor is gone already, or Ray is
            ray.kill(self._actor)


class Cluster:
    """The Ray that actors run on: the one this process is connected to, a cluster that it joins, or a new local one.

    It leaves the last two with their last user.

    Attributes:
        watchdog: Ends workers that leave a request unanswered for `worker_timeout` seconds.
    """

    _users: ClassVar[weakref.WeakSet[Cluster]] = weakref.WeakSet()
    _at: ClassVar[str | None] = None  # address of the Ray that flowrl joined or started
    _witness: ClassVar[threading.Thread | None] = None  # waits for the death of the raylet that flowrl started

    def __init__(self, address: str | None, worker_timeout: float) -> None:
        where = address or _HERE
        if not ray.is_initialized():
            _begin() if address is None else _join(address)
            Cluster._at = where
        elif Cluster._at not in (None, where):
            raise ConfigError(f"address={address!r}: other actors of this process are on a Ray at {Cluster._at}")
        Cluster._users.add(self)
        self.worker_timeout, self.watchdog = worker_timeout, Watchdog(worker_timeout)
        weakref.finalize(self, self.watchdog.end)

    @property
    def _is_ours(self) -> bool:
        """Whether flowrl started it; then nothing else runs on it, and cores need no reservation."""
        return Cluster._at == _HERE

    def create(self, makes: Sequence[Make], names: Sequence[str], resources: Resources) -> list[RayWorker]:
        if self._is_ours and resources.cpus * len(makes) > (cores := os.cpu_count() or 1):
            log.info("%d processes of %g cpus share the %d cores of this machine", len(makes), resources.cpus, cores)
        _check_fit(_needs(resources, reserve=not self._is_ours), names)
        workers = [self._new(make, name, resources) for make, name in zip(makes, names)]
        late = wait([worker.began for worker in workers], START_SECONDS)
        try:
            if late:
                waiting = ", ".join(worker.name for worker in workers if worker.began in late)
                raise ConfigError(
                    f"{waiting}: not started after {START_SECONDS:g} s; free are {_told(_ray.available_resources())}"
                )
            for worker in workers:
                worker.began.result()
        except BaseException:
            self.close(workers)
            raise
        return workers

    def replace(self, worker: RayWorker, make: Make, name: str, resources: Resources) -> RayWorker:
        self.watchdog.discard(worker)
        worker.kill()
        return self._new(make, name, resources)

    def _new(self, make: Make, name: str, resources: Resources) -> RayWorker:
        worker = RayWorker(make, name, resources, reserve=not self._is_ours, place=self)
        self.watchdog.add(worker)
        return worker

    def put(self, value: Any) -> Any:
        if not ray.is_initialized():  # `ray.put` would start another one, also where a process ends with an open run
            raise WorkerDied("a value for workers", "Ray has ended")
        try:
            return ray.put(value)
        except TypeError as error:
            raise refusal(value, "a value", error) from None

    def close(self, workers: Sequence[RayWorker]) -> None:
        for worker in workers:
            self.watchdog.discard(worker)
        if not ray.is_initialized():
            return
        wait([worker.submit("close") for worker in workers if worker.silent < CLOSE_SECONDS], CLOSE_SECONDS)
        for worker in workers:
            worker.kill()

    def leave(self) -> None:
        self.watchdog.end()
        Cluster._users.discard(self)
        if Cluster._at is not None and not Cluster._users:
            end()


#: Ray's names of its own resources, and the option of an actor that requests each.
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def _needs(resources: Resources, reserve: bool) -> dict[str, float]:
    """The resources to request from Ray; cores only if `reserve`."""
    needs = {"CPU": resources.cpus * reserve, "GPU": resources.gpus, "memory": resources.memory, **resources.custom}
    return {"CPU": 0, **{name: amount for name, amount in needs.items() if amount}}


def _check_fit(needs: dict[str, float], names: Sequence[str]) -> None:
    """Refuse requests that a cluster of fixed size can never fulfil.

    Raises: ConfigError: names the resource, and the amount that exists.
    """
    if _grows():
        return
    nodes = [node["Resources"] for node in _ray.nodes() if node["Alive"]]
    for resource, amount in needs.items():
        amounts = [node.get(resource, 0) for node in nodes]
        if amount > max(amounts):
            has = f"the largest machine has {max(amounts):g}; there are {_told(_ray.cluster_resources())}"
        elif amount * len(names) > sum(amounts):
            has = f"the cluster has {sum(amounts):g}"
        else:
            continue
        raise ConfigError(f"{names[0]} .. {names[-1]}: {len(names)} x {amount:g} {resource} requested, {has}")


def _told(resources: dict[str, float]) -> str:
    """Resources in words, without those that only name machines.

    >>> _told({"CPU": 4.0, "memory": 2e9, "node:10.0.0.1": 1.0})
    '4 CPU, 2 GB memory'
    """
    return ", ".join(_amount(name, n) for name, n in sorted(resources.items()) if not name.startswith("node:"))


def _amount(name: str, amount: float) -> str:
    return f"{amount / 1e9:.3g} GB {name}" if name.endswith("memory") else f"{amount:g} {name}"


def fetch(ref: Any) -> Any:
    """The value behind a reference of Ray.

    Raises:
        WorkerDied: the value is lost.
    """
    if not ray.is_initialized():  # `ray.get` would start another one
        raise WorkerDied("a value of a worker", "Ray has ended")
    try:
        return ray.get(ref, timeout=FETCH_SECONDS)
    except RayError as error:
        raise _translated(error, "a value of a worker") from error


def _begin() -> None:
    """Start a local Ray."""
    before = {name: os.environ.get(name) for name in _OWN}
    os.environ.update(_OWN)
    try:
        _init(_HERE, include_dashboard=False)
        _watch_raylet()
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def _join(address: str) -> None:
    check_answers(address)
    try:
        _init(address)
    except ImportError as error:
        raise ConfigError(f"address={address!r} takes the Ray client: pip install 'ray[client]' ({error})") from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"cannot join the Ray cluster at {address}: {error}") from error


def _init(address: str, **settings: Any) -> None:
    """Connect to Ray, without its handler for SIGTERM, which would end Ray before a run has saved."""
    before = signal.getsignal(signal.SIGTERM)
    with _uninterrupted():
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, **settings)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit if before == signal.SIG_DFL else before)
    _silence()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay a Ctrl-C to the end of the block: Python drops one while Ray forks. A second Ctrl-C raises at once."""
    kept: list[int] = []

    def keep(number: int, _frame: Any) -> None:
        if kept:
            raise KeyboardInterrupt
        kept.append(number)

    with handling([signal.SIGINT], keep):
        yield
    if kept:
        signal.raise_signal(signal.SIGINT)


def _exit(number: int, _frame: Any) -> None:
    """Exit with cleanup; the handler for SIGTERM if none was set before."""
    sys.exit(128 + number)


def end() -> None:
    """Leave Ray, whoever uses it; if this process started it, wait until its processes are gone."""
    Cluster._at = None
    Cluster._users.clear()
    started = _started()
    ray.shutdown()
    for process in started:
        process.wait(CLOSE_SECONDS)
    if Cluster._witness is not None:
        Cluster._witness.join(CLOSE_SECONDS)
        Cluster._witness = None


def _translated(error: Exception, name: str, why: str = "") -> Exception:
    """The error of flowrl for an error of Ray on a request or a value; `why` is the reason of a death, if known."""
    if isinstance(error, RayTaskError):
        error = error.cause
    if isinstance(error, GetTimeoutError):
        return WorkerDied(name, f"it did not come within {FETCH_SECONDS:g} s")
    if isinstance(error, ObjectLostError):
        return ValueLost(name, "it is lost with the machine that held it")
    return WorkerDied(name, why or _why(error)) if isinstance(error, RayError) else error


#: Phrases in Ray's errors on a death, and their meanings.
_DEATHS = {
    "node has died": "its machine is gone",
    "node was": "its machine is gone",
    "ray.kill": "it was killed",
    "out of memory": "its machine ran out of memory",
    "worker process has died": "its process was killed or crashed",
}


def _why(error: Exception) -> str:
    text = str(error)
    for phrase, meaning in _DEATHS.items():
        if phrase in text:
            return meaning
    return text.strip().splitlines()[-1]


# -- All uses of Ray's private interfaces; tests/actors/test_ray_private.py shows what breaks without each.


def _grows() -> bool:
    """Whether the cluster adds machines when requests exceed its resources."""
    state = _ray._private.state.state
    return not _ray.util.client.ray.is_connected() and bool(state.get_max_resources_from_cluster_config())


def _when_done(ref: Any, call: Callable[[Any], None]) -> None:
    """Call a function with the value behind a reference, or with Ray's error, in a thread of Ray.

    A future of Ray does the same with a dozen objects more.
    """
    ref._on_completed(call)


class _OfThread(threading.local):
    keeps_state = False


_of_thread = _OfThread()


def _keep_thread_state() -> None:
    """Keep Python's state of the current thread, one of Ray's in C++, until that ends.

    Else Python makes one for every answer and deletes it afterwards. The system maps and unmaps its memory, which
    interrupts all other threads, and takes a sixth of this process's time for a small request.
    """
    if not _of_thread.keeps_state:
        ctypes.pythonapi.PyGILState_Ensure()  # never released
        _of_thread.keeps_state = True


def _silence() -> None:
    """Keep Ray from printing every death to standard output: flowrl logs what a death means for the run."""
    _ray._private.worker.print_to_stdstream = lambda data, **_: log.debug("Ray: %s", " ".join(data["lines"]))


def _started() -> list[Any]:
    """The processes of a Ray that this process started."""
    node = _ray._private.worker._global_node
    return [] if node is None else [each.process for kind in node.all_processes.values() for each in kind]


_RAYLET_DIED = b"""\
Ray's raylet, the process that runs Ray on this machine, has died. Ray now ends this process too, and flowrl cannot save
anything more. A run of `flowrl run` goes on from its newest checkpoint: flowrl run --resume RUN
"""


def _watch_raylet() -> None:
    """Say so when the raylet dies: Ray ends this process at its next use of shared memory, without a word.

    The thread only waits, so that it is mostly first.
    """
    (raylet,) = _ray._private.worker._global_node.all_processes["raylet"]
    atexit.register(_forget)  # it runs before Ray's own, which ends the raylet
    if sys.platform == "linux":
        file = os.pidfd_open(raylet.process.pid)
        Cluster._witness = threading.Thread(target=_tell_of_death, args=(file,), name="flowrl-raylet", daemon=True)
        Cluster._witness.start()


def _forget() -> None:
    Cluster._at = None


def _tell_of_death(raylet: int) -> None:
    select.select([raylet], [], [])
    os.close(raylet)
    if Cluster._at == _HERE:  # nobody ended it
        with suppress(OSError):
            os.write(2, _RAYLET_DIED)
