"""Policies: one shared model with collect, learn and eval modes; one file per family of algorithms."""

from flowrl._lazy import classes, lazy

_names = classes(__name__, __file__, r"(\w+Policy)\(") | {
    name: f"{__name__}.{module}"
    for module, names in {
        "policies": "Policies",
        "policy": "Policy",
        "functional": "policy_from",
        "heads": "CategoricalHead QuantileHead ValueHead",
        "impala": "VTraceLimits",
        "masks": "action_mask masked",
        "normalize": "Normalizer",
        "sampling": "argmax_sample eps_greedy_sample multinomial_sample",
    }.items()
    for name in names.split()
}
_names["linear_schedule"] = "flowrl.schedules"
__all__ = sorted(_names)
__getattr__, __dir__ = lazy(__name__, _names)
