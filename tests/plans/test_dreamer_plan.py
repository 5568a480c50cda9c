"""Dreamer's plan: what each drawn sequence becomes."""

from __future__ import annotations

from typing import Any

import pytest

from flowrl.errors import ConfigError
from flowrl.plans import Dreamer
from tests.plans.small import SMALL


@pytest.mark.parametrize("settings", [{}, {"env": "Pendulum-v1"}, SMALL["dreamer images"]], ids=("", "box", "images"))
def test_imagination_begins_in_every_step_that_the_world_model_learned_from(settings: dict[str, Any]) -> None:
    """Z7, F11, F12: whatever the spaces; without padding, and the last imagined step is there for its value alone."""
    with Dreamer(**{**SMALL["dreamer"], **settings}) as trainer:
        result = trainer.train(until={"env_steps": 200})
    assert result["model_updates"] == result["updates"] > 10
    assert result["imagined"] == 4 * result["sampled"]
    assert result["trained"] == 3 * result["sampled"]


def test_images_are_not_normalized() -> None:
    with pytest.raises(ConfigError, match=r"images are scaled and discrete .* already; set normalize_obs=False"):
        Dreamer(env="tests.spaces_envs:Pictures")


def test_sequences_fit_into_the_buffer() -> None:
    with pytest.raises(ConfigError, match=r"overlap=4: sequences of 4 steps overlap by 0 \.\. 3"):
        Dreamer(sequence_length=4, overlap=4)
    with pytest.raises(ConfigError, match="buffer_size=100 leaves 12 steps for each of 8 environments"):
        Dreamer(buffer_size=100)
