"""Environments and their managers."""

from flowrl.envs.asynchronous import AsyncSubprocessEnvManager
from flowrl.envs.contract import Episode, Manager, StepResult
from flowrl.envs.factory import EnvFactory, make_env
from flowrl.envs.faults import Fault
from flowrl.envs.make import Environments, make_manager
from flowrl.envs.manager import EnvManager
from flowrl.envs.subprocess import SubprocessEnvManager
from flowrl.envs.thread import ThreadEnvManager
from flowrl.envs.vector import VectorEnvManager

__all__ = [
    "AsyncSubprocessEnvManager",
    "EnvFactory",
    "EnvManager",
    "Environments",
    "Episode",
    "Fault",
    "Manager",
    "StepResult",
    "SubprocessEnvManager",
    "ThreadEnvManager",
    "VectorEnvManager",
    "make_env",
    "make_manager",
]
