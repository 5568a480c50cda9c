"""LearnedModel: networks that learn beside the policy, with their statistics, optimizer and random stream."""

from __future__ import annotations

import abc
import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import torch
from gymnasium import spaces
from torch import nn

from flowrl.data import Batch
from flowrl.data.steps import is_fragment, real_rows
from flowrl.engine.seeds import SeedTree
from flowrl.errors import ConfigError, NotFinite, SchemaError, did_you_mean
from flowrl.networks.clipping import blamed, check_loss, check_step, clip_norm, culprit
from flowrl.networks.devices import pick_device
from flowrl.networks.loading import check_numbers, load_optimizer
from flowrl.networks.networks import Encoder, OneHotEncoder, encoder
from flowrl.networks.normalize import Normalizer
from flowrl.networks.torch_rng import TorchStream
from flowrl.saved import Saved, load_whole


class LearnedModel(abc.ABC):
    """Base of reward models and of models of the dynamics. A subclass builds `model` in `_build`, and defines `loss`.

    The run owns it, and checkpoints hold it, like a policy.

    Running statistics normalize the numbers in observations, which are then clipped to ± `obs_limit`; images are
    scaled.

    Args:
        observation_space, action_space: The spaces of one environment.
        hidden: Sizes of the hidden layers of each network.
        learning_rate: The rate of Adam.
        grad_clip: Largest norm of the gradient; None for no limit.
        seed: Seed of the initialization and of learning. Models of other classes, and policies, derive different
            streams from the same seed (D6).
        device: "auto" takes a GPU if there is one.

    State: networks, statistics, optimizer, random stream.
    Raises: ConfigError if the device does not exist, or no network takes a space.
    """

    #: The columns that it reads.
    requires: ClassVar[tuple[str, ...]] = ()

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
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.hidden, self.learning_rate, self.grad_clip = tuple(hidden), learning_rate, grad_clip
        self.device = pick_device(device)
        if self.device.type == "mps":
            raise ConfigError("the statistics of learned models need float64, which device='mps' lacks: take 'cpu'")
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
    def loss(self, *rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of rows `[B, ...]`, a mean over them, and scalars to report."""

    # -- what operators call

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
        for parameter in self.parameters:
            parameter.grad = None  # also those that the optimizer does not move: they would count in the norm (D16)
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
        if not isinstance(space, spaces.Box | spaces.MultiBinary):
            raise ConfigError(f"{type(self).__name__} cannot read the actions of {space}")
        return encoder(space)

    def _read(self, batch: Batch, also: Sequence[str] = ()) -> Batch:
        """The columns that the model reads; the batch is not changed."""
        for name in self.requires:
            if name not in batch:
                raise SchemaError(f"{type(self).__name__} needs the column {name!r}: {did_you_mean(name, batch)}")
        return batch.select([*self.requires, *also])

    # -- state

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
