"""A compiled loss: equal to autograd's, the same again after a resume, and refused where it would not be."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.inspect.explain import explain
from flowrl.policies import DQNPolicy, PPOPolicy, R2D2Policy, REDQPolicy, SACPolicy, TD3Policy
from flowrl.policies.compiled import CompiledLoss, hindrance
from flowrl.policies.dqn import DQNLearning
from flowrl.testing import same
from tests.plans.small import SMALL, final, make, weights

OBS = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
CHOICE, NUMBERS = gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-1, 1, (2,), np.float32)

#: Of these plans all variants, but for those with random numbers in the loss.
SERVED = {"dqn", "c51", "qrdqn", "iqn", "apex_dqn", "dqfd", "sqil", "rbc", "qmix", "vdn", "her_dqn", "rnd_dqn", "cql"}
SERVED |= {"iql", "sac", "tqc", "redq", "mbpo", "masac", "her_sac", "sacfd", "td3", "ddpg", "td3_bc"}
NAMES = [*(name for name in SMALL if name.split()[0] in SERVED and name != "redq droq"), "dqn in halves"]
TIERS = dict.fromkeys(("dqn prioritized", "dqn normalized", "sac"), pytest.mark.slow)


class Own(torch.nn.Linear):
    """A network of one's own."""

    features = 4

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__(3, 4)


#: Of torch's own parts.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")


@pytest.mark.parametrize("name", [pytest.param(name, marks=TIERS.get(name, pytest.mark.exhaustive)) for name in NAMES])
def test_loss_scalars_and_gradients_equal_those_of_autograd(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D13: in every update of a run, with the weights, targets and statistics of that time."""
    compiled, updates = CompiledLoss.__call__, []

    def compared(self: CompiledLoss, rows: Any) -> Any:
        policy, learn = self._learn.policy, self._learn
        learn.compiled = None
        loss, scalars = learn._differentiate(rows)
        gradients = [parameter.grad for parameter in policy.parameters]
        learn.compiled = self
        found, its_scalars = compiled(self, rows)
        close = {"rtol": 1e-3, "atol": 1e-4} if policy.mixed._half is None else {"rtol": 0.1, "atol": 0.02}
        torch.testing.assert_close(found, loss, **close)
        torch.testing.assert_close(its_scalars, scalars, **close)
        torch.testing.assert_close([parameter.grad for parameter in policy.parameters], gradients, **close)
        updates.append(len(self._codes))
        return found, its_scalars

    monkeypatch.setattr(CompiledLoss, "__call__", compared)
    half = {"precision": "bfloat16"} if "halves" in name else {}
    final(name.removesuffix(" in halves"), 5, compile=True, **half)
    assert len(updates) > 5
    assert updates[-1] <= 3  # one for each shape and phase, and none anew


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_a_run_repeats_and_resumes_bit_for_bit(name: str) -> None:
    """D1, D3: with code of its own, which the state does not hold."""
    results, state = final(name, 6, compile=True)
    workers, plan = make(name, compile=True)
    with workers, plan.run(seed=0) as run:
        begun, middle = [next(run) for _ in range(4)], run.state_dict()
    workers, plan = make(name, compile=True)
    with workers, plan.run(seed=0) as run:
        run.load_state_dict(middle)
        assert same([*begun, next(run), next(run)], results)
        assert same(weights(run.state_dict()), weights(state))


@pytest.mark.slow
def test_a_delayed_actor_learns_when_it_is_due() -> None:
    """D13: with the critics alone the loss is another."""
    policy = TD3Policy(OBS, NUMBERS, hidden=(4,), device="cpu", compile=True)  # whose actor learns in every second
    draw = np.random.default_rng(0)
    rows = {"action": (6, 2), "obs": (6, 3), "next_obs": (6, 3), "reward": 6, "discount": 6}
    batch = Batch({name: draw.random(shape, np.float32) for name, shape in rows.items()})
    learned = []
    for _ in range(4):
        before = policy.weights()
        policy.learn_mode.learn_from(batch)
        learned.append(not torch.equal(policy.weights()["actor.0.weight"], before["actor.0.weight"]))
    assert learned == [False, True, False, True]


@pytest.mark.parametrize(
    ("kind", "actions", "settings", "why"),
    [
        (PPOPolicy, CHOICE, {}, "does not serve the loss of PPOPolicy: take compile=False"),
        (R2D2Policy, CHOICE, {}, "does not serve the loss of R2D2Policy"),
        (DQNPolicy, CHOICE, {"noisy": True}, "cannot be with noisy=True, which draws random numbers"),
        (REDQPolicy, NUMBERS, {"dropout": 0.1}, "cannot be with dropout=0.1, which draws"),
        (SACPolicy, NUMBERS, {"network": Own}, "serves built-in networks, and not network="),
    ],
)
def test_it_is_refused_where_code_would_be_wrong(kind: Any, actions: Any, settings: Any, why: str) -> None:
    """D13: before anything is compiled."""
    with pytest.raises(ConfigError, match=f"compile=True {why}"):
        kind(OBS, actions, device="cpu", compile=True, **settings)


def test_a_loss_of_ones_own_is_not_compiled_unless_it_says_so() -> None:
    """D13: it may read what changes, and a class does not inherit that it reads nothing such."""

    class Changing(DQNLearning):
        pass

    policy = DQNPolicy(OBS, CHOICE, device="cpu")
    assert hindrance(policy.learn_mode) == ""
    assert "does not serve" in hindrance(Changing(policy))


def test_without_a_compiler_it_is_an_error_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler, but finds none: install g\+\+, or set CXX"):
        make("dqn", compile=True)


def test_explain_says_that_it_is_compiled() -> None:
    (line,) = [line for line in explain(make("dqn", compile=True)[1]).splitlines() if "TrainOneStep" in line]
    assert "compiled: other last bits" in line
