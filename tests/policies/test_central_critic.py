"""Critics that read entries of the observations which the actor does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import flowrl
from flowrl.data import Batch
from flowrl.errors import ConfigError, SchemaError
from flowrl.plans import MAPPO, QMIX
from flowrl.policies import A2CPolicy, PPOPolicy, RecurrentPPOPolicy
from tests.plans.small import SMALL

SPACE = spaces.Dict(
    obs=spaces.Box(-9, 9, (2,), np.float32),
    agent=spaces.Discrete(3),
    state=spaces.Box(-9, 9, (4,), np.float32),
    action_mask=spaces.MultiBinary(5),
)
CHOICES = spaces.Discrete(5)
CENTRAL = {"privileged": ("state",)}


def policy(kind: Any = PPOPolicy, **settings: Any) -> Any:
    return kind(SPACE, CHOICES, **{"hidden": (8,), "device": "cpu", **CENTRAL, **settings})


def observations(rows: int = 6) -> Batch:
    draw = np.random.default_rng(0)
    mask = np.ones((rows, 5), np.int8)
    mask[:, 1] = 0
    obs, state = (draw.normal(size=(rows, size)).astype(np.float32) for size in (2, 4))
    return Batch(obs=obs, agent=np.arange(rows) % 3, state=state, action_mask=mask)


def changed(obs: Batch, name: str) -> Batch:
    return obs.replace(**{name: (obs[name] + 1) % 3 if name == "agent" else obs[name] + 1})


def without_state(obs: Batch) -> Batch:
    return obs.select([name for name in obs if name != "state"])


@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize(
    ("reads", "order"), [(None, ("agent", "obs", "state")), (("state", "agent"), ("agent", "state"))]
)
def test_values_are_those_of_a_network_of_what_the_critic_reads(backend: str, reads: Any, order: Any) -> None:
    """G8: row by row, with the weights alone."""
    made, obs = policy(act_backend=backend, critic_obs=reads), observations()
    first, last = (made.model.critic[at] for at in (0, 2))
    names = [name for name in SPACE.spaces if name in order]  # as the space has them
    for value, row in zip(made.collect_mode.value(obs), range(len(obs.obs))):
        seen = [np.eye(3)[obs.agent[row]] if name == "agent" else obs[name][row] for name in names]
        hidden = np.tanh(first.weight.detach().numpy() @ np.concatenate(seen) + first.bias.detach().numpy())
        assert value == pytest.approx((last.weight.detach().numpy() @ hidden + last.bias.detach().numpy())[0], abs=1e-5)


@pytest.mark.parametrize("kind", [PPOPolicy, A2CPolicy])
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_the_actor_does_not_see_what_is_privileged(kind: Any, backend: str) -> None:
    """G8: with other states its actions and their probabilities stay, and the values do not."""
    made, obs = policy(kind, act_backend=backend), observations()
    other, noise = changed(obs, "state"), np.random.default_rng(1).random((6, 1))
    one, two = (made.collect_mode.act(each, noise, 0) for each in (obs, other))
    assert np.array_equal(one["action"], two["action"])
    assert np.array_equal(one["logp"], two["logp"])
    assert (one["value"] != two["value"]).all()
    elsewhere = made.collect_mode.act(changed(obs, "obs"), noise, 0)
    assert (one["logp"] != elsewhere["logp"]).all()
    assert 1 not in one["action"]
    best = made.eval_mode.act(without_state(obs), noise, 0)["action"]
    assert np.array_equal(best, made.eval_mode.act(other, noise, 0)["action"])


def test_a_critic_may_read_less() -> None:
    """G8: and the actor all."""
    made, obs = policy(privileged=(), critic_obs=("agent",)), observations()
    value = made.collect_mode.value(obs)
    for name in ("obs", "state"):
        assert np.array_equal(value, made.collect_mode.value(changed(obs, name)))
    assert (value != made.collect_mode.value(changed(obs, "agent"))).all()
    assert made.actor_space is SPACE


def test_a_loss_teaches_each_network_by_its_own_part() -> None:
    """G8: none of the actor's weights follows from the state, and normalizers of both learn."""
    made = policy(normalize_obs=True, grad_clip=None)
    made.gather_statistics(observations(), None)
    made.update_statistics()
    drawn = observations()
    rows = Batch(obs=drawn, **made.collect_mode.act(drawn, np.random.default_rng(1).random((6, 1)), 0))
    rows = rows.replace(advantage=np.arange(6, dtype=np.float32), target=rows.value + 1)
    weights = []
    for obs in (drawn, changed(drawn, "state")):
        learner = policy(normalize_obs=True, grad_clip=None)  # which would tie the networks
        learner.load_state_dict(made.state_dict())
        learner.learn_mode.learn_from(rows.replace(obs=obs))
        weights.append(learner.model.state_dict())
    differ = {name.split(".")[0] for name, value in weights[0].items() if not torch.equal(value, weights[1][name])}
    assert differ == {"critic"}
    assert not torch.equal(weights[0]["actor.0.weight"], made.model.state_dict()["actor.0.weight"])


class Seen(nn.Module):
    """A user's network that reads whatever there is."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.names, self.features = sorted(space), len(space)

    def forward(self, obs: Any) -> torch.Tensor:
        assert sorted(obs) == self.names
        return torch.stack([obs[name].float().reshape(len(obs[name]), -1).sum(1) for name in self.names], 1)


def test_networks_of_ones_own_get_their_part() -> None:
    """G8: for the actor one without what is privileged."""
    made, obs = policy(network=Seen), observations()
    one, two = (made.collect_mode.act(each, np.full((6, 1), 0.5), 0) for each in (obs, changed(obs, "state")))
    assert np.array_equal(one["logp"], two["logp"])
    assert (one["value"] != two["value"]).all()


def test_an_exported_policy_takes_what_the_actor_sees(tmp_path: Any) -> None:
    """G8: the program has no input for the state."""
    made, obs = policy(), without_state(observations())
    made.export(tmp_path / "actor.pt2")
    program = torch.export.load(tmp_path / "actor.pt2").module()
    given = {name: torch.from_numpy(obs[name]) for name in ("action_mask", "agent", "obs")}
    best = made.eval_mode.act(obs, np.zeros((6, 0)), 0)["action"]
    assert np.array_equal(program({name: given[name] for name in made.actor_space}).numpy(), best)


@pytest.mark.parametrize("kind", [MAPPO, QMIX])
def test_a_trained_policy_acts_without_the_state(kind: Any, tmp_path: Any) -> None:
    """Q10, G8: alone and in batches, greedy and drawn; a state that is given is left out."""
    name = kind.__name__.lower()
    with kind(config=SMALL[name], out=tmp_path / "run") as trainer:
        trainer.train(env_steps=100)
    trained = flowrl.load(tmp_path / "run")
    seen = {"obs": np.float32([1, 0, 0]), "agent": 1}
    assert trained.act(seen) == trained.act({**seen, "state": 2})
    assert trained.act([seen, {**seen, "agent": 0}]).shape == (2,)
    assert trained.act(seen, deterministic=False) in (0, 1)
    with pytest.raises(SchemaError, match="expected an observation with the keys"):
        trained.act({"obs": seen["obs"]})


def test_several_policies_have_critics_of_their_own() -> None:
    """M7, G8: each agent's policy reads the state, and learns with its own statistics."""
    of_each: dict[str, Any] = {"agents": {"first": "one", "second": "other"}, "normalize_rewards": True}
    with MAPPO(config={**SMALL["mappo"], **of_each, "report_every": 100}) as trainer:
        result = trainer.train(env_steps=200)
        one, other = (trainer.workers.of(name).policy for name in ("one", "other"))
    assert {"loss/one", "loss/other"} <= result.keys()
    assert "state" not in one.actor_space.spaces
    assert min(one.returns.count, other.returns.count) > 100
    assert not torch.equal(one.model.critic[0].weight, other.model.critic[0].weight)


def test_entries_that_are_not_there_are_refused() -> None:
    """G8: with the way out."""
    with pytest.raises(ConfigError, match=r"privileged=\['rest'\]: the observations have no entry 'rest'"):
        policy(privileged=("rest",))
    with pytest.raises(ConfigError, match=r"no entry 'state': Box.*; the wrapper GlobalState adds that of a game"):
        PPOPolicy(spaces.Box(0, 1, (3,)), CHOICES, privileged=("state",))
    with pytest.raises(ConfigError, match="leaves the actor nothing to act on"):
        policy(privileged=("obs", "agent", "state"))
    with pytest.raises(ConfigError, match=r"critic_obs=\[\]: the critic needs something to read, of obs, agent, state"):
        policy(critic_obs=())
    with pytest.raises(ConfigError, match=r"privileged=\['state'\]: a recurrent policy has one memory"):
        policy(RecurrentPPOPolicy)
