"""How soon does PPO learn CartPole-v1, beside Stable-Baselines3's PPO with the same settings?

Seconds and env steps of training until the raw return of the last 20 training episodes has a mean of 475, and the
greedy policy confirms it with a mean of 475 in 100 episodes, looked at after every batch, in at most 100 000 env steps;
the episodes that confirm it count neither as seconds nor as steps. The settings are those of RL Baselines3 Zoo, which
are the defaults of `flowrl run ppo`. With `--quick` there is a third contestant, the quick settings of docs/ppo.md.
Each seed is run by all, one after the other in turning order, in one process with one thread of torch; the first steps
of each, which import and compile, are made beforehand. Needs the extra `bench`.

    python benchmarks/ppo_cartpole.py [--quick] [--seeds 0 1 2 3 4 5 6 7 8 9]
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from common import Pair, Row, compare, installed, print_machine

GOAL, EPISODES, CONFIRMING = 475.0, 20, 100
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

#: Many environments in one native vector environment, larger batches and steps, and a longer horizon.
QUICK = SETTINGS | {
    "env_manager": "vector",
    "envs_per_worker": 20,
    "train_batch_size": 640,
    "minibatch_size": 640,
    "num_sgd_iter": 12,
    "gamma": 0.99,
    "lam": 0.95,
    "learning_rate": 5e-3,
    "reward_scale": 0.1,
}


class Learned(NamedTuple):
    """Seconds and env steps until the goal, infinite where the budget ended first; env steps a second.

    `refused` is how often the greedy policy did not confirm what the training episodes said.
    """

    seconds: float
    steps: float
    speed: float
    refused: int


class Training:
    """The returns of the newest episodes, and whether they reach the goal, and the greedy policy confirms that.

    Args:
        confirm: Plays episodes by the greedy policy, and returns their mean return; its seconds do not count.
    """

    def __init__(self, confirm: Callable[[], float]) -> None:
        self.started = perf_counter()
        self.recent: deque[float] = deque(maxlen=EPISODES)
        self.confirm, self.refused = confirm, 0

    def reached(self) -> bool:
        """To be asked after each batch, up to the first True."""
        if len(self.recent) < EPISODES or float(np.mean(self.recent)) < GOAL:
            return False
        asked = perf_counter()
        confirmed = self.confirm() >= GOAL
        self.started += perf_counter() - asked
        self.refused += not confirmed
        return confirmed

    def learned(self, steps: int, reached: bool) -> Learned:
        seconds = perf_counter() - self.started
        found = (seconds, steps) if reached else (np.inf, np.inf)
        return Learned(*found, steps / seconds, self.refused)


def flowrl_run(seed: int, budget: int = BUDGET, settings: Mapping[str, Any] = SETTINGS) -> Learned:
    """The built-in plan, its episodes summed up by a tap on the experience."""
    from flowrl.rollout import evaluate, scores
    from flowrl.runs.config import build_config
    from flowrl.trainer.plan_file import load_plan_file

    def confirm() -> float:
        episodes = evaluate(workers.policy, settings["env"], episodes=CONFIRMING, seed=seed, num_envs=CONFIRMING)
        return scores(episodes).return_mean

    training, reached = Training(confirm), False
    plan_file = load_plan_file("ppo")
    workers, plan = plan_file.build(build_config(plan_file.Config, dict(settings) | {"seed": seed}))
    total = np.zeros(settings["envs_per_worker"])

    def watch(batch: object) -> None:
        for reward, ended in zip(batch.reward, batch.terminated | batch.truncated):
            total[:] += reward
            if ended.any():
                training.recent.extend(total[ended])
                total[ended] = 0

    with workers, plan.tap("ParallelRollouts", watch).run(seed=seed) as run:
        while not reached and run.counters.get("env_steps", 0) < budget:
            updates = run.counters.get("updates", 0)
            run.step()
            reached = run.counters.get("updates", 0) > updates and training.reached()
        return training.learned(run.counters["env_steps"], reached)


def quick_run(seed: int, budget: int = BUDGET) -> Learned:
    """The quick settings."""
    return flowrl_run(seed, budget, QUICK)


def sb3_run(seed: int, budget: int = BUDGET) -> Learned:
    """The same settings by their names; what is not named is a default of both."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    def confirm() -> float:
        envs = make_vec_env(SETTINGS["env"], n_envs=CONFIRMING, seed=BUDGET + seed)
        mean, _ = evaluate_policy(model, envs, CONFIRMING)
        envs.close()
        return float(mean)

    training = Training(confirm)

    class Watch(BaseCallback):
        reached = False

        def _on_rollout_start(self) -> None:  # where a batch has been learned from
            self.reached = training.reached()

        def _on_step(self) -> bool:
            training.recent.extend(info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
            return not self.reached and self.num_timesteps < budget

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
    watch = Watch()
    model.learn(BUDGET, callback=watch)
    envs.close()
    return training.learned(model.num_timesteps, watch.reached)


#: How many times as soon as Stable-Baselines3 they are to be there.
AIMS = {"flowrl": 4.0, "flowrl quick": 8.0}
CONTESTANTS: dict[str, Callable[..., Learned]] = {
    "flowrl": flowrl_run,
    "flowrl quick": quick_run,
    "Stable-Baselines3": sb3_run,
}


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--only", choices=CONTESTANTS, help="run one side alone")
    parser.add_argument("--quick", action="store_true", help="with the quick settings as a third side")
    options = parser.parse_args(arguments)
    names = (
        [options.only] if options.only else [name for name in CONTESTANTS if options.quick or name != "flowrl quick"]
    )
    print_machine("numpy", "torch", "gymnasium", "stable-baselines3")
    torch.set_num_threads(1)
    names = list(installed({name: partial(CONTESTANTS[name], 0, budget=1_024) for name in names}))
    found: dict[str, list[Learned]] = {name: [] for name in names}
    print(f"{'seed':>4}  {'':<17}  {'seconds':>7}  {'env steps':>9}  {'steps/s':>7}  {'refused':>7}")
    for turn, seed in enumerate(options.seeds):
        for name in names[:: -1 if turn % 2 else 1]:
            learned = CONTESTANTS[name](seed)
            found[name].append(learned)
            numbers = f"{learned.seconds:7.2f}  {learned.steps:>9,.0f}  {learned.speed:>7,.0f}  {learned.refused:>7}"
            print(f"{seed:>4}  {name:<17}  {numbers}")
    for name, runs in found.items():
        reached = sum(np.isfinite(each.steps) for each in runs)
        print(f"{name}: {reached} of {len(runs)} seeds reached a return of {GOAL:g} within {BUDGET:,} env steps")
    costs = {name: np.array(runs).T for name, runs in found.items()}
    pairs, rows = [Pair(name, "Stable-Baselines3") for name in AIMS], list[Row]()
    aimed = [pair._replace(aim=AIMS[pair.ours]) for pair in pairs]
    rows += compare("to a return of 475", {name: cost[0] for name, cost in costs.items()}, aimed, "s")
    rows += compare("to a return of 475", {name: cost[1] for name, cost in costs.items()}, pairs, "env steps")
    return rows + compare("in training", {name: 1 / cost[2] for name, cost in costs.items()}, pairs, "env steps/s")


if __name__ == "__main__":
    main()
