"""The policy of a team: its mixers, its targets, and what acting leaves out."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.errors import ConfigError, SchemaError
from flowrl.policies import CategoricalHead, QMIXPolicy

AGENTS, ACTIONS = 3, 4
SEEN = {"obs": spaces.Box(-9, 9, (2,), np.float32), "agent": spaces.Discrete(AGENTS)}
STATE = {"state": spaces.Box(-9, 9, (5,), np.float32)}
MASK = {"action_mask": spaces.MultiBinary(ACTIONS)}


def policy(*extra: dict[str, Any], **settings: Any) -> Any:
    parts: dict[str, Any] = dict(SEEN)
    for each in extra:
        parts |= each
    return QMIXPolicy(spaces.Dict(parts), spaces.Discrete(ACTIONS), **{"hidden": (8,), "device": "cpu"} | settings)


def observations(rows: int, seed: int = 0, **parts: Any) -> Batch:
    """Joint observations `[rows, agents, ...]`, with a state and masks."""
    draw = np.random.default_rng(seed)
    mask = draw.random((rows, AGENTS, ACTIONS)) < 0.6
    mask[..., 0] |= ~mask.any(2)
    state = np.repeat(draw.normal(size=(rows, 1, 5)), AGENTS, 1).astype(np.float32)
    obs = draw.normal(size=(rows, AGENTS, 2)).astype(np.float32)
    agent = np.tile(np.arange(AGENTS), (rows, 1))
    return Batch({"obs": obs, "agent": agent, "state": state, "action_mask": mask.astype(np.int8)} | parts)


def joint_rows(rows: int = 6) -> Batch:
    draw = np.random.default_rng(7)
    return Batch(
        obs=observations(rows, 1),
        next_obs=observations(rows, 2),
        action=draw.integers(ACTIONS, size=(rows, AGENTS)),
        reward=draw.normal(size=rows),
        discount=np.array([0.9, 0.0] * (rows // 2), np.float32),
    )


@pytest.mark.parametrize("extra", [(), (STATE,)])
def test_the_best_of_each_is_the_best_of_all(extra: Any) -> None:
    """Q10: by trying all joint actions; and the team's value never falls as that of an agent rises."""
    made = policy(*extra, seed=3)
    obs = observations(20).to_torch()
    values = torch.randn(20, AGENTS, ACTIONS, generator=torch.Generator().manual_seed(0)) * 5
    best = values.max(2).values
    mixed = made.model.mixer(best, obs)
    for joint in product(range(ACTIONS), repeat=AGENTS):
        other = values[:, torch.arange(AGENTS), list(joint)]
        assert (made.model.mixer(other, obs) <= mixed + 1e-5).all()
    best.requires_grad_()
    made.model.mixer(best, obs).sum().backward()
    assert (best.grad >= 0).all()
    assert (best.grad > 0).any()


def test_a_sum_is_a_sum() -> None:
    """Q10."""
    made = policy(mixer="sum")
    q = torch.tensor([[1.0, 2.0, 4.0]])
    assert made.model.mixer(q, observations(1)).tolist() == [7.0]
    assert not list(made.model.mixer.parameters())


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("mixer", ["sum", "monotonic"])
def test_targets_are_those_of_a_loop_over_agents(mixer: str, double: bool) -> None:
    """Q1, N2, T6: each agent's best valid action by one network, its value and the mixer by the other."""
    made = policy(STATE, MASK, mixer=mixer, double=double, seed=1)
    with torch.no_grad():
        for parameter in made.target.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    batch = joint_rows()
    rows = made.learn_mode.tensors(made.learn_mode.prepare(batch))
    found, loss = made.learn_mode.target(rows), made.learn_mode.loss(rows)[0]
    errors = []
    for i in range(len(batch)):
        next_obs, taken, best = rows.next_obs[i : i + 1], [], []
        for agent in range(AGENTS):
            alone, before = rows.next_obs[i, agent : agent + 1], rows.obs[i, agent : agent + 1]
            chooser = made.model if double else made.target
            q = chooser(alone)[0].detach()
            q[alone.action_mask[0] == 0] = -np.inf
            best.append(made.target(alone)[0, q.argmax()])
            taken.append(made.model(before)[0, rows.action[i, agent]])
        value = made.target.mixer(torch.stack(best)[None], next_obs)[0]
        target = float(batch.reward[i]) + float(batch.discount[i]) * value.item()
        assert found[i].item() == pytest.approx(target, rel=1e-4, abs=1e-5)
        errors.append(made.model.mixer(torch.stack(taken)[None], rows.obs[i : i + 1])[0].item() - target)
    assert loss.item() == pytest.approx(np.square(errors).mean(), rel=1e-4)


def test_acting_leaves_the_state_out() -> None:
    """Q10: with other states the actions stay, and the team's value does not."""
    made = policy(STATE, MASK)
    obs = observations(5)
    other = obs.replace(state=obs.state + 1)
    flat, noise = obs.flat(), np.full((5 * AGENTS, made.eval_mode.draws), 0.5)
    assert np.array_equal(made.eval_mode.value(flat), made.eval_mode.value(other.flat()))
    actions = made.eval_mode.act(flat, noise, 0)["action"]
    assert np.array_equal(actions, made.eval_mode.act(other.flat(), noise, 0)["action"])
    assert flat.action_mask[np.arange(len(actions)), actions].all()
    q = torch.ones(5, AGENTS)
    assert (made.model.mixer(q, obs.to_torch()) != made.model.mixer(q, other.to_torch())).all()


def test_without_a_state_all_observations_are_one() -> None:
    """Q10: those of every agent count, in its place."""
    made = policy()
    obs = observations(1)
    value = made.model.mixer(torch.ones(1, AGENTS), obs.to_torch())
    for agent in range(AGENTS):
        seen = obs.obs.copy()
        seen[0, agent] += 1
        assert made.model.mixer(torch.ones(1, AGENTS), obs.replace(obs=seen).to_torch()) != value
    swapped = obs.replace(obs=obs.obs[:, ::-1].copy())
    assert made.model.mixer(torch.ones(1, AGENTS), swapped.to_torch()) != value


@pytest.mark.parametrize("settings", [{}, {"noisy": True}, {"dueling": False, "mixer": "sum"}, {"normalize_obs": True}])
def test_it_learns_and_its_target_follows(settings: dict[str, Any]) -> None:
    """Q2, Q6, P2: the mixer too; weighted rows report priorities."""
    made = policy(STATE, **settings)
    batch = joint_rows()
    if settings.get("normalize_obs"):
        made.gather_statistics(batch.obs.flat().to_numpy(), None)
        made.update_statistics()
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    place = {"index": np.arange(6), "generation": np.zeros(6, np.int64)}
    scalars = made.learn_mode.learn_from(batch.replace(weight=np.ones(6, np.float32), **place))
    assert scalars["priority"].shape == (6,)
    changed = {name for name, value in made.model.state_dict().items() if not torch.equal(value, before[name])}
    assert any("mixer" in name for name in changed) == (settings.get("mixer") != "sum")
    made.update_target()
    for name, value in made.target.state_dict().items():
        assert torch.equal(value, made.model.state_dict()[name])


def test_numpy_acts_alike() -> None:
    """The mixer takes no part in acting."""
    obs = observations(4).flat()
    values = [policy(STATE, act_backend=backend, seed=2).eval_mode.value(obs) for backend in ("torch", "numpy")]
    np.testing.assert_allclose(*values, rtol=1e-5)


def test_what_is_no_team_is_refused() -> None:
    """M8: observations without an agent, rows of single agents, and a distribution of returns."""
    with pytest.raises(ConfigError, match=r"need an entry 'agent'.*wrappers=\['AgentId', 'GlobalState'\]"):
        QMIXPolicy(spaces.Box(0, 1, (3,)), spaces.Discrete(2))
    for settings in ({"head": CategoricalHead(5, 0.0, 1.0)}, {"munchausen": 0.9}):
        with pytest.raises(ConfigError, match="a team mixes the plain means"):
            policy(**settings)
    alone = joint_rows().replace(action=np.zeros(6, np.int64))
    with pytest.raises(SchemaError, match=r"a team of 3 agents learns from actions \[B, 3\], got \[6\]: join"):
        policy().learn_mode.prepare(alone)
