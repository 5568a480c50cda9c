"""The DQN loss against a loop, and the policy's modes."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from flowrl.data import Batch
from flowrl.errors import ConfigError
from flowrl.networks.devices import pick_device
from flowrl.networks.networks import QNetwork, encoder
from flowrl.networks.torch_rng import TorchStream
from flowrl.plans import DQN
from flowrl.policies import CategoricalHead, DQNPolicy, QuantileHead, ValueHead
from flowrl.policies.dqn import of_best
from flowrl.runs.config import build_config
from flowrl.testing import same
from tests.scripted import transitions

OBSERVATIONS = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(3)


def make(**kwargs: Any) -> DQNPolicy:
    return DQNPolicy(OBSERVATIONS, ACTIONS, **{"hidden": (16,), "seed": 3, **kwargs})


@pytest.mark.parametrize("masked", [False, True])
def test_outputs_of_the_best_action_against_a_loop(masked: bool) -> None:
    """Q1: best by the other values, among the valid ones."""
    draw = torch.Generator().manual_seed(1)
    outputs, values = torch.rand(50, 4, generator=draw), torch.rand(50, 4, generator=draw)
    mask = torch.rand(50, 4, generator=draw) < 0.5
    mask[:, 0] = True
    got = of_best(outputs, values, mask if masked else None)
    for b in range(50):
        valid = [a for a in range(4) if mask[b, a] or not masked]
        assert got[b] == outputs[b, max(valid, key=values[b].tolist().__getitem__)]


@pytest.mark.parametrize("head", [None, QuantileHead(4), CategoricalHead(5, -2.0, 2.0)])
@pytest.mark.parametrize("masked", [False, True])
def test_munchausen_targets_against_a_loop(head: ValueHead | None, masked: bool) -> None:
    """Q12: for each head, the mean over the policy of its targets for one action alone."""
    space: Any = OBSERVATIONS
    if masked:
        space = gymnasium.spaces.Dict({"obs": OBSERVATIONS, "action_mask": gymnasium.spaces.MultiBinary(3)})
    policy = DQNPolicy(space, ACTIONS, head=head, hidden=(16,), seed=3, munchausen=0.9, munchausen_temperature=0.2)
    with torch.no_grad():
        for parameter in policy.target.parameters():
            parameter.mul_(3)
    draw = np.random.default_rng(1)
    obs, next_obs = ({"obs": draw.normal(size=(12, 4)).astype(np.float32)} for _ in range(2))
    for each in (obs, next_obs):
        each["action_mask"] = np.ones((12, 3), np.int8)
        each["action_mask"][::2, 1] = not masked
    columns = {"action": draw.choice([0, 2], 12), "reward": draw.normal(size=12), "terminated": np.arange(12) > 9}
    seen = [Batch(each) if masked else each["obs"] for each in (obs, next_obs)]
    learn = policy.learn_mode
    rows = learn.tensors(learn.prepare(Batch(obs=seen[0], next_obs=seen[1], **columns)))

    def log_pi(values: torch.Tensor, mask: Any) -> list[float]:
        weights = [float(torch.exp((q - values.max()) / 0.2)) * valid for q, valid in zip(values, mask)]
        return [math.log(weight / sum(weights)) if weight else -math.inf for weight in weights]

    model = policy.model.head
    with torch.no_grad():
        q, z_t = policy.target(rows.obs), policy.target(rows.next_obs, values=False)
        for i, got in enumerate(learn.target(rows)):
            taken = log_pi(q[i], obs["action_mask"][i])[columns["action"][i]]
            reward = columns["reward"][i] + 0.9 * max(-1.0, 0.2 * taken)
            wanted: Any = 0.0
            for a, soft in enumerate(log_pi(model(z_t[i : i + 1])[0], next_obs["action_mask"][i])):
                if soft > -math.inf:
                    r = torch.tensor([reward - float(rows.discount[i]) * 0.2 * soft]).float()
                    wanted = wanted + math.exp(soft) * model.target(r, rows.discount[i : i + 1], z_t[i : i + 1, a])[0]
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_munchausen_rewards_need_returns_of_one_step() -> None:
    with pytest.raises(ConfigError, match=r"munchausen=0\.9: returns of several steps .*: set n_step=1 too"):
        build_config(DQN.Config, {"munchausen": 0.9, "n_step": 3})
    assert build_config(DQN.Config, {"munchausen": 0.9, "n_step": 1}).munchausen == 0.9
    with pytest.raises(ConfigError, match=r"munchausen=1\.5: expected 0 \.\. 1"):
        make(munchausen=1.5)


def test_every_hidden_layer_ends_with_a_relu() -> None:
    """The last one too: without it two linear layers would be one."""
    with TorchStream(0).swapped_in():
        net = QNetwork(encoder(OBSERVATIONS), 3, (64,), dueling=False)
    hidden = net.trunk(torch.ones(1, 4)).detach()
    assert float(hidden.min()) == 0 < float(hidden.max())


def test_dueling_subtracts_the_mean_over_actions() -> None:
    """Q3: Q = V + A - mean A; with masks: test_masks.py."""
    with TorchStream(0).swapped_in():
        net = QNetwork(encoder(OBSERVATIONS), 3, (8,), dueling=True)
    hidden = net.trunk(obs := torch.ones(1, 4))
    assert net.value is not None
    advantage, value = net.advantage(hidden)[0], net.value(hidden)[0, 0]
    torch.testing.assert_close(net(obs)[0], value + advantage - advantage.mean())


def test_one_update_is_one_adam_step_on_the_huber_loss() -> None:
    policy, batch = make(double=True, grad_clip=None), transitions(32)
    online, target = copy.deepcopy(policy.model), policy.target
    scalars = policy.learn_mode.learn_from(batch)
    losses = []
    for b in range(len(batch)):
        obs, next_obs = torch.from_numpy(batch.obs[b : b + 1]), torch.from_numpy(batch.next_obs[b : b + 1])
        bootstrap = target(next_obs)[0, int(online(next_obs)[0].argmax())].item()
        y = batch.reward[b] + 0.99 * (not batch.terminated[b]) * bootstrap
        error = abs(online(obs)[0, int(batch.action[b])].item() - y)
        losses.append(0.5 * error**2 if error < 1 else error - 0.5)
    assert scalars["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    step = [float((a - b).detach().abs().max()) for a, b in zip(policy.model.parameters(), online.parameters())]
    assert max(step) == pytest.approx(policy.learning_rate, rel=1e-2)  # Adam's first step
    assert policy.version == 1


@pytest.mark.parametrize("double", [False, True])
def test_masks_and_weights_in_the_loss(double: bool) -> None:
    """Q1, Q3: invalid actions count neither in a dueling mean nor in a target; weights scale each row's error."""
    batch = transitions(32)
    draw = np.random.default_rng(7)
    mask, next_mask = draw.random((2, 32, 3)) < 0.6
    mask[np.arange(32), batch.action] = next_mask[:, 1] = True
    weight = draw.random(32).astype(np.float32)
    space = gymnasium.spaces.Dict(seen=OBSERVATIONS, action_mask=gymnasium.spaces.MultiBinary(3))
    policy = DQNPolicy(space, ACTIONS, hidden=(16,), seed=3, double=double)
    policy.target.load_state_dict(DQNPolicy(space, ACTIONS, hidden=(16,), seed=9).weights())
    obs = {"seen": batch.obs, "action_mask": mask.astype(np.int8)}
    next_obs = {"seen": batch.next_obs, "action_mask": next_mask.astype(np.int8)}
    full = policy.learn_mode.prepare(batch.replace(obs=obs, next_obs=next_obs, weight=weight))
    errors = []
    for b in range(32):
        row = full[b : b + 1]
        here, there = row.obs.to_torch("cpu"), row.next_obs.to_torch("cpu")
        values = (policy.model if double else policy.target)(there)[0].tolist()
        best = max((a for a in range(3) if next_mask[b, a]), key=values.__getitem__)
        target = row.reward[0] + row.discount[0] * policy.target(there)[0, best].item()
        error = abs(policy.model(here)[0, int(row.action[0])].item() - target)
        errors.append(weight[b] * (0.5 * error**2 if error < 1 else error - 0.5))
    loss, _ = policy.learn_mode.loss(policy.learn_mode.tensors(full))
    assert loss.item() == pytest.approx(np.mean(errors), rel=1e-4)


def test_gradients_are_clipped() -> None:
    """Their norm, over all parameters together, is at most grad_clip."""
    policy = make(grad_clip=0.01)
    policy.learn_mode.learn_from(transitions(32))
    norms = [p.grad.norm() for p in policy.model.parameters() if p.grad is not None]
    assert float(torch.stack(norms).norm()) == pytest.approx(0.01, rel=1e-3)


def test_fragments_become_rows() -> None:
    """A plan works without an adder: [T, N, ...] is flattened by prepare."""
    batch = transitions(12)
    fragment = batch.map(lambda column: column.reshape(3, 4, *column.shape[1:]))
    learn = make().learn_mode
    assert learn.prepare(fragment) == learn.prepare(batch)


def test_padded_steps_are_not_learned_from() -> None:
    """N6"""
    policy, rows = make(), transitions(6)
    fragment = rows.map(lambda column: column.reshape(3, 2, *column.shape[1:]))
    fragment["mask"] = np.array([[True, True], [True, False], [True, False]])
    assert policy.learn_mode.prepare(fragment).obs.tolist() == rows.obs[[0, 1, 2, 4]].tolist()


def test_truncated_rows_bootstrap_and_terminated_ones_do_not() -> None:
    """T4, T6: the discount looks at `terminated` only."""
    batch = transitions(32).replace(terminated=np.array([True, False] * 16), truncated=np.ones(32, bool))
    prepared = make(gamma=0.9).learn_mode.prepare(batch)
    assert prepared.discount.tolist() == pytest.approx([0.0, 0.9] * 16)
    assert make().learn_mode.prepare(prepared) is prepared


def test_target_network_moves_by_tau() -> None:
    """Q2: target <- tau online + (1 - tau) target."""
    policy = make()
    before = copy.deepcopy(list(policy.target.parameters()))
    policy.learn_mode.learn_from(transitions(32))
    policy.update_target(0.25)
    for old, new, online in zip(before, policy.target.parameters(), policy.model.parameters()):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * online)
    policy.update_target()
    assert all(torch.equal(a, b) for a, b in zip(policy.target.parameters(), policy.model.parameters()))


def test_state_continues_exactly() -> None:
    """D3, D5: networks, optimiser and version."""
    policy, other = make(), make(seed=9)
    policy.learn_mode.learn_from(transitions(32))
    state = policy.state_dict()
    other.load_state_dict(state)
    for p in (policy, other):
        p.learn_mode.learn_from(transitions(32, seed=1))
    assert same(policy.state_dict(), other.state_dict())
    assert not same(policy.state_dict(), state)


def test_initialisation_follows_from_the_seed_and_leaves_the_global_generator_alone() -> None:
    """D6: torch's global generator is swapped in and restored."""
    before = torch.get_rng_state()
    assert same(make().state_dict(), make().state_dict())
    assert not same(make().weights(), make(seed=4).weights())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (OBSERVATIONS, gymnasium.spaces.Box(-1, 1, (2,)), "discrete actions"),
        (OBSERVATIONS, gymnasium.spaces.Discrete(2, start=1), "discrete actions 0"),
        (gymnasium.spaces.Text(3), ACTIONS, "no network"),
    ],
)
def test_spaces_it_cannot_serve_are_refused(observations: Any, actions: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DQNPolicy(observations, actions)


def test_devices() -> None:
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match="'auto', 'cpu' or 'cuda'"):
        pick_device("gpu0")
    with pytest.raises(ConfigError, match="cannot train"):
        pick_device("meta")
