"""Models that learn beside the policy, one per file: of rewards, and of what an environment does."""

from flowrl.rewards.airl import AIRL
from flowrl.rewards.curiosity import Curiosity
from flowrl.rewards.dynamics import Dynamics
from flowrl.rewards.gail import GAIL, Discriminating
from flowrl.rewards.icm import ICM
from flowrl.rewards.learned import LearnedModel
from flowrl.rewards.model import RewardModel
from flowrl.rewards.rnd import RND

__all__ = ["AIRL", "GAIL", "ICM", "RND", "Curiosity", "Discriminating", "Dynamics", "LearnedModel", "RewardModel"]
