"""VDN: QMIX whose mixer is the sum of the agents' values."""

from __future__ import annotations

import attrs

from flowrl.plans import qmix
from flowrl.policies.qmix import Mixer
from flowrl.trainer.trainer import Trainer


@attrs.define(kw_only=True)
class Config(qmix.Config):
    """The settings of QMIX, with the other mixer."""

    mixer: Mixer = "sum"


class VDN(Trainer):
    """`VDN(env="flowrl:two_step").train(until={"env_steps": 20_000})`; its plan and its policy are those of QMIX."""

    Config = Config
    policy = staticmethod(qmix.policy)
    execution_plan = staticmethod(qmix.execution_plan)
