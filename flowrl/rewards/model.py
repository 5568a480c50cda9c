"""Reward models: networks that say what a step is worth, beside what the environment says; and their learning."""

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
from flowrl.data.steps import is_fragment, real_rows
from flowrl.data.types import Array
from flowrl.engine.seeds import SeedTree
from flowrl.errors import ConfigError, SchemaError, did_you_mean
from flowrl.policies.clipping import clip_norm
from flowrl.policies.devices import pick_device
from flowrl.policies.networks import Encoder, OneHotEncoder, encoder
from flowrl.policies.normalize import Normalizer
from flowrl.policies.torch_rng import TorchStream


class RewardModel(abc.ABC):
    """Base of reward models. A subclass makes `model` in `_build`, and has an `estimate` and a `loss`.

    `EstimateReward(model)` puts what it says of each step into the column named `column`, and `TrainReward(model)`
    teaches it; a run owns it, and a checkpoint holds it, as a policy.

    Numbers in observations are normalised by running statistics of all rows that the model has learned from, never of
    a minibatch, and clipped to ± `obs_limit`; images are scaled.

    Args:
        observation_space, action_space: Of one environment.
        hidden: Sizes of the hidden layers of each network.
        learning_rate: Of Adam.
        grad_clip: Largest norm of the gradient; None for no limit.
        for_env: What the environment gets for continuous actions as they are stored: the `for_env` of the policy that
            acts. A model that reads actions sees those, as demonstrations have them; None: they are stored so.
        seed: Of all that is drawn: the initialisation, and in learning. Streams of models of another class, and of
            policies, are others for the same seed (D6).
        device: "auto" takes a GPU if there is one.

    State: networks, statistics, optimiser, random stream.
    Raises: ConfigError for a device that there is not, and spaces that no network takes.
    """

    #: The column that it fills.
    column: str

    #: The columns that `estimate` and `loss` read.
    requires: ClassVar[tuple[str, ...]] = ("next_obs",)

    #: Words and columns that learning needs beside: see `flowrl.engine.schema`; a mapping gives each the way out.
    learns_from: ClassVar[tuple[str, ...] | Mapping[str, str]] = ()

    #: Whether it learns from pairs: what the agent did, and what was demonstrated.
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
            raise ConfigError("the statistics of reward models need float64, which device='mps' has not: take 'cpu'")
        self.stream = TorchStream(SeedTree(seed).integer(type(self).__name__))
        with self.stream.swapped_in():
            self._build()
        self.model.to(self.device).eval()
        self.parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.Adam(self.parameters, learning_rate)

    # -- what a subclass says

    @abc.abstractmethod
    def _build(self) -> None:
        """Make `model`; random numbers come from the model's stream."""

    @abc.abstractmethod
    def estimate(self, rows: Batch) -> torch.Tensor:
        """What each of these rows `[B, ...]` is worth: `[B]`."""

    @abc.abstractmethod
    def loss(self, *rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of rows `[B, ...]`, a mean over them, and scalars to report.

        Where the model learns from demonstrations, those of the agent come first, and the demonstrated ones second.
        """

    # -- what operators ask

    def reward(self, batch: Batch) -> Array:
        """What the model says of each step of fragments `[T, N, ...]` or rows `[B, ...]`: `[T, N]` or `[B]`, float32.

        0 where steps do not count (`mask` 0). Raises: SchemaError where a column is missing.
        """
        axes = 2 if is_fragment(batch) else 1
        shape = batch.shape[:axes]
        if batch.is_empty:
            return np.zeros(shape, np.float32)
        used = self._read(batch)
        with torch.inference_mode():
            said = self.estimate((used.flat() if axes == 2 else used).to_torch(self.device))
        reward: Array = said.float().cpu().numpy().reshape(shape)
        return np.where(np.asarray(batch["mask"]) != 0, reward, np.float32(0)) if "mask" in batch else reward

    def observe(self, *batches: Batch) -> None:
        """Count every row of the next batches of the stream in the running statistics, once; they come into use."""
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
        """What is learned from of a batch: rows `[B, ...]` without padding, on the device.

        Raises: SchemaError where a column is missing.
        """
        used = self._read(batch, also=("mask",) if "mask" in batch else ())
        rows = real_rows(used, fragment=is_fragment(batch))
        return rows.select(self.requires).to_torch(self.device)

    def update(self, *rows: Batch) -> dict[str, torch.Tensor]:
        """One optimiser step on rows `[B, ...]`; what `loss` reports."""
        self.model.train()
        try:
            with self.stream.swapped_in():
                loss, scalars = self.loss(*rows)
        finally:
            self.model.eval()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.grad_clip is not None:
            clip_norm(self.parameters, self.grad_clip)
        self.optimizer.step()
        return {name: value.detach() for name, value in scalars.items()}

    # -- parts of networks

    def _encoder(self) -> Encoder:
        """An encoder of observations, whose numbers are normalised."""
        made = encoder(self.observation_space, normalize=True)
        for part in made.modules():
            if isinstance(part, Normalizer):
                part.limit = self.obs_limit
        return made

    def _action_encoder(self) -> Encoder:
        """An encoder of actions as policies store them: choices count from 0."""
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return OneHotEncoder([int(space.n)], [0])
        if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            return OneHotEncoder(space.nvec.tolist(), [0] * len(space.nvec))
        return encoder(space)

    @property
    def _of_observations(self) -> list[Normalizer]:
        """What normalises observations; a subclass may keep statistics of other things too."""
        encoders = [part for part in self.model.modules() if isinstance(part, Encoder)]
        found = [part for each in encoders for part in each.modules() if isinstance(part, Normalizer)]
        return list(dict.fromkeys(found))

    def _read(self, batch: Batch, also: Sequence[str] = ()) -> Batch:
        """The columns that it reads; the batch is left as it is."""
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
        """See the class; copied."""
        return copy.deepcopy(
            {
                "model": dict(self.model.state_dict()),
                "optimizer": self.optimizer.state_dict(),
                "stream": self.stream.state_dict(),
            }
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.stream.load_state_dict(state["stream"])
