"""What tests of the command share: plans that a test can predict, the command in this process, what a run wrote."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from flowrl.tools.ui.server import Server
from tests.plans.small import without_clock

DEADLINE = 120

#: Result i of n: `loss` is there from the second one on; the return tells the seed.
TINY = '''"""Numbers for results, and a policy that always goes left."""
from __future__ import annotations

import attrs
import numpy as np

import flowrl
from flowrl.runs.config import Configuration


@attrs.define(kw_only=True)
class Config(Configuration):
    n: int = 4
    rate: float = 1.0
    hidden: tuple[int, ...] = (1, 2)


class Left:
    draws = 0

    @property
    def collect_mode(self):
        return self

    eval_mode = collect_mode

    def act(self, obs, noise, env_steps):
        return {"action": np.zeros(len(obs), dtype=np.int64)}

    def weights(self):
        return {}

    def load_weights(self, weights):
        pass


def policy(config, observation_space, action_space):
    return Left()


def results(config):
    for i in range(1, config.n + 1):
        late = {"loss": 1 / i, "shape": [i, 2]} if i > 1 else {}
        yield {"env_steps": 10 * i, "episode_return": 10.0 * config.seed + i, "unknown": float("nan"), **late}


def execution_plan(workers, config):
    return flowrl.from_items(list(results(config))).for_each(keep)


def keep(item):
    return item
'''


#: Waits in an operator for ever.
STUCK = TINY.replace(
    "    return item\n", "    print('waiting', flush=True)\n    threading.Event().wait()\n"
).replace("import attrs\n", "import threading\n\nimport attrs\n")  # fmt: skip

#: DQN as it learns in a moment.
SMALL = ("--set", "hidden=[8]", "--set", "learning_starts=100", "--set", "replay_ratio=1", "--set", "batch_size=16")


def flowrl(*arguments: Any) -> Result:
    """The command `flowrl`, in this process."""
    from flowrl.cli.main import cli

    return CliRunner(catch_exceptions=False).invoke(cli, [str(argument) for argument in arguments])


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    """The page of `flowrl ui` on the runs in a folder."""
    with Server([folder], 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def results_of(run: Path) -> list[dict[str, Any]]:
    """What a run wrote to metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def metrics(run: Path) -> list[dict[str, Any]]:
    """The same, but for what follows the clock."""
    return [without_clock(result) for result in results_of(run)]


def summary_of(run: Path) -> dict[str, Any]:
    """How a run, or several of --seeds, ended."""
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found
