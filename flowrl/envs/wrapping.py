"""Applies wrappers, by name as in `FrameStackObservation(4)` or `my_module:Shaped(scale=2)`, or as callables."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorRecordEpisodeStatistics

from flowrl.envs.adapters.envpool import RECORD
from flowrl.envs.adapters.pettingzoo import with_masks
from flowrl.envs.games.game import Game
from flowrl.envs.games.game_infos import GameInfoColumns
from flowrl.envs.games.hierarchy import hierarchy
from flowrl.envs.games.join_agents import JoinAgents
from flowrl.envs.games.seats import GameEnv
from flowrl.envs.games.team import Team
from flowrl.envs.games.wrappers import AgentId, BaseGameWrapper, FiniteHorizon, GlobalState, PadSpaces
from flowrl.envs.infos import InfoColumns, VectorInfoColumns
from flowrl.envs.masks import ActionMask, VectorActionMask
from flowrl.envs.spec import import_module, name_of, own_arguments
from flowrl.envs.wrappers import RawRecorder, has_raw_returns, is_recorder, keeps_rewards, layers, recorder
from flowrl.errors import ConfigError, did_you_mean

Wrap = Callable[[Any], Any]

#: flowrl's wrappers, of single and of vector environments.
_OWN: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "ActionMask": (ActionMask, VectorActionMask),
    "AgentId": (AgentId, AgentId),
    "FiniteHorizon": (FiniteHorizon, FiniteHorizon),
    "GlobalState": (GlobalState, GlobalState),
    "Hierarchy": (hierarchy, hierarchy),
    "InfoColumns": (InfoColumns, VectorInfoColumns),
    "JoinAgents": (JoinAgents, JoinAgents),
    "PadSpaces": (PadSpaces, PadSpaces),
    "Team": (Team, Team),
}


@attrs.frozen
class _WithArguments:
    wrapper: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def __call__(self, env: Any) -> Any:
        return self.wrapper(env, *self.args, **self.kwargs)


def wrapper_of(text: str | Wrap, *, vector: bool = False) -> Wrap:
    """The wrapper that a text names, with the arguments in it; `vector`: one of `gymnasium.wrappers.vector`.

    A text is the name of a wrapper of gymnasium or of flowrl's `ActionMask`, `InfoColumns` and `Hierarchy`, of games
    `AgentId`, `FiniteHorizon`, `GlobalState`, `JoinAgents`, `PadSpaces` and `Team`, or `module:Wrapper`; arguments
    follow as in a call, as Python literals. A callable is returned unchanged, a `partial` with copies of its
    arguments (R1).

    Raises: ConfigError if the wrapper does not exist (names the closest), or arguments are not literals.

    >>> wrapper_of("TimeLimit(7)")(gymnasium.make("CartPole-v1"))
    <TimeLimit<TimeLimit<OrderEnforcing<PassiveEnvChecker<CartPoleEnv<CartPole-v1>>>>>>
    """
    if not isinstance(text, str):
        return own_arguments(text)
    name, bracket, _ = text.partition("(")
    found = _named(name.strip(), vector)
    if not bracket:
        return found
    args, kwargs = call_arguments(text, "the wrapper")
    return _WithArguments(found, args, kwargs)


def wrap(env: gymnasium.Env[Any, Any], wrappers: Sequence[str | Wrap]) -> gymnasium.Env[Any, Any]:
    """The environment in these wrappers, the first one innermost.

    If one of them may change rewards, a recorder goes below all, so that returns stay raw (S1). A game takes
    `ActionMask` and `InfoColumns`, for each agent, and any `BaseGameWrapper`.

    Raises: ConfigError for any other wrapper of a game.
    """
    if isinstance(env, GameEnv):
        return _wrapped_game(env, wrappers)
    made = [wrapper_of(each) for each in wrappers]
    if not all(_keeps_rewards(each) for each in made) and has_raw_returns(env) and recorder(env) is None:
        env = RawRecorder(env)
    for at, (text, each) in enumerate(zip(wrappers, made), 1):
        env = _applied(each, env, text, gymnasium.Env)
        if isinstance(env, GameEnv):
            return _wrapped_game(env, wrappers[at:])
    return env


def _wrapped_game(env: GameEnv, wrappers: Sequence[str | Wrap]) -> gymnasium.Env[Any, Any]:
    game, columns = env.game, None
    for text in wrappers:
        made = wrapper_of(text)
        if _is_subclass(_kind(made), BaseGameWrapper):
            game = _applied(made, game, text, Game)
        elif made is ActionMask:
            game = with_masks(game)
        elif isinstance(made, _WithArguments) and made.wrapper is InfoColumns:
            columns = attrs.evolve(made, wrapper=GameInfoColumns)
        else:
            raise ConfigError(
                f"the wrapper {name_of(text)} is for an environment of one agent, but {env} is a game of "
                f"{len(env.seating.agents)} (see flowrl.envs.games): leave it out, and wrap the game where it is made"
            )
    seats = env if game is env.game else GameEnv(game)
    return seats if columns is None else columns(seats)


def wrap_vector(env: VectorEnv[Any, Any, Any], wrappers: Sequence[str | Wrap]) -> VectorEnv[Any, Any, Any]:
    """`wrap` for a vector environment and vector wrappers."""
    made = [wrapper_of(each, vector=True) for each in wrappers]
    resets_itself = env.metadata.get("autoreset_mode") is not AutoresetMode.DISABLED  # see `has_raw_returns`
    recorded = any(is_recorder(layer) for layer in layers(env))
    if not all(map(_keeps_rewards, made)) and resets_itself and has_raw_returns(env) and not recorded:
        env = VectorRecordEpisodeStatistics(env, stats_key=RECORD)
    for text, each in zip(wrappers, made):
        env = _applied(each, env, text, VectorEnv)
    return env


def _applied(wrapper: Wrap, env: Any, text: object, expected: type[Any]) -> Any:
    try:
        made = wrapper(env)
    except (TypeError, ValueError, AssertionError, AttributeError, gymnasium.error.Error) as error:
        raise ConfigError(f"the wrapper {name_of(text)} cannot wrap {env}: {type(error).__name__}: {error}") from error
    if isinstance(made, expected):
        return made
    raise ConfigError(f"the wrapper {name_of(text)} made a {type(made).__name__}, expected a {expected.__name__}")


def _named(name: str, vector: bool) -> Wrap:
    if name in _OWN:
        return _OWN[name][vector]
    module_name, colon, attribute = name.rpartition(":")
    if colon:
        module = import_module(module_name, repr(name), "'module:Wrapper' or the name of a wrapper of gymnasium")
        names = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
    else:
        module, attribute = gymnasium.wrappers.vector if vector else gymnasium.wrappers, name
        # Some wrappers import torch or jax on access.
        names = [*_OWN, *(key for key in module.__all__ if key[0].isupper())]
    if attribute in names:
        return getattr(module, attribute)  # type: ignore[no-any-return]
    text = f"no wrapper {attribute!r} in {module.__name__}: {did_you_mean(attribute, names)}"
    if vector and attribute in gymnasium.wrappers.__all__:
        text += ". A vector environment takes vector wrappers; env_manager='local' takes those of single ones too"
    raise ConfigError(text)


def call_arguments(text: str, what: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments in a text such as `module:Name(4, scale=2)`. Raises: ConfigError unless they are literals."""
    call_text = "name" + text[text.index("(") :]  # module:Name is not an expression
    try:
        call = ast.parse(call_text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("it is no call of a name")
        if any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("it has ** arguments")
        keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return [ast.literal_eval(arg) for arg in call.args], keywords
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{what} {text!r} cannot be read: expected Name, or Name(argument, key=value) with numbers, strings, "
            "lists and other Python literals"
        ) from error


def _keeps_rewards(wrapper: Wrap) -> bool:
    return keeps_rewards(_kind(wrapper))


def _kind(wrapper: Wrap) -> object:
    return wrapper.wrapper if isinstance(wrapper, _WithArguments) else wrapper


def _is_subclass(kind: object, of: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, of)
