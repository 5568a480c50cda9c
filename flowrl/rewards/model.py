"""Reward models: networks that estimate rewards beside the environment's; and how they learn."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.data.finite import first_unusable
from flowrl.data.steps import is_fragment, real_rows
from flowrl.data.types import Array
from flowrl.engine.seeds import SeedTree
from flowrl.errors import ConfigError, NotFinite, SchemaError, did_you_mean
from flowrl.policies.clipping import blamed, check_loss, check_step, clip_norm, culprit
from flowrl.policies.devices import pick_device
from flowrl.policies.networks import Encoder, OneHotEncoder, encoder
from flowrl.policies.normalize import Normalizer
from flowrl.policies.torch_rng import TorchStream
from flowrl.policies.weights import check_numbers, load_optimizer
from flowrl.saved import Saved, load_whole


class RewardModel(abc.ABC):
    """Base of reward models. A subclass builds `model` in `_build`, and defines `estimate` and `loss`.

    `EstimateReward(model)` writes the reward of each step into the column named `column`, and `TrainReward(model)`
    trains the model; the run owns it, and checkpoints hold it, like a policy.

    Running statistics of all rows that the model has learned from, never of a minibatch, normalize the numbers in
    observations, which are then clipped to ± `obs_limit`; images are scaled.

    Args:
        observation_space, action_space: The spaces of one environment.
        hidden: Sizes of the hidden layers of each network.
        learning_rate: The rate of Adam.
        grad_clip: Largest norm of the gradient; None for no limit.
        for_env: Converts stored continuous actions to the environment's scale, which demonstrations have and the model
            reads: the `for_env` of the policy that acts. None: actions are stored in that scale.
        seed: Seed of the initialization and of learning. Models of other classes, and policies, derive different
            streams from the same seed (D6).
        device: "auto" takes a GPU if there is one.

    State: networks, statistics, optimizer, random stream.
    Raises: ConfigError if the device does not exist, or no network takes a space.
    """

    #: The column that the rewards go into.
    column: str

    #: The columns that `estimate` and `loss` read.
    requires: ClassVar[tuple[str, ...]] = ("next_obs",)

    #: Further words and columns that learning needs, see `flowrl.engine.schema`; a mapping adds the remedy for each.
    learns_from: ClassVar[tuple[str, ...] | Mapping[str, str]] = ()

    #: Whether it learns from pairs of batches: the agent's and demonstrations.
    demonstrations: ClassVar[bool] = False

    obs_limit: ClassVar[float] = 5.0
    model: nn.Module

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        hidden: Sequence[int] = (64, 64),
        learning_rate: float = 1e-3,
        grad_clip: float | None = None,
        for_env: Callable[[Array], Array] | None = None,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.hidden, self.learning_rate, self.grad_clip = tuple(hidden), learning_rate, grad_clip
        self.for_env = for_env if isinstance(action_space, spaces.Box) else None
        self.device = pick_device(device)
        if self.device.type == "mps":
            raise ConfigError("the statistics of reward models need float64, which device='mps' lacks: take 'cpu'")
        self.stream = TorchStream(SeedTree(seed).integer(type(self).__name__))
        with self.stream.swapped_in():
            self._build()
        self.model.to(self.device).eval()
        self.parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.Adam(self.parameters, learning_rate)

    # -- what a subclass defines

    @abc.abstractmethod
    def _build(self) -> None:
        """Build `model`; random numbers come from the model's stream."""

    @abc.abstractmethod
    def estimate(self, rows: Batch) -> torch.Tensor:
        """The rewards `[B]` of rows `[B, ...]`."""

    @abc.abstractmethod
    def loss(self, *rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of rows `[B, ...]`, a mean over them, and scalars to report.

        If the model learns from demonstrations, the agent's rows come first, the demonstrated ones second.
        """

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

    def rows(self, batch: Batch) -> Batch:
        """The rows `[B, ...]` of a batch that the model learns from: without padding, on the device.

        Raises: SchemaError if a column is missing.
        """
        used = self._read(batch, also=("mask",) if "mask" in batch else ())
        rows = real_rows(used, fragment=is_fragment(batch))
        return rows.select(self.requires).to_torch(self.device)

    def update(self, *rows: Batch) -> dict[str, torch.Tensor]:
        """Take one optimizer step on rows `[B, ...]`; return the scalars of `loss`.

        Raises: NotFinite, with the rows, for a loss, a gradient or weights that are not finite (X1).
        """
        try:
            return self._updated(*rows)
        except NotFinite as error:
            raise blamed(error, *rows) from None

    def _updated(self, *rows: Batch) -> dict[str, torch.Tensor]:
        self.model.train()
        try:
            with self.stream.swapped_in():
                loss, scalars = self.loss(*rows)
        finally:
            self.model.eval()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        check_loss(self.model, loss)
        if not clip_norm(self.parameters, self.grad_clip):
            raise culprit(self.model)
        self.optimizer.step()
        check_step(self.model, self.optimizer)
        return {name: value.detach() for name, value in scalars.items()}

    # -- parts of networks

    def _encoder(self) -> Encoder:
        """An encoder of observations that normalizes their numbers."""
        observations = encoder(self.observation_space, normalize=True)
        for part in observations.modules():
            if isinstance(part, Normalizer):
                part.limit = self.obs_limit
        return observations

    def _action_encoder(self) -> Encoder:
        """An encoder of actions as policies store them: discrete ones count from 0."""
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return OneHotEncoder([int(space.n)], [0])
        if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            return OneHotEncoder(space.nvec.tolist(), [0] * len(space.nvec))
        return encoder(space)

    @property
    def _of_observations(self) -> list[Normalizer]:
        """The normalizers of observations; a subclass may hold others too."""
        encoders = [part for part in self.model.modules() if isinstance(part, Encoder)]
        normalizers = [part for each in encoders for part in each.modules() if isinstance(part, Normalizer)]
        return list(dict.fromkeys(normalizers))

    def _read(self, batch: Batch, also: Sequence[str] = ()) -> Batch:
        """The columns that the model reads; the batch is not changed."""
        for name in self.requires:
            if name not in batch:
                raise SchemaError(f"{type(self).__name__} needs the column {name!r}: {did_you_mean(name, batch)}")
        used = batch.select([*self.requires, *also])
        if self.for_env is None or "action" not in self.requires:
            return used
        return used.replace(action=self.for_env(used.select(["action"]).to_numpy()["action"]))

    # -- state

    def __repr__(self) -> str:
        return f"{type(self).__name__}(column={self.column})"

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state, see the class."""
        return copy.deepcopy(
            {
                "model": dict(self.model.state_dict()),
                "optimizer": self.optimizer.state_dict(),
                "stream": self.stream.state_dict(),
            }
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state. Raises: CheckpointError; the model is then as it was (D7)."""
        what = f"the saved {type(self).__name__}"
        load_whole(lambda each: self._load(Saved(each, what)), state, self.state_dict(), what)

    def _load(self, saved: Saved) -> None:
        """Restore a saved state of which nothing was checked yet; what it changes is put back if it raises."""
        check_numbers(self.model, saved.get("model"), f"{saved.what}, model")
        self.model.load_state_dict(saved.get("model"))
        load_optimizer(self.optimizer, saved.inside("optimizer"))
        self.stream.load_state_dict(saved.get("stream"))
