"""Learners: one, or several with the same policy, in this process or in others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowrl._lazy import lazy

if TYPE_CHECKING:
    from flowrl.learners.aggregators import Aggregators
    from flowrl.learners.learner_group import LearnerGroup

__all__ = ["Aggregators", "LearnerGroup"]

__getattr__, __dir__ = lazy(
    __name__, {"Aggregators": "flowrl.learners.aggregators", "LearnerGroup": "flowrl.learners.learner_group"}
)
