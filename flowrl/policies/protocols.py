"""What some policies and modes have, and others not; one of a user's own need not be a `Policy` to have it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class HasWeights(Protocol):
    """Weights to send and to save; a scripted policy has none."""

    def weights(self) -> dict[str, Any]:
        """A copy of what acting needs."""
        ...

    def load_weights(self, weights: dict[str, Any]) -> None:
        """Take them."""
        ...


@runtime_checkable
class InTorch(Protocol):
    """A mode whose actions torch alone can compute, for `Policy.export`."""

    def in_torch(self, model: Any, obs: Any) -> Any:
        """Actions `[B, ...]` as a tensor."""
        ...


@runtime_checkable
class HasTarget(Protocol):
    """A target network."""

    def update_target(self, tau: float = 1.0) -> None:
        """target ← tau · online + (1 − tau) · target."""
        ...


@runtime_checkable
class HasKL(Protocol):
    """A penalty on the KL divergence from the policy that acted."""

    kl_coef: float

    def update_kl(self, kl: float, target: float) -> None:
        """Move its weight so that the divergence stays near a target."""
        ...
