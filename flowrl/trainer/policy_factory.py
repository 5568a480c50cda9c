"""The policy argument of a Trainer, and the factory that turns it into a policy in any process."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.operator import name_of
from flowrl.errors import ConfigError, PlanError
from flowrl.trainer.config import Configuration

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

    Raises: PlanError if `make` returns no policy; ConfigError if the policy ignores a setting of the configuration.
    """

    make: Any
    config: Configuration

    def __call__(self, observation_space: Any, action_space: Any) -> Policy:
        from torch.nn import Module

        from flowrl.policies import Policy

        make, config = self.make, self.config
        policy: Policy
        default = {field.name: field.default for field in attrs.fields(type(config))}
        changed = {name: value for name, value in config.for_policy.items() if value != default[name]}
        if isinstance(make, type) and issubclass(make, Policy):
            policy = make.configured(config, observation_space, action_space)
        elif isinstance(make, type):
            # A class that is no Policy need not know of settings that are at their default.
            policy = make(observation_space, action_space, **{"seed": config.seed, "device": config.device, **changed})
        else:
            policy = make(config, observation_space, action_space)
        if isinstance(policy, (NoneType, str, type, Module)):
            raise PlanError(f"policy: {name_of(make)} returned a {type(policy).__name__}, {A_POLICY}")
        for name in changed.keys() - {"seed", "device"}:
            if changed[name] != getattr(policy, name, default[name]):
                raise ConfigError(
                    f"{name}={changed[name]!r} does not reach the {type(policy).__name__}: pass {name}=config.{name}, "
                    f"or **config.for_policy, in {name_of(make)}"
                )
        return policy
