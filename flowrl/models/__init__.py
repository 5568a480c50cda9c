"""Models that learn beside the policy, one per file: of rewards, and of what an environment does."""

from flowrl.models.airl import AIRL
from flowrl.models.curiosity import Curiosity
from flowrl.models.dynamics import Dynamics
from flowrl.models.gail import GAIL, Discriminating
from flowrl.models.icm import ICM
from flowrl.models.learned import LearnedModel
from flowrl.models.reward_model import RewardModel
from flowrl.models.rnd import RND

__all__ = ["AIRL", "GAIL", "ICM", "RND", "Curiosity", "Discriminating", "Dynamics", "LearnedModel", "RewardModel"]
