# Written by tests/derived.py.

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from flowrl.plans import a2c as _a2c
from flowrl.plans import a3c as _a3c
from flowrl.plans import airl_ppo as _airl_ppo
from flowrl.plans import alphazero as _alphazero
from flowrl.plans import apex_dqn as _apex_dqn
from flowrl.plans import appo as _appo
from flowrl.plans import bc as _bc
from flowrl.plans import c51 as _c51
from flowrl.plans import cql as _cql
from flowrl.plans import crossq as _crossq
from flowrl.plans import ddpg as _ddpg
from flowrl.plans import ddppo as _ddppo
from flowrl.plans import decision_transformer as _decision_transformer
from flowrl.plans import dqfd as _dqfd
from flowrl.plans import dqn as _dqn
from flowrl.plans import dreamer as _dreamer
from flowrl.plans import gail_ppo as _gail_ppo
from flowrl.plans import her_dqn as _her_dqn
from flowrl.plans import her_sac as _her_sac
from flowrl.plans import hierarchy as _hierarchy
from flowrl.plans import icm_ppo as _icm_ppo
from flowrl.plans import impala as _impala
from flowrl.plans import ippo as _ippo
from flowrl.plans import iql as _iql
from flowrl.plans import iqn as _iqn
from flowrl.plans import league as _league
from flowrl.plans import mappo as _mappo
from flowrl.plans import marwil as _marwil
from flowrl.plans import masac as _masac
from flowrl.plans import mbpo as _mbpo
from flowrl.plans import muzero as _muzero
from flowrl.plans import ppo as _ppo
from flowrl.plans import pqn as _pqn
from flowrl.plans import qmix as _qmix
from flowrl.plans import qrdqn as _qrdqn
from flowrl.plans import r2d2 as _r2d2
from flowrl.plans import r2d3 as _r2d3
from flowrl.plans import rainbow as _rainbow
from flowrl.plans import rbc as _rbc
from flowrl.plans import redq as _redq
from flowrl.plans import rnd_dqn as _rnd_dqn
from flowrl.plans import rnd_ppo as _rnd_ppo
from flowrl.plans import sac as _sac
from flowrl.plans import sacfd as _sacfd
from flowrl.plans import self_play as _self_play
from flowrl.plans import sqil as _sqil
from flowrl.plans import td3 as _td3
from flowrl.plans import td3_bc as _td3_bc
from flowrl.plans import tqc as _tqc
from flowrl.plans import trpo as _trpo
from flowrl.plans import two_trainers as _two_trainers
from flowrl.plans import vdn as _vdn
from flowrl.runs.config import Configuration

class _Settings(TypedDict, total=False):
    act_backend: str
    address: str | None
    agents: dict[str, str] | str
    checkpoint_every: int | None
    checkpoint_keep: int
    checkpoint_seconds: float | None
    compile: bool
    device: str
    env_args: dict[str, Any]
    env_groups: int | None
    env_manager: str
    env_manager_args: dict[str, Any]
    envs_per_worker: int
    episode_seeds: list[int] | None
    eval_deterministic: bool
    eval_env: str | None
    eval_env_args: dict[str, Any] | None
    eval_env_manager: str | None
    eval_episodes: int
    eval_every: int | None
    eval_max_steps: int
    eval_train_ratio: float
    eval_wrappers: list[str] | None
    goal_episodes: int
    grad_clip_value: float | None
    image_axes: str | dict[str, Any] | None
    info_keys: list[str] | dict[str, Any]
    journal: bool
    max_worker_restarts: int
    network: str | None
    num_workers: int
    on_worker_death: Literal["stop", "go_on"]
    policies: list[str]
    precision: Literal["float32", "bfloat16", "float16"]
    report_timers: bool
    torch_threads: int
    worker_cpus: float
    worker_gpus: float
    worker_memory: int
    worker_resources: dict[str, float]
    worker_timeout: float
    wrappers: list[str]

class _A2C(_Settings, total=False):
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    lam: float
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    microbatches: int
    normalize_obs: bool
    normalize_rewards: bool
    privileged: Sequence[str]
    report_every: int
    reward_scale: float
    schedule_steps: int | None
    squash: bool
    train_batch_size: int
    value_coef: float

class A2C(_a2c.A2C):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_A2C],
    ) -> None: ...

class _A3C(_Settings, total=False):
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    in_flight: int
    lam: float
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    privileged: Sequence[str]
    report_every: int
    schedule_steps: int | None
    squash: bool
    value_coef: float

class A3C(_a3c.A3C):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_A3C],
    ) -> None: ...

class _AIRLPPO(_Settings, total=False):
    absorbing: bool
    clip: float | str | list[list[float]]
    clip_end: float | None
    critic_obs: Sequence[str] | None
    demonstration_batch_size: int
    demonstrations: str | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    extrinsic_weight: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    imitation_weight: float
    kl_coef: float
    kl_target: float | None
    lam: float
    learn_backend: Literal["torch", "numpy", "auto"]
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    memory_layers: int
    memory_size: int
    memory_steps: int
    minibatch_size: int
    normalize_obs: bool
    normalize_rewards: bool
    num_sgd_iter: int
    privileged: Sequence[str]
    recurrent: Literal["lstm", "gru", "gtrxl"] | None
    report_every: int
    reward_hidden: Sequence[int]
    reward_learning_rate: float
    reward_minibatch_size: int | None
    reward_scale: float
    reward_sgd_iter: int
    schedule_steps: int | None
    sequence_length: int
    squash: bool
    standardize: bool
    state_only: bool
    target_kl: float | None
    train_batch_size: int
    value_clip: float | None
    value_coef: float

class AIRLPPO(_airl_ppo.AIRLPPO):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_AIRLPPO],
    ) -> None: ...

class _APPO(_Settings, total=False):
    c_bar: float
    clip: float | str | list[list[float]]
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    in_flight: int
    kl_coef: float
    kl_target: float | None
    lam: float
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    max_weight_lag: int | None
    minibatch_size: int
    num_sgd_iter: int
    old_weight: float
    privileged: Sequence[str]
    report_every: int
    reward_scale: float
    rho_bar: float
    rho_pg_bar: float
    schedule_steps: int | None
    squash: bool
    standardize: bool
    target_every: int
    tau: float
    train_batch_size: int
    value_coef: float

class APPO(_appo.APPO):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_APPO],
    ) -> None: ...

class _AlphaZero(_Settings, total=False):
    batch_size: int
    buffer_size: int
    c_puct: float
    dirichlet_alpha: float
    eval_opponent: str | None
    eval_simulations: int | None
    exploring_moves: int
    fragment_steps: int
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    learning_starts: int
    q_ratio: float
    replay_ratio: float
    report_every: int
    root_noise: float
    schedule_steps: int | None
    share_frames: bool
    simulations: int
    temperature: float
    value_coef: float

class AlphaZero(_alphazero.AlphaZero):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_AlphaZero],
    ) -> None: ...

class _ApexDQN(_Settings, total=False):
    batch_size: int
    buffer_size: int
    double: bool
    draws_in_flight: int
    dueling: bool
    epsilon: float
    epsilon_alpha: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    in_flight: int
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    munchausen: float
    munchausen_temperature: float
    n_step: int
    noisy: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    replay_ratio: float
    replay_shards: int
    report_every: int
    share_frames: bool
    target_every: int
    tau: float

class ApexDQN(_apex_dqn.ApexDQN):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_ApexDQN],
    ) -> None: ...

class _BC(_Settings, total=False):
    agent: str | None
    batch_size: int
    data: str
    epochs: int | None
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    normalize_obs: bool
    prefetch: int
    report_every: int

class BC(_bc.BC):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_BC],
    ) -> None: ...

class _C51(_Settings, total=False):
    atoms: int
    batch_size: int
    buffer_size: int
    double: bool
    dueling: bool
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    munchausen: float
    munchausen_temperature: float
    n_step: int
    noisy: bool
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    tau: float
    v_max: float
    v_min: float

class C51(_c51.C51):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_C51],
    ) -> None: ...

class _CQL(_Settings, total=False):
    agent: str | None
    batch_size: int
    candidates: int
    conservatism: float
    critics: int
    data: str
    diversity: float
    double: bool
    dueling: bool
    epochs: int | None
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learn_temperature: bool
    learning_rate: float | str | list[list[float]]
    normalize_obs: bool
    prefetch: int
    report_every: int
    target_entropy: float | None
    target_every: int
    tau: float
    temperature: float

class CQL(_cql.CQL):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_CQL],
    ) -> None: ...

class _CrossQ(_Settings, total=False):
    batch_size: int
    buffer_size: int
    critic_hidden: Sequence[int]
    critic_learning_rate: float | str | list[list[float]] | None
    critics: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learn_temperature: bool
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    n_step: int
    norm_momentum: float
    normalize_obs: bool
    normalize_rewards: bool
    policy_delay: int
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    random_steps: int
    renorm_warmup: int
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_entropy: float | None
    temperature: float

class CrossQ(_crossq.CrossQ):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_CrossQ],
    ) -> None: ...

class _DDPG(_Settings, total=False):
    batch_size: int
    buffer_size: int
    critic_learning_rate: float | str | list[list[float]] | None
    exploration_noise: float | str | list[list[float]]
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    n_step: int
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    random_steps: int
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    tau: float

class DDPG(_ddpg.DDPG):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_DDPG],
    ) -> None: ...

class _DDPPO(_Settings, total=False):
    clip: float | str | list[list[float]]
    clip_end: float | None
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    lam: float
    learn_backend: Literal["torch", "numpy", "auto"]
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    minibatch_size: int
    num_sgd_iter: int
    privileged: Sequence[str]
    report_every: int
    reward_scale: float
    schedule_steps: int | None
    squash: bool
    standardize: bool
    target_kl: float | None
    train_batch_size: int
    value_clip: float | None
    value_coef: float

class DDPPO(_ddppo.DDPPO):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_DDPPO],
    ) -> None: ...

class _DQN(_Settings, total=False):
    batch_size: int
    buffer_size: int
    double: bool
    dueling: bool
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    munchausen: float
    munchausen_temperature: float
    n_step: int
    noisy: bool
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    tau: float

class DQN(_dqn.DQN):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_DQN],
    ) -> None: ...

class _DQfD(_Settings, total=False):
    batch_size: int
    buffer_size: int
    demonstration_fraction: float
    demonstrations: str | None
    double: bool
    dueling: bool
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    l2: float
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    margin: float
    margin_weight: float
    munchausen: float
    munchausen_temperature: float
    n_step: int
    n_step_weight: float
    noisy: bool
    normalize_obs: bool
    normalize_rewards: bool
    pretrain_updates: int
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    tau: float

class DQfD(_dqfd.DQfD):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_DQfD],
    ) -> None: ...

class _DecisionTransformer(_Settings, total=False):
    agent: str | None
    batch_size: int
    context: int
    data: str
    epochs: int | None
    grad_clip: float | None
    layers: int
    learning_rate: float | str | list[list[float]]
    normalize_obs: bool
    prefetch: int
    report_every: int
    return_scale: float
    target_return: float | None
    units: int

class DecisionTransformer(_decision_transformer.DecisionTransformer):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_DecisionTransformer],
    ) -> None: ...

class _Dreamer(_Settings, total=False):
    batch_size: int
    bins: int
    buffer_size: int
    dynamics_coef: float
    entropy_coef: float
    fragment_steps: int
    free_nats: float
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    horizon: int
    image_depth: int
    lam: float
    latent_classes: int
    latent_groups: int
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    log_std: float
    memory_size: int
    normalize_obs: bool
    obs_coef: float
    overlap: int
    replay_ratio: float
    report_every: int
    representation_coef: float
    sequence_length: int
    share_frames: bool
    spread_decay: float
    squash: bool
    target_every: int
    tau: float

class Dreamer(_dreamer.Dreamer):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_Dreamer],
    ) -> None: ...

class _GAILPPO(_Settings, total=False):
    clip: float | str | list[list[float]]
    clip_end: float | None
    critic_obs: Sequence[str] | None
    demonstration_batch_size: int
    demonstrations: str | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    extrinsic_weight: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    gradient_penalty: float
    hidden: Sequence[int]
    imitation_weight: float
    kl_coef: float
    kl_target: float | None
    lam: float
    learn_backend: Literal["torch", "numpy", "auto"]
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    memory_layers: int
    memory_size: int
    memory_steps: int
    minibatch_size: int
    normalize_obs: bool
    normalize_rewards: bool
    num_sgd_iter: int
    privileged: Sequence[str]
    recurrent: Literal["lstm", "gru", "gtrxl"] | None
    report_every: int
    reward_form: Literal["positive", "negative", "both"]
    reward_hidden: Sequence[int]
    reward_learning_rate: float
    reward_minibatch_size: int | None
    reward_scale: float
    reward_sgd_iter: int
    schedule_steps: int | None
    sequence_length: int
    squash: bool
    standardize: bool
    target_kl: float | None
    train_batch_size: int
    value_clip: float | None
    value_coef: float

class GAILPPO(_gail_ppo.GAILPPO):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_GAILPPO],
    ) -> None: ...

class _HERDQN(_Settings, total=False):
    batch_size: int
    buffer_size: int
    double: bool
    dueling: bool
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    her_k: int
    her_strategy: Literal["future", "final", "episode"]
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    munchausen: float
    munchausen_temperature: float
    n_step: int
    noisy: bool
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    tau: float

class HERDQN(_her_dqn.HERDQN):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_HERDQN],
    ) -> None: ...

class _HERSAC(_Settings, total=False):
    batch_size: int
    buffer_size: int
    critic_learning_rate: float | str | list[list[float]] | None
    entropy_fraction: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    her_k: int
    her_strategy: Literal["future", "final", "episode"]
    hidden: Sequence[int]
    learn_temperature: bool
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    n_step: int
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    random_steps: int
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_entropy: float | None
    target_every: int
    tau: float
    temperature: float

class HERSAC(_her_sac.HERSAC):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_HERSAC],
    ) -> None: ...

class _Hierarchical(_Settings, total=False):
    extrinsic: float | None
    fragment_steps: int
    interval: int
    intrinsic: str | None
    manager: dict[str, Any]
    options: int
    reach: float | None
    report_every: int
    schedule_steps: int | None
    subgoal: Sequence[int]
    tolerance: float
    worker: dict[str, Any]

class Hierarchical(_hierarchy.Hierarchical):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_Hierarchical],
    ) -> None: ...

class _ICMPPO(_Settings, total=False):
    clip: float | str | list[list[float]]
    clip_end: float | None
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    extrinsic_weight: float
    forward_share: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    intrinsic_weight: float
    kl_coef: float
    kl_target: float | None
    lam: float
    learn_backend: Literal["torch", "numpy", "auto"]
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    memory_layers: int
    memory_size: int
    memory_steps: int
    minibatch_size: int
    normalize_obs: bool
    normalize_rewards: bool
    num_sgd_iter: int
    privileged: Sequence[str]
    recurrent: Literal["lstm", "gru", "gtrxl"] | None
    report_every: int
    reward_features: int
    reward_hidden: Sequence[int]
    reward_learning_rate: float
    reward_minibatch_size: int | None
    reward_scale: float
    reward_sgd_iter: int
    schedule_steps: int | None
    sequence_length: int
    squash: bool
    standardize: bool
    target_kl: float | None
    train_batch_size: int
    value_clip: float | None
    value_coef: float

class ICMPPO(_icm_ppo.ICMPPO):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_ICMPPO],
    ) -> None: ...

class _IMPALA(_Settings, total=False):
    c_bar: float
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    in_flight: int
    lam: float
    learn_in_flight: int
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    max_weight_lag: int | None
    num_aggregators: int
    num_learners: int
    privileged: Sequence[str]
    replay_ratio: float
    replay_slots: int
    report_every: int
    reward_scale: float
    rho_bar: float
    rho_pg_bar: float
    schedule_steps: int | None
    squash: bool
    train_batch_size: int
    value_coef: float

class IMPALA(_impala.IMPALA):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_IMPALA],
    ) -> None: ...

class _IPPO(_Settings, total=False):
    clip: float | str | list[list[float]]
    clip_end: float | None
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    fragment_steps: int
    frozen: Sequence[str]
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    kl_coef: float
    kl_target: float | None
    lam: float
    learn_backend: Literal["torch", "numpy", "auto"]
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    minibatch_size: int
    normalize_obs: bool
    normalize_rewards: bool
    num_sgd_iter: int
    privileged: Sequence[str]
    report_every: int
    schedule_steps: int | None
    squash: bool
    standardize: bool
    target_kl: float | None
    train_batch_size: int
    value_clip: float | None
    value_coef: float

class IPPO(_ippo.IPPO):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_IPPO],
    ) -> None: ...

class _IQL(_Settings, total=False):
    agent: str | None
    batch_size: int
    beta: float
    data: str
    epochs: int | None
    expectile: float
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    max_weight: float
    normalize_obs: bool
    prefetch: int
    report_every: int
    target_every: int
    tau: float

class IQL(_iql.IQL):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_IQL],
    ) -> None: ...

class _IQN(_Settings, total=False):
    acting_quantiles: int
    batch_size: int
    buffer_size: int
    cosines: int
    double: bool
    dueling: bool
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    munchausen: float
    munchausen_temperature: float
    n_step: int
    noisy: bool
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    quantiles: int
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    target_quantiles: int
    tau: float

class IQN(_iqn.IQN):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_IQN],
    ) -> None: ...

class _LeagueTraining(_Settings, total=False):
    clip: float | str | list[list[float]]
    clip_end: float | None
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    eval_opponent: str | None
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    lam: float
    learn_backend: Literal["torch", "numpy", "auto"]
    learners: dict[str, int]
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    minibatch_size: int
    num_sgd_iter: int
    opponents: Sequence[str]
    pfsp: float
    pool_size: int
    privileged: Sequence[str]
    report_every: int
    restart: float
    schedule_steps: int | None
    self_play: float
    snapshot_every: int
    snapshot_win_rate: float | None
    squash: bool
    standardize: bool
    target_kl: float | None
    train_batch_size: int
    value_clip: float | None
    value_coef: float

class LeagueTraining(_league.LeagueTraining):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_LeagueTraining],
    ) -> None: ...

class _MAPPO(_Settings, total=False):
    clip: float | str | list[list[float]]
    clip_end: float | None
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    fragment_steps: int
    frozen: Sequence[str]
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    kl_coef: float
    kl_target: float | None
    lam: float
    learn_backend: Literal["torch", "numpy", "auto"]
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    minibatch_size: int
    normalize_obs: bool
    normalize_rewards: bool
    num_sgd_iter: int
    privileged: Sequence[str]
    report_every: int
    schedule_steps: int | None
    squash: bool
    standardize: bool
    target_kl: float | None
    team: str | list[str] | None
    train_batch_size: int
    value_clip: float | None
    value_coef: float

class MAPPO(_mappo.MAPPO):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_MAPPO],
    ) -> None: ...

class _MARWIL(_Settings, total=False):
    agent: str | None
    batch_size: int
    beta: float
    data: str
    epochs: int | None
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    max_weight: float
    norm_rate: float
    normalize_obs: bool
    prefetch: int
    report_every: int
    value_coef: float

class MARWIL(_marwil.MARWIL):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_MARWIL],
    ) -> None: ...

class _MASAC(_Settings, total=False):
    batch_size: int
    buffer_size: int
    critic_learning_rate: float | str | list[list[float]] | None
    entropy_fraction: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learn_temperature: bool
    learning_rate: float
    learning_starts: int
    n_step: int
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    random_steps: int
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_entropy: float | None
    target_every: int
    tau: float
    team: str | list[str] | None
    temperature: float

class MASAC(_masac.MASAC):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_MASAC],
    ) -> None: ...

class _MBPO(_Settings, total=False):
    batch_size: int
    buffer_size: int
    critic_learning_rate: float | str | list[list[float]] | None
    entropy_fraction: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    horizon: int
    imagined_branches: int
    imagined_ratio: float
    imagined_size: int
    learn_temperature: bool
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    model_elites: int
    model_epochs: int
    model_every: int
    model_hidden: Sequence[int]
    model_holdout: float
    model_learning_rate: float
    model_members: int
    model_minibatch_size: int
    model_patience: int
    random_steps: int
    real_fraction: float
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_entropy: float | None
    target_every: int
    tau: float
    temperature: float

class MBPO(_mbpo.MBPO):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_MBPO],
    ) -> None: ...

class _MuZero(_Settings, total=False):
    batch_size: int
    buffer_size: int
    considered_actions: int
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    eval_opponent: str | None
    eval_simulations: int | None
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    latent_size: int
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    learning_starts: int
    longest_game: int | None
    n_step: int
    normalize_obs: bool
    overlap: int
    q_scale: float
    reanalysed_sequences: int
    replay_ratio: float
    report_every: int
    reward_coef: float
    schedule_steps: int | None
    sequence_length: int
    share_frames: bool
    simulations: int
    support_size: int
    target_every: int
    tau: float
    unroll_steps: int
    value_coef: float
    visit_offset: float

class MuZero(_muzero.MuZero):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_MuZero],
    ) -> None: ...

class _PPO(_Settings, total=False):
    clip: float | str | list[list[float]]
    clip_end: float | None
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    kl_coef: float
    kl_target: float | None
    lam: float
    learn_backend: Literal["torch", "numpy", "auto"]
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    memory_layers: int
    memory_size: int
    memory_steps: int
    minibatch_size: int
    normalize_obs: bool
    normalize_rewards: bool
    num_sgd_iter: int
    privileged: Sequence[str]
    recurrent: Literal["lstm", "gru", "gtrxl"] | None
    report_every: int
    reward_scale: float
    schedule_steps: int | None
    sequence_length: int
    squash: bool
    standardize: bool
    target_kl: float | None
    train_batch_size: int
    value_clip: float | None
    value_coef: float

class PPO(_ppo.PPO):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_PPO],
    ) -> None: ...

class _PQN(_Settings, total=False):
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    lam: float
    layer_norm: bool
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    minibatch_size: int
    normalize_obs: bool
    normalize_rewards: bool
    num_sgd_iter: int
    report_every: int
    reward_scale: float
    schedule_steps: int | None
    train_batch_size: int

class PQN(_pqn.PQN):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_PQN],
    ) -> None: ...

class _QMIX(_Settings, total=False):
    batch_size: int
    buffer_size: int
    double: bool
    dueling: bool
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    mixer: Literal["sum", "monotonic"]
    mixer_width: int
    munchausen: float
    munchausen_temperature: float
    n_step: int
    noisy: bool
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    tau: float
    team: str | list[str] | None

class QMIX(_qmix.QMIX):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_QMIX],
    ) -> None: ...

class _QRDQN(_Settings, total=False):
    batch_size: int
    buffer_size: int
    double: bool
    dueling: bool
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    munchausen: float
    munchausen_temperature: float
    n_step: int
    noisy: bool
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    quantiles: int
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    tau: float

class QRDQN(_qrdqn.QRDQN):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_QRDQN],
    ) -> None: ...

class _R2D2(_Settings, total=False):
    batch_size: int
    buffer_size: int
    burn_in: int
    double: bool
    dueling: bool
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    memory_layers: int
    memory_size: int
    memory_steps: int
    n_step: int
    normalize_obs: bool
    normalize_rewards: bool
    overlap: int
    priority_alpha: float
    priority_beta: float
    priority_eta: float
    recurrent: Literal["lstm", "gru", "gtrxl"]
    replay_ratio: float
    report_every: int
    rescale: bool
    sequence_length: int
    share_frames: bool
    stored_state: bool
    target_every: int
    tau: float

class R2D2(_r2d2.R2D2):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_R2D2],
    ) -> None: ...

class _R2D3(_Settings, total=False):
    batch_size: int
    buffer_size: int
    burn_in: int
    demonstration_fraction: float
    demonstrations: str | None
    double: bool
    dueling: bool
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    memory_layers: int
    memory_size: int
    memory_steps: int
    n_step: int
    normalize_obs: bool
    normalize_rewards: bool
    overlap: int
    priority_alpha: float
    priority_beta: float
    priority_eta: float
    recurrent: Literal["lstm", "gru", "gtrxl"]
    replay_ratio: float
    report_every: int
    rescale: bool
    sequence_length: int
    share_frames: bool
    stored_state: bool
    target_every: int
    tau: float

class R2D3(_r2d3.R2D3):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_R2D3],
    ) -> None: ...

class _RBC(_Settings, total=False):
    batch_size: int
    bellman_weight: float
    buffer_size: int
    demonstration_fraction: float
    demonstrations: str | None
    dueling: bool
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    normalize_obs: bool
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    tau: float
    temperature: float

class RBC(_rbc.RBC):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_RBC],
    ) -> None: ...

class _REDQ(_Settings, total=False):
    batch_size: int
    buffer_size: int
    critic_learning_rate: float | str | list[list[float]] | None
    critics: int
    dropout: float
    entropy_fraction: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    layer_norm: bool
    learn_temperature: bool
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    n_step: int
    normalize_obs: bool
    normalize_rewards: bool
    policy_delay: int
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    random_steps: int
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_critics: int
    target_entropy: float | None
    target_every: int
    tau: float
    temperature: float

class REDQ(_redq.REDQ):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_REDQ],
    ) -> None: ...

class _RNDDQN(_Settings, total=False):
    batch_size: int
    buffer_size: int
    double: bool
    dueling: bool
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    extrinsic_weight: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    intrinsic_weight: float
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    munchausen: float
    munchausen_temperature: float
    n_step: int
    noisy: bool
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    replay_ratio: float
    report_every: int
    reward_features: int
    reward_hidden: Sequence[int]
    reward_learning_rate: float
    reward_minibatch_size: int | None
    reward_sgd_iter: int
    share_frames: bool
    target_every: int
    tau: float

class RNDDQN(_rnd_dqn.RNDDQN):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_RNDDQN],
    ) -> None: ...

class _RNDPPO(_Settings, total=False):
    clip: float | str | list[list[float]]
    clip_end: float | None
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    extrinsic_weight: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    intrinsic_weight: float
    kl_coef: float
    kl_target: float | None
    lam: float
    learn_backend: Literal["torch", "numpy", "auto"]
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    memory_layers: int
    memory_size: int
    memory_steps: int
    minibatch_size: int
    normalize_obs: bool
    normalize_rewards: bool
    num_sgd_iter: int
    privileged: Sequence[str]
    recurrent: Literal["lstm", "gru", "gtrxl"] | None
    report_every: int
    reward_features: int
    reward_hidden: Sequence[int]
    reward_learning_rate: float
    reward_minibatch_size: int | None
    reward_scale: float
    reward_sgd_iter: int
    schedule_steps: int | None
    sequence_length: int
    squash: bool
    standardize: bool
    target_kl: float | None
    train_batch_size: int
    value_clip: float | None
    value_coef: float

class RNDPPO(_rnd_ppo.RNDPPO):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_RNDPPO],
    ) -> None: ...

class _Rainbow(_Settings, total=False):
    atoms: int
    batch_size: int
    buffer_size: int
    double: bool
    dueling: bool
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    munchausen: float
    munchausen_temperature: float
    n_step: int
    noisy: bool
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    tau: float
    v_max: float
    v_min: float

class Rainbow(_rainbow.Rainbow):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_Rainbow],
    ) -> None: ...

class _SAC(_Settings, total=False):
    batch_size: int
    buffer_size: int
    critic_learning_rate: float | str | list[list[float]] | None
    entropy_fraction: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learn_temperature: bool
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    n_step: int
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    random_steps: int
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_entropy: float | None
    target_every: int
    tau: float
    temperature: float

class SAC(_sac.SAC):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_SAC],
    ) -> None: ...

class _SACfD(_Settings, total=False):
    batch_size: int
    buffer_size: int
    critic_learning_rate: float | str | list[list[float]] | None
    demonstration_fraction: float
    demonstrations: str | None
    entropy_fraction: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learn_temperature: bool
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    n_step: int
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    random_steps: int
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_entropy: float | None
    target_every: int
    tau: float
    temperature: float

class SACfD(_sacfd.SACfD):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_SACfD],
    ) -> None: ...

class _SQIL(_Settings, total=False):
    batch_size: int
    buffer_size: int
    demonstration_fraction: float
    demonstrations: str | None
    dueling: bool
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    normalize_obs: bool
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    tau: float
    temperature: float

class SQIL(_sqil.SQIL):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_SQIL],
    ) -> None: ...

class _SelfPlay(_Settings, total=False):
    clip: float | str | list[list[float]]
    clip_end: float | None
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    eval_opponent: str | None
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    kl_coef: float
    kl_target: float | None
    lam: float
    learn_backend: Literal["torch", "numpy", "auto"]
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    log_std: float
    match_making: Literal["uniform", "latest", "pfsp_squared", "pfsp_variance"]
    minibatch_size: int
    num_sgd_iter: int
    opponents: Sequence[str]
    pool_size: int
    privileged: Sequence[str]
    report_every: int
    schedule_steps: int | None
    self_play: float
    snapshot_every: int
    snapshot_win_rate: float | None
    squash: bool
    standardize: bool
    target_kl: float | None
    train_batch_size: int
    value_clip: float | None
    value_coef: float

class SelfPlay(_self_play.SelfPlay):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_SelfPlay],
    ) -> None: ...

class _TD3(_Settings, total=False):
    batch_size: int
    buffer_size: int
    critic_learning_rate: float | str | list[list[float]] | None
    exploration_noise: float | str | list[list[float]]
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    n_step: int
    normalize_obs: bool
    normalize_rewards: bool
    policy_delay: int
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    random_steps: int
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    target_noise: float
    target_noise_clip: float
    tau: float

class TD3(_td3.TD3):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_TD3],
    ) -> None: ...

class _TD3BC(_Settings, total=False):
    agent: str | None
    batch_size: int
    data: str
    epochs: int | None
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    normalize_obs: bool
    policy_delay: int
    prefetch: int
    report_every: int
    target_every: int
    target_noise: float
    target_noise_clip: float
    tau: float
    value_weight: float

class TD3BC(_td3_bc.TD3BC):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_TD3BC],
    ) -> None: ...

class _TQC(_Settings, total=False):
    batch_size: int
    buffer_size: int
    critic_learning_rate: float | str | list[list[float]] | None
    critics: int
    dropped_quantiles: int
    entropy_fraction: float
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learn_temperature: bool
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    n_step: int
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    quantiles: int
    random_steps: int
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_entropy: float | None
    target_every: int
    tau: float
    temperature: float

class TQC(_tqc.TQC):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_TQC],
    ) -> None: ...

class _TRPO(_Settings, total=False):
    cg_damping: float
    cg_steps: int
    critic_obs: Sequence[str] | None
    entropy_coef: float | str | list[list[float]]
    entropy_coef_end: float | None
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    lam: float
    learning_rate: float | str | list[list[float]]
    learning_rate_end: float | None
    line_search_shrink: float
    line_search_steps: int
    log_std: float
    max_kl: float
    minibatch_size: int
    normalize_obs: bool
    normalize_rewards: bool
    num_sgd_iter: int
    privileged: Sequence[str]
    report_every: int
    reward_scale: float
    schedule_steps: int | None
    squash: bool
    standardize: bool
    train_batch_size: int
    value_coef: float

class TRPO(_trpo.TRPO):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_TRPO],
    ) -> None: ...

class _TwoTrainers(_Settings, total=False):
    dqn: dict[str, Any]
    fragment_steps: int
    ppo: dict[str, Any]
    report_every: int
    schedule_steps: int | None

class TwoTrainers(_two_trainers.TwoTrainers):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_TwoTrainers],
    ) -> None: ...

class _VDN(_Settings, total=False):
    batch_size: int
    buffer_size: int
    double: bool
    dueling: bool
    epsilon_end: float
    epsilon_start: float | str | list[list[float]]
    epsilon_steps: int
    fragment_steps: int
    gamma: float
    grad_clip: float | None
    hidden: Sequence[int]
    learning_rate: float | str | list[list[float]]
    learning_starts: int
    mixer: Literal["sum", "monotonic"]
    mixer_width: int
    munchausen: float
    munchausen_temperature: float
    n_step: int
    noisy: bool
    normalize_obs: bool
    normalize_rewards: bool
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str | list[list[float]]
    priority_beta_end: float
    priority_beta_steps: int | None
    replay_ratio: float
    report_every: int
    share_frames: bool
    target_every: int
    tau: float
    team: str | list[str] | None

class VDN(_vdn.VDN):
    def __init__(
        self,
        env: Any = None,
        config: Mapping[str, Any] | Configuration | None = None,
        *,
        out: str | Path | None = None,
        sinks: Sequence[str] = (),
        seed: int | None = None,
        policy: Any = None,
        init_from: str | Path | Mapping[str, str | Path] | None = None,
        init_with: Collection[str] = (),
        **settings: Unpack[_VDN],
    ) -> None: ...
