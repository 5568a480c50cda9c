"""R8: processes start in the way that fits what is loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from flowrl.envs import make_manager
from flowrl.envs.managers.supervisor import start_method
from flowrl.errors import ConfigError
from flowrl.tools.doctor import diagnose


class Inherits(gymnasium.Env[Any, Any]):
    """Observes whether its process has what this one has loaded, as a fork of it would."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return int("jaxlib" in sys.modules), {}

    def step(self, action: Any) -> Any:
        assert "jaxlib" not in sys.modules
        return 0, 1.0, True, False, {"is_success": True}


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library with threads is loaded."""
    monkeypatch.setitem(sys.modules, "jaxlib", ModuleType("jaxlib"))


@pytest.mark.slow
@pytest.mark.usefixtures("jax")
def test_a_library_with_threads_is_not_forked() -> None:
    """R8: it may have been loaded when the manager was made already, as where the environment's module imports it."""
    with make_manager(Inherits, 1, kind="subprocess") as manager:
        manager.launch(seed=0)
        assert manager.obs.tolist() == [0]
    assert not [each for each in diagnose(Inherits, steps=3, seconds=0.01).findings if each.level == "problem"]


@pytest.mark.usefixtures("jax")
def test_a_fork_of_such_a_library_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"start_method='fork': the threads of JAX, .* take 'spawn'"):
        make_manager(Inherits, 1, kind="async", start_method="fork")


def test_without_one_linux_forks() -> None:
    assert start_method() == ("fork" if sys.platform == "linux" else "spawn")
    assert start_method("spawn") == "spawn"


@pytest.mark.usefixtures("jax")
def test_a_program_that_would_run_again_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: a new interpreter imports the program, so what it does must be under its name."""
    program = tmp_path / "mine.py"
    program.write_text("train()")
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert start_method() == "spawn"  # in a notebook
    main.__file__ = str(program)
    with pytest.raises(ConfigError, match=r"'spawn', since the threads of JAX .* runs .*mine\.py again, .*__main__"):
        start_method()
    program.write_text("if __name__ == '__main__':\n    train()")
    assert start_method() == "spawn"
    main.__file__ = "<stdin>"
    with pytest.raises(ConfigError, match=r"runs <stdin> again"):
        start_method()
