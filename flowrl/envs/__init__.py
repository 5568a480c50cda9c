"""Environments and their managers."""

import flowrl.envs._gymnasium  # noqa: F401  # first: older ones fail in the others with what nobody understands
from flowrl.envs.make import EnvFactory, Environments, make_env, make_manager
from flowrl.envs.managers.async_subprocess import AsyncSubprocessEnvManager
from flowrl.envs.managers.base import Episode, Manager, StepResult
from flowrl.envs.managers.faults import Fault
from flowrl.envs.managers.local import EnvManager
from flowrl.envs.managers.subprocess import SubprocessEnvManager
from flowrl.envs.managers.thread import ThreadEnvManager
from flowrl.envs.managers.vector import VectorEnvManager

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
