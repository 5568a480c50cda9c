"""Reward models: what a step is worth beside what the environment says; one model a file."""

from flowrl.rewards.airl import AIRL
from flowrl.rewards.curiosity import Curiosity
from flowrl.rewards.gail import GAIL, Discriminating
from flowrl.rewards.icm import ICM
from flowrl.rewards.model import RewardModel
from flowrl.rewards.rnd import RND

__all__ = ["AIRL", "GAIL", "ICM", "RND", "Curiosity", "Discriminating", "RewardModel"]
