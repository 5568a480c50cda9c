"""What parts of an algorithm are for: with one of them taken out by an edit of the plan, it learns something else.

The environment never ends by itself and gives 1 for every step, so that a state is worth 1 / (1 - gamma) = 2; a time
limit cuts its episodes after four steps.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from flowrl import Batch
from flowrl.networks.networks import QNetwork
from flowrl.policies import DQNPolicy
from tests.plans.small import Edit, make

GAMMA, LIMIT = 0.5, 4
WORTH = 1 / (1 - GAMMA)


class Endless(gymnasium.Env[Any, Any]):
    """One state, two actions that make no difference, 1 for every step."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.ones(1, np.float32), 1.0, False, False, {}


def endless() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Endless(), LIMIT)


def learned_value(plan: str, edit: Edit = lambda plan: plan, **settings: Any) -> float:
    """What a plan takes the state to be worth after 600 steps."""
    known = {"gamma": GAMMA, "learning_rate": 0.02, "report_every": 600, **settings}
    workers, built = make(plan, edit=edit, env=f"{__name__}:endless", **known)
    with workers, built.run(seed=0) as run:
        next(run)
        with torch.no_grad():
            model, obs = workers.policy.model, torch.ones(1, 1)
            return float(model(obs).max() if isinstance(model, QNetwork) else model.value(obs))


OF_PLAN: dict[str, dict[str, Any]] = {
    "dqn": {"n_step": 1, "target_every": 20},
    "a2c": {"learning_rate_end": None, "train_batch_size": 10, "report_every": 1_500},
    "ppo": {"learning_rate_end": None},
}


def ends_at_the_limit(fragment: Batch) -> Batch:
    """As if a time limit were an end."""
    return fragment.replace(terminated=fragment.terminated | fragment.truncated)


@pytest.mark.parametrize("plan", OF_PLAN)
def test_a_state_goes_on_being_worth_something_behind_a_time_limit(plan: str) -> None:
    """T5, T6: where a truncated episode is taken for one that ended, every fourth state is worth its reward alone."""
    whole = learned_value(plan, **OF_PLAN[plan])
    cut = learned_value(plan, lambda p: p.insert_after("ParallelRollouts", ends_at_the_limit), **OF_PLAN[plan])
    assert whole == pytest.approx(WORTH, rel=0.03)
    assert cut < 0.9 * WORTH


def test_a_window_of_three_steps_is_discounted_three_times() -> None:
    """N2: with the discount of one step what follows a window counts several times."""
    settings = {**OF_PLAN["dqn"], "n_step": 3}
    whole = learned_value("dqn", **settings)
    once = learned_value("dqn", lambda p: p.insert_after("NStep", one_discount), **settings)
    assert whole == pytest.approx(WORTH, rel=0.03)
    assert once > 1.2 * WORTH


def one_discount(rows: Batch) -> Batch:
    """As if a window were one step long."""
    return rows.replace(discount=np.where(rows.terminated, 0.0, GAMMA).astype(np.float32))


CORRIDOR = 12


def corridor() -> Batch:
    """Every step that there is in a corridor of `CORRIDOR` places, whose last one ends the episode and gives 1."""
    place, action = (grid.ravel() for grid in np.mgrid[: CORRIDOR - 1, :2])
    arrived = np.clip(place + 2 * action - 1, 0, None)
    end = arrived == CORRIDOR - 1
    obs, next_obs = (places[:, None].astype(np.float32) / CORRIDOR for places in (place, arrived))
    return Batch(obs=obs, action=action, reward=end.astype(float), next_obs=next_obs, terminated=end)


def largest_value(every: int) -> float:
    """The largest value that a Q-network has meanwhile, if the target network follows every so many updates."""
    places = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    settings = {"hidden": (32, 32), "gamma": 0.99, "learning_rate": 0.03, "grad_clip": None, "device": "cpu"}
    policy = DQNPolicy(places, gymnasium.spaces.Discrete(2), dueling=False, **settings)
    rows, largest = corridor(), 0.0
    for update in range(500):
        largest = max(largest, abs(float(policy.learn_mode.learn_from(rows)["q"])))
        if (update + 1) % every == 0:
            policy.update_target()
    return largest


def test_without_a_target_network_values_run_away() -> None:
    """Q2: nothing is worth more than 1, but each update raises what the next one aims at."""
    assert largest_value(every=50) < 1.5
    assert largest_value(every=1) > 10
