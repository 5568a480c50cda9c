"""Recognises environments of other libraries, and converts them to gymnasium's interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from flowrl.envs import games
from flowrl.envs.adapters import atari, by_agent, dm_env, envpool, open_spiel, pettingzoo
from flowrl.envs.adapters import gym as classic
from flowrl.envs.closing import closing
from flowrl.envs.games.seats import GameEnv
from flowrl.errors import ConfigError

#: The functions that make an environment by its name, for `gym:NAME` and so on.
LIBRARIES: dict[str, Callable[..., Any]] = {
    "atari": atari.make,
    "dm_env": dm_env.make,
    "gym": classic.make,
    "pettingzoo": pettingzoo.make,
    "envpool": envpool.EnvPool,
    "openspiel": open_spiel.make,
    "flowrl": games.make,
}


#: What is to be done about environments of other libraries, by library and base class.
_FOREIGN = {
    ("stable_baselines3", "VecEnv"): "is a vector environment of Stable-Baselines3: pass the function that makes one "
    "of its environments, and their number (--envs, envs_per_worker); env_manager says how they step",
    ("torchrl", "EnvBase"): "is an environment of TorchRL, which steps TensorDicts: pass the function that makes the "
    "gymnasium environment in it",
    ("supersuit", "ConcatVecEnv"): "is a vector environment of SuperSuit, whose steps are not gymnasium's: pass the "
    "PettingZoo environment in it, which is a game, with the wrapper PadSpaces where its agents differ (games.md)",
    (
        "pgx",
        "Env",
    ): "is a game of pgx, whose steps are functions of a state: openspiel:NAME and pettingzoo:classic/NAME "
    "have many of the same games; else hold its state in a flowrl.envs.Game or a gymnasium.Env of your own",
    ("gymnax", "Environment"): "is an environment of gymnax's own form, whose steps are functions of a state: name a "
    "function that returns gymnax.wrappers.GymnaxToGymWrapper of it, which is a gymnasium.Env",
    ("brax", "Env"): "is an environment of Brax's own form, whose steps are functions of a state: hold its state in a "
    "gymnasium.Env of your own (see Other packages in environments.md)",
    ("open_spiel", "Environment"): "is OpenSpiel's rl_environment: name the game, openspiel:NAME",
}


def converted(made: Any, agents: bool | None = None, again: Callable[[], Any] | None = None) -> Any:
    """Convert to a `gymnasium.Env`: a game, also one in another library's interface, to a `GameEnv`.

    `agents`: whether one that looks like agents has some; None: if it says so itself (R2). Where only its rewards can
    tell, it acts one step, and is closed for a new one that `again` makes.

    Returns a VectorEnv, and objects of unknown kinds, unchanged.

    Raises: ConfigError for environments of libraries whose steps are others.
    """
    for kind in type(made).__mro__:
        library = kind.__module__.partition(".")[0]
        if problem := _FOREIGN.get((library, kind.__name__)):
            raise ConfigError(f"{type(made).__name__} {problem}")
        if library == "envpool" and made.config["batch_size"] not in (0, made.config["num_envs"]):
            raise ConfigError(
                f"{type(made).__name__} is an EnvPool that answers for {made.config['batch_size']} of its "
                f"{made.config['num_envs']} environments at a time: leave out batch_size, so that all step together"
            )
    if pettingzoo.is_one(made):
        made = pettingzoo.converted(made)
    elif open_spiel.is_one(made):
        made = open_spiel.OpenSpielGame(made)
    elif isinstance(made, games.Game | gymnasium.Env | VectorEnv):
        pass
    elif dm_env.is_one(made):
        made = dm_env.DmEnv(made)
    elif classic.is_one(made):
        made = classic.ClassicEnv(made)
    if isinstance(made, gymnasium.Env | VectorEnv) and not made.metadata:  # None in old ones that do not render
        made.metadata = {}
    if by_agent.looks_like_agents(made):
        agents = by_agent.declares_agents(made) if agents is None else agents
        if agents is None and again is not None:
            agents = by_agent.rewards_each(made)
            with closing(type(made).__name__):
                made.close()
            return converted(again(), agents)
        if agents:
            made = by_agent.game_of(made)
    return GameEnv(made) if isinstance(made, games.Game) else made
