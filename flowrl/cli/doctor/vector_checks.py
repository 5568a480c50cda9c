"""What is looked at in a ready-made VectorEnv: through the manager that would step it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv

from flowrl.cli.doctor.findings import Finding
from flowrl.cli.doctor.patient import copied
from flowrl.envs import EnvFactory, VectorEnvManager
from flowrl.envs.masks import UNASKED, valid_sample
from flowrl.errors import ConfigError
from flowrl.testing import same

#: Steps that two of them are compared over.
COMPARED = 200


def check_vector(env: VectorEnv[Any, Any, Any], factory: EnvFactory) -> Iterator[Finding]:
    """Autoreset mode, spaces, values, endings, determinism."""
    mode = env.metadata.get("autoreset_mode")
    if mode is None:
        yield Finding(
            "problem",
            "autoreset",
            "metadata['autoreset_mode'] is missing: it does not say on which step it resets, so rows could be taken "
            f"for transitions that are none; set it to one of {[str(mode) for mode in AutoresetMode]}",
        )
        return
    try:
        manager = VectorEnvManager(env)
    except ConfigError as error:
        yield Finding("problem", "spaces", str(error))
        return
    yield Finding("ok", "autoreset", manager.autoreset)
    yield Finding("ok", "spaces", f"observations {env.single_observation_space}, actions {env.single_action_space}")
    first = _transcript(manager)
    if manager.unasked_mask:
        yield Finding("note", "mask", UNASKED)
    ended = manager.drain()
    lengths = [episode.length for episode in ended]
    if ended:
        yield Finding("ok", "endings", f"{len(ended)} episodes ended, after {min(lengths)} to {max(lengths)} steps")
    else:
        yield Finding("note", "endings", f"no episode ended in {COMPARED} steps of each of {env.num_envs}")
    other = factory.first_of(env.num_envs)
    assert isinstance(other, VectorEnv)
    again = _transcript(VectorEnvManager(other))
    other.close()
    if differing := [t for t, (ours, theirs) in enumerate(zip(first, again)) if not same(ours, theirs)]:
        yield Finding("problem", "determinism", f"two of them with one seed differ at step {differing[0]}")
    else:
        yield Finding("ok", "determinism", f"the same seed gave the same {COMPARED} steps, twice")


def _transcript(manager: VectorEnvManager) -> list[Any]:
    manager.launch(seed=0)
    space = manager.action_space
    space.seed(0)
    steps = []
    for _ in range(COMPARED):
        found = manager.step([valid_sample(space, manager.obs[env_id]) for env_id in range(manager.num_envs)])
        obs = found.next_obs.to_dict() if hasattr(found.next_obs, "to_dict") else found.next_obs
        steps.append([copied(obs), *(column.copy() for column in found[1:4])])
    return steps
