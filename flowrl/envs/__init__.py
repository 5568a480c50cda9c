"""Environments and their managers."""

from flowrl.envs.asynchronous import AsyncSubprocessEnvManager
from flowrl.envs.contract import Episode, Manager, StepResult
from flowrl.envs.faults import Fault
from flowrl.envs.make import make_env, make_manager
from flowrl.envs.manager import EnvManager
from flowrl.envs.subprocess import SubprocessEnvManager
from flowrl.envs.vector import VectorEnvManager

__all__ = [
    "AsyncSubprocessEnvManager",
    "EnvManager",
    "Episode",
    "Fault",
    "Manager",
    "StepResult",
    "SubprocessEnvManager",
    "VectorEnvManager",
    "make_env",
    "make_manager",
]
