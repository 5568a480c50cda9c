"""The item at which a run failed, kept beside its checkpoints: `flowrl replay-item` gives it to the operator again.

`failed_item/` of a run is a folder like a checkpoint. It holds the item, the state of the operator that failed, the
weights and buffers that this operator uses, the run's counters and random streams and, of a run with `--debug`, the
newest items of every edge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowrl.engine.failure import Failure, failure_of
from flowrl.engine.graph import graph
from flowrl.engine.held import resources, same_resource, saveable
from flowrl.engine.recording.recorder import Recorder, edge_before, recorder_of
from flowrl.engine.run import Run
from flowrl.errors import ContractError
from flowrl.policies.protocols import HasWeights
from flowrl.rollout import Workers
from flowrl.storage.checkpoint import Checkpoints, save_checkpoint

#: The folder in that of the run.
FOLDER = "failed_item"


def keep_failed_item(run: Run, error: Exception, directory: Path) -> bool:
    """Keep the item at which an operator failed, and what it takes to give it to that operator again.

    Returns: Whether an operator raised the error.
    Raises: CheckpointError: it cannot be written.
    """
    failure = failure_of(error)
    if failure is None:
        return False
    recorder = recorder_of(run.plan)
    (state, seeds), item, earlier, trained = failure.states(), failure.item, list[Any](), list[tuple[Any, Any]]()
    exact, made_of, edge = False, None, ""
    if recorder is not None and failure.has_item:
        edge = edge_before(run.plan, failure.operator)
        before, found = recorder.before.get(failure.operator), recorder.last(edge, item)
        if found is not None:
            *earlier, item = found
            exact = before is not None or (failure.meter is not None and failure.meter.verb == "tap")
            made_of = _maker(run, recorder, edge) if isinstance(error, ContractError) else None
            if before is not None:
                state, seeds, trained = before.operator, before.seeds, before.learns
    maker = None if made_of is None else edge
    latest = Checkpoints(directory / "checkpoints").latest()
    about = {
        "operator": failure.operator,
        "number": failure.number,
        "worker": failure.worker,
        "error": described(error),
        "has_item": failure.has_item,
        "exact": exact,
        "debug": recorder is not None,
        "made_by": maker,
        "checkpoint": None if latest is None else latest.name,
    }
    used = {name: resource.state_dict() for name, resource in _used(run, failure, maker).items()}
    used |= {name: saved for each, saved in trained for name in used if run.resources[name] is each}
    edges = {} if recorder is None else recorder.edges
    parts = {
        "item": {"item": item, "earlier": earlier, "made_of": made_of},
        "state": {"operator": state, "seeds": seeds, "counters": run.context.metrics.state_dict()},
        "edges": {edge: [kept.copy for kept in items] for edge, items in edges.items()},
        "resources": used,
    }
    save_checkpoint(directory / FOLDER, parts, about, earlier=latest)
    return True


def _maker(run: Run, recorder: Recorder, path: str) -> dict[str, Any] | None:
    """What the operator whose item broke a contract made it of, and its state then; None if that is not known."""
    before, edge = recorder.before.get(path), edge_before(run.plan, path)
    if before is None or not recorder.edges.get(edge):
        return None
    return {"item": recorder.edges[edge][-1].copy, "operator": before.operator, "seeds": before.seeds}


def _used(run: Run, failure: Failure, maker: str | None) -> dict[str, Any]:
    """The resources that the operator and the maker of its item use, but for workers: on a worker, the policies."""
    if failure.worker is not None:
        return {name: each for name, each in run.resources.items() if isinstance(each, HasWeights)}
    nodes = [node for node in graph(run.plan) if run.paths[id(node)] in (failure.operator, maker)]
    held = [saveable(each) for node in nodes for each in resources(node.op)]
    return {
        name: each
        for name, each in run.resources.items()
        if any(same_resource(each, other) for other in held) and not isinstance(each, Workers)
    }


def described(error: BaseException) -> str:
    """An error in a line: its type and its message."""
    return f"{type(error).__name__}: {error}"
