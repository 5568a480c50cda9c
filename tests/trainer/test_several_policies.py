"""A Trainer whose game several policies play: `agents` names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import flowrl
from flowrl.errors import CheckpointError, ConfigError, PlanError
from flowrl.operators import TrainOneStep, UpdateTargetNetwork
from flowrl.plans import DQN, IPPO, PPO
from flowrl.policies import DQNPolicy, Policies, PPOPolicy
from flowrl.rollout import WorkerSet
from flowrl.rollout.policy_map import Match
from flowrl.testing import same
from flowrl.trainer.trainer import Trainer
from tests.cli.parts import flowrl as command
from tests.plans.small import SMALL

GAME = "flowrl:two_cartpoles"
APART = {"left": "a", "right": "b"}


SIDES = {"agents": f"{__name__}:sides", "policies": ["a", "b"]}


def sides(agent: str, match: Match) -> str:
    """They change sides from game to game."""
    return "ab"[(agent == "left") == (match.episode_id % 2 == 0)]


def one_sided(agent: str, match: Match) -> str:
    return {"left": "a"}[agent] if agent == "left" else "c"


def small(init_from: Any = None, **settings: Any) -> IPPO:
    return IPPO(config={**SMALL["ippo"], **settings}, init_from=init_from)


@pytest.mark.parametrize("plan", [PPO, DQN])
def test_a_plan_of_one_policy_says_which_plan_has_several(plan: type[Trainer]) -> None:
    with pytest.raises(PlanError, match=r"'a' and 'b': .*workers\.of\('a'\); the plan ippo"):
        plan(GAME, agents=APART)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agents": {"left": "a"}}, "agent 'right' has no policy"),
        ({"agents": {"left": "a", "middle": "b", "*": "a"}}, "policy 'b' has no agent"),
        ({"env": "CartPole-v1"}, "CartPole-v1 has one agent"),
        ({"agents": {"left": 3}}, "agents="),
        ({"policies": ["a", "b"]}, r"agents is a table, which names the policies \['left', 'right'\]"),
        ({**SIDES, "policies": []}, "is a function: name the policies that it chooses from"),
        ({**SIDES, "policies": ["a", "c"]}, "agent '.*' has the policy 'b': there are: a, c"),
        ({**SIDES, "agents": f"{__name__}:one_sided"}, "agent 'right' has the policy 'c'"),
        ({**SIDES, "agents": f"{__name__}:side"}, "agents=.*: module .* has no function 'side': did you mean 'sides'"),
        ({**SIDES, "agents": "nowhere:sides"}, "nowhere:sides': No module named 'nowhere'. Expected 'module:function'"),
        ({**SIDES, "agents": "sides"}, "agents='sides': expected 'module:function'"),
    ],
)
def test_agents_that_do_not_fit_the_game_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**settings)


def test_an_error_of_the_function_says_of_which_agent() -> None:
    def careless(agent: str, match: Match) -> str:
        return {"left": "a"}[agent]

    with pytest.raises(KeyError) as error:
        WorkerSet(GAME, policies={"a": PPOPolicy, "b": PPOPolicy}, agents=careless)
    assert "who plays agent 'right' in Match(env_id=0, episode_id=0" in error.value.__notes__[0]


def test_a_function_says_who_plays_and_a_resumed_run_asks_it_too(tmp_path: Path) -> None:
    """M7, D3, D10: both learn from both sides; loading it imports nothing, evaluating does only if that is trusted."""
    how = {**SIDES, "eval_every": 40, "eval_episodes": 2, "checkpoint_every": 40}
    with IPPO(config={**SMALL["ippo"], **how}, out=tmp_path / "whole") as whole:
        expected = whole.train(env_steps=160, progress=False)
        weights = whole.workers.policy.weights()
        seen = whole.workers.sample(episodes=4)
    assert all(set(part.agent.flatten().tolist()) == {0, 1} for part in seen.values())
    with IPPO(config={**SMALL["ippo"], **how}, out=tmp_path / "parts") as first:
        first.train(env_steps=80, progress=False)
    with flowrl.resume(tmp_path / "parts") as second:
        again = second.train(env_steps=160, progress=False)
        assert same(second.workers.policy.weights(), weights)
    clock = dict.fromkeys(name for name in expected if "second" in name)
    assert {**again, **clock, "evaluation_share": 0} == {**expected, **clock, "evaluation_share": 0}

    loaded = flowrl.load(tmp_path / "parts", last=True)
    assert loaded.of("a").act(np.zeros(4, np.float32)) in (0, 1)
    with pytest.raises(ConfigError, match=r"does not come with flowrl: agents='.*:sides'"):
        loaded.evaluate(2)
    trusted = flowrl.load(tmp_path / "parts", last=True, trusted=True)
    with pytest.raises(ConfigError, match="a, b are no player together: take one of them"):
        _ = trusted.players
    assert {"left", "right"} <= trusted.evaluate(2, seed=1)["agents"].keys()


def test_operators_learn_one_of_the_policies() -> None:
    with WorkerSet(GAME, policies={"a": PPOPolicy, "b": DQNPolicy}, agents=APART) as workers:
        assert isinstance(workers.policy, Policies)
        for op in (TrainOneStep, UpdateTargetNetwork):
            with pytest.raises(PlanError, match=f"{op.__name__} learns one policy"):
                op(workers)
        UpdateTargetNetwork(workers.of("b"))


def test_the_weights_of_several_policies_are_those_of_each() -> None:
    """D7: weights of others are refused, and nothing has changed."""
    with WorkerSet(GAME, policies={"a": PPOPolicy, "b": DQNPolicy}, agents=APART) as workers:
        policies, other = workers.policy, workers.new_policy()
        weights, before = policies.weights(), policies.stamp
        assert {key.partition("/")[0] for key in weights} == {"a", "b"}
        with pytest.raises(CheckpointError, match="policies a, here they are a, b"):
            other.load_weights({key: value for key, value in weights.items() if key.startswith("a/")})
        state = policies.state_dict()
        with pytest.raises(CheckpointError):
            policies.load_state_dict({"a": state["a"], "b": state["a"]})
        assert len(before) == 2
        loaded = policies.weights()
        assert all((loaded[key] == value).all() for key, value in weights.items())


def test_policies_of_one_configuration_begin_apart_and_learn_from_their_own_agents() -> None:
    """And share what one plays for both."""
    with small(agents=APART) as apart, small(agents={}) as shared:
        a, b = (policy.weights() for policy in apart.workers.policy.values())
        assert any((a[name] != b[name]).any() for name in a)
        result = apart.train(until={"env_steps": 80})
        assert {"loss/a", "loss/b", "updates/a", "updates/b", "episode_return/left"} <= result.keys()
        assert shared.train(until={"env_steps": 60})["updates"] > 0


class Named(IPPO):
    """With its policies as a dictionary."""

    policies: ClassVar[Any] = {"a": IPPO.policy, "b": IPPO.policy}


def test_policies_may_be_a_dictionary() -> None:
    """Of what makes each from the run's configuration; the same as where `agents` alone names them."""
    with Named(config={**SMALL["ippo"], "agents": APART}) as named, small(agents=APART) as by_agents:
        assert same(named.workers.policy.weights(), by_agents.workers.policy.weights())


def test_a_run_of_several_policies_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    """D3: parameters and results equal those of an uninterrupted run."""
    with small() as whole, small() as half, small() as rest:
        expected = [whole.train() for _ in range(6)]
        for _ in range(3):
            half.train()
        rest.restore(half.save(tmp_path / "half"))
        found = [rest.train() for _ in range(3)]
        clock = {"seconds", "steps_per_second"}
        for one, other in zip(expected[3:], found, strict=True):
            assert {**one, **dict.fromkeys(clock)} == {**other, **dict.fromkeys(clock)}
        ours, theirs = whole.workers.policy.weights(), rest.workers.policy.weights()
        assert all((ours[name] == theirs[name]).all() for name in ours)


def trained(place: Path, seed: int = 0, **settings: Any) -> dict[str, Any]:
    """The run directory of two policies, with a checkpoint; returns their newest weights."""
    with small(seed=seed, **settings) as trainer:
        trainer.train()
        trainer.save(place)
        return trainer.workers.policy.weights()


def of(weights: dict[str, Any], name: str) -> dict[str, Any]:
    return {key.removeprefix(f"{name}/"): value for key, value in weights.items() if key.startswith(f"{name}/")}


def test_each_of_several_policies_may_begin_with_another_run(tmp_path: Path) -> None:
    """By name: from one of several, from a run of one policy, or all from those of the same names."""
    both = trained(tmp_path / "both")
    with small(agents={}, seed=3) as alone:
        alone.train()
        alone.save(tmp_path / "alone")
        one = alone.workers.policy.weights()
    table = {"left": f"{tmp_path}/both:right", "right": tmp_path / "alone"}
    with small(seed=5, init_from=table) as run, small(seed=5, init_from={"right": table["left"]}) as part:
        found, fresh = run.workers.policy.weights(), part.workers.policy.weights()
        assert run.parent is not None
        assert run.parent["policies"]["left"]["policy"] == "right"
    assert same((of(found, "left"), of(found, "right")), (of(both, "right"), one))
    assert same(of(fresh, "right"), of(both, "right"))
    assert not same(of(fresh, "left"), of(both, "left"))
    with small(seed=5, init_from=tmp_path / "both") as run:
        assert same(run.workers.policy.weights(), both)
    with small(seed=5, agents={}, init_from=f"{tmp_path}/both:left") as single:
        assert same(single.workers.policy.weights(), of(both, "left"))


@pytest.mark.parametrize(
    ("settings", "init_from", "message"),
    [
        ({}, {"middle": "both"}, "no policy 'middle'"),
        ({}, {"left": "both:middle"}, "which policy is 'middle'.* policies left, right"),
        ({"agents": APART}, "both", "which policy is 'a'.* policies left, right: give .*:POLICY"),
        ({"agents": {}}, "both", "which policy is 'meant'"),
        ({"agents": {}}, {"left": "both"}, "this plan has one policy"),
    ],
)
def test_a_beginning_that_names_no_policy_is_refused(
    tmp_path: Path, settings: dict[str, Any], init_from: Any, message: str
) -> None:
    trained(tmp_path / "both")
    places = {name: f"{tmp_path}/{at}" for name, at in init_from.items()} if isinstance(init_from, dict) else None
    with pytest.raises(ConfigError, match=message):
        small(init_from=places or f"{tmp_path}/{init_from}", **settings)


def test_a_frozen_policy_plays_and_learns_nothing(tmp_path: Path) -> None:
    """M7, D3: it is saved with the others."""
    with small(frozen=["left"]) as trainer:
        before = trainer.workers.policy.weights()
        result = trainer.train()
        after = trainer.workers.policy.weights()
        assert same(of(before, "left"), of(after, "left"))
        assert not same(of(before, "right"), of(after, "right"))
        assert result["trained"] == 2 * result["env_steps"], "2 epochs over the rows of one agent"
        point, expected = trainer.save(tmp_path / "point"), trainer.train()
    with small(frozen=["left"]) as again:
        again.restore(point)
        clock = {"seconds", "steps_per_second"}
        assert {**again.train(), **dict.fromkeys(clock)} == {**expected, **dict.fromkeys(clock)}
    assert same(flowrl.load(point).of("left").policy.weights(), of(after, "left"))
    for frozen, message in ((["lefd"], "no policy 'lefd'.*left"), (["left", "right"], "no policy is left to learn")):
        with pytest.raises(ConfigError, match=message):
            small(frozen=frozen)


def test_a_kept_run_is_evaluated_loaded_and_played(tmp_path: Path) -> None:
    """S3: best policy and checkpoint play as all agents; of one policy only `act` makes sense."""
    run = tmp_path / "run"
    with IPPO(
        config={**SMALL["ippo"], "eval_every": 40, "eval_episodes": 2, "checkpoint_every": 40}, out=run
    ) as trainer:
        result = trainer.train(env_steps=80, progress=False)
        newest = trainer.workers.policy.weights()
    assert {"eval_return/left", "eval_return/right"} <= result.keys()
    last = flowrl.load(run, last=True)
    assert all((newest[name] == value).all() for name, value in last.policy.weights().items())
    scores = last.evaluate(2, seed=1)
    sides = scores["agents"]
    assert scores["return_mean"] == sides["left"]["return_mean"] + sides["right"]["return_mean"]
    saved = flowrl.load(sorted((run / "checkpoints").iterdir())[-1])
    assert saved.evaluate(2, seed=1) == scores

    assert last.of("left").act(np.zeros(4, np.float32)) in (0, 1)
    for refused in (lambda: last.act(np.zeros(4)), lambda: last.policy.export("x.pt2")):
        with pytest.raises(ConfigError, match="of"):
            refused()
    with pytest.raises(PlanError, match="play together"):
        last.of("left").evaluate(1)
    exported = command("export", run, "--policy", "left", "--out", tmp_path / "left.pt2")
    assert exported.exit_code == 0, exported.output
    assert (tmp_path / "left.pt2").is_file()
    refused = command("export", run, "--out", tmp_path / "both.pt2")
    assert "--policy left" in refused.output

    told = command("evaluate", run, "--episodes", 2)
    assert told.exit_code == 0, told.output
    assert [line.split()[:2] for line in told.output.splitlines()[-2:]] == [["left", "return"], ["right", "return"]]
    recorded = command("record", run, "--episodes", 1, "--out", tmp_path / "data")
    assert recorded.exit_code == 0, recorded.output
    assert sorted(each.name for each in (tmp_path / "data").iterdir()) == ["left", "right"]
