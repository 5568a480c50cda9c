"""Reward models: learned rewards beside the environment's; one model per file."""

from flowrl.rewards.airl import AIRL
from flowrl.rewards.curiosity import Curiosity
from flowrl.rewards.gail import GAIL, Discriminating
from flowrl.rewards.icm import ICM
from flowrl.rewards.model import RewardModel
from flowrl.rewards.rnd import RND

__all__ = ["AIRL", "GAIL", "ICM", "RND", "Curiosity", "Discriminating", "RewardModel"]
