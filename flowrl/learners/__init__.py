"""Learners: one or several that hold the same policy, in this process or in others."""

from flowrl.learners.aggregators import Aggregators
from flowrl.learners.learner_group import LearnerGroup

__all__ = ["Aggregators", "LearnerGroup"]
