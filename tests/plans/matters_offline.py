"""Settings of the plans without an environment that change what is learned, each beside what it needs for that."""

from __future__ import annotations

from typing import Any

MATTERS: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "bc": [
        ({key: value}, {})
        for key, value in {
            "hidden": (8,),
            "batch_size": 4,
            "normalize_obs": True,
            "learning_rate": 0.1,
            "grad_clip": 0.01,
        }.items()
    ],
    "marwil": [
        ({key: value}, {})
        for key, value in {
            "beta": 0.0,
            "gamma": 0.5,
            "value_coef": 0.1,
            "max_weight": 1.0,
            "norm_rate": 0.5,
        }.items()
    ],
    "iql": [
        ({key: value}, {"learning_rate": 0.03})
        for key, value in {
            "hidden": (8,),
            "batch_size": 4,
            "normalize_obs": True,
            "gamma": 0.5,
            "expectile": 0.9,
            "beta": 0.0,
            "max_weight": 0.5,
            "learning_rate": 0.1,
            "grad_clip": 0.01,
            "target_every": 3,
            "tau": 0.5,
        }.items()
    ],
    "cql": [
        ({key: value}, {"learning_rate": 0.1})
        for key, value in {
            "hidden": (8,),
            "batch_size": 4,
            "normalize_obs": True,
            "dueling": False,
            "double": False,
            "conservatism": 0.0,
            "gamma": 0.5,
            "learning_rate": 0.01,
            "grad_clip": 0.01,
            "target_every": 3,
            "tau": 0.5,
        }.items()
    ],
    "cql continuous": [
        ({"candidates": 2}, {}),
        ({"temperature": 0.2}, {}),
        ({"learn_temperature": False}, {"learning_rate": 0.1}),
        ({"target_entropy": -3.0}, {"learning_rate": 0.1}),
    ],
}
