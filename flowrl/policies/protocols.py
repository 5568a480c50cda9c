"""What a policy and its modes may have besides acting, each asked for by who needs it.

A `Policy` has most of it; a policy of one's own has what it needs, and who cannot do without the rest refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from flowrl.data import Batch
from flowrl.errors import PlanError
from flowrl.networks.sampling import Array

# -- the owner of a policy


@runtime_checkable
class OwnsPolicy(Protocol):
    """Workers whose policy learns, or a view of them with another policy: the counter that schedules follow."""

    clock: ClassVar[str]

    @property
    def policy(self) -> Any: ...


@runtime_checkable
class HasParts(Protocol):
    """Workers of one policy or of several."""

    def of(self, policy: str, /) -> Any:
        """The workers of one of them."""
        ...


def check_alone(policy: Any, who: str) -> None:
    """Refuse several policies by name in place of one that learns. Raises: PlanError, naming the way out."""
    if isinstance(policy, Mapping):
        names = " and ".join(map(repr, policy))
        raise PlanError(
            f"{who} learns one policy, but these workers have {names}: pass the workers of one, "
            f"workers.of({next(iter(policy))!r}); the plan ippo does so for all that `agents` names"
        )


# -- a policy


@runtime_checkable
class Learns(Protocol):
    """It has a mode that learns, a `Learning`."""

    learn_mode: Any


@runtime_checkable
class HasWeights(Protocol):
    """Other processes act with copies of it: what they need for that."""

    def weights(self) -> Mapping[str, Any]: ...

    def load_weights(self, weights: Any, /) -> None: ...


@runtime_checkable
class HasModel(Protocol):
    """Its networks are one module."""

    model: Any


@runtime_checkable
class InTorch(Protocol):
    """A mode whose actions torch alone can compute, for `Policy.export`."""

    def in_torch(self, model: Any, obs: Any) -> Any:
        """Actions `[B, ...]` as a tensor."""
        ...


@runtime_checkable
class HasTarget(Protocol):
    """A target network follows it."""

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


@runtime_checkable
class HasStatistics(Protocol):
    """It may normalize, by the statistics of its `normalizers`."""

    normalizers: Mapping[str, Any]


@runtime_checkable
class Reanalyses(Protocol):
    """It searches, and can do so again where it has acted before."""

    def reanalysed(self, obs: Any, /) -> Mapping[str, Array]:
        """The columns of searches from observations `[B, ...]` with the newest weights, as acting adds them."""
        ...


@runtime_checkable
class HasWorldModel(Protocol):
    """It acts in the latent states of a model that it learns."""

    world_mode: Any  #: how the model learns, a `Learning` whose scalars hold `latent [R, ...]` besides

    def imagined(self, latent: Any, horizon: int, /) -> Batch:
        """So many steps from each latent state, and one more for its value, `[horizon + 1, R, ...]`."""
        ...


@runtime_checkable
class ExploresByWorker(Protocol):
    """Workers collect differently."""

    def collect_mode_of(self, worker: int, /) -> Any: ...


# -- a mode


@runtime_checkable
class HasMemory(Protocol):
    """It acts from a state, see `RecurrentMode`."""

    def initial_state(self) -> Any: ...


@runtime_checkable
class HearsRewards(HasMemory, Protocol):
    """Its state takes the rewards that its actions get, also where it is evaluated and used."""

    def rewarded(self, state: Any, reward: Array, /) -> Any:
        """States `[N, ...]` after the rewards `[N]` of the steps to them, a copy; an episode's end resets it (T8)."""
        ...


@runtime_checkable
class CorrectsFragments(Protocol):
    """It makes advantages for its present weights of fragments that older ones collected."""

    def corrected(self, batch: Batch, /) -> Batch: ...


@runtime_checkable
class KnowsLikelihoods(Protocol):
    """It says how probable the actions of rows are."""

    recurrent: bool  #: it learns from sequences

    def logp_of(self, rows: Batch, /) -> Array: ...
