"""How soon does PPO learn CartPole-v1, beside Stable-Baselines3's PPO with the same settings?

Seconds and env steps until the raw return of the last 20 training episodes has a mean of 475, looked at after every
256 steps, in at most 100 000. The settings are those of RL Baselines3 Zoo. Each seed is run by both, one after the
other in turning order, in one process with one thread of torch; the first steps of each, which import and compile,
are made beforehand. Needs the extra `bench`.

    python benchmarks/ppo_cartpole.py [--seeds 0 1 2 3 4 5 6 7 8 9]
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from common import print_machine, ratio_with_interval

GOAL, EPISODES = 475.0, 20
BUDGET = 100_000

#: By the names of the plan; its networks are two of 64 x 64 with tanh, Adam's epsilon is 1e-5.
SETTINGS = {
    "env": "CartPole-v1",
    "envs_per_worker": 8,
    "fragment_steps": 32,
    "train_batch_size": 256,
    "num_sgd_iter": 20,
    "minibatch_size": 256,
    "gamma": 0.98,
    "lam": 0.8,
    "entropy_coef": 0.0,
    "learning_rate": 1e-3,
    "learning_rate_end": 0.0,
    "clip": 0.2,
    "clip_end": 0.0,
    "schedule_steps": BUDGET,
    "hidden": [64, 64],
    "value_coef": 0.5,
    "grad_clip": 0.5,
    "device": "cpu",
}


class Learned(NamedTuple):
    """Seconds and env steps until the goal, infinite where the budget ended first; env steps a second."""

    seconds: float
    steps: float
    speed: float


class Training:
    """The returns of the newest episodes, and whether they reach the goal."""

    def __init__(self) -> None:
        self.started = perf_counter()
        self.recent: deque[float] = deque(maxlen=EPISODES)

    @property
    def reached(self) -> bool:
        return len(self.recent) == EPISODES and float(np.mean(self.recent)) >= GOAL

    def learned(self, steps: int) -> Learned:
        seconds = perf_counter() - self.started
        speed = steps / seconds
        return Learned(seconds, steps, speed) if self.reached else Learned(np.inf, np.inf, speed)


def flowrl_run(seed: int, budget: int = BUDGET) -> Learned:
    """The built-in plan, its episodes summed up by a tap on the experience."""
    from flowrl.trainer.config import build_config
    from flowrl.trainer.plan_file import load_plan_file

    training = Training()
    plan_file = load_plan_file("ppo")
    workers, plan = plan_file.build(build_config(plan_file.Config, SETTINGS | {"seed": seed}))
    total = np.zeros(SETTINGS["envs_per_worker"])

    def watch(batch: object) -> None:
        for reward, ended in zip(batch.reward, batch.terminated | batch.truncated):
            total[:] += reward
            if ended.any():
                training.recent.extend(total[ended])
                total[ended] = 0

    with workers, plan.tap("ParallelRollouts", watch).run(seed=seed) as run:
        while not training.reached and run.counters.get("env_steps", 0) < budget:
            run.step()
        return training.learned(run.counters["env_steps"])


def sb3_run(seed: int, budget: int = BUDGET) -> Learned:
    """The same settings by their names; what is not named is a default of both."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    training = Training()

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            training.recent.extend(info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
            # Only where a rollout ends, as the plan is looked at.
            return self.num_timesteps % 256 > 0 or not (training.reached or self.num_timesteps >= budget)

    envs = make_vec_env(SETTINGS["env"], n_envs=SETTINGS["envs_per_worker"], seed=seed)
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=SETTINGS["fragment_steps"],
        batch_size=SETTINGS["minibatch_size"],
        n_epochs=SETTINGS["num_sgd_iter"],
        gamma=SETTINGS["gamma"],
        gae_lambda=SETTINGS["lam"],
        ent_coef=SETTINGS["entropy_coef"],
        learning_rate=lambda remaining: remaining * SETTINGS["learning_rate"],
        clip_range=lambda remaining: remaining * SETTINGS["clip"],
        vf_coef=SETTINGS["value_coef"],
        max_grad_norm=SETTINGS["grad_clip"],
        seed=seed,
        device="cpu",
    )
    model.learn(BUDGET, callback=Watch())
    envs.close()
    return training.learned(model.num_timesteps)


CONTESTANTS: dict[str, Callable[..., Learned]] = {"flowrl": flowrl_run, "Stable-Baselines3": sb3_run}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--only", choices=CONTESTANTS, help="run one side alone")
    options = parser.parse_args()
    names = [options.only] if options.only else list(CONTESTANTS)
    print_machine("numpy", "torch", "gymnasium", "stable-baselines3")
    torch.set_num_threads(1)
    for name in names:
        CONTESTANTS[name](0, budget=1_024)
    found: dict[str, list[Learned]] = {name: [] for name in names}
    print(f"{'seed':>4}  {'':<17}  {'seconds':>7}  {'env steps':>9}  {'steps/s':>7}")
    for turn, seed in enumerate(options.seeds):
        for name in names[:: -1 if turn % 2 else 1]:
            learned = CONTESTANTS[name](seed)
            found[name].append(learned)
            print(f"{seed:>4}  {name:<17}  {learned.seconds:7.1f}  {learned.steps:>9,.0f}  {learned.speed:>7,.0f}")
    for name, runs in found.items():
        reached = sum(np.isfinite(each.steps) for each in runs)
        print(f"{name}: {reached} of {len(runs)} seeds reached a return of {GOAL:g} within {BUDGET:,} env steps")
        for field, unit in (("seconds", "s"), ("steps", "env steps"), ("speed", "env steps/s")):
            values = [getattr(each, field) for each in runs]
            # Runs without an end cannot be averaged with others.
            method = "linear" if np.isfinite(values).all() else "higher"
            low, median, high = np.quantile(values, [0.25, 0.5, 0.75], method=method)
            print(f"  median {median:,.1f} {unit}, quartiles {low:,.1f} to {high:,.1f}")
    if not options.only:
        print("where both reached it, by pairs of the same seed:")
        for field in ("seconds", "steps", "speed"):
            pairs = np.array([[getattr(each, field) for each in found[name]] for name in names])
            ratio, low, high = ratio_with_interval(*pairs[:, np.isfinite(pairs).all(0)])
            print(f"  {field}, flowrl / Stable-Baselines3: {ratio:.2f} (95 % interval {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
