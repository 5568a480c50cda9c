"""Offline learning: the Trainer of plans whose source is a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import attrs

from flowrl.engine.plan import Plan
from flowrl.errors import ConfigError, DatasetError
from flowrl.networks.devices import torch_threads
from flowrl.runs.config import Configuration
from flowrl.runs.trust import code_in
from flowrl.settings import at_least_one, not_negative, positive, setting
from flowrl.trainer.policy_factory import PolicyFactory, check_policy
from flowrl.trainer.trainer import Trainer

if TYPE_CHECKING:
    from flowrl.data import Dataset
    from flowrl.data.datasets.minari import MinariEpisodes
    from flowrl.envs.dataset_spaces import Source
    from flowrl.rollout.offline import OfflineWorkers


@attrs.frozen(kw_only=True, slots=False)
class OfflineConfig(Configuration):
    """Settings of every offline plan.

    Budgets, evaluations and results count updates.
    """

    clock: ClassVar[str] = "updates"

    env: str | None = setting(  # type: ignore[assignment]
        None, "environment of evaluations; None: the one that the dataset was recorded in"
    )
    data: str = setting("data/cartpole", "dataset: a folder that `flowrl record` or `Record` wrote, or minari:ID")
    agent: str | None = setting(None, "in a game's dataset: the agents to learn from, a name or pattern; None: all")
    epochs: int | None = at_least_one(None, "passes over the dataset; None: until the run stops")
    batch_size: int = positive(256, "rows per update")
    normalize_obs: bool = setting(False, "normalize observations to mean 0, deviation 1, by the dataset's statistics")
    report_every: int = positive(500, "updates between results")
    prefetch: int = not_negative(
        0, "batches that a thread reads ahead of learning, with the same results; 0: no thread", most=10_000
    )

    def edit(self, plan: Plan, workers: Any) -> Plan:
        """See `Option.edit`. What is read depends on nothing that is learned, so a thread changes no result (E8)."""
        if self.prefetch:
            plan = plan.rewire("TrainOneStep", lambda rows: rows.prefetch(self.prefetch, thread=True))
        return plan

    @property
    def source(self) -> Dataset | MinariEpisodes:
        """The dataset, of the agents that are learned from. Raises: DatasetError, see `open_dataset`."""
        from flowrl.data.datasets.open import open_dataset

        return open_dataset(self.data, self.agent)

    @property
    def for_policy(self) -> dict[str, Any]:
        """See `Configuration.for_policy`."""
        return {**super().for_policy, "normalize_obs": self.normalize_obs}


class OfflineTrainer(Trainer):
    """A `Trainer` whose plan reads a dataset, `config.data`; only evaluation creates an environment.

    `BC(data="data/cartpole").train(until={"updates": 5_000})`; `evaluate` plays in `env` if set, and otherwise in the
    environment that the dataset names as its own.

    Raises: DatasetError if `data` is no dataset, or if it lacks its spaces and `env` is not set.
    """

    Config = OfflineConfig

    @classmethod
    def make_workers(cls, config: Any, env: Any = None, policy: Any = None) -> OfflineWorkers:
        """Workers that hold the learning policy, with the spaces of the dataset, and its evaluation environments."""
        data = config.source
        return cls._workers(config, env, policy, data, _refused(config, env, data))

    @classmethod
    def workers_of_run(cls, config: Any, env: Any, about: Mapping[str, Any], spaces: Any) -> OfflineWorkers:
        """Workers for a saved policy, whose file describes the dataset; the dataset itself may be gone."""
        return cls._workers(config, env, None, _source(config, about))  # `flowrl.load` asks

    @classmethod
    def place_of_run(cls, config: Any, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """The environment of the dataset."""
        from flowrl.envs.dataset_spaces import environment_of

        return environment_of(_source(config, about)) or {}

    @classmethod
    def _workers(cls, config: Any, env: Any, policy: Any, data: Source, refused: Any = None) -> OfflineWorkers:
        from flowrl.rollout.offline import OfflineWorkers

        make = cls.policy if policy is None else policy
        check_policy(make)
        if config.num_workers:
            raise ConfigError(f"num_workers={config.num_workers}: an offline plan does not sample, so it needs 0")
        if len(policies := config.policy_names) > 1:
            raise ConfigError(
                f"agents={config.agents!r}: an offline plan trains one policy, which plays all agents, and these are "
                f"{', '.join(policies)}: leave agents out"
            )
        with torch_threads(config.torch_threads):
            return OfflineWorkers(
                data,
                policy=PolicyFactory(make, config),
                num_envs=config.envs_per_worker,
                eval_env=config.eval_env,
                eval_env_args=config.eval_env_args,
                eval_wrappers=config.eval_wrappers,
                eval_env_manager=config.eval_env_manager,
                agents=bool(config.agents),
                **{**evaluated_in(config, env, data), **(refused or {})},
            )


def _source(config: Any, about: Mapping[str, Any]) -> Source:
    """What describes the dataset of a run: its run.json, if that knows the environment, else the dataset itself."""
    from flowrl.data.datasets.open import open_dataset
    from flowrl.envs.dataset_spaces import RecordedEnvironment

    dataset = dict(about.get("dataset") or {})
    known = RecordedEnvironment(dataset.pop("path", config.data), dataset) if dataset else None
    if known is not None and dataset.get("env") is not None:
        return known
    try:
        return open_dataset(config.data)
    except DatasetError:
        if known is None:
            raise
    return known


def _refused(config: Configuration, env: Any, data: Source) -> dict[str, Any]:
    """What stands for the environment and wrappers that a dataset alone names, if they are code: see D17."""
    place = evaluated_in(config, env, data)
    own = {name for name in ("env", "wrappers") if config[name]} | ({"env"} if env is not None else set())
    if not (code := code_in({name: value for name, value in place.items() if name not in own})):
        return {}
    refuse = partial(_refuse, f"the dataset {data.path} names code that does not come with flowrl: {', '.join(code)}")
    wrapped = [each for each in code if each.startswith("wrappers=")]
    env = {"env": refuse, "env_args": {}} if len(code) > len(wrapped) else {}
    return {**env, **({"wrappers": [refuse]} if wrapped else {})}


def _refuse(words: str, *_: Any) -> NoReturn:
    raise ConfigError(f"{words}; if you trust it, name it yourself, by --env and --wrapper (env=..., wrappers=[...])")


def evaluated_in(config: Configuration, env: Any, data: Source) -> dict[str, Any]:
    """Settings of the evaluation environment: those of the configuration, completed by those of the dataset.

    The dataset completes nothing if `env` names another environment than its own.

    Raises: ConfigError if `wrappers` differ from those of the dataset.
    """
    from flowrl.envs.dataset_spaces import PLACE, environment_of

    values = {name: config[name] for name in PLACE} | ({} if env is None else {"env": env})
    known = environment_of(data)
    if known is None or config.env not in (None, known["env"]):
        return values
    recorded = known.get("wrappers")
    if values["wrappers"] and recorded is not None and values["wrappers"] != recorded:
        raise ConfigError(
            f"wrappers={values['wrappers']}: {data.path} was recorded in {known['env']} with {recorded or 'none'}, and "
            "the policy knows no other; leave them out. To evaluate elsewhere give eval_wrappers"
        )
    how = ("env_manager", "env_manager_args") if values["env_manager"] == "local" else ()
    completed = {name: known[name] for name in ("wrappers", *how) if known.get(name)}
    spec = known["env"] if values["env"] is None else values["env"]
    return {**values, **completed, "env": spec, "env_args": {**known.get("env_args", {}), **values["env_args"]}}
