"""Does `flowrl autotune` find the fastest settings?

Six workloads: quick and slow environments, heavy tails, pixels, a slow learner, and replay in other processes. For each
one, `flowrl autotune` runs, and then every combination of the settings that it may choose, `--rounds` turns each, in
the same process; the pace of its choice is compared with the best of all, both measured then.

    PYTHONPATH=benchmarks:. python benchmarks/autotune_truth.py [--only slow] [--rounds 5]
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import gymnasium
import numpy as np
from common import print_machine

from flowrl.runs.config import build_config
from flowrl.tools.autotune import Measurement, Trial, Tuner, total
from flowrl.trainer.plan_file import load_plan_file
from tests.timed_envs import TimedEnv, heavy_tailed


def slow() -> TimedEnv:
    """Waits 4 ms in each step, as for a server."""
    return TimedEnv(4e-3)


class Tailed(TimedEnv):
    """Waits 2 ms on average, and often much longer, each at steps of its own."""

    def __init__(self) -> None:
        super().__init__(2e-3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.seconds = heavy_tailed(seed % 1_000, mean=2e-3).tolist()
        return super().reset(seed=seed, options=options)


class Pixels(gymnasium.Env[Any, Any]):
    """Draws a moving square into 84 x 84 pixels, for a millisecond of its processor."""

    observation_space = gymnasium.spaces.Box(0, 255, (1, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def _seen(self) -> Any:
        until, frame = time.thread_time() + 1e-3, np.zeros((1, 84, 84), np.uint8)
        while time.thread_time() < until:
            frame[0, self.t % 80 : self.t % 80 + 4, self.at : self.at + 4] = 255
        return frame

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.at = 0, 40
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t, self.at = self.t + 1, int(np.clip(self.at + action - 1, 0, 80))
        return self._seen(), float(self.at == 40), False, self.t == 200, {}


PPO = {"train_batch_size": 128, "minibatch_size": 64, "num_sgd_iter": 2, "fragment_steps": 8}
WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "quick": ("ppo", {"env": "CartPole-v1", **PPO}),
    "slow": ("ppo", {"env": "autotune_truth:slow", **PPO, "env_groups": 2}),
    "tails": ("ppo", {"env": "autotune_truth:Tailed", **PPO}),
    "pixels": ("a2c", {"env": "autotune_truth:Pixels", "fragment_steps": 4, "train_batch_size": 32}),
    "learner": ("dqn", {"env": "CartPole-v1", "hidden": [512, 512], "replay_ratio": 32.0}),
    "remote": (
        "apex_dqn",
        {"env": "autotune_truth:slow", "num_workers": 2, "envs_per_worker": 4, "replay_ratio": 1.0},
    ),
}


def exhaustive(search: Tuner, rounds: int) -> dict[tuple[int, ...], float]:
    """The median pace of every point, in turns of a moment."""
    counts = [[number for number, option in enumerate(knob.options) if not option.changes] for knob in search.knobs]
    found = {}
    for point in itertools.product(*counts):
        try:
            with Trial(search.plan_file, search.at(point)) as trial:
                trial.warm_up(120)
                found[point] = total([trial.turn() for _ in range(rounds)]).pace
        except Exception as error:
            print(f"  {point}: {error}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print_machine("flowrl-engine")
    for name, (plan, settings) in WORKLOADS.items():
        if not name.startswith(options.only):
            continue
        plan_file = load_plan_file(plan)
        search = Tuner(plan_file, build_config(plan_file.Config, settings))
        search.run()
        print(f"\n== {name}", flush=True)
        print("\n".join(search.lines()))
        found = exhaustive(search, options.rounds)
        order = sorted(found, key=found.__getitem__, reverse=True)
        # The choice and the best ones once more, in turn, since the machine may have changed meanwhile.
        for point in order:
            what = ", ".join(map(str, search.changed(point))) or "as given"
            print(f"  {found[point]:>10,.0f} {search.config.clock}/s  {what}")
        rivals = [point for point in order[:3] if point != search.best]
        worst = min([1.0, *(beside(search, rival, options.rounds) for rival in rivals)])
        print(f"{name}: the choice has {worst:.2f} of the pace of the best of {len(found)}, side by side", flush=True)


def beside(search: Tuner, rival: tuple[int, ...], rounds: int) -> float:
    """The pace of the choice as a share of another one's, in turns."""
    with Trial(search.plan_file, search.chosen) as mine, Trial(search.plan_file, search.at(rival)) as other:
        mine.warm_up(120)
        other.warm_up(120)
        turns: dict[Trial, list[Measurement]] = {mine: [], other: []}
        for turn in range(2 * rounds):
            for each in (mine, other) if turn % 2 else (other, mine):
                turns[each].append(each.turn())
        return total(turns[mine]).pace / total(turns[other]).pace


if __name__ == "__main__":
    main()
