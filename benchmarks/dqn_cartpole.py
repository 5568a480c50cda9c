"""Does DQN solve CartPole-v1, and in how many steps and seconds? One run of the command line for each seed.

Solved (S6): 100 evaluation episodes with a mean return of at least 475, and 100 more on fresh seeds for the saved
checkpoint, within 50 000 env steps. Seeds 0 to 4 were looked at while the defaults were chosen; 10 to 19 were not.

    python benchmarks/dqn_cartpole.py [--seeds 0 1 2 3 4 10 11 12 13 14 15 16 17 18 19]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from math import nan
from pathlib import Path

import numpy as np
from common import print_machine

TUNED, FRESH = range(5), range(10, 20)


def solve(seed: int, out: Path) -> dict[str, object]:
    """Run the plan with a seed; its summary."""
    command = [sys.executable, "-m", "flowrl", "run", "dqn", "--stop-return", "475", "--stop-steps", "50000", "--quiet"]
    done = subprocess.run(
        [*command, "--seed", str(seed), "--out", str(out)], capture_output=True, text=True, timeout=3600
    )
    if not (out / "summary.json").exists():
        raise SystemExit(f"seed {seed} ended with exit code {done.returncode}:\n{done.stderr}")
    summary: dict[str, object] = json.loads((out / "summary.json").read_text())
    return {**summary, "exit": done.returncode}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[*TUNED, *FRESH])
    options = parser.parse_args()
    print_machine("numpy", "torch", "gymnasium")
    print(f"{'seed':>4}  {'return':>7}  {'fresh seeds':>11}  {'env steps':>9}  {'seconds':>7}")
    solved, steps, seconds = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            summary = solve(seed, Path(folder) / str(seed))
            last: dict[str, float] = summary["last"]  # type: ignore[assignment]
            solved.append(summary["exit"] == 0)
            steps.append(last["env_steps"])
            seconds.append(float(summary["seconds"]))  # type: ignore[arg-type]
            scores = f"{last.get('eval_return', nan):7.1f}  {last.get('confirmed_return', nan):11.1f}"
            mark = "" if solved[-1] else f"  NOT SOLVED (exit {summary['exit']})"
            print(f"{seed:>4}  {scores}  {steps[-1]:>9,}  {seconds[-1]:7.1f}{mark}", flush=True)
    by_seed = dict(zip(options.seeds, solved))
    for name, seeds in (("looked at", TUNED), ("fresh", FRESH)):
        ours = [by_seed[seed] for seed in seeds if seed in by_seed]
        print(f"solved {sum(ours)} of {len(ours)} seeds that were {name} while tuning")
    print(f"median {np.median(steps):,.0f} env steps, {np.median(seconds):.1f} s")
    sys.exit(0 if all(solved) else 1)


if __name__ == "__main__":
    main()
