"""The policy argument of a Trainer, and the factory that turns it into a policy in any process."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.operator import name_of
from flowrl.errors import ConfigError, PlanError, out_of_memory
from flowrl.runs.config import Configuration

if TYPE_CHECKING:
    from flowrl.policies import Policy

#: The policy argument of a Trainer, in messages.
A_POLICY = (
    "expected a Policy class, a function (config, observation_space, action_space) -> Policy, "
    "or the result of policy_from(model, loss) for a network"
)


def check_policy(make: Any) -> None:
    """Reject an argument that cannot give a policy, before any environment is created.

    Raises: PlanError.
    """
    from torch.nn import Module

    if not callable(make) or isinstance(make, Module) or (isinstance(make, type) and issubclass(make, Module)):
        raise PlanError(f"policy={make!r} is no policy: {A_POLICY}")


@attrs.frozen
class PolicyFactory:
    """Builds the policy that a configuration describes, in any process.

    Args:
        make: The policy argument of a Trainer.

    Raises: PlanError if `make` returns no policy; ConfigError if the policy ignores a setting of the configuration, or
        there is not enough memory for its networks.
    """

    make: Any
    config: Configuration

    def __call__(self, observation_space: Any, action_space: Any) -> Policy:
        from torch.nn import Module

        make, config = self.make, self.config
        default = {field.name: field.default for field in attrs.fields(type(config))}
        changed = {name: value for name, value in config.for_policy.items() if value != default[name]}
        try:
            policy: Policy = self._made(changed, observation_space, action_space)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            raise ConfigError(
                "there is not enough memory for the networks, whose sizes follow from the settings, the observation "
                f"space {observation_space} and the action space {action_space}: {str(error).strip()}"
            ) from error
        if isinstance(policy, (NoneType, str, type, Module)):
            raise PlanError(f"policy: {name_of(make)} returned a {type(policy).__name__}, {A_POLICY}")
        for name in changed.keys() - {"seed", "device"}:
            if changed[name] != getattr(policy, name, default[name]):
                raise ConfigError(
                    f"{name}={changed[name]!r} does not reach the {type(policy).__name__}: pass {name}=config.{name}, "
                    f"or **config.for_policy, in {name_of(make)}"
                )
        return policy

    def _made(self, changed: Mapping[str, Any], *spaces: Any) -> Any:
        from flowrl.policies import Policy

        make, config = self.make, self.config
        if isinstance(make, type) and issubclass(make, Policy):
            return make.configured(config, *spaces)
        if isinstance(make, type):
            # A class that is no Policy need not know of settings that are at their default.
            return make(*spaces, **{"seed": config.seed, "device": config.device, **changed})
        return make(config, *spaces)
