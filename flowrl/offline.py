"""Learning without an environment: the Trainer of plans whose source is a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from attrs import validators

from flowrl.config import Configuration, positive
from flowrl.errors import ConfigError
from flowrl.policy_maker import PolicyMaker, check_policy
from flowrl.trainer import Trainer, torch_threads

if TYPE_CHECKING:
    from flowrl.rollout import WorkerSet


@attrs.define(kw_only=True)
class OfflineConfig(Configuration):
    """What every plan without an environment has. Budgets, evaluations and results are counted in updates."""

    clock: ClassVar[str] = "updates"

    #: Where the policy is evaluated, if at all; None: where the dataset was recorded. It is made only then.
    env: str | None = None  # type: ignore[assignment]
    #: The dataset: a folder that `flowrl record` or `Record` wrote, or "minari:ID".
    data: str = "data/cartpole"
    #: How often it is read; None: until the run is stopped.
    epochs: int | None = attrs.field(default=None, validator=validators.optional(validators.ge(1)))
    batch_size: int = positive(256)  #: rows of an update
    report_every: int = positive(500)  #: updates between results


class OfflineTrainer(Trainer):
    """A `Trainer` whose plan reads a dataset, `config.data`: no environment is made, unless it is to be evaluated.

    `BC(data="data/cartpole").train(until={"updates": 5_000})`; with `env`, `evaluate` plays there, and otherwise in the
    environment that the dataset says it was recorded in.

    Raises: DatasetError where the dataset is none, or knows nothing of its spaces and there is no `env` to ask.
    """

    Config = OfflineConfig

    @classmethod
    def make_workers(cls, config: Any, env: Any = None, policy: Any = None) -> WorkerSet:
        """The policy that learns, with the spaces of the dataset, and where it is evaluated."""
        from flowrl.data.sources import open_dataset
        from flowrl.envs.datasets import environment_of
        from flowrl.rollout.offline import OfflineWorkers

        make = cls.policy if policy is None else policy
        check_policy(make)
        if config.num_workers:
            raise ConfigError(f"num_workers={config.num_workers}: nobody acts in a plan without an environment")
        data = open_dataset(config.data)
        given, env_args = config.env if env is None else env, config.env_args
        if given is None and (known := environment_of(data)) is not None:
            given, env_args = known[0], {**known[1], **env_args}
        with torch_threads(config.torch_threads):
            return OfflineWorkers(
                data,
                given,
                PolicyMaker(make, config),
                envs_per_worker=config.envs_per_worker,
                env_args=env_args,
                wrappers=config.wrappers,
                env_manager=config.env_manager,
                env_manager_args=config.env_manager_args,
                eval_env=config.eval_env,
                eval_env_args=config.eval_env_args,
                eval_wrappers=config.eval_wrappers,
                eval_env_manager=config.eval_env_manager,
                seed=config.seed,
            )
