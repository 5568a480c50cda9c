"""Reward models: what a step is worth beside what the environment says; one model a file."""

from flowrl.rewards.curiosity import Curiosity
from flowrl.rewards.model import RewardModel
from flowrl.rewards.rnd import RND

__all__ = ["RND", "Curiosity", "RewardModel"]
