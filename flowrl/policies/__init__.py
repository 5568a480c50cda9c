"""Policies: one shared model with collect, learn and eval modes; one file per family of algorithms."""

from flowrl._lazy import classes, lazy

_names = classes(__name__, __file__, r"(\w+Policy)\(") | {
    name: f"flowrl.{module}"
    for module, names in {
        "policies.policies": "Policies",
        "policies.policy": "Policy",
        "policies.functional": "policy_from",
        "policies.impala": "VTraceLimits",
        "networks.heads": "CategoricalHead QuantileHead ValueHead",
        "networks.masks": "action_mask masked",
        "networks.normalize": "Normalizer",
        "networks.sampling": "argmax_sample eps_greedy_sample multinomial_sample",
        "schedules": "linear_schedule",
    }.items()
    for name in names.split()
}
__all__ = sorted(_names)
__getattr__, __dir__ = lazy(__name__, _names)
