"""TRPO: natural policy gradients in a trust region, and a value function that learns by itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import torch
from torch.nn.utils import parameters_to_vector

from flowrl.data import Batch
from flowrl.errors import NotFinite, PlanError
from flowrl.networks.adam import Adam
from flowrl.networks.clipping import blamed, check_loss
from flowrl.networks.networks import ActorCritic
from flowrl.policies.actor_critic import ActorCriticLearning, ActorCriticPolicy, EntropySettings
from flowrl.policies.learning import AllReduce
from flowrl.policies.ppo import PPOLearning, StandardizeSettings, standardized
from flowrl.schedules import NumberOrSchedule
from flowrl.settings import at_least_one, not_negative, positive, proper_fraction

#: A residual whose square is smaller solves a system.
SOLVED = 1e-10


def conjugate_gradient(product: Callable[[torch.Tensor], torch.Tensor], b: torch.Tensor, steps: int) -> torch.Tensor:
    """x `[n]` with A x ≈ b `[n]`, for `product(v) = A v` with a positive definite A, after at most `steps` products.

    Source: Hestenes & Stiefel 1952, "Methods of Conjugate Gradients for Solving Linear Systems", section 3.

    >>> a = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
    >>> conjugate_gradient(lambda v: a @ v, torch.tensor([1.0, 2.0]), 2)
    tensor([0.0909, 0.6364])
    """
    x, residual = torch.zeros_like(b), b.clone()
    direction, size = b.clone(), float(b @ b)
    for _ in range(steps):
        if size < SOLVED:
            break
        changed = product(direction)
        length = size / float(direction @ changed)
        x += length * direction
        residual -= length * changed
        before, size = size, float(residual @ residual)
        direction = residual + size / before * direction
    return x


class TRPOPolicy(ActorCriticPolicy):
    """Trust region policy optimization; see `ActorCriticPolicy` and `TRPOLearning`.

    The critic has an encoder of its own, so that what it learns does not change the policy.
    """

    @attrs.frozen(kw_only=True, slots=False)
    class Settings(StandardizeSettings, EntropySettings, ActorCriticPolicy.Settings):
        """The networks, and the step of the policy; the learning rate, and what else is of Adam, are the critic's."""

        learning_rate: NumberOrSchedule = 1e-3
        grad_clip: float | None = None
        max_kl: float = positive(0.01, "KL divergence δ that an update of the policy may reach", resume="fork")
        cg_steps: int = at_least_one(
            15, "products with the Fisher matrix in the search for a direction", most=1_000_000
        )
        cg_damping: float = not_negative(0.1, "damping λ, added to the diagonal of the Fisher matrix")
        line_search_steps: int = at_least_one(10, "lengths of the step that are tried", most=1_000_000)
        line_search_shrink: float = proper_fraction(0.8, "factor from one length to the next")

    settings: Settings

    def _build(self) -> None:
        super()._build()
        critics = [part for part in (self.model.critic, self.model.critic_encoder) if part is not None]
        theirs = [parameter for part in critics for parameter in part.parameters()]
        known = {id(parameter) for parameter in theirs}
        #: Those that the step of the policy moves.
        self.moved = [each for each in self.model.parameters() if id(each) not in known and each.requires_grad]
        self.optimizer = Adam(theirs, lr=self.rate(), eps=1e-5)

    def _network(self) -> ActorCritic:
        actor, critic = self._encoder(self.actor_space), self._encoder(self._critic_space())
        return ActorCritic(actor, self._distribution(), self.settings.hidden, critic)

    def _learning(self) -> TRPOLearning:
        return TRPOLearning(self)


class TRPOLearning(ActorCriticLearning):
    """One step of the policy on each batch; then the loss of the critic, value_coef · mean (V(s) − target)².

    The step maximizes L = mean (r A) + entropy_coef · mean H, r = π(a | s) / μ(a | s) (G7), while D, the mean of
    KL(π_old | π), stays within δ. Its direction x solves (F + λ I) x = ∇L by conjugate gradients. F is the Fisher
    matrix, the Hessian of D, of which products alone are computed. The length of the step is sqrt(2 δ / xᵀ (F + λ I) x)
    at first, and shrinks until L rises and D ≤ δ; if this never happens, the policy stays as it is.

    Source: Schulman et al. 2015, "Trust Region Policy Optimization", section 6 and appendix C.
    """

    policy: TRPOPolicy
    requires: ClassVar[dict[str, str]] = {
        **PPOLearning.requires,
        "on_policy": PPOLearning.requires["on_policy"].replace("PPO", "TRPO"),
    }
    columns = ("obs", "action", "logp", "advantage", "target", "value")
    beyond_gradients = "TRPO steps in a trust region"

    def loss(self, rows: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The critic's."""
        error = (self.policy.model.value(rows.obs).float() - rows.target).square().mean()
        return self.policy.settings.value_coef * error, {"value_loss": error}

    def over_batch(self, rows: Batch, all_reduce: AllReduce | None = None) -> dict[str, torch.Tensor]:
        """The step of the policy.

        Raises: NotFinite, before anything has changed (X1), with the rows; PlanError for several learners.
        """
        if all_reduce is not None:
            raise PlanError("TRPO has one learner: train with TrainOneStep(workers), which workers may collect for")
        if self.policy.settings.standardize:
            rows = rows.replace(advantage=standardized(rows.advantage))
        try:
            with self.policy.learning():
                with torch.no_grad():
                    check_loss(self.policy.model, self.loss(rows)[0])
                return self._step_of_policy(rows)
        except NotFinite as error:
            raise blamed(error, rows) from None

    def _step_of_policy(self, rows: Batch) -> dict[str, torch.Tensor]:
        given, moved = self.policy.settings, self.policy.moved
        model: Any = self.policy.model
        outputs = model.outputs(rows.obs)
        old, old_outputs = copy.deepcopy(model.distribution), outputs.detach()

        def reached(outputs: torch.Tensor) -> torch.Tensor:
            """L, D and the entropy of a policy with these outputs."""
            logp, entropy = model.distribution.evaluate(outputs, rows.action)
            surrogate = ((logp - rows.logp).exp() * rows.advantage).mean() + self.entropy_coef * entropy.mean()
            return torch.stack(
                [surrogate, old.divergence(old_outputs, model.distribution, outputs).mean(), entropy.mean()]
            )

        def gradient(of: torch.Tensor, **how: Any) -> torch.Tensor:
            found = torch.autograd.grad(of, moved, allow_unused=True, materialize_grads=True, **how)
            return torch.cat([each.flatten() for each in found])

        def product(v: torch.Tensor) -> torch.Tensor:
            return gradient(slope @ v, retain_graph=True) + given.cg_damping * v

        begun = reached(outputs)
        ascent, slope = gradient(begun[0], retain_graph=True), gradient(begun[1], create_graph=True)
        if not bool(ascent.isfinite().all()):
            raise NotFinite("the gradient of the policy is not finite")
        direction = conjugate_gradient(product, ascent, given.cg_steps)
        curvature = float(direction @ product(direction))
        length = math.sqrt(2 * given.max_kl / curvature) if curvature > 0 else 0.0
        start, share, found = parameters_to_vector(moved).detach(), 0.0, begun.detach()
        with torch.no_grad():
            for i in range(given.line_search_steps if length else 0):
                self._move(start + given.line_search_shrink**i * length * direction)
                tried = reached(model.outputs(rows.obs))
                if tried[0] > begun[0] and tried[1] <= given.max_kl:
                    share, found = given.line_search_shrink**i, tried
                    self.policy.version += 1
                    break
            else:
                self._move(start)
        scalars = {"policy_loss": -found[0], "kl": found[1], "entropy": begun[2].detach()}
        return {**scalars, "step_length": torch.tensor(share)}

    @torch.no_grad()
    def _move(self, vector: torch.Tensor) -> None:
        """Write parameters of the policy in place, since acting in numpy reads them there."""
        parts = torch.split(vector, [each.numel() for each in self.policy.moved])
        for parameter, part in zip(self.policy.moved, parts):
            parameter.copy_(part.view_as(parameter))
