"""A policy from a model and a loss function: what the functions are given, and what comes of what they return."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from flowrl import Trainer
from flowrl.data import Batch
from flowrl.errors import ConfigError, PlanError
from flowrl.operators import ParallelRollouts
from flowrl.policies import Policy, argmax_sample, eps_greedy_sample, policy_from
from flowrl.rollout import WorkerSet
from flowrl.testing import same
from tests.scripted import transitions

BOX = spaces.Box(-1, 1, (4,), np.float32)
TWO = spaces.Discrete(2)
DOCUMENT = Path(__file__).parents[2] / "docs" / "write-your-own-algorithm.md"


def linear(observation_space: Any, action_space: Any) -> nn.Module:
    return nn.Linear(observation_space.shape[0], int(action_space.n))


class WithValue(nn.Module):
    """Logits, and as the value the sum of the observation."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.actor = nn.Linear(4, 2)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.actor(obs), obs.sum(1)


def no_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch.obs).mean()


def make(model: Any = linear, loss: Callable[..., Any] = no_loss, seed: int = 0, **parts: Any) -> Policy:
    return policy_from(model, loss, **parts)(BOX, TWO, seed=seed, device="cpu")


def test_a_model_or_loss_that_is_no_function_is_refused() -> None:
    with pytest.raises(PlanError, match=r"the model is the Linear Linear\(.*, expected a function"):
        policy_from(nn.Linear(4, 2), no_loss)
    with pytest.raises(PlanError, match="the model is the str 'mlp'"):
        policy_from("mlp", no_loss)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="the loss is None, expected a function"):
        policy_from(linear, None)  # type: ignore[arg-type]


# -- acting


def test_collecting_draws_with_the_models_probabilities_and_records_them() -> None:
    """G6: the log-probability is that of the action drawn; logits need not be normalised."""
    policy = make()
    draw = np.random.default_rng(0)
    obs = np.repeat(draw.normal(size=(1, 4)).astype(np.float32), 4000, 0)
    row = policy.collect_mode.act(obs, draw.random((4000, 1)), 0)
    logp = torch.log_softmax(policy.model(torch.from_numpy(obs[:1])), 1)[0].detach().numpy()
    assert np.array_equal(row["logp"], logp[row["action"]])
    assert np.allclose(np.bincount(row["action"]) / 4000, np.exp(logp), atol=0.03)
    assert row.keys() == {"action", "logp"}
    assert same(policy.eval_mode.act(obs, np.empty((4000, 0)), 0), {"action": np.full(4000, logp.argmax())})


def test_large_logits_do_not_overflow() -> None:
    def large(observation_space: Any, action_space: Any) -> nn.Module:
        model = nn.Linear(4, 2)
        nn.init.constant_(model.weight, 0.0)
        model.bias.data = torch.tensor([1000.0, 999.0])
        return model

    actions = make(large).collect_mode.act(
        np.zeros((1000, 4), np.float32), np.random.default_rng(0).random((1000, 1)), 0
    )
    assert 0.68 < (actions["action"] == 0).mean() < 0.78


def test_values_are_stored_with_those_arrived_in() -> None:
    """The worker asks for values where an episode or fragment ends."""
    with WorkerSet("CartPole-v1", policy_from(WithValue, no_loss), envs_per_worker=2) as workers:
        plan = ParallelRollouts(workers, steps=40)
        with plan.run() as run:
            batch = next(run)
    assert batch.terminated.any()
    assert np.allclose(batch.value, batch.obs.sum(-1), atol=1e-6)
    assert np.allclose(batch.next_value, batch.next_obs.sum(-1), atol=1e-6)
    assert batch.logp.shape == batch.action.shape == (40, 2)


def test_wrappers_of_ones_own_act_on_what_the_model_says() -> None:
    class shifted:
        draws = 3

        def __call__(self, scores: Any, noise: Any, env_steps: int) -> dict[str, Any]:
            assert noise.shape == (len(scores), 3)
            return {"action": scores + noise[:, :1], "scale": noise[:, 1]}

    made = policy_from(lambda *spaces: nn.Linear(4, 1), no_loss, collect=shifted(), eval=shifted())
    policy = made(BOX, spaces.Box(-1, 1, (1,)), device="cpu")
    row = policy.collect_mode.act(np.zeros((2, 4), np.float32), np.full((2, 3), 0.25), 0)
    assert row.keys() == {"action", "scale"}
    assert np.allclose(row["action"], policy.model.bias.item() + 0.25)


def test_greedy_policies_know_no_probability() -> None:
    policy = make(collect=eps_greedy_sample(lambda env_steps: 0.5), eval=argmax_sample())
    assert policy.collect_mode.act(np.zeros((2, 4), np.float32), np.zeros((2, 2)), 0).keys() == {"action"}


def test_dictionaries_reach_the_model_as_batches_of_tensors() -> None:
    class Reads(nn.Module):
        def __init__(self, *spaces: Any) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, obs: Batch) -> torch.Tensor:
            assert obs.image.dtype == obs.speed.dtype == torch.float32
            return self.layer(torch.cat([obs.image.flatten(1), obs.speed], 1))

    space = spaces.Dict({"image": spaces.Box(0, 255, (2, 1), np.uint8), "speed": spaces.Box(-1, 1, (1,))})
    policy = policy_from(Reads, no_loss)(space, TWO, device="cpu")
    obs = Batch(image=np.ones((5, 2, 1), np.uint8), speed=np.ones((5, 1), np.float32))
    assert policy.collect_mode.act(obs, np.zeros((5, 1)), 0)["action"].shape == (5,)
    rows = Batch(obs=obs, reward=np.zeros(5))
    assert math.isfinite(policy.learn_mode.learn_from(rows)["loss"])


# -- learning


def test_the_loss_sees_prepared_rows_as_tensors() -> None:
    seen: list[Batch] = []

    def prepare(batch: Batch) -> Batch:
        assert batch.reward.shape == (10, 2)  # as it was collected
        assert isinstance(batch.reward, np.ndarray)
        return batch.replace(doubled=2 * batch.reward)

    def loss(model: nn.Module, batch: Batch) -> Any:
        seen.append(batch)
        return model(batch.obs).mean(), {"doubled": batch.doubled.mean()}

    policy = make(loss=loss, prepare=prepare)
    rows = transitions(20)
    fragment = rows.map(lambda column: column.reshape(10, 2, *column.shape[1:]))
    scalars = policy.learn_mode.learn_from(fragment)
    (batch,) = seen
    assert batch.shape == (20,)
    assert {batch[name].dtype for name in ("obs", "next_obs", "reward", "doubled")} == {torch.float32}
    assert batch.action.dtype == torch.int64
    assert batch.terminated.dtype == torch.bool
    assert torch.equal(batch.doubled, 2 * batch.reward)
    assert scalars.keys() == {"loss", "doubled"}
    assert fragment.keys() == rows.keys()  # the item itself is left alone


def test_padded_steps_are_not_learned_from() -> None:
    """N6: they count neither in the loss nor in its mean."""
    rows = transitions(6)
    padded = rows.replace(mask=np.array([True, False, True, True, False, True]))
    real = rows[np.flatnonzero(padded["mask"])]
    policy, alone = make(), make()
    for learner, batch in ((policy, padded), (alone, real)):
        learner.learn_mode.learn_from(batch)
    assert same(policy.weights(), alone.weights())


def test_one_update_is_one_step_of_the_optimiser_given() -> None:
    """Plain gradient descent by hand; the largest norm of the gradient is kept."""
    policy = make(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5), grad_clip=0.1)
    before, rows = policy.weights(), transitions(6)
    policy.learn_mode.learn_from(rows)
    weight = nn.Parameter(before["weight"].clone())
    (torch.from_numpy(rows.obs) @ weight.T + before["bias"]).mean().backward()
    assert weight.grad is not None
    moved = before["weight"] - policy.model.weight
    norm = torch.cat([moved.flatten(), before["bias"] - policy.model.bias]).norm()
    assert torch.isclose(norm, torch.tensor(0.05), rtol=1e-3)
    assert torch.allclose(moved / moved.norm(), weight.grad / weight.grad.norm(), atol=1e-5)
    assert policy.version == 1


def test_the_model_trains_in_train_mode_and_acts_in_eval_mode() -> None:
    """D6: dropout draws from the policy's stream, and not where it acts."""
    modes: list[bool] = []

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        modes.append(model.training)
        return model(batch.obs).pow(2).mean()

    def dropping(*spaces: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2))

    def learn(seed: int) -> dict[str, torch.Tensor]:
        policy = make(dropping, loss, seed)
        for _ in range(3):
            policy.learn_mode.learn_from(transitions(8))
        obs = np.ones((1, 4), np.float32)
        acts = [policy.collect_mode.act(obs, np.zeros((1, 1)), 0) for _ in range(2)]
        assert same(*acts)
        return policy.weights()

    outside = torch.get_rng_state()
    first = learn(0)
    assert torch.equal(outside, torch.get_rng_state())
    assert same(first, learn(0))
    assert not same(first, learn(1))
    assert set(modes) == {True}


def test_lazy_layers_get_their_sizes_and_learn() -> None:
    policy = make(lambda *spaces: nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(2)))
    before = policy.weights()
    policy.learn_mode.learn_from(transitions(8))
    assert not same(before, policy.weights())


# -- what does not fit


def test_a_model_that_does_not_fit_is_refused_when_it_is_made() -> None:
    for model, message in (
        (lambda *spaces: 3, "the model is a int, expected a torch.nn.Module"),
        (lambda *spaces: nn.Linear(4, 3), r"gives \[3\] scores, expected one for each of Discrete\(2\)"),
        (wide_value, r"the value for one observation has the shape \[1, 1\], expected \[1\]"),
    ):
        with pytest.raises(PlanError, match=message):
            make(model)
    with pytest.raises(RuntimeError) as caught:
        make(lambda *spaces: nn.Linear(5, 2))
    assert "while FunctionalPolicy acted on an observation of zeros of Box" in caught.value.__notes__[0]
    with pytest.raises(ConfigError, match="Mine chooses among discrete actions"):
        policy_from(linear_four, no_loss, name="Mine")(BOX, spaces.Discrete(2, start=1), device="cpu")
    with pytest.raises(PlanError, match=r"the action for one observation has the shape \[1, 3\], expected \[1, 2\]"):
        policy_from(three, no_loss, collect=as_they_are(), eval=as_they_are())(BOX, spaces.Box(-1, 1, (2,)))


class as_they_are:
    draws = 0

    def __call__(self, scores: Any, noise: Any, env_steps: int) -> Any:
        return scores


def three(*spaces: Any) -> nn.Module:
    return nn.Linear(4, 3)


def linear_four(*spaces: Any) -> nn.Module:
    return nn.Linear(4, 2)


def wide_value(*spaces: Any) -> nn.Module:
    class Wide(nn.Module):
        def forward(self, obs: torch.Tensor) -> Any:
            return obs[:, :2], obs[:, :1]

    return Wide()


def test_what_the_functions_return_is_checked() -> None:
    rows, losses = transitions(8), {r"\[8, 2\]": lambda model, batch: model(batch.obs), "float": lambda *_: 1.0}
    for what, loss in losses.items():
        learn_mode = make(loss=loss).learn_mode
        with pytest.raises(PlanError, match=f"the loss is {what}, expected a scalar tensor"):
            learn_mode.learn_from(rows)
    with pytest.raises(PlanError, match="prepare returned a NoneType, expected a Batch"):
        make(prepare=lambda batch: None).learn_mode.prepare(rows)  # type: ignore[arg-type,return-value]
    with pytest.raises(PlanError, match="'my policy' is not a valid class name"):
        policy_from(linear, no_loss, name="my policy")


# -- as a user would


def test_two_trainers_of_one_seed_are_equal() -> None:
    """D1: the policy's seed is the trainer's."""

    def weights(seed: int) -> Any:
        with Trainer("CartPole-v1", policy=policy_from(linear, no_loss), seed=seed, fragment_steps=10) as trainer:
            trainer.train(until={"updates": 3})
            return trainer.workers.policy.weights()

    assert same(weights(1), weights(1))
    assert not same(weights(1), weights(2))


@pytest.mark.slow
def test_the_document_learns(capsys: pytest.CaptureFixture[str]) -> None:
    """Its snippets run in order; REINFORCE keeps the pole up for much longer than the 20 steps of chance."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        exec(compile(block, str(DOCUMENT), "exec"), names)
    assert re.search("while it learned.*\n2\\.[89] updates", capsys.readouterr().out)
    assert names["scores"]["return_mean"] > 150
    for seed in (1, 2):
        with names["Reinforce"](env="CartPole-v1", envs_per_worker=4, fragment_steps=128, seed=seed) as trainer:
            trainer.train(until={"env_steps": 20_000})
            assert trainer.evaluate(episodes=20)["return_mean"] > 150
