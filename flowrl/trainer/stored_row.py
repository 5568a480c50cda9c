"""A row that a run has learned from: where it came from, and its episode, played again."""

from __future__ import annotations

import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from flowrl.data import Batch
from flowrl.data.columns import PROVENANCE, same
from flowrl.data.replay.buffer import ReplayBuffer
from flowrl.engine.operator import summarize
from flowrl.engine.run import resources_of
from flowrl.envs import Environments
from flowrl.envs.spec import is_native
from flowrl.errors import ConfigError
from flowrl.inspect.debugger import provenance
from flowrl.rollout.groups import Group
from flowrl.rollout.video import check_video, filmed
from flowrl.runs.init_from import read_resource
from flowrl.runs.resume import EarlierRun
from flowrl.runs.trust import Trust
from flowrl.storage.checkpoint import Checkpoints
from flowrl.storage.files import write
from flowrl.trainer.loading import load, trainer_of
from flowrl.trainer.trained_policy import TrainedPolicy


@attrs.frozen(slots=False)
class StoredRow:
    """A row of a replay buffer in a checkpoint.

    Attributes:
        trained: The policy and the environments of the run.
        checkpoint: Where the buffer was read.
        name: That of the buffer.
        slot: The row's place in it: the column `index` of a sample.
    """

    trained: TrainedPolicy
    checkpoint: Path
    name: str
    buffer: ReplayBuffer = attrs.field(repr=False)
    slot: int

    @cached_property
    def row(self) -> Batch:
        """Its columns, as stored."""
        return self.buffer.get(self.slot)

    @cached_property
    def seed(self) -> int:
        """The seed that its episode began with.

        Raises: ConfigError: its columns do not say which episode that was, or the environments seed their own.
        """
        config, place = self.trained.config, self.trained.config.env
        if lacking := [name for name in PROVENANCE if name != "agent" and np.ndim(self.row.get(name)) != 0]:
            raise ConfigError(
                f"{self}: {', '.join(lacking)} of a single episode are not stored, so its seed is unknown"
            )
        if config.env_manager == "vector" and is_native(place):
            raise ConfigError(f"{self}: {place} steps all its environments at once, and seeds their episodes itself")
        groups, num_envs = config.grouping
        environments = attrs.evolve(self.trained.environments, episode_seeds=config.episode_seeds)
        group = Group(environments, num_envs, int(self.row["worker"]), groups, config.seed)
        return group.episode_seed(int(self.row["env_id"]), int(self.row["episode_id"]))

    def __str__(self) -> str:
        return f"slot {self.slot} of {self.name} in {self.checkpoint}"

    def lines(self) -> list[str]:
        """What is known of it, in words."""
        try:
            seed = f"; its episode began with the seed {self.seed}"
        except ConfigError:
            seed = ""
        beside = self.row.select([name for name in self.row if name not in (*PROVENANCE, "policy_version")])
        return [f"{self}, of {len(self.buffer):,} rows", f"{provenance(self.row)}{seed}", summarize(beside)]

    @cached_property
    def episode(self) -> Batch:
        """The stored steps of its episode, `[T, ...]` from the first one on, as far as they are stored in a row.

        Raises: ConfigError: the first ones are not.
        """
        names = [name for name in PROVENANCE if name in self.row]
        columns = self.buffer.columns(*names)
        mine = np.logical_and.reduce([columns[name] == self.row[name] for name in names if name != "t"])
        slots = np.flatnonzero(mine)
        steps, first = np.unique(columns["t"][slots], return_index=True)
        kept = int((steps == np.arange(len(steps))).sum())
        if not kept:
            raise ConfigError(
                f"{self}: its episode cannot be played again, for the buffer no longer has the steps before {steps[0]}"
            )
        return self.buffer.get(slots[first[:kept]])

    def play_again(self, film: str | Path | None = None) -> int:
        """Play its episode again with the stored actions, from the same seed; returns the number of steps.

        Args:
            film: An .mp4 file to write.

        Raises: ConfigError: what is needed was not stored, a game of several agents, a film that cannot be made; or an
            observation is another one than the stored one, at which step.
        """
        if self.trained.environments.look(1).seating is not None:
            raise ConfigError(f"{self}: it is of a game of several agents, which cannot be played again")
        steps = self.episode
        one: Any = {"kind": "local", "options": {}, "episode_seeds": [self.seed]}
        environments: Environments = attrs.evolve(self.trained.environments, **one)
        if film is not None:
            if Path(film).suffix != ".mp4":
                raise ConfigError(f"--film {film}: expected a file that ends in .mp4")
            check_video(environments)
        with tempfile.TemporaryDirectory() as folder:
            with environments.manager(1) if film is None else filmed(environments, 1, Path(folder), [1]) as manager:
                manager.launch(0)
                actions = self.trained.policy.for_env(steps["action"]).astype(manager.action_space.dtype)
                for t, action in enumerate(actions):
                    if not same(manager.obs[:1], steps["obs"][t : t + 1]):
                        raise ConfigError(
                            f"{self}: played again, its episode differs at step {t}: {manager.obs[0]}, stored is "
                            f"{steps['obs'][t]}. The environment is not deterministic given its seed, or has changed"
                        )
                    manager.step(action[None])
            if film is not None:
                (made,) = Path(folder).glob("*.mp4")
                write(Path(film), made.read_bytes())
        return len(actions)


def stored_row(
    run: str | Path, slot: int | None = None, *, buffer: str | None = None, trusted: Trust = False
) -> StoredRow:
    """A row of a replay buffer in the newest checkpoint of a run.

    Args:
        run: Its directory, or one of its checkpoints.
        slot: The row's place, the column `index` of samples; None: the row that was added last.
        buffer: Name of the buffer, where there are several.
        trusted: See `flowrl.load`.

    Raises:
        ConfigError: no run, no checkpoint, no replay buffer, none of that name, or no such row.
        CheckpointError: a damaged checkpoint.
    """
    earlier = EarlierRun.find(run)
    checkpoint = earlier.checkpoint or Checkpoints(earlier.path / "checkpoints").latest()
    if checkpoint is None:
        raise ConfigError(f"{run} has no checkpoint, and only checkpoints hold the rows that it has learned from")
    trained = load(checkpoint, trusted=trusted)
    _ = trained.environments  # which the Trainer makes: raises unless they are trusted
    with trainer_of(earlier.path)(config=trained.config) as trainer:
        stores = resources_of(trainer.algorithm)
    found = {name: each for name, each in stores.items() if isinstance(each, ReplayBuffer)}
    if not found:
        raise ConfigError(
            f"{earlier.about['plan']} has no replay buffer, so nothing is left of the rows it learned from"
        )
    name = next(iter(found)) if buffer is None else buffer
    if name not in found:
        raise ConfigError(f"buffer {name!r}: {earlier.about['plan']} has {', '.join(found)}")
    rows = found[name]
    rows.load_state_dict(read_resource(checkpoint, name))
    if not rows.size:
        raise ConfigError(f"{name} in {checkpoint} is empty")
    if slot is not None and not 0 <= slot < rows.size:
        raise ConfigError(f"row {slot}: the rows of {name} in {checkpoint} have the slots 0 to {rows.size - 1}")
    return StoredRow(trained, checkpoint, name, rows, int(rows.slots(-1)) if slot is None else slot)
