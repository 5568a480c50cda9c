"""MBPO: what its branches do for each env step, and that it goes on from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.errors import ConfigError
from flowrl.plans import MBPO
from flowrl.testing import same
from tests.plans.small import SMALL


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_branches_keep_their_ratios_to_env_steps(env: str) -> None:
    """Z3, F11: rows trained on and imagined rows, up to a batch; fits do not count. With ends, and discrete actions."""
    with MBPO(**{**SMALL["mbpo"], "env": env}) as trainer:
        result = trainer.train(until={"env_steps": 400})
    begun = result["env_steps"] - 50  # learning_starts
    assert abs(result["trained"] - 2.0 * begun) <= 2 * 8 / 0.25  # batches have 2 real rows of 8
    assert abs(result["imagined"] - 5.0 * begun) <= 3 * 15 + 5 * 8 / 0.25
    assert result["model_updates"] > 0


def test_a_game_is_refused() -> None:
    with pytest.raises(ConfigError, match="MBPO imagines what one agent does, but flowrl:two_cartpoles has 2"):
        MBPO(**{**SMALL["mbpo"], "env": "flowrl:two_cartpoles"})


def test_it_goes_on_from_a_file(tmp_path: Path) -> None:
    """D3: with its model, and both buffers."""

    def make() -> MBPO:
        return MBPO(**{**SMALL["mbpo"], "seed": 3})

    with make() as whole:
        whole.train(until={"env_steps": 200})
        whole.save(tmp_path / "half")
        whole.train(until={"env_steps": 300})
        with make() as resumed:
            resumed.restore(tmp_path / "half")
            resumed.train(until={"env_steps": 300})
            states = [each.run.state_dict()["resources"] for each in (whole, resumed)]
    assert sum("ReplayBuffer" in name for name in states[0]) == 2
    assert states[0]["Dynamics"]["elites"]
    for name in states[0]:
        assert same(states[0][name], states[1][name]), name
