"""How fast does a rollout worker collect, beside the loop that a reader would write?

CartPole-v1, 8 environments, separate 2x64 tanh networks for policy and value, one thread. The bare loop computes
the same actions, log-probabilities and values with the same network over gymnasium's SyncVectorEnv(8) and stores
the same columns, provenance included. A ratio above 1 means that flowrl is faster. Aim: at least 0.9.

    python benchmarks/sampling.py [--steps 20000] [--rounds 15]
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np
import torch
from common import interleaved, print_machine, ratio_with_interval

from flowrl.envs import make_manager
from flowrl.policies import PPOPolicy
from flowrl.policies.networks import ActorCritic
from flowrl.rollout import RolloutWorker

ENVS, FRAGMENT = 8, 128


class BareLoop:
    """A loop over SyncVectorEnv(8) as in CleanRL, with the last observations kept."""

    def __init__(self, seed: int) -> None:
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        self.envs = gymnasium.vector.SyncVectorEnv(
            [lambda: gymnasium.make("CartPole-v1", disable_env_checker=True) for _ in range(ENVS)], autoreset_mode=mode
        )
        self.obs, _ = self.envs.reset(seed=seed)
        self.model = ActorCritic(4, 2, (64, 64))
        self.generator = torch.Generator().manual_seed(seed)
        self.episode_id, self.t = np.zeros(ENVS, np.int64), np.zeros(ENVS, np.int64)

    def fragment(self) -> dict[str, np.ndarray]:
        columns = {
            "obs": np.empty((FRAGMENT, ENVS, 4), np.float32),
            "next_obs": np.empty((FRAGMENT, ENVS, 4), np.float32),
            "value": np.empty((FRAGMENT, ENVS), np.float32),
            "logp": np.empty((FRAGMENT, ENVS), np.float32),
            "reward": np.empty((FRAGMENT, ENVS), np.float64),
            "action": np.empty((FRAGMENT, ENVS), np.int64),
            "terminated": np.empty((FRAGMENT, ENVS), np.bool_),
            "truncated": np.empty((FRAGMENT, ENVS), np.bool_),
            "episode_id": np.empty((FRAGMENT, ENVS), np.int64),
            "t": np.empty((FRAGMENT, ENVS), np.int64),
            "policy_version": np.zeros((FRAGMENT, ENVS), np.int64),
            "worker": np.zeros((FRAGMENT, ENVS), np.int64),
            "env_id": np.tile(np.arange(ENVS), (FRAGMENT, 1)),
        }
        for step in range(FRAGMENT):
            with torch.no_grad():
                logits, value = self.model(torch.from_numpy(self.obs))
                logp = torch.log_softmax(logits, 1)
                action = torch.multinomial(logp.exp(), 1, generator=self.generator)
            columns["obs"][step] = self.obs
            columns["action"][step] = action.squeeze(1).numpy()
            columns["logp"][step] = logp.gather(1, action).squeeze(1).numpy()
            columns["value"][step] = value.numpy()
            columns["episode_id"][step], columns["t"][step] = self.episode_id, self.t
            self.obs, reward, terminated, truncated, infos = self.envs.step(columns["action"][step])
            done = terminated | truncated
            columns["reward"][step] = reward
            columns["terminated"][step], columns["truncated"][step] = terminated, truncated
            columns["next_obs"][step] = self.obs
            self.t += 1
            if done.any():
                for i in np.flatnonzero(done):
                    columns["next_obs"][step, i] = infos["final_obs"][i]
                self.episode_id[done] += 1
                self.t[done] = 0
        # The value arrived in: that of the next row, and of the true last observation where an episode ends.
        ends = columns["terminated"] | columns["truncated"]
        ends[-1] = True
        columns["next_value"] = np.empty_like(columns["value"])
        columns["next_value"][:-1] = columns["value"][1:]
        with torch.no_grad():
            _, last = self.model(torch.from_numpy(columns["next_obs"][ends]))
        columns["next_value"][ends] = last.numpy()
        return columns


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000, help="env steps of a round")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_machine("numpy", "torch", "gymnasium")
    fragments = options.steps // (ENVS * FRAGMENT)

    manager = make_manager("CartPole-v1", ENVS)
    policy = PPOPolicy(manager.observation_space, manager.action_space, hidden=(64, 64), seed=0)
    worker = RolloutWorker(manager, policy, seed=0)
    bare = BareLoop(seed=0)
    bare.model.load_state_dict(policy.model.state_dict())
    stored = set(worker.sample(1).keys())
    assert stored == set(bare.fragment()), "both must store the same columns"

    def flowrl_worker() -> None:
        for _ in range(fragments):
            worker.sample(FRAGMENT)
        worker.episodes()

    def bare_loop() -> None:
        for _ in range(fragments):
            bare.fragment()

    flowrl_worker(), bare_loop()  # warm up
    seconds = interleaved({"bare loop": bare_loop, "flowrl": flowrl_worker}, options.rounds)
    for name, values in seconds.items():
        rate = fragments * ENVS * FRAGMENT / values
        print(f"{name:<10} {np.median(rate):>9,.0f} env steps/s   (min {rate.min():,.0f}, max {rate.max():,.0f})")
    median, low, high = ratio_with_interval(seconds["bare loop"], seconds["flowrl"])
    print(f"flowrl / bare loop: {median:.2f}  (95 % interval {low:.2f} to {high:.2f}, {options.rounds} pairs); aim 0.9")


if __name__ == "__main__":
    main()
