"""Rewards of curiosity: prediction errors, scaled by the deviation of their discounted sum."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch

from flowrl.data import Batch
from flowrl.data.columns import ENDS
from flowrl.data.running_returns import Running, running_returns
from flowrl.data.steps import is_fragment, real_rows
from flowrl.data.types import Array
from flowrl.errors import SchemaError
from flowrl.models.reward_model import RewardModel
from flowrl.networks.normalize import Normalizer
from flowrl.saved import Saved


class Curiosity(RewardModel):
    """Base of models whose reward is how badly they predict a step: `novelty` / σ.

    σ is the running standard deviation of the discounted sum of novelties, the scale that `normalize_rewards` uses
    (O3); no mean is subtracted. Until the model has learned from a batch, σ is unknown and the reward is 0.

    Args:
        gamma: Discount of that sum, per step.
        settings: See `RewardModel`.

    State: also the sum of every running episode so far.
    """

    column = "intrinsic_reward"
    learns_from: ClassVar[dict[str, str]] = {
        "fragments": "it scales rewards by returns, which need the order of time: put it after ParallelRollouts",
        "reward": "",
        **dict.fromkeys(ENDS, ""),
    }

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        gamma: float = 0.99,
        **settings: Any,
    ) -> None:
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma is {gamma}, expected a discount in 0 .. 1")
        self.gamma = gamma
        self.running: Running = {}
        super().__init__(observation_space, action_space, **settings)
        self.returns = Normalizer().to(self.device)
        self.model.add_module("returns", self.returns)  # saved with the weights

    def novelty(self, batch: Batch) -> Array:
        """The prediction error of each step, `[T, N]` or `[B]`, not scaled."""
        return super().reward(batch)

    def reward(self, batch: Batch) -> Array:
        if not self.returns.count:
            return np.zeros(batch.shape[: 2 if is_fragment(batch) else 1], np.float32)
        scaled: Array = (self.novelty(batch) / float(self.returns.std)).astype(np.float32)
        return scaled

    def observe(self, *batches: Batch) -> None:
        super().observe(*batches)
        for batch in batches:
            if not is_fragment(batch):
                raise SchemaError(f"{type(self).__name__} learns from fragments [T, N, ...], not {batch!r}")
            returns = running_returns(batch.replace(reward=self.novelty(batch)), self.gamma, self.running)
            known = batch.select(["mask"]) if "mask" in batch else Batch()
            self.returns.gather(real_rows(known.replace(returns=returns))["returns"], "the discounted novelty")
        self.returns.update()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "running": dict(self.running)}

    def _load(self, saved: Saved) -> None:
        running = {name: tuple(each) for name, each in saved.get("running", dict[str, Any]).items()}
        super()._load(saved)
        self.running = running


def squared_error(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """‖prediction − target‖² / width of `[B, width]`: `[B]`."""
    return (prediction - target).square().mean(1)
