"""Policies: one shared model with collect, learn and eval modes; one file per algorithm family."""

from flowrl.policies.a2c import A2CPolicy
from flowrl.policies.apex_dqn import ApexDQNPolicy
from flowrl.policies.appo import APPOPolicy
from flowrl.policies.bc import BCPolicy
from flowrl.policies.cql import CQLPolicy, DiscreteCQLPolicy
from flowrl.policies.dqfd import DQfDPolicy
from flowrl.policies.dqn import DQNPolicy
from flowrl.policies.functional import policy_from
from flowrl.policies.heads import CategoricalHead, QuantileHead, ValueHead
from flowrl.policies.impala import IMPALAPolicy, VTraceLimits
from flowrl.policies.iql import IQLPolicy
from flowrl.policies.marwil import MARWILPolicy
from flowrl.policies.masks import action_mask, masked
from flowrl.policies.normalize import Normalizer
from flowrl.policies.policy import Policy
from flowrl.policies.ppo import PPOPolicy
from flowrl.policies.r2d2 import R2D2Policy
from flowrl.policies.recurrent_ppo import RecurrentPPOPolicy
from flowrl.policies.sac import SACPolicy
from flowrl.policies.sampling import argmax_sample, eps_greedy_sample, multinomial_sample
from flowrl.policies.scripted import RandomPolicy, ScriptedPolicy
from flowrl.policies.soft_q import RBCPolicy, SoftQPolicy
from flowrl.policies.td3 import DDPGPolicy, TD3Policy
from flowrl.schedules import linear_schedule

__all__ = [
    "A2CPolicy",
    "APPOPolicy",
    "ApexDQNPolicy",
    "BCPolicy",
    "CQLPolicy",
    "CategoricalHead",
    "DDPGPolicy",
    "DQNPolicy",
    "DQfDPolicy",
    "DiscreteCQLPolicy",
    "IMPALAPolicy",
    "IQLPolicy",
    "MARWILPolicy",
    "Normalizer",
    "PPOPolicy",
    "Policy",
    "QuantileHead",
    "R2D2Policy",
    "RBCPolicy",
    "RandomPolicy",
    "RecurrentPPOPolicy",
    "SACPolicy",
    "ScriptedPolicy",
    "SoftQPolicy",
    "TD3Policy",
    "VTraceLimits",
    "ValueHead",
    "action_mask",
    "argmax_sample",
    "eps_greedy_sample",
    "linear_schedule",
    "masked",
    "multinomial_sample",
    "policy_from",
]
