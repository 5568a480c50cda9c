"""What does an agent step of a game cost, beside a step of environments with one agent, and beside RLlib?

`flowrl:two_cartpoles` in N copies, its agents played by one policy or by a policy each, beside CartPole-v1, which has
the same physics: 2N of them with one policy, or N with a policy and N with another. All have separate 2x64 tanh
networks for policy and value, and one thread. "balancing" networks keep the poles up, so that both agents act in every
step. With "random" ones a pole falls soon, and who waits for the other one takes no steps, so that fewer agents share
what a step costs. The managers alone are beside it, stepped with constant actions. Times are of the processor, and of
the wall where it says so. Aim: 0.77 of the speed of CartPole's steps with balancing networks.

With `--rllib`, agent steps a second of two games with PettingZoo's parallel interface: rps, whose step costs little,
and simple_spread, whose step costs much. One policy with such networks plays all agents, in flowrl and in RLlib's
MultiAgentEnvRunner, both in this process and with as many copies. flowrl also computes values, which RLlib leaves to
its learner. The game alone is the bound for both. Aim: three times RLlib's rate.

    python benchmarks/games.py [--copies 4 8 64] [--rounds 15] [--backend numpy] [--network random]
    pip install flowrl-engine[bench,envs] mpe2
    python benchmarks/games.py --rllib [--rounds 9]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from common import Pair, Row, compare, installed, interleaved, print_machine

from flowrl.data.multi_agent import MultiAgentBatch
from flowrl.data.steps import real_steps
from flowrl.envs import make_manager
from flowrl.envs.games.seats import TABLE, Of
from flowrl.policies import PPOPolicy
from flowrl.rollout import WorkerSet

GAME, SINGLE, STEPS, HIDDEN = "flowrl:two_cartpoles", "CartPole-v1", 64, (64, 64)

#: The aims are 1 / 1.3.
PAIRS = [
    Pair("game, one policy", "CartPole", 0.77, bound=True),
    Pair("game, two policies", "CartPole, two policies", 0.77, bound=True),
    Pair("game, manager", "CartPole, manager", bound=True),
]
BESIDE_RLLIB = [
    Pair("flowrl, torch", "RLlib", 3),
    Pair("flowrl, numpy", "RLlib", 3),
    Pair("flowrl, numpy", "the game alone", bound=True),
]

#: Collects once; returns the number of agent steps.
Contestant = Callable[[], int]


def policy(*spaces: Any, network: str, backend: str) -> PPOPolicy:
    """A policy with random weights, or ones that push the cart to where the pole leans."""
    made = PPOPolicy(*spaces, hidden=HIDDEN, seed=0, device="cpu", act_backend=backend)
    if network == "balancing":
        first, _, second, _, last = made.model.actor
        with torch.no_grad():
            first.weight[0] = torch.tensor([0.02, 0.06, 0.5, 0.2])
            second.weight[0], last.weight[:] = 0.0, 0.0
            second.weight[0, 0], last.weight[1, 0] = 1.0, 1e4
            for layer in (first, second, last):
                layer.bias[:] = 0.0
        made.load_weights(made.weights())  # the copy in numpy follows
    return made


def collecting(stack: ExitStack, *args: Any, **kwargs: Any) -> Contestant:
    """Samples of a worker set."""
    workers = stack.enter_context(WorkerSet(*args, seed=0, **kwargs))
    workers.start()

    def collect() -> int:
        batch = workers.sample(steps=STEPS)
        workers.local.episodes()
        return batch.rows if isinstance(batch, MultiAgentBatch) else real_steps(batch)

    return collect


def stepping(stack: ExitStack, env: str, copies: int) -> Contestant:
    """Steps of a manager."""
    manager = stack.enter_context(make_manager(env, copies))
    manager.launch(0)
    action = np.arange(copies) % 2 if env == SINGLE else np.tile([0, 1], (copies, 1))

    def step() -> int:
        steps = 0
        for _ in range(STEPS):
            steps += copies if env == SINGLE else int(np.count_nonzero(manager.obs[TABLE][..., Of.TURN]))
            manager.step(action)
        manager.drain()
        return steps

    return step


def measure(contestants: dict[str, Contestant], repeats: int, rounds: int) -> dict[str, np.ndarray]:
    """Seconds per agent step, `[rounds, 2]`: of the processor and of the wall."""
    steps = dict.fromkeys(contestants, 0)

    def repeat(name: str) -> None:
        steps[name] = sum(contestants[name]() for _ in range(repeats))

    per_step: dict[str, list[np.ndarray]] = {name: [] for name in contestants}
    for name in contestants:
        repeat(name)  # warm up
    for _ in range(rounds):
        turn = interleaved({name: partial(repeat, name) for name in contestants}, 1, both_clocks)
        for name, seconds in turn.items():
            per_step[name].append(seconds[0] / steps[name])
    return {name: np.array(values) for name, values in per_step.items()}


def both_clocks() -> Any:
    """Processor and wall time."""
    return np.array([process_time(), perf_counter()])


def costs(copies: int, network: str, options: argparse.Namespace) -> list[Row]:
    """What a step of an agent costs."""
    make = partial(policy, network=network, backend=options.backend)
    two = {"policies": {"one": make, "two": make}, "agents": {"left": "one", "right": "two"}}
    with ExitStack() as stack:
        halves = [collecting(stack, SINGLE, make, envs_per_worker=copies) for _ in range(2)]
        contestants = {
            "CartPole": collecting(stack, SINGLE, make, envs_per_worker=2 * copies),
            "CartPole, two policies": lambda: sum(half() for half in halves),
            "game, one policy": collecting(stack, GAME, make, envs_per_worker=copies),
            "game, two policies": collecting(stack, GAME, **two, envs_per_worker=copies),
            "CartPole, manager": stepping(stack, SINGLE, 2 * copies),
            "game, manager": stepping(stack, GAME, copies),
        }
        per_step = measure(contestants, max(1, 64 // copies), options.rounds)
    processor = {name: seconds[:, 0] for name, seconds in per_step.items()}
    compare(
        f"{copies} copies, {network}, wall",
        {name: seconds[:, 1] for name, seconds in per_step.items()},
        PAIRS,
        "agent steps/s",
    )
    return compare(f"{copies} copies, {network}", processor, PAIRS, "agent steps/s")


def made(game: str) -> Any:
    """One of the games with PettingZoo's parallel interface."""
    if game == "simple_spread":
        from mpe2 import simple_spread_v3

        return simple_spread_v3.parallel_env()
    import pettingzoo
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(pettingzoo.make("aec", "classic/rps-v2"))


def alone(game: str) -> Contestant:
    """A copy of a game that nobody learns from, with constant actions: what everybody pays for."""
    env = made(game)
    env.reset(seed=0)

    def play() -> int:
        steps = 0
        for _ in range(STEPS):
            if not env.agents:
                env.reset()
            steps += len(env.agents)
            env.step(dict.fromkeys(env.agents, 0))
        return steps

    return play


def rllib(stack: ExitStack, game: str, copies: int) -> Contestant:
    """RLlib's runner as its PPO asks it, in this process."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.connectors.env_to_module import FlattenObservations
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
    from ray.tune.registry import register_env

    register_env(game, lambda _: ParallelPettingZooEnv(made(game)))
    networks = DefaultModelConfig(fcnet_hiddens=list(HIDDEN), fcnet_activation="tanh", vf_share_layers=False)
    config = PPOConfig().environment(game)
    config.multi_agent(policies={"all"}, policy_mapping_fn=lambda *_, **__: "all")
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={"all": RLModuleSpec(model_config=networks)}))
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=copies, rollout_fragment_length=STEPS)
    if game == "rps":  # discrete observations become one-hot, as they do in flowrl
        one_hot = {"env_to_module_connector": lambda *_, **__: FlattenObservations(multi_agent=True)}
        config.env_runners(**one_hot)
    runner = MultiAgentEnvRunner(config=config)
    stack.callback(runner.stop)
    return lambda: sum(episode.agent_steps() for episode in runner.sample())


def beside_rllib(game: str, copies: int, options: argparse.Namespace) -> list[Row]:
    """The rates, of the processor's time."""
    with ExitStack() as stack:
        contestants = {
            f"flowrl, {backend}": collecting(
                stack,
                partial(made, game),
                partial(policy, network="random", backend=backend),
                envs_per_worker=copies,
            )
            for backend in ("torch", "numpy")
        }
        contestants |= {"the game alone": alone(game)} | installed({"RLlib": partial(rllib, stack, game, copies)})
        per_step = measure(contestants, 1, options.rounds)
    processor = {name: seconds[:, 0] for name, seconds in per_step.items()}
    return compare(f"{game}, {copies} copies", processor, BESIDE_RLLIB, "agent steps/s")


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--copies", type=int, nargs="+", default=[4, 8, 64])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--network", choices=("balancing", "random"), nargs="+", default=["balancing", "random"])
    parser.add_argument("--backend", choices=("torch", "numpy"), default="torch", help="what computes actions")
    parser.add_argument("--rllib", action="store_true", help="beside RLlib, instead")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print_machine("numpy", "torch", "gymnasium", *(["ray", "pettingzoo", "mpe2"] if options.rllib else []))
    if options.rllib:
        cases = [partial(beside_rllib, game, copies) for game in ("rps", "simple_spread") for copies in options.copies]
    else:
        cases = [partial(costs, copies, network) for network in options.network for copies in options.copies]
    return [row for case in cases for row in case(options)]


if __name__ == "__main__":
    main()
