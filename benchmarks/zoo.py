"""Trained policies, small enough for the repository: `flowrl evaluate zoo:ppo/CartPole-v1` plays one of them.

Each is the best policy of one `flowrl run` of a task of learning_tasks.py, or of the few more below. The index in
zoo/index.json has for each its file and checksum, the command that made it, and the return of 100 episodes on starts
that neither training nor its own evaluations had, whatever it came to.

    python benchmarks/zoo.py list
    python benchmarks/zoo.py make ppo/CartPole-v1 [NAME ...] [--seed 0] [--keep DIR]   # or --all: anew
    python benchmarks/zoo.py check [NAME ...]                                          # plays the episodes again
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from learning import options_of, run_task
from learning_tasks import TASKS, Task

from flowrl.runs.zoo import INDEX, zoo_file, zoo_index
from flowrl.storage.files import write, write_json
from flowrl.tools.evaluate import evaluate_run

FOLDER = Path(__file__).parent / "zoo"
EPISODES = 100

#: Environments with few states, which one finds by chance.
DRY = "--env-arg is_slippery=false"
MORE = {
    "dqn-frozenlake": Task("dqn", 1.0, 30_000, "FrozenLake-v1", DRY),
    "ppo-frozenlake": Task("ppo", 1.0, 100_000, "FrozenLake-v1", DRY),
}
#: The tasks that are in the zoo, quick ones first. They have an environment of one kind, and need no extra.
CHOSEN = (
    *("ppo-cartpole", "a2c-cartpole", "sac-cartpole", "a2c-acrobot", "ppo-acrobot", "ddpg-pendulum", "sac-pendulum"),
    *("td3-pendulum", "ppo-pendulum", "ppo-positions", "her_sac-point", "her_dqn-10-bits", "bc-cartpole"),
    *("dqfd-cartpole", "sqil-cartpole", "rbc-cartpole", "sacfd-pendulum", "dqn-acrobot", "c51-cartpole"),
    *("dqn-cartpole", "qrdqn-cartpole", "rainbow-cartpole", "r2d2-positions", "dqn-mountaincar", "gail-cartpole"),
    *("airl-cartpole", "marwil-cartpole-data", "cql-cartpole-data", "iql-cartpole-data", "bc-pendulum-data"),
    *("marwil-pendulum-data", "cql-pendulum-data", "iql-pendulum-data", "rnd_dqn-mountaincar", "rnd-mountaincar"),
    *("icm-mountaincar", "r2d3-cartpole", "r2d2-cartpole"),
    *MORE,
)


def name_of(task: Task) -> str:
    """The name of a task's policy: plan and environment."""
    return f"{task.plan}/{task.env.rpartition(':')[2]}"


ZOO = {name_of(task): (name, task) for name, task in ((name, {**TASKS, **MORE}[name]) for name in CHOSEN)}


def make(name: str, seed: int, runs: Path) -> dict[str, Any]:
    """Train a policy, put it into the zoo, and return its entry of the index."""
    label, task = ZOO[name]
    run_task(label, task, [seed], 1, runs / label)
    run, file = runs / label / f"seed-{seed}", FOLDER / f"{name.replace('/', '-')}.pt"
    FOLDER.mkdir(exist_ok=True)
    write(file, (run / "policy.pt").read_bytes())
    about = {
        "file": file.name,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "bytes": file.stat().st_size,
        "made_by": f"python benchmarks/zoo.py make {name} --seed {seed}",
        "command": " ".join(["flowrl run", *options_of(task), "--seed", f"{seed}"]),
        "learns_from": task.data or (f"{task.demonstrations} demonstrations" if task.demonstrations else None),
        "versions": json.loads((run / "run.json").read_text())["versions"],
        **played(file),
    }
    index = zoo_index() if (FOLDER / INDEX).exists() else {}
    write_json(FOLDER / INDEX, dict(sorted({**index, name: about}.items())))
    return about


def played(file: Path) -> dict[str, Any]:
    """What the policy in a file comes to."""
    scores = evaluate_run(file, episodes=EPISODES, seed=0, trusted=True).scores
    return {
        **{"episodes": scores.episodes, "return_mean": scores.return_mean, "return_std": scores.return_std},
        **{"return_min": scores.return_min, "return_max": scores.return_max, "win_rate": scores.win_rate},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "make", "check"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as ppo/CartPole-v1")
    parser.add_argument("--all", action="store_true", help="make all of them anew")
    parser.add_argument("--seed", type=int, default=0, metavar="K", help="of the runs (default 0)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs here, and use what is there")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in ZOO]:
        parser.error(f"no policy {unknown[0]}; there are {', '.join(ZOO)}")
    if options.what == "make":
        if bool(options.names) == options.all:
            parser.error("say which to make: NAME ..., or --all")
        with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as runs:
            for name in options.names or ZOO:
                about = make(name, options.seed, Path(runs))
                print(f"{name}: {about['return_mean']:,.2f} ± {about['return_std']:,.2f}, {about['bytes']:,} bytes")
        return
    index = zoo_index()
    for name in options.names or index:
        about = index[name]
        line = f"{name:<28} return {about['return_mean']:,.2f} ± {about['return_std']:,.2f}  {about['bytes']:,} bytes"
        if options.what == "check":
            again = played(zoo_file(name))["return_mean"]
            line += f"  again {again:,.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
