"""Normalizing observations and rewards by running statistics: collecting the statistics, and applying them.

On-policy learning must use the statistics that acting used, so new ones apply after learning; with replay they apply
at once:

    ParallelRollouts -> GatherStatistics -> NormalizeRewards -> GAE -> TrainOneStep -> UpdateStatistics

    ParallelRollouts -> GatherStatistics -> UpdateStatistics -> StoreToReplay
    Replay -> NormalizeRewards -> TrainOneStep

Offline, they are those of the dataset, and constant:

    Recorded -> DatasetStatistics -> TrainOneStep

Observations need no operator: the policy's network normalizes its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from flowrl.data import Batch, Dataset
from flowrl.data.columns import ENDS
from flowrl.data.datasets.minari import MinariEpisodes
from flowrl.data.datasets.open import parts_of
from flowrl.data.running_returns import Running, running_returns
from flowrl.data.steps import real_rows
from flowrl.engine.operator import operator, state
from flowrl.engine.protocols import WorkersContract
from flowrl.engine.schema import Schema
from flowrl.errors import PlanError, SchemaError
from flowrl.operators.adders import check_fragment, check_rates
from flowrl.policies.protocols import HasStatistics, check_alone

if TYPE_CHECKING:
    from flowrl.rollout import Workers


def normalizes(policy: Any) -> bool:
    """Does a policy keep statistics?"""
    return isinstance(policy, HasStatistics) and bool(policy.normalizers)


def _normalizes(op: Any, attribute: Any, workers: Workers) -> None:
    policy = WorkersContract(workers).policy
    check_alone(policy, type(op).__name__)
    if not normalizes(policy):
        raise PlanError(
            f"{type(op).__name__} needs the workers of a policy with statistics, made with normalize_obs=True or "
            f"normalize_rewards=True, got {policy or workers!r}"
        )


def _scales(op: Any, attribute: Any, workers: Workers) -> None:
    _normalizes(op, attribute, workers)
    if workers.policy.returns is None:
        raise PlanError(
            f"NormalizeRewards: {type(workers.policy).__name__} has statistics of observations alone; make it with "
            "normalize_rewards=True"
        )


@operator
class GatherStatistics:
    """Adds each row `[T, N, ...]` once to the statistics of the workers' policy; passes batches on.

    They cover the numbers in observations, and the discounted return G, as far as the policy keeps them:

        Gₜ = rₜ + γ Gₜ₋₁ per environment, from 0 where an episode begins (O3).

    An episode ends at its end, and where provenance shows that it was cut. New statistics wait for `UpdateStatistics`;
    only the very first returns apply at once, so that the first rewards are scaled too. Padded steps (`mask` 0) do not
    count; fragments with a `mask` are complete in themselves.

    Args:
        workers: Workers of the policy.
        gamma: Discount of the returns, per step; needed if the policy keeps their statistics.

    State: the return of every running episode so far; the waiting statistics are in the policy.
    Raises: PlanError for a policy without statistics; SchemaError for numbers that are not finite, and for
        returns unless the items are fragments.
    Source: Engstrom et al. 2020, "Implementation Matters in Deep Policy Gradients", appendix A.2.
    """

    provides = ("statistics",)
    owes = ("statistics",)
    workers: Workers = attrs.field(validator=_normalizes)
    gamma: float | None = None
    running: Running = state(factory=dict)

    def __attrs_post_init__(self) -> None:
        if self.gamma is not None:
            check_rates(gamma=self.gamma)
        elif self.workers.policy.returns is not None:
            raise PlanError("GatherStatistics needs gamma, the discount of the returns by which rewards are scaled")

    @property
    def requires(self) -> tuple[str, ...]:
        return ("obs", "fragments", "reward", *ENDS) if self.workers.policy.returns is not None else ("obs",)

    def schema(self, given: Schema) -> Schema:
        if "replayed" in given.words:
            raise SchemaError(
                "replay draws rows several times, but statistics count each once: put it after ParallelRollouts"
            )
        scaled = {"normalized_rewards": "NormalizeRewards", "scaled_rewards": "ScaleRewards"}
        for word in scaled.keys() & given.words if self.workers.policy.returns is not None else ():
            raise SchemaError(f"statistics need raw rewards: put {scaled[word]} after GatherStatistics")
        return given

    def __call__(self, batch: Batch) -> Batch:
        if batch.is_empty:
            return batch
        returns = None
        if self.workers.policy.returns is not None and self.gamma is not None:
            check_fragment("GatherStatistics", batch, needs=("reward", *ENDS))
            returns = running_returns(batch, self.gamma, self.running)
        known = [name for name in ("obs", "reward", "mask") if name in batch]
        gathered = batch.select(known).to_numpy()
        rows = real_rows(gathered if returns is None else gathered.replace(returns=returns))
        self.workers.policy.gather_statistics(rows["obs"], rows.get("returns"))
        return batch


@operator
class NormalizeRewards:
    """Rewards divided by the standard deviation of the discounted return: clip(r / σ, ± clip) (O3).

    σ comes from the statistics in use; no mean is subtracted, so rewards keep their sign. Reported returns stay those
    of the environment (S1). Put it before the advantages; with replay put it after `Replay`, not before
    `StoreToReplay`, so that the newest statistics scale the rows (O1).

    Args:
        workers: Workers of the policy, made with `normalize_rewards`.
        clip: Largest magnitude of the output, also of the reward of an n-step window; None: no limit.

    Raises: SchemaError if there is no reward; PlanError before any returns are gathered.
    """

    requires: ClassVar[Mapping[str, str]] = {
        "reward": "",
        "statistics": "put GatherStatistics after ParallelRollouts",
    }
    provides = ("normalized_rewards",)
    workers: Workers = attrs.field(validator=_scales)
    clip: float | None = 10.0
    pure = True

    def __attrs_post_init__(self) -> None:
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip is {self.clip}, expected a magnitude above 0, or None")

    def schema(self, given: Schema) -> Schema:
        if "normalized_rewards" in given.words:
            raise SchemaError("rewards are normalized already: leave out one NormalizeRewards")
        if "advantage" in given.columns:
            raise SchemaError("advantages are computed from the rewards already: put it before GAE or VTrace")
        return given

    def __call__(self, batch: Batch) -> Batch:
        if "reward" not in batch:
            raise SchemaError(f"NormalizeRewards needs the column 'reward', got {batch!r}")
        returns: Any = self.workers.policy.returns
        if not returns.count:
            raise PlanError("NormalizeRewards: no returns have been gathered: put GatherStatistics before it")
        scaled = batch["reward"] / float(returns.std)
        return batch.replace(reward=scaled if self.clip is None else scaled.clip(-self.clip, self.clip))


@operator
class UpdateStatistics:
    """Applies the statistics of `GatherStatistics`, for acting and learning; passes items on.

    Log-probabilities and values in rows collected before are those of the old statistics, no longer of the policy. So
    put it after `TrainOneStep` in on-policy learning, and before `StoreToReplay` with replay.

    Args:
        workers: Workers of the policy.
    """

    consumes = ("statistics",)
    provides = ()
    workers: Workers = attrs.field(validator=_normalizes)

    def schema(self, given: Schema) -> Schema:
        return given.without("on_policy")

    def __call__(self, item: Any) -> Any:
        self.workers.policy.update_statistics()
        return item


@operator
class DatasetStatistics:
    """Normalizes observations by the statistics of a whole dataset, from the first item on; passes items on.

    At the first item it reads all rows `obs [B, ...]` of the dataset once, some thousand at a time, without padded ones
    (`mask` 0).

    Args:
        workers: Workers of the policy, made with `normalize_obs`.
        data: The dataset.

    State: whether the statistics are applied; they are in the policy.
    Raises: PlanError for a policy without statistics; SchemaError for numbers that are not finite.
    Source: Fujimoto & Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning", section 4.
    """

    requires = ("obs",)
    provides = ("statistics",)
    workers: Workers = attrs.field(validator=_normalizes)
    data: Dataset | MinariEpisodes
    gathered: bool = state(default=False)

    def __call__(self, item: Any) -> Any:
        if not self.gathered:
            policy = self.workers.policy
            for _, rows in parts_of(self.data, ["obs"]):
                policy.gather_statistics(rows["obs"], None)
            policy.update_statistics()
            self.gathered = True
        return item
