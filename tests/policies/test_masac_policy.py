"""Soft actor-critic of a team: its loss against a loop over agents, and what acting leaves out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flowrl.data import Batch
from flowrl.errors import ConfigError, SchemaError
from flowrl.policies import MASACPolicy
from tests.policies.test_qmix_policy import ACTIONS, AGENTS, MASK, SEEN, STATE, joint_rows, observations

BOX = spaces.Box(-2, 2, (2,), np.float32)


def policy(*extra: dict[str, Any], actions: Any = None, **settings: Any) -> Any:
    space = spaces.Dict({name: part for each in (SEEN, *extra) for name, part in each.items()})
    made = MASACPolicy(
        space, actions or spaces.Discrete(ACTIONS), **{"hidden": (8,), "device": "cpu", "temperature": 0.3} | settings
    )
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # so that the target is another network
        for parameter in made.target.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) / 4)
    return made


def unmasked(rows: Batch) -> Batch:
    return rows.replace(**{at: rows[at].select(["obs", "agent", "state"]) for at in ("obs", "next_obs")})


def rows_of(made: Any, continuous: bool) -> Batch:
    rows = joint_rows()
    if continuous:
        draw = np.random.default_rng(3).uniform(-1, 1, (6, AGENTS, 2)).astype(np.float32)
        rows = unmasked(rows).replace(action=draw)
    return made.learn_mode.over_minibatch(made.learn_mode.tensors(made.learn_mode.prepare(rows)))


def critic_input(state: torch.Tensor, agent: int, joint: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([state, torch.eye(AGENTS)[agent], *joint])


def judged(critics: Any, x: torch.Tensor) -> torch.Tensor:
    """`[k, outputs]`, layer by layer."""
    values = []
    for k in range(critics.k):
        h = x
        for at, layer in enumerate(critics.layers):
            h = h @ layer.weight[k] + layer.bias[k, 0]
            h = torch.relu(h) if at + 1 < len(critics.layers) else h
        values.append(h)
    return torch.stack(values)


@pytest.mark.parametrize("continuous", [False, True])
def test_the_loss_is_that_of_a_loop_over_agents(continuous: bool) -> None:
    """A3, A4, A5, Q11: of every row, every agent, with the actions of the others in it."""
    made = policy(STATE, MASK if not continuous else {}, actions=BOX if continuous else None)
    rows, alpha, width = rows_of(made, continuous), 0.3, made.width
    model, target = made.model, made.target
    critic = actor = temperature = 0.0

    def act(obs: Any, noise: torch.Tensor, row: int) -> tuple[list[Any], list[Any], list[Any]]:
        drawn, logps, probabilities = [], [], []
        for agent in range(AGENTS):
            given = model(obs[row : row + 1, agent])
            own = noise[row].reshape(AGENTS, -1)[agent]
            if continuous:
                action, logp = made.choosing.sample(given, own[None])
                drawn.append(action[0])
                logps.append(logp[0])
            else:
                logp = torch.log_softmax(given, 1)[0]
                uniform = torch.special.ndtr(own.double())
                best = (logp.double() - (-uniform.log()).log()).argmax()
                assert obs.action_mask[row, agent, best]
                drawn.append(torch.eye(width)[best])
                logps.append(logp)
                probabilities.append(logp.exp())
        return drawn, logps, probabilities

    def soft(critics: Any, obs: Any, noise: torch.Tensor, row: int, agent: int) -> tuple[Any, Any]:
        drawn, logps, probabilities = act(obs, noise, row)
        if continuous:
            q = judged(critics, critic_input(obs.state[row, 0], agent, drawn))[:, 0].min()
            return q - alpha * logps[agent], -logps[agent]
        others = [each if at != agent else torch.zeros(width) for at, each in enumerate(drawn)]
        q = judged(critics, critic_input(obs.state[row, 0], agent, others)).amin(0)
        p = probabilities[agent]
        return (p * (q - alpha * logps[agent])).sum(), -(p * logps[agent]).sum()

    with torch.no_grad():
        for row in range(6):
            for agent in range(AGENTS):
                y = rows.reward[row] + rows.discount[row] * soft(target, rows.next_obs, rows.next_noise, row, agent)[0]
                taken = list(rows.action[row]) if continuous else [torch.eye(width)[int(a)] for a in rows.action[row]]
                others = [e if continuous or at != agent else torch.zeros(width) for at, e in enumerate(taken)]
                q = judged(model.critics, critic_input(rows.obs.state[row, 0], agent, others))
                q = q[:, 0] if continuous else q[:, int(rows.action[row, agent])]
                critic += 0.5 * ((q - y) ** 2).sum() / (6 * AGENTS)
                value, entropy = soft(model.critics, rows.obs, rows.noise, row, agent)
                actor -= value / (6 * AGENTS)
                valid = 1 if continuous else int(rows.obs.action_mask[row, agent].sum())
                wanted = -2.0 if continuous else 0.5 * math.log(valid)
                temperature += math.log(alpha) * (entropy - wanted) / (6 * AGENTS)
    loss, scalars = made.learn_mode.loss(rows)
    assert scalars["critic_loss"].item() == pytest.approx(critic.item(), rel=1e-4)
    assert scalars["actor_loss"].item() == pytest.approx(actor.item(), rel=1e-4)
    assert loss.item() == pytest.approx((critic + actor + temperature).item(), rel=1e-4)


@pytest.mark.parametrize("continuous", [False, True])
def test_each_network_learns_from_its_own_part(continuous: bool) -> None:
    """A4, Q11: the actor by each agent's own action, through critics whose weights stay."""
    made = policy(STATE, actions=BOX if continuous else None)
    rows = rows_of(made, continuous)
    alone = {"actor": None, "critics": None}
    for part in alone:
        loss, _ = made.learn_mode.loss(rows if part == "actor" else rows.replace(noise=rows.noise + 0.5))
        gradient = torch.autograd.grad(loss, list(made.model.critics.parameters()))
        alone[part] = [each.clone() for each in gradient]
    for one, other in zip(alone["actor"], alone["critics"]):
        torch.testing.assert_close(one, other)  # critics learn nothing from the actor's draws
    if not continuous:
        return
    action = torch.randn(6, AGENTS, made.width).requires_grad_()
    values = made.learn_mode._judged(made.model.critics, rows.obs, action, frozen=True).amin(0).reshape(6, AGENTS, -1)
    (gradient,) = torch.autograd.grad(values[:, 1].sum(), action)
    assert (gradient[:, 1] != 0).any()
    assert not gradient[:, [0, 2]].any()


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_acting_leaves_the_state_out(backend: str) -> None:
    """Q11: and takes valid actions."""
    made = policy(STATE, MASK, act_backend=backend)
    obs = observations(5).flat()
    noise = np.random.default_rng(0).random((5 * AGENTS, made.collect_mode.draws))
    less = obs.select([name for name in obs if name != "state"])
    for mode in (made.collect_mode, made.eval_mode):
        actions = mode.act(less, noise, 10_000)["action"]
        assert np.array_equal(actions, mode.act(obs.replace(state=obs.state + 1), noise, 10_000)["action"])
        assert less.action_mask[np.arange(len(actions)), actions].all()
    assert "state" not in made.actor_space.spaces


@pytest.mark.parametrize("settings", [{}, {"actions": BOX}, {"normalize_obs": True}])
def test_it_learns_and_its_target_follows(settings: dict[str, Any]) -> None:
    """Q2, P2: without a state from all observations; weighted rows report a priority each."""
    made = policy(**settings)
    batch = joint_rows()
    if "actions" in settings:
        batch = unmasked(batch).replace(action=np.zeros((6, AGENTS, 2), np.float32))
    if settings.get("normalize_obs"):
        made.gather_statistics(batch.obs.flat().to_numpy(), None)
        made.update_statistics()
    place = {"index": np.arange(6), "generation": np.zeros(6, np.int64)}
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    scalars = made.learn_mode.learn_from(batch.replace(weight=np.ones(6, np.float32), **place))
    assert scalars["priority"].shape == (6,)
    differ = {
        name.split(".")[0] for name, value in made.model.state_dict().items() if not torch.equal(value, before[name])
    }
    assert differ == {"critics", "actor", "log_temperature"}
    made.update_target()
    for name, value in made.target.state_dict().items():
        assert torch.equal(value, made.model.critics.state_dict()[name])


def test_what_is_no_team_is_refused() -> None:
    """M8."""
    with pytest.raises(ConfigError, match="need an entry 'agent'"):
        MASACPolicy(spaces.Box(0, 1, (3,)), spaces.Discrete(2))
    for made, expected in ((policy(), r"\[B, 3\], got \[6\]"), (policy(actions=BOX), r"\[B, 3, 2\], got \[6\]")):
        with pytest.raises(SchemaError, match=f"a team of 3 agents learns from actions {expected}: join"):
            made.learn_mode.prepare(joint_rows().replace(action=np.zeros(6, np.int64)))


def test_choices_may_be_counted_from_any_number() -> None:
    """Q11: stored actions are counted from 0."""
    losses = []
    for start in (0, 2):
        made = policy(STATE, MASK, actions=spaces.Discrete(ACTIONS, start=start))
        losses.append(made.learn_mode.loss(rows_of(made, False))[0].detach())
    assert losses[0] == losses[1]
