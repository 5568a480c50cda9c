"""A Trainer as a trainable of Ray Tune, which searches for good settings. Needs the extra `tune`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
from ray.tune import PlacementGroupFactory, Trainable

from flowrl.errors import ConfigError, did_you_mean
from flowrl.runs.config import Configuration, build_config
from flowrl.runs.until import Result
from flowrl.trainer.plan_file import load_plan_file
from flowrl.trainer.trainer import Trainer

__all__ = ["TrainerTrainable", "trainable"]


@attrs.frozen
class Search:
    """The common part of all trials. An instance, since Ray recurses endlessly into classes that a class holds."""

    trainer: type[Trainer]
    settings: Mapping[str, Any]
    metric: str


class TrainerTrainable(Trainable):
    """One trial: a Trainer with the settings of `trainable`, overridden by those that Tune chose.

    A step trains up to the next result with a value of `metric`. Checkpoints are the Trainer's own, so a paused
    trial, or one that lost its machine, goes on bit for bit from its last checkpoint.
    """

    search: ClassVar[Search]

    @classmethod
    def configuration(cls, chosen: Mapping[str, Any]) -> Configuration:
        """All settings of a trial."""
        return build_config(cls.search.trainer.Config, cls.search.settings, chosen)

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """The resources of a trial: a core for the Trainer, a GPU if it learns on one, and those of its workers."""
        settings = cls.configuration(config)
        gpu = {"GPU": 1.0} if settings.device.startswith("cuda") else {}
        worker = {"CPU": settings.worker_cpus, "GPU": settings.worker_gpus, "memory": settings.worker_memory}
        worker = {name: amount for name, amount in (worker | settings.worker_resources).items() if amount}
        return PlacementGroupFactory([{"CPU": 1.0} | gpu] + [worker] * settings.num_workers)

    def setup(self, config: dict[str, Any]) -> None:
        self._trainer = self.search.trainer(config=self.configuration(config))

    def step(self) -> Result:
        """Train up to the next result with the metric, or to the end of the plan.

        Raises:
            ConfigError: no result has the metric.
        """
        metric = self.search.metric
        while True:
            result = self._trainer.train()
            if result.get(metric) is not None or self._trainer.done:
                return result | {"done": self._trainer.done}
            if metric not in result and metric not in self._trainer.evaluated():
                raise ConfigError(
                    f"metric: no result of {self._trainer} has {metric!r}; {did_you_mean(metric, result)}. "
                    "Scores of evaluations need eval_every=N, in env steps"
                )

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        self._trainer.save(Path(checkpoint_dir) / "trainer")

    def load_checkpoint(self, checkpoint: Any) -> None:
        self._trainer.restore(Path(checkpoint) / "trainer")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start another trial in the same process, which saves the imports."""
        self.cleanup()
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        self._trainer.stop()


def trainable(
    trainer: type[Trainer] | str | Path, *, metric: str = "episode_return", **settings: Any
) -> type[TrainerTrainable]:
    """Turn an algorithm into a trainable for `ray.tune.Tuner`.

    Args:
        trainer: A Trainer, the name of a built-in plan, or a plan file.
        metric: The entry of results that the search compares: "episode_return", or "eval_return" with `eval_every`.
        settings: Settings of all trials, as the Trainer takes them. Keys of the search space override them.

    Raises:
        ConfigError: no such plan, an unknown key (with the closest one) or a bad value.
    """
    cls = trainer if isinstance(trainer, type) else load_plan_file(trainer).trainer
    build_config(cls.Config, settings)
    return type(cls.__name__, (TrainerTrainable,), {"search": Search(cls, settings, metric)})
