"""RewardModel: networks that estimate rewards beside the environment's."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.data.finite import first_unusable
from flowrl.data.steps import is_fragment, real_rows
from flowrl.data.types import Array
from flowrl.errors import NotFinite
from flowrl.models.learned import LearnedModel
from flowrl.networks.clipping import blamed
from flowrl.networks.networks import Encoder
from flowrl.networks.normalize import Normalizer


class RewardModel(LearnedModel):
    """Base of reward models. A subclass builds `model` in `_build`, and defines `estimate` and `loss`.

    `EstimateReward(model)` writes the reward of each step into the column named `column`, and `TrainReward(model)`
    trains the model.

    The statistics that normalize observations are those of all rows that the model has learned from, never of a
    minibatch.

    Args:
        for_env: Converts stored continuous actions to the environment's scale, which demonstrations have and the model
            reads: the `for_env` of the policy that acts. None: actions are stored in that scale.
        settings: See `LearnedModel`, and what it raises.
    """

    #: The column that the rewards go into.
    column: str

    #: The columns that `estimate` and `loss` read.
    requires: ClassVar[tuple[str, ...]] = ("next_obs",)

    #: Further words and columns that learning needs, see `flowrl.engine.schema`; a mapping adds the remedy for each.
    learns_from: ClassVar[tuple[str, ...] | Mapping[str, str]] = ()

    #: Whether it learns from pairs of batches: the agent's and demonstrations, whose rows `loss` gets second.
    demonstrations: ClassVar[bool] = False

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        for_env: Callable[[Array], Array] | None = None,
        **settings: Any,
    ) -> None:
        self.for_env = for_env if isinstance(action_space, spaces.Box) else None
        super().__init__(observation_space, action_space, **settings)

    @abc.abstractmethod
    def estimate(self, rows: Batch) -> torch.Tensor:
        """The rewards `[B]` of rows `[B, ...]`."""

    # -- what operators call

    def reward(self, batch: Batch) -> Array:
        """The float32 rewards `[T, N]` of fragments `[T, N, ...]`, or `[B]` of rows `[B, ...]`.

        Steps that do not count (`mask` 0) have reward 0. Raises: SchemaError if a column is missing; NotFinite for an
        estimate that is not finite (X1).
        """
        axes = 2 if is_fragment(batch) else 1
        shape = batch.shape[:axes]
        if batch.is_empty:
            return np.zeros(shape, np.float32)
        used = self._read(batch)
        with torch.inference_mode():
            estimated = self.estimate((used.flat() if axes == 2 else used).to_torch(self.device))
        reward: Array = estimated.float().cpu().numpy().reshape(shape)
        if "mask" in batch:
            reward = np.where(np.asarray(batch["mask"]) != 0, reward, np.float32(0))
        if (first := first_unusable(reward)) is not None:
            raise blamed(NotFinite(f"{self!r} estimates the reward {reward.flat[first]}"), used)
        return reward

    def observe(self, *batches: Batch) -> None:
        """Add every row of new batches to the running statistics, which apply from then on; call once per batch."""
        seen = "obs" if "obs" in self.requires else "next_obs"
        for batch in batches:
            used = batch.select([name for name in (seen, "mask") if name in batch]).to_numpy()
            rows = real_rows(used, fragment=is_fragment(batch))
            for normalizer in self._of_observations:
                numbers = rows[seen]
                for key in normalizer.path:
                    numbers = numbers[key]
                normalizer.gather(numbers, seen + "".join(f"[{key!r}]" for key in normalizer.path))
        for normalizer in self._of_observations:
            normalizer.update()

    @property
    def _of_observations(self) -> list[Normalizer]:
        """The normalizers of observations; a subclass may hold others too."""
        encoders = [part for part in self.model.modules() if isinstance(part, Encoder)]
        normalizers = [part for each in encoders for part in each.modules() if isinstance(part, Normalizer)]
        return list(dict.fromkeys(normalizers))

    def _read(self, batch: Batch, also: Sequence[str] = ()) -> Batch:
        used = super()._read(batch, also)
        if self.for_env is None or "action" not in self.requires:
            return used
        return used.replace(action=self.for_env(used.select(["action"]).to_numpy()["action"]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(column={self.column})"
