"""How fast does a rollout worker collect, beside the loops that a reader would write?

CartPole-v1, separate 2x64 tanh networks for policy and value, one thread: 8 environments in SyncVectorEnv, and 8, 64
and 1024 in gymnasium's native vector environment. The bare loops compute actions, log-probabilities and values with the
same networks, in torch or in numpy, and store the same columns, provenance included. Native environments spend a step
on each reset (T1): flowrl stores no row of it, the loops store a mask; real steps are counted. A ratio above 1 means
that flowrl is faster. Aims: at least 0.9 of the loop with the same library.

    python benchmarks/sampling.py [--steps 20000] [--rounds 15] [--only "native 64"]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import chain

import gymnasium
import numpy as np
import torch
from common import Pair, Row, compare, interleaved, print_machine

from flowrl.envs import make_manager
from flowrl.networks.networks import ActorCritic
from flowrl.policies import PPOPolicy
from flowrl.rollout import RolloutWorker

FRAGMENT = 128
CASES = {"sync 8": 8, "native 8": 8, "native 64": 64, "native 1024": 1024}
PAIRS = [
    Pair("flowrl, torch", "torch loop", 0.9, bound=True),
    Pair("flowrl, numpy", "torch loop", bound=True),
    Pair("flowrl, numpy", "numpy loop", 0.9, bound=True),
]


def vector_env(case: str) -> gymnasium.vector.VectorEnv:
    if case.startswith("native"):
        return gymnasium.make_vec("CartPole-v1", CASES[case], vectorization_mode="vector_entry_point")
    make = [lambda: gymnasium.make("CartPole-v1", disable_env_checker=True)] * CASES[case]
    return gymnasium.vector.SyncVectorEnv(make, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)


class TorchActor:
    """Acts with the model itself."""

    def __init__(self, model: ActorCritic) -> None:
        self.model, self.generator = model, torch.Generator().manual_seed(0)

    def act(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with torch.no_grad():
            logits, value = self.model(torch.from_numpy(obs))
            logp = torch.log_softmax(logits, 1)
            action = torch.multinomial(logp.exp(), 1, generator=self.generator)
        return action.squeeze(1).numpy(), logp.gather(1, action).squeeze(1).numpy(), value.numpy()

    def value(self, obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.model.value(torch.from_numpy(obs)).numpy()


class NumpyActor:
    """Acts with a copy of the model's weights in numpy."""

    def __init__(self, model: ActorCritic) -> None:
        def layers(network: torch.nn.Sequential) -> list[tuple[np.ndarray, np.ndarray]]:
            return [(x.weight.detach().numpy().T.copy(), x.bias.detach().numpy().copy()) for x in network[::2]]

        self.actor, self.critic = layers(model.actor), layers(model.critic)
        self.generator = np.random.default_rng(0)

    def act(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        logits = self._forward(self.actor, obs)
        logits -= logits.max(1, keepdims=True)
        logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        drawn = self.generator.random((len(obs), 1), np.float32)
        action = (np.exp(logp).cumsum(1)[:, :-1] < drawn).sum(1)
        return action, logp[np.arange(len(obs)), action], self.value(obs)

    def value(self, obs: np.ndarray) -> np.ndarray:
        return self._forward(self.critic, obs)[:, 0]

    def _forward(self, layers: list[tuple[np.ndarray, np.ndarray]], x: np.ndarray) -> np.ndarray:
        (w1, b1), (w2, b2), (w3, b3) = layers
        return np.tanh(np.tanh(x @ w1 + b1) @ w2 + b2) @ w3 + b3


class BareLoop:
    """A loop as in CleanRL, with the last observations kept where the environment gives them."""

    def __init__(self, case: str, actor: TorchActor | NumpyActor) -> None:
        self.envs, self.actor, self.steps = vector_env(case), actor, 0
        self.same_step = case.startswith("sync")
        self.obs, _ = self.envs.reset(seed=0)
        n = self.envs.num_envs
        self.episode_id, self.t, self.done = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_)

    def fragment(self) -> dict[str, np.ndarray]:
        shape = FRAGMENT, self.envs.num_envs
        columns = {
            "obs": np.empty((*shape, 4), np.float32),
            "next_obs": np.empty((*shape, 4), np.float32),
            "value": np.empty(shape, np.float32),
            "logp": np.empty(shape, np.float32),
            "reward": np.empty(shape, np.float64),
            "action": np.empty(shape, np.int64),
            "terminated": np.empty(shape, np.bool_),
            "truncated": np.empty(shape, np.bool_),
            "episode_id": np.empty(shape, np.int64),
            "t": np.empty(shape, np.int64),
            "policy_version": np.zeros(shape, np.int64),
            "worker": np.zeros(shape, np.int64),
            "env_id": np.tile(np.arange(shape[1]), (FRAGMENT, 1)),
            "mask": np.ones(shape, np.bool_),
        }
        for step in range(FRAGMENT):
            columns["obs"][step] = self.obs
            columns["action"][step], columns["logp"][step], columns["value"][step] = self.actor.act(self.obs)
            columns["episode_id"][step], columns["t"][step] = self.episode_id, self.t
            self.obs, reward, terminated, truncated, infos = self.envs.step(columns["action"][step])
            columns["reward"][step] = reward
            columns["terminated"][step], columns["truncated"][step] = terminated, truncated
            columns["next_obs"][step] = self.obs
            self.t += 1
            over = done = terminated | truncated
            if self.same_step:
                for i in np.flatnonzero(done):
                    columns["next_obs"][step, i] = infos["final_obs"][i]
            else:
                over, self.done = self.done, done
                columns["mask"][step] = ~over
            if over.any():
                self.episode_id[over] += 1
                self.t[over] = 0
        # The value arrived in: that of the next row, and of the true last observation where an episode ends.
        ends = columns["terminated"] | columns["truncated"]
        ends[-1] = True
        columns["next_value"] = np.empty_like(columns["value"])
        columns["next_value"][:-1] = columns["value"][1:]
        columns["next_value"][ends] = self.actor.value(columns["next_obs"][ends])
        self.steps += int(columns["mask"].sum())
        return columns


class Worker:
    """flowrl."""

    def __init__(self, case: str, backend: str) -> None:
        manager = make_manager("CartPole-v1" if case.startswith("sync") else vector_env(case), CASES[case])
        spaces = manager.observation_space, manager.action_space
        self.policy = PPOPolicy(*spaces, hidden=(64, 64), seed=0, device="cpu", act_backend=backend)
        self.worker, self.steps = RolloutWorker(manager, self.policy, seed=0), 0

    def fragment(self) -> dict[str, np.ndarray]:
        batch = self.worker.sample(FRAGMENT)
        self.worker.episodes()
        self.steps += batch.rows
        return dict(batch.items())


def measure(case: str, steps: int, rounds: int) -> list[Row]:
    """The rates and the ratios of one case."""
    flowrl = {backend: Worker(case, backend) for backend in ("torch", "numpy")}
    model = flowrl["torch"].policy.model
    bare = {"torch": BareLoop(case, TorchActor(model)), "numpy": BareLoop(case, NumpyActor(model))}
    assert {*flowrl["torch"].fragment(), "mask"} == set(bare["numpy"].fragment()), "both must store the same columns"

    fragments = max(1, steps // (CASES[case] * FRAGMENT))
    contestants: dict[str, Worker | BareLoop] = {}
    for backend in bare:
        contestants |= {f"{backend} loop": bare[backend], f"flowrl, {backend}": flowrl[backend]}
    for one in contestants.values():
        one.fragment()  # warm up
        one.steps = 0

    def repeat(one: Worker | BareLoop) -> Callable[[], object]:
        return lambda: [one.fragment() for _ in range(fragments)]

    seconds = interleaved({name: repeat(one) for name, one in contestants.items()}, rounds)
    per_step = {name: seconds[name] / (one.steps / rounds) for name, one in contestants.items()}
    for one in chain(bare.values(), (worker.worker for worker in flowrl.values())):
        (one.envs if isinstance(one, BareLoop) else one).close()
    return compare(case, per_step, PAIRS, "env steps/s")


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000, help="env steps of a round, at least one fragment")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=CASES, help="one case")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print_machine("numpy", "torch", "gymnasium")
    cases = CASES if options.only is None else [options.only]
    return [row for case in cases for row in measure(case, options.steps, options.rounds)]


if __name__ == "__main__":
    main()
