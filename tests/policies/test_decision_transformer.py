"""Decision Transformer: what decides on an action, and what it hears while it acts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import flowrl
from flowrl.data import Batch
from flowrl.envs import EnvManager
from flowrl.errors import ConfigError, SchemaError
from flowrl.plans.decision_transformer import DecisionTransformer
from flowrl.policies import DecisionTransformerPolicy
from flowrl.policies.decision_transformer import in_waves
from flowrl.rollout import RolloutWorker
from tests.offline_data import offline_data

BOX, CHOICES = spaces.Box(-2, 2, (2,), np.float32), spaces.Discrete(3, start=1)
NUMBER = spaces.Box(-2, 2, (), np.float32)
OBSERVATIONS = spaces.Dict(at=spaces.Box(-1, 1, (3,), np.float32), where=spaces.Discrete(4, start=1))
MASKED = spaces.Dict(at=OBSERVATIONS["at"], action_mask=spaces.MultiBinary(3))
SMALL = {"units": 8, "layers": 2, "context": 4, "target_return": 30.0, "return_scale": 10.0, "device": "cpu"}


def made(actions: Any = CHOICES, observations: Any = OBSERVATIONS, **settings: Any) -> Any:
    return DecisionTransformerPolicy(observations, actions, **{**SMALL, "seed": 3, **settings})


class Walk(gymnasium.Env[Any, Any]):
    """Random observations and rewards; episodes of 1 to 9 steps."""

    def __init__(self, observations: Any, actions: Any) -> None:
        self.observation_space, self.action_space = observations, actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.left = int(self.np_random.integers(1, 10))
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return self.seen(), float(self.np_random.normal()), self.left == 0, False, {}

    def seen(self) -> Any:
        seen = self.observation_space.sample()
        if "action_mask" in seen:
            seen["action_mask"][self.np_random.integers(3)] = 1
        return seen


def episodes(policy: Any) -> list[Batch]:
    """Whole episodes that it played, each step by step."""
    manager = EnvManager([Walk(policy.observation_space, policy.action_space) for _ in range(3)])
    batch = RolloutWorker(manager, policy, seed=1).sample(episodes=9)
    return [batch[:, i][batch.mask[:, i]] for i in range(9)]


def tokens(policy: Any, episode: Batch, target: float) -> Batch:
    """An episode as a sequence `[T, 1, ...]`, whose returns to go count down from a target, by a loop."""
    to_go = [target]
    for reward in episode.reward[:-1]:
        to_go.append(to_go[-1] - reward)
    whole = Batch(obs=episode.obs, action=episode.action, t=np.arange(len(episode)), return_to_go=np.array(to_go))
    return whole[:, None].replace(mask=np.ones((len(episode), 1), bool))


@pytest.mark.parametrize(
    ("actions", "observations"), [(BOX, OBSERVATIONS), (CHOICES, OBSERVATIONS), (spaces.Discrete(3), MASKED)]
)
@pytest.mark.parametrize("context", [1, 4, 9])
def test_acting_step_by_step_is_one_forward_over_the_steps_seen(actions: Any, observations: Any, context: int) -> None:
    """A12, T8, T13: the target less the rewards of this episode so far, and the last steps of it alone."""
    policy = made(actions, observations, context=context)
    policy.collect_mode = policy.eval_mode
    played = episodes(policy)
    assert max(map(len, played)) > 4
    for episode in played:
        whole = tokens(policy, episode, 30.0)
        for t in range(len(episode)):
            given = policy.model(policy.tensor(whole[max(0, t + 1 - context) : t + 1]))[-1].detach().numpy()
            np.testing.assert_allclose(policy.choosing.greedy(given)[0], episode.action[t], atol=1e-5)


def test_no_output_reads_its_action_or_what_comes_later() -> None:
    """A12: by whether its gradient is there."""
    policy = made(BOX)
    rows = policy.tensor(tokens(policy, max(episodes(policy), key=len), 30.0))
    for name, reach in (("action", 0), ("return_to_go", 1)):
        column = rows[name].float().requires_grad_()
        for t, output in enumerate(policy.model(rows.replace(**{name: column}))):
            (slope,) = torch.autograd.grad(output.square().sum(), column, retain_graph=True)
            seen = slope.reshape(len(slope), -1).abs().sum(1) > 0
            assert seen.tolist() == [at < t + reach for at in range(len(slope))]


@pytest.mark.parametrize("actions", [BOX, NUMBER, CHOICES], ids=["continuous", "number", "discrete"])
def test_the_loss_against_a_loop_over_sequences_without_padding(actions: Any) -> None:
    """A12, N6: the squared error, or the cross entropy, of each step; padding is neither seen nor counted."""
    policy, rng = made(actions), np.random.default_rng(0)
    batch = Batch(
        obs=Batch(at=rng.normal(size=(4, 6, 3)).astype(np.float32), where=rng.integers(1, 5, (4, 6))),
        action=rng.integers(0, 3, (4, 6))
        if actions is CHOICES
        else rng.normal(size=(4, 6, *actions.shape)).astype(np.float32),
        return_to_go=rng.normal(size=(4, 6)),
        t=rng.integers(0, 50, (4, 6)),
        mask=np.arange(4)[:, None] >= [0, 1, 2, 3, 0, 2],
    )
    errors = []
    for i in range(6):
        sequence = policy.tensor(batch[:, i : i + 1][batch.mask[:, i]])
        for given, action in zip(policy.model(sequence)[:, 0], sequence.action[:, 0]):
            if actions is CHOICES:
                errors.append(-torch.log_softmax(given, 0)[action].item())
            else:
                errors += (given.tanh() - action.flatten()).square().tolist()
    loss, _ = policy.learn_mode.loss(policy.learn_mode.tensors(policy.learn_mode.prepare(batch)))
    assert loss.item() == pytest.approx(sum(errors) / len(errors), rel=1e-4)
    policy.learn_mode.update(policy.learn_mode.tensors(batch))
    assert all(math.isfinite(each.grad.sum()) for each in policy.model.parameters() if each.grad is not None)


def test_every_width_that_is_taken_has_as_many_waves() -> None:
    for units in range(4, 1_028, 4):
        assert in_waves(torch.arange(3), units).shape == (3, units)


def test_what_does_not_fit_is_refused_before_work() -> None:
    with pytest.raises(ConfigError, match="units=10: expected a multiple of 4"):
        made(units=10)
    with pytest.raises(ConfigError, match="continuous actions"):
        made(spaces.MultiDiscrete([2, 3]))
    with pytest.raises(ConfigError, match="between their bounds"):
        made(spaces.Box(-np.inf, np.inf, (2,), np.float32))


def test_without_a_target_it_asks_for_the_best_return_of_the_data() -> None:
    """D3: of the first steps seen so far, as part of the weights."""
    policy = made(target_return=None)
    asked = [float(policy.eval_mode.initial_state().return_to_go[0])]
    for to_go, t in (([-7.0, -1.0], [0, 1]), ([-3.0, -2.0], [0, 1]), ([-5.0, 9.0], [0, 4])):
        obs = Batch(at=np.zeros((2, 1, 3), np.float32), where=np.ones((2, 1), int))
        rows = Batch(obs=obs, action=np.zeros((2, 1), int), return_to_go=np.array(to_go)[:, None])
        rows = rows.replace(t=np.array(t)[:, None], mask=np.ones((2, 1), bool))
        policy.learn_mode.update(policy.learn_mode.tensors(rows))
        asked.append(float(policy.eval_mode.initial_state().return_to_go[0]))
    assert asked == [0, -7, -3, -3]
    other = made(target_return=None, seed=4)
    other.load_weights(policy.weights())
    assert other.eval_mode.initial_state().return_to_go == -3


def test_a_trained_policy_hears_by_act_and_takes_another_target(tmp_path: Path) -> None:
    """T13: `act` in a loop plays what `evaluate` does; the target is that of the run, or another one."""
    data, out = offline_data("CartPole-v1"), tmp_path / "run"
    settings = {**SMALL, "target_return": 20.0, "data": data, "batch_size": 8, "report_every": 3, "learning_rate": 0.1}
    trainer = DecisionTransformer(config=settings, out=out)
    trainer.train(until={"updates": 6})
    loaded, env = flowrl.load(out), gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=1)
    action, state = loaded.act(obs)
    for step in range(1, 5):
        obs, reward, *_ = env.step(action)
        action, after = loaded.act(obs, state=state, reward=2 * reward)
        np.testing.assert_array_equal(after.return_to_go, [20.0 - 2 * step])
        both, _ = loaded.act(np.stack([obs, obs]), state=Batch.cat([state, state]), reward=2 * reward)
        assert both.tolist() == [action, action]
        state = after
    action, fresh = loaded.act(obs, state=state, reward=1.0, episode_start=True)
    np.testing.assert_array_equal(fresh.return_to_go, [20.0])
    with pytest.raises(SchemaError, match="hears rewards: pass what the action before got"):
        loaded.act(obs, state=state)
    other = flowrl.load(out, target_return=5)
    np.testing.assert_array_equal(other.act(obs)[1].return_to_go, [5.0])
    assert other.config.target_return == 5
    with pytest.raises(ConfigError, match="units=16: a saved policy keeps it"):
        flowrl.load(out, units=16)
