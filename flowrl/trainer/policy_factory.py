"""What a Trainer is given for a policy, and what makes one of it in any process."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any

import attrs

from flowrl.engine.operator import name_of
from flowrl.errors import ConfigError, PlanError
from flowrl.trainer.config import Configuration

if TYPE_CHECKING:
    from flowrl.policies import Policy

#: What a Trainer is given for a policy.
A_POLICY = (
    "expected a Policy class, a function (config, observation_space, action_space) -> Policy, "
    "or what policy_from(model, loss) makes of a network"
)


def check_policy(make: Any) -> None:
    """Refuse what gives no policy, before an environment is made.

    Raises: PlanError.
    """
    from torch.nn import Module

    if not callable(make) or isinstance(make, Module) or (isinstance(make, type) and issubclass(make, Module)):
        raise PlanError(f"policy={make!r} is none: {A_POLICY}")


@attrs.frozen
class PolicyFactory:
    """Makes the policy that a configuration describes, in any process.

    Args:
        make: What a Trainer is given for a policy.

    Raises: PlanError where it makes something else; ConfigError where it leaves out what was asked for.
    """

    make: Any
    config: Configuration

    def __call__(self, observation_space: Any, action_space: Any) -> Policy:
        from torch.nn import Module

        from flowrl.policies import Policy

        make, config = self.make, self.config
        made: Policy
        default = {field.name: field.default for field in attrs.fields(type(config))}
        asked = {name: value for name, value in config.for_policy.items() if value != default[name]}
        if isinstance(make, type) and issubclass(make, Policy):
            made = make.configured(config, observation_space, action_space)
        elif isinstance(make, type):
            # A class of one's own need not know of settings that were not asked for.
            made = make(observation_space, action_space, **{"seed": config.seed, "device": config.device, **asked})
        else:
            made = make(config, observation_space, action_space)
        if isinstance(made, (NoneType, str, type, Module)):
            raise PlanError(f"policy: {name_of(make)} gave a {type(made).__name__}, {A_POLICY}")
        for name in asked.keys() - {"seed", "device"}:
            if asked[name] != getattr(made, name, default[name]):
                raise ConfigError(
                    f"{name}={asked[name]!r}, but the {type(made).__name__} was not told: pass {name}=config.{name}, "
                    f"or **config.for_policy, in {name_of(make)}"
                )
        return made
