"""Planted faults: for a rule, one change that breaks it and the test that must notice.

`python -m pytest tests/test_faults.py -m exhaustive` plants each in a copy of the source and runs its test there; with
`-m slow`, those that a change concerns.

They lie in the files of this folder by the part of the source that they break.
"""

from tests.faults import (
    data,
    debugging,
    demonstrations,
    engine,
    envs,
    game_workers,
    games,
    hindsight,
    journals,
    offline,
    on_policy,
    operators,
    policies,
    replay,
    rewards,
    rollout,
    value_based,
)
from tests.faults.fault import Fault

__all__ = ["FAULTS", "Fault"]

PARTS = (
    data,
    debugging,
    demonstrations,
    engine,
    envs,
    hindsight,
    offline,
    on_policy,
    operators,
    policies,
    replay,
    rewards,
)
PARTS += (game_workers, games, journals, rollout, value_based)
FAULTS = [fault for part in PARTS for fault in part.FAULTS]
