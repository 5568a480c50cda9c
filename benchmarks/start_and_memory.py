"""How soon is flowrl there, beside Stable-Baselines3, and how much memory does it hold, beside RLlib too?

Start: seconds from the shell to the end, of `import flowrl`, of `flowrl --help`, and of a DQN of 1000 env steps with
the defaults of both libraries; flowrl's also evaluates the policy and writes checkpoints and results. The imports of
that run alone are beside it. Aim: 0.3 seconds for the first two.

Memory: what a training process holds after 4000 env steps of CartPole-v1, with all its children: its own pages and its
share of the common ones. PPO and DQN in one process, DQN with a full buffer of a million rows; IMPALA with two workers
on Ray, beside two actors that have loaded torch and gymnasium. Settings are the defaults, but for the capacity, and no
priorities in RLlib's buffer.

    python benchmarks/start_and_memory.py [start] [memory] [--rounds 5] [--rows 1000000] [--steps 1000]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from common import Pair, Row, compare, interleaved, local_ray, print_machine

ENV, TRAINED = "CartPole-v1", 4_000

IMPORTS = "import torch, gymnasium.envs.classic_control.cartpole, flowrl.cli.main, flowrl.plans.dqn"

SB3_RUN = """
from stable_baselines3 import DQN
DQN("MlpPolicy", "CartPole-v1", device="cpu").learn({steps})
"""

#: The module that a contestant needs.
NEEDS = {"Stable-Baselines3": "stable_baselines3", "RLlib": "tree"}


def python(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def start(rounds: int, steps: int) -> list[Row]:
    """Seconds of processes."""
    with tempfile.TemporaryDirectory() as folder:

        def run() -> None:
            out = Path(folder, str(len(list(Path(folder).iterdir()))))
            python("-m", "flowrl", "run", "dqn", "--stop-steps", str(steps), "--quiet", "--out", str(out))

        contestants: dict[str, Callable[[], None]] = {
            "Python alone": partial(python, "-c", "pass"),
            "import flowrl": partial(python, "-c", "import flowrl"),
            "flowrl --help": partial(python, "-m", "flowrl", "--help"),
            "flowrl run dqn": run,
            "its imports": partial(python, "-c", IMPORTS),
            "Stable-Baselines3": partial(python, "-c", SB3_RUN.format(steps=steps)),
        }
        here = {name: each for name, each in contestants.items() if find_spec(NEEDS.get(name, "flowrl"))}
        for warm_up in here.values():
            warm_up()
        seconds = interleaved(here, rounds)
    seconds["the aim"] = np.full(rounds, 0.3)
    pairs = [
        *(Pair(name, "the aim", 1, bound=True) for name in ("import flowrl", "flowrl --help")),
        Pair("flowrl run dqn", "its imports", bound=True),
        Pair("flowrl run dqn", "Stable-Baselines3"),
    ]
    return compare(f"start, {steps} steps", seconds, pairs, "s")


def flowrl_ppo(rows: int) -> Any:
    import flowrl.plans

    trainer = flowrl.plans.PPO(ENV)
    trainer.train(env_steps=TRAINED, progress=False)
    return trainer


def flowrl_dqn(rows: int) -> Any:
    from checkpoint_pause import buffers, fill

    import flowrl.plans

    trainer = flowrl.plans.DQN(ENV, buffer_size=rows)
    trainer.train(env_steps=TRAINED, progress=False)
    fill(buffers(trainer.algorithm)[0])
    return trainer


def flowrl_impala(rows: int) -> Any:
    import flowrl.plans

    trainer = flowrl.plans.IMPALA(ENV, num_workers=2)
    trainer.train(env_steps=TRAINED, progress=False)
    return trainer


def sb3_ppo(rows: int) -> Any:
    from stable_baselines3 import PPO

    return PPO("MlpPolicy", ENV, device="cpu").learn(TRAINED)


def sb3_dqn(rows: int) -> Any:
    from stable_baselines3 import DQN

    model: Any = DQN("MlpPolicy", ENV, buffer_size=rows, device="cpu").learn(TRAINED)
    for column in vars(model.replay_buffer).values():
        if isinstance(column, np.ndarray):
            column[:] = 0  # memory that nobody has written to is not there yet
    return model


def rllib(config: Any) -> Any:
    """On a Ray without a dashboard; the driver learns."""
    stack = ExitStack()
    stack.enter_context(local_ray(4))
    config = config.environment(ENV).learners(num_learners=0).env_runners(num_env_runners=0)
    algorithm = config.build_algo()
    while algorithm.train()["num_env_steps_sampled_lifetime"] < TRAINED:
        pass
    return stack, algorithm


def rllib_ppo(rows: int) -> Any:
    from ray.rllib.algorithms.ppo import PPOConfig

    return rllib(PPOConfig())


def rllib_dqn(rows: int) -> Any:
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    kind = {"type": "EpisodeReplayBuffer", "capacity": rows}
    stack, algorithm = rllib(DQNConfig().training(replay_buffer_config=kind))
    steps = 200
    for _ in range(rows // steps):
        episode = SingleAgentEpisode(
            observations=list(np.zeros((steps + 1, 4), np.float32)),
            actions=[np.int64(0)] * steps,
            rewards=[1.0] * steps,
            terminated=True,
            len_lookback_buffer=0,
        )
        algorithm.local_replay_buffer.add(episode.to_numpy())
    return stack, algorithm


class Importer:
    """What every library loads in a worker."""

    def __init__(self) -> None:
        import gymnasium
        import torch

        self.loaded = gymnasium, torch


def ray_alone(rows: int) -> Any:
    """Two actors, which nobody asks for anything."""
    import ray

    stack, here = ExitStack(), Importer()
    stack.enter_context(local_ray(4))
    actors = [ray.remote(Importer).remote() for _ in range(2)]
    ray.get([actor.__ray_ready__.remote() for actor in actors])
    return stack, actors, here


TRAINERS: dict[str, dict[str, Callable[[int], Any]]] = {
    "PPO": {"flowrl": flowrl_ppo, "Stable-Baselines3": sb3_ppo, "RLlib": rllib_ppo},
    "DQN": {"flowrl": flowrl_dqn, "Stable-Baselines3": sb3_dqn, "RLlib": rllib_dqn},
    "IMPALA": {"flowrl": flowrl_impala, "Ray alone": ray_alone},
}


def held(name: str, who: str, rows: int) -> float:
    """Megabytes of a process that has trained, and of its children."""
    words = [sys.executable, __file__, "--child", name, who, "--rows", str(rows)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ready = any(line == "trained\n" for line in process.stdout)
        found = sum(map(share, family(process.pid))) if ready else 0
        process.stdin.close()
        process.stdout.read()
    assert ready, f"{name} of {who} did not train"
    return found / 1e3


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    started = [
        int(child) for task in children.parents[1].iterdir() for child in (task / "children").read_text().split()
    ]
    return [pid, *(each for child in started for each in family(child))]


def share(pid: int) -> int:
    """Kilobytes of a process: its own pages, and its share of those that it has in common with others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def memory(rounds: int, rows: int) -> list[Row]:
    """Megabytes of processes."""
    found: list[Row] = []
    for name, trainers in TRAINERS.items():
        here = [who for who in trainers if find_spec(NEEDS.get(who, "flowrl"))]
        taken = {who: np.array([held(name, who, rows) for _ in range(rounds)]) for who in here}
        what = f"{name}, {rows:,} rows" if name == "DQN" else name
        pairs = [Pair("flowrl", who, bound=who == "Ray alone") for who in trainers if who != "flowrl"]
        found += compare(f"memory, {what}", taken, pairs, "MB")
    return found


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=["start", "memory"], metavar="KIND", help="start or memory")
    parser.add_argument("--rounds", type=int, default=5, help="of starts; memory hardly varies, so a third of them")
    parser.add_argument("--rows", type=int, default=1_000_000, help="in DQN's buffer")
    parser.add_argument("--steps", type=int, default=1_000, help="that the DQN runs which is started")
    parser.add_argument("--child", nargs=2, metavar=("PLAN", "LIBRARY"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        name, who = options.child
        trained = TRAINERS[name][who](options.rows)
        print("trained", flush=True)
        sys.stdin.read()
        del trained
        return []
    print_machine("torch", "ray", "stable-baselines3")
    rows: list[Row] = []
    if "start" in options.kinds:
        rows += start(options.rounds, options.steps)
    if "memory" in options.kinds:
        rows += memory(-(-options.rounds // 3), options.rows)
    return rows


if __name__ == "__main__":
    main()
