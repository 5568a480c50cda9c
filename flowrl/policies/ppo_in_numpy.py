"""PPO's gradients in plain numpy: of a small dense network, torch keeps books for longer than it computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.distributions import Categorical
from flowrl.networks.in_numpy import InNumpy
from flowrl.networks.masks import action_mask, masked
from flowrl.networks.networks import ActorCritic, ActorCriticInNumpy, Dense
from flowrl.networks.sampling import Array
from flowrl.networks.torch_private import has_hooks
from flowrl.policies.actor_critic import ActorCriticPolicy

SCALARS = ("loss", "policy_loss", "value_loss", "entropy", "kl", "clip_fraction")


class PPOInNumpy:
    """The loss of `PPOLearning` with gradients derived by hand; they equal those of autograd up to rounding (G10).

    With r = π(a | s) / μ(a | s), its log-probability log π(a | s), and π of the scores z, over B rows:

        ∂L/∂log π(a | s) = (−A r [r A ≤ clip(r) A] + kl_coef (r − 1)) / B
        ∂L/∂zⱼ = ∂L/∂log π(a | s) (1[j = a] − πⱼ) + entropy_coef πⱼ (log πⱼ + H) / B
        ∂L/∂V = 2 value_coef (V − target) [the error is not that of the clipped value] / B
    """

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self.policy = policy
        self._in_numpy: InNumpy | None = None
        self._known: tuple[str, ...] = ()  # the parts of the model when it was last looked at
        self._layers: tuple[Any, list[int], Layers, Layers] | None = None  # what they are of; actor and critic

    def __call__(
        self, rows: Batch, clip: float, entropy_coef: float, kl_coef: float
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Set the parameters' gradients to those of the loss of rows `[B, ...]`; return it and its scalars."""
        given, settings = rows.map(torch.Tensor.numpy), self.policy.settings
        value_clip = settings.get("value_clip")
        obs, action, advantage = given.obs, given.action, given.advantage
        network, actor, critic = self._networks()
        with np.errstate(all="ignore"):  # what is not finite is found in the loss and the gradients
            features = network.encoder(obs)
            seen = features if network.critic_encoder is None else network.critic_encoder(obs)
            scores, value = masked(actor.forward(features), action_mask(obs)), critic.forward(seen)[:, 0]

            # The policy; `[A, B]`, whose sums over few actions are much faster than those of `[B, A]`.
            count = len(value)
            chosen = action * count + np.arange(count)  # in flat arrays
            shifted = np.ascontiguousarray(scores.T)
            shifted -= np.maximum.reduce(shifted, 0)
            logp_of_all = shifted - np.log(np.add.reduce(np.exp(shifted), 0))
            probability = np.exp(logp_of_all)
            log_ratio = logp_of_all.take(chosen) - given.logp
            ratio = np.exp(log_ratio)
            changed = ratio - 1
            free, clipped = ratio * advantage, np.minimum(np.maximum(ratio, 1 - clip), 1 + clip) * advantage
            by_logp = np.where(free <= clipped, -free, 0)
            if kl_coef:
                by_logp += kl_coef * changed
            entropy = -np.add.reduce(probability * logp_of_all, 0)
            by_scores = probability * -by_logp
            by_scores.reshape(-1)[chosen] += by_logp
            if entropy_coef:
                by_scores += entropy_coef * probability * (logp_of_all + entropy)

            # The value.
            error = value - given.target
            squared, by_value = error * error, error
            if value_clip is not None:
                old, least = given.value, -value_clip
                moved = np.clip(value - old, least, value_clip)
                limited = np.square(old + moved - given.target)
                by_value = np.where((moved == value - old) | (squared >= limited), error, 0)
                squared = np.maximum(squared, limited)

            actor.backward(by_scores.T / np.float32(count))
            critic.backward(by_value[:, None] * np.float32(2 * settings.value_coef / count))
            columns = (-np.minimum(free, clipped), squared, entropy, changed - log_ratio, np.abs(changed) > clip)
            policy_loss, value_loss, entropy, kl, clip_fraction = (np.add.reduce(each) / count for each in columns)
            loss = policy_loss + settings.value_coef * value_loss
            loss += (kl_coef and kl_coef * kl) - entropy_coef * entropy
        found = np.array([loss, policy_loss, value_loss, entropy, kl, clip_fraction], np.float32)
        numbers = torch.from_numpy(found).unbind()
        return numbers[0], dict(zip(SCALARS, numbers))

    def fits(self) -> bool:
        """Whether nobody has frozen or replaced a layer since, or given it a hook; faster than `learns_in_numpy`."""
        model = self.policy.model
        if has_hooks(model) or has_hooks(model.encoder):
            return False
        if (parts := tuple(model._modules)) != self._known:
            if not learns_in_numpy(self.policy):
                return False
            self._known = parts
        for network in (model.actor, model.critic):
            if has_hooks(network):
                return False
            for layer in network:
                kind = type(layer)  # another one with a parametrization
                if kind is nn.Linear:
                    if not (layer.weight.requires_grad and layer.bias.requires_grad):
                        return False
                elif kind is not nn.Tanh:
                    return False
                if has_hooks(layer):
                    return False
        return True

    def _networks(self) -> tuple[ActorCriticInNumpy, Layers, Layers]:
        """The networks on arrays, and the layers of actor and critic, where the weights are now."""
        if self._in_numpy is None:
            self._in_numpy = InNumpy(self.policy.model)
        network = self._in_numpy(self.policy.model, self.policy.version)
        model = self.policy.model
        layers = (layer for part in (model.actor, model.critic) for layer in part if type(layer) is nn.Linear)
        of = [id(each) for layer in layers for each in (layer.weight, layer.bias)]  # sooner than parameters()
        if self._layers is None or self._layers[0] is not network or self._layers[1] != of:
            parameters = [*model.actor.parameters(), *model.critic.parameters()]
            sizes = list(map(torch.Tensor.numel, parameters))
            gradients = iter(torch.split(torch.empty(sum(sizes)), sizes))  # of one tensor, which is scaled at once
            self._layers = network, of, Layers(model.actor, gradients), Layers(model.critic, gradients)
        return network, *self._layers[2:]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_in_numpy": None, "_layers": None}  # of this policy's weights: a copy has its own


class Layers:
    """Linear layers with tanh units between them, forward on arrays and backward to the gradients of the parameters.

    It writes into arrays of its own, which the next call overwrites: to allocate those of a minibatch takes time.

    Args:
        gradients: the next ones are for the gradients, flat, in the order of the parameters.
    """

    def __init__(self, network: nn.Sequential, gradients: Iterator[torch.Tensor]) -> None:
        linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        self._parameters = [(layer.weight, layer.bias) for layer in linear]
        self._weights = [(weight.detach().numpy(), bias.detach().numpy()) for weight, bias in self._parameters]
        self._found = [tuple(next(gradients).view_as(each) for each in layer) for layer in self._parameters]
        self._gradients = [(weight.numpy(), bias.numpy()) for weight, bias in self._found]
        self._inputs: list[Array] = []  # of each layer
        self._allocate(0)

    def _allocate(self, rows: int) -> None:
        self._outputs = [np.empty((rows, len(bias)), np.float32) for _, bias in self._weights]
        self._backward = [np.empty_like(output) for output in self._outputs[:-1]]  # the gradients of the outputs
        self._ones = np.ones(rows, np.float32)

    def forward(self, x: Array) -> Array:
        """The outputs `[B, ...]`."""
        if len(x) != len(self._ones):
            self._allocate(len(x))
        self._inputs = [x, *self._outputs[:-1]]
        for (weight, bias), out in zip(self._weights, self._outputs):
            x = np.dot(x, weight.T, out=out)
            x += bias
            if out is not self._outputs[-1]:
                np.tanh(x, out=x)
        return x

    def backward(self, gradient: Array) -> None:
        """Set the gradients of the parameters, given that of the outputs; overwrites what `forward` kept."""
        at = len(self._inputs)
        while at:
            at -= 1
            x, (by_weight, by_bias), (weight, bias) = self._inputs[at], self._gradients[at], self._parameters[at]
            np.dot(gradient.T, x, out=by_weight)
            np.dot(self._ones, gradient, out=by_bias)
            weight.grad, bias.grad = self._found[at]
            if at:  # tanh' = 1 − tanh²
                gradient = np.dot(gradient, self._weights[at][0], out=self._backward[at - 1])
                np.multiply(x, x, out=x)
                gradient *= np.subtract(1, x, out=x)


def learns_in_numpy(policy: ActorCriticPolicy, *, own_loss: bool = False) -> bool:
    """Whether its gradients are to be computed in numpy, by `learn_backend`; a subclass may have a loss of its own.

    Raises: ConfigError for a backend that is none, and for "numpy" where it does not fit.
    """
    backend = policy.settings.get("learn_backend")
    if backend == "torch":
        return False
    why_not = _hindrance(policy, own_loss) or (_more(policy) if backend == "auto" else "")
    if why_not and backend == "numpy":
        raise ConfigError(f"learn_backend='numpy' {why_not}: take learn_backend='torch', or 'auto'")
    if backend not in ("numpy", "auto"):
        raise ConfigError(f"learn_backend={backend!r} is no backend; take one of torch, numpy, auto")
    return not why_not


def _more(policy: ActorCriticPolicy) -> str:
    """What the model has that this loss does not read, which may be somebody's who reads it; "" if nothing."""
    model = policy.model
    read = {id(each) for part in (model.actor, model.critic) for each in part.parameters()}
    moved = [each for group in policy.optimizer.param_groups for each in group["params"]]
    more = any(id(each) not in read for each in [*model.parameters(), *moved])
    return "leaves alone what else the model has" if more else ""


def _hindrance(policy: ActorCriticPolicy, own_loss: bool) -> str:
    """Why numpy cannot compute the gradients; "" if it can."""
    model, settings = policy.model, policy.settings
    if policy.device.type != "cpu" or settings.precision != "float32":
        return "works on the CPU, in float32"
    if own_loss or type(model) is not ActorCritic or settings.network is not None:
        return f"serves the loss and the networks of PPOPolicy alone, not those of {type(policy).__name__}"
    encoders = [each for each in (model.encoder, model.critic_encoder) if each is not None]
    dense = all(type(each) is Dense for each in (model.actor, model.critic))
    if not dense or any(True for each in encoders for _ in each.parameters()):
        return "serves dense networks, without images"
    if not all(type(layer) in (nn.Linear, nn.Tanh) for each in (model.actor, model.critic) for layer in each):
        return "serves linear layers and tanh"
    if any("forward" in vars(part) for part in model.modules()) or "loss" in vars(policy.learn_mode):
        return "serves the forward of the classes, not one that replaces it"
    if any(has_hooks(part) or parametrize.is_parametrized(part) for part in model.modules()):
        return "serves layers without hooks and parametrizations"
    if not all(parameter.requires_grad for parameter in model.parameters()):
        return "serves networks all of whose weights learn"
    if type(model.distribution) is not Categorical:
        return f"serves one choice among n actions, not {policy.action_space}"
    return ""
