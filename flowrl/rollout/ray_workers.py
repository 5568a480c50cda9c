"""Actors on Ray: the only file, with tune.py, that imports it, and only where actors are remote."""

from __future__ import annotations

import logging
import os
import pickle
import platform
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from importlib import metadata
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

import flowrl
from flowrl.errors import ConfigError, WorkerDied
from flowrl.pickling import pack, refusal
from flowrl.remote import Remote, measured
from flowrl.rollout.actors import Make, Resources
from flowrl.rollout.address import check_answers

log = logging.getLogger("flowrl")

#: Seconds until actors must be there, a value must have come, an actor must have closed what it holds.
START_SECONDS = 120.0
FETCH_SECONDS = 60.0
CLOSE_SECONDS = 10.0


class Host:
    """An object in a Ray actor. Answers hold (value, error, warnings), so that an error arrives as it was raised."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._target: Any = None
        self._broken: Any = None
        self._warnings = _Warnings()
        logging.getLogger("flowrl").addHandler(self._warnings)

    def __repr__(self) -> str:
        return self._name

    def begin(self, versions: dict[str, str], path: list[str], threads: int, make: bytes) -> Any:
        """Make the object, if this is the flowrl that asks for it; what fails here fails whatever is asked.

        Modules are found where the process that asks finds them, as far as this machine has those folders.
        """
        sys.path += [folder for folder in path if folder not in sys.path]
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)
        try:
            _compare(versions, f"{self._name} on {platform.node()}")
            self._target = pickle.loads(make)()
        except Exception as error:
            self._broken = self._failed(error)
            return self._broken
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        return None, None, self._warnings.taken()

    def do(self, method: str, *args: Any) -> Any:
        try:
            return self._broken or (getattr(self._target, method)(*args), None, self._warnings.taken())
        except Exception as error:
            return self._failed(error)

    def do_apart(self, method: str, *args: Any) -> Any:
        """The method's receipt with the size of its item, and the item itself, which stays here."""
        answer, error, warnings = self.do(method, *args)
        if error is not None:
            return (None, error, warnings), None
        receipt, item = answer
        return ((receipt, *measured(item)), None, warnings), item

    def _failed(self, error: Exception) -> Any:
        return None, _packed(error, f"{self._name}, process {os.getpid()} on {platform.node()}"), self._warnings.taken()


class RayWorker:
    """An object in a Ray actor, as a worker.

    Attributes:
        began: Done when the object was made.
    """

    def __init__(self, make: Make, name: str, resources: Resources, *, reserve: bool) -> None:
        packed = pack(make, name)
        self.name = name
        options = {
            "num_cpus": resources.cpus if reserve else 0,
            "num_gpus": resources.gpus,
            "memory": resources.memory or None,
            "resources": resources.custom or None,
            "scheduling_strategy": "SPREAD",
        }
        self._actor: Any = ray.remote(Host).options(**options).remote(name)
        self.began: Future[Any] = self._ask("begin", (versions(), sys.path, resources.threads, packed))

    def __repr__(self) -> str:
        return self.name

    def submit(self, method: str, *args: Any) -> Future[Any]:
        return self._ask("do", (method, *args))

    def submit_apart(self, method: str, *args: Any) -> Future[tuple[Any, Remote]]:
        """Ask for `method(*args)`, which gives `(receipt, item)`: the receipt comes here, the item stays there."""
        return self._ask("do_apart", (method, *args))

    def _ask(self, call: str, args: tuple[Any, ...]) -> Future[Any]:
        future: Future[Any] = Future()
        sent = [arg.ref if isinstance(arg, Remote) else arg for arg in args]
        try:
            if call == "do_apart":
                reply, item = self._actor.do_apart.options(num_returns=2).remote(*sent)
            else:
                reply, item = getattr(self._actor, call).remote(*sent), None
        except TypeError as error:
            future.set_exception(refusal(sent[1:], f"what {self.name} is asked, {args[0]!r},", error))
            return future
        reply.future().add_done_callback(lambda done: self._answer(done, item, future))
        return future

    def _answer(self, reply: Future[Any], item: Any, future: Future[Any]) -> None:
        """In a thread of Ray's."""
        try:
            value, error, warnings = reply.result()
            for level, text in warnings:
                log.log(level, "%s: %s", self.name, text)
            if error is not None:
                future.set_exception(pickle.loads(error))
            elif item is None:
                future.set_result(value)
            else:
                receipt, rows, nbytes = value
                future.set_result((receipt, Remote(item, rows, nbytes, fetch)))
        except Exception as failed:
            future.set_exception(_translated(failed, self.name))

    def kill(self) -> None:
        """End the process at once; what it was asked fails."""
        with suppress(Exception):  # it is gone, or Ray is
            ray.kill(self._actor)


class Cluster:
    """The Ray that actors are on: one that is there already, one that is joined, or one of this machine that is begun.

    The last is ended when nobody is left who needs it.
    """

    _users: ClassVar[weakref.WeakSet[Cluster]] = weakref.WeakSet()
    _own: ClassVar[bool] = False

    def __init__(self, address: str | None) -> None:
        if not ray.is_initialized():
            Cluster._own = address is None
            _begin() if address is None else _join(address)
        Cluster._users.add(self)

    def create(self, makes: Sequence[Make], names: Sequence[str], resources: Resources) -> list[RayWorker]:
        if Cluster._own and resources.cpus * len(makes) > (cores := os.cpu_count() or 1):
            log.warning("%d processes of %g cpus share the %d cores of this machine", len(makes), resources.cpus, cores)
        workers = [self._new(make, name, resources) for make, name in zip(makes, names)]
        late = wait([worker.began for worker in workers], START_SECONDS).not_done
        try:
            if late:
                raise ConfigError(f"{len(late)} of {len(workers)} actors did not start within {START_SECONDS:g} s")
            for worker in workers:
                worker.began.result()
        except BaseException:
            self.close(workers)
            raise
        return workers

    def replace(self, worker: RayWorker, make: Make, name: str, resources: Resources) -> RayWorker:
        worker.kill()
        return self._new(make, name, resources)

    def _new(self, make: Make, name: str, resources: Resources) -> RayWorker:
        return RayWorker(make, name, resources, reserve=not Cluster._own)

    def put(self, value: Any) -> Any:
        try:
            return ray.put(value)
        except TypeError as error:
            raise refusal(value, "a value", error) from None

    def close(self, workers: Sequence[RayWorker]) -> None:
        if not ray.is_initialized():
            return
        wait([worker.submit("close") for worker in workers], CLOSE_SECONDS)
        for worker in workers:
            worker.kill()

    def leave(self) -> None:
        Cluster._users.discard(self)
        if Cluster._own and not Cluster._users:
            Cluster._own = False
            end()


def fetch(ref: Any) -> Any:
    """The value that Ray keeps under a reference.

    Raises:
        WorkerDied: the value is lost.
    """
    try:
        return ray.get(ref, timeout=FETCH_SECONDS)
    except RayError as error:
        raise _translated(error, "a value of a worker") from error


def versions() -> dict[str, str]:
    """What both ends of a wire must have in common."""
    found = {"flowrl": flowrl.__version__, "python": ".".join(platform.python_version_tuple()[:2])}
    for package in ("numpy", "torch"):
        found[package] = metadata.version(package).partition("+")[0]  # "+cpu", "+cu12": the same torch
    return found


def _begin() -> None:
    """Start a Ray of this machine, which says nothing and asks nobody."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    before = {name: os.environ.get(name) for name in quiet}
    os.environ.update(quiet)
    try:
        _init("local", include_dashboard=False)
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
    # Ray prints every death of an actor, which flowrl tells in its own words where it matters.
    vars(ray._private.worker)["print_to_stdstream"] = lambda data, **_: log.debug("Ray: %s", " ".join(data["lines"]))


def _join(address: str) -> None:
    check_answers(address)
    try:
        _init(address)
    except ImportError as error:
        raise ConfigError(f"address={address!r} takes the Ray client: pip install 'ray[client]' ({error})") from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"cannot join the Ray cluster at {address}: {error}") from error


def _init(address: str, **settings: Any) -> None:
    """Have Ray, without the handler that it has for SIGTERM where there is one already."""
    before = signal.getsignal(signal.SIGTERM)
    ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, **settings)
    if before != signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def end() -> None:
    """Leave Ray, and where this process started it, wait until its processes are gone."""
    node: Any = ray._private.worker._global_node
    started = [each.process for kind in node.all_processes.values() for each in kind] if node is not None else []
    ray.shutdown()
    for process in started:
        process.wait(CLOSE_SECONDS)


def _compare(theirs: dict[str, str], where: str) -> None:
    """Refuse another flowrl or Python, and say where numpy or torch differ."""
    for name, ours in versions().items():
        if ours == theirs[name]:
            continue
        text = f"{where} has {name} {ours}, the process that asks has {theirs[name]}"
        if name in ("flowrl", "python"):
            raise ConfigError(f"{text}: install the same on all machines of the cluster")
        log.warning("%s: results may differ in the last bits", text)


class _Warnings(logging.Handler):
    """Keeps what is logged until an answer takes it home."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append((record.levelno, record.getMessage()))

    def taken(self) -> list[tuple[int, str]]:
        kept, self._kept = self._kept, []
        return kept


def _packed(error: Exception, where: str) -> bytes:
    """The error with its traceback as a note; one that cannot travel is told in a RuntimeError."""
    told = traceback.TracebackException.from_exception(error)
    told.__notes__ = None  # they travel with it
    error.add_note(f"raised in {where}:\n{''.join(told.format()).rstrip()}")
    try:
        packed: bytes = cloudpickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        other = RuntimeError(f"{type(error).__name__}: {error}")
        other.__notes__ = error.__notes__
        packed = cloudpickle.dumps(other)
    return packed


def _translated(error: Exception, name: str) -> Exception:
    """What became of a request or a value, in flowrl's words."""
    if isinstance(error, RayTaskError):
        error = error.cause
    if isinstance(error, GetTimeoutError):
        return WorkerDied(name, f"it did not come within {FETCH_SECONDS:g} s")
    return WorkerDied(name, _why(error)) if isinstance(error, RayError) else error


#: What Ray says of a death, and what that is in short.
_DEATHS = {
    "node has died": "its machine is gone",
    "node was": "its machine is gone",
    "ray.kill": "it was killed",
    "owner has": "the process that made it is gone",
    "out of memory": "its machine ran out of memory",
    "worker process has died": "its process was killed or crashed",
}


def _why(error: Exception) -> str:
    text = str(error)
    for said, meant in _DEATHS.items():
        if said in text:
            return meant
    return text.strip().splitlines()[-1]
