"""Acting in the environments of a manager, for rollout workers and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.data import Batch
from flowrl.data.columns import Column, check_names
from flowrl.envs import Manager, StepResult
from flowrl.envs.masks import without_choice
from flowrl.errors import SchemaError
from flowrl.networks.masks import action_mask
from flowrl.policies.policy import ActMode, RecurrentMode
from flowrl.policies.protocols import HasMemory, HearsRewards
from flowrl.rollout.noise import Array, NoiseStreams

if TYPE_CHECKING:
    from flowrl.envs.managers.games import Seats


class Actor:
    """A mode that acts in a manager's environments, with the state of each from step to step.

    Per environment it keeps its stream of noise (D2); for a `RecurrentMode` the recurrent state, reset to the initial
    one where an episode begins (T8), which hears rewards if the mode does (T13); and for an asynchronous manager the
    row sent to it, until its answer (T11).

    Args:
        manager: Launched before the first step; or some seats of games, for which `send` acts.
        seed: Seed of the noise.
        streams: The number of each row's stream of noise; None: that of its environment.

    State: all three.
    """

    def __init__(
        self, manager: Manager | Seats, mode: ActMode | RecurrentMode, seed: int, streams: Sequence[int] | None = None
    ) -> None:
        self.manager: Any = manager
        self._noise_of = partial(NoiseStreams, seed, manager.num_envs, keys=streams)
        self._noise = self._noise_of(mode.draws)
        self._sent: dict[str, Column] = {}
        self._versions = np.zeros(manager.num_envs, np.int64)  # `policy_version` of the newest step
        self._borrowed = False  # whether `_sent` is a row as the mode made it, whose arrays may be shared
        self.use(mode)

    def use(self, mode: ActMode | RecurrentMode) -> None:
        """Act with another mode from now on; resets recurrent states, and the noise if it draws another amount."""
        self._mode: Any = mode
        if mode.draws != self._noise.draws:
            self._noise = self._noise_of(mode.draws)
        self.hears = isinstance(mode, HearsRewards)  #: whether `hear` must follow each step
        self._state = initial_states(mode, self.manager.num_envs)

    def step(
        self, env_steps: int = 0, version: int = 0, wait: Array | None = None
    ) -> tuple[dict[str, Column], StepResult]:
        """Send an action to every environment that waits for one, and return the answers that have arrived.

        Args:
            env_steps: Env steps so far, for the mode. version: Policy version, for the row.
            wait: Mask `[N]` of environments that get no action yet; only for asynchronous managers.

        Returns: The columns `[N, ...]` of the acting step: obs, the mode's columns, policy_version, episode_id and t;
            for recurrent modes state and next_state. And the result of the step, which marks the rows that count.

        Raises: SchemaError for a running environment without a valid action.
        """
        manager = self.manager
        if manager.ready is not None:
            self.send(env_steps, version, wait)
            result = manager.step(self._sent["env_action"], wait)
            if self.hears:
                self.hear(result, self._sent)
            return self.sent, result
        obs = manager.obs
        row = self._act(obs, env_steps, None)
        row["obs"] = obs
        row["episode_id"], row["t"] = manager.episode_id.copy(), manager.t.copy()  # the step changes them
        row["policy_version"] = self._versions_of(version)
        actions = row.pop("env_action", row["action"])  # what is stored is what the policy drew (G6)
        result = manager.step(actions)
        if result.acted is not None:
            self.take_back(~result.acted)
        if self.hears:
            self.hear(result, row)
        return row, result

    def hear(self, result: StepResult, row: dict[str, Column] | None = None) -> None:
        """Tell the states the rewards of the actions that were answered, also in the row; None: the sent one (T13)."""
        which = np.arange(self.manager.num_envs) if result.acted is None else np.flatnonzero(result.acted)
        if len(which):
            state: Any = self._state
            state[which] = self._mode.rewarded(state[which], result.reward[which])
            (self._sent if row is None else row)["next_state"] = _copy(state)

    def take_back(self, ids: Array) -> None:
        """Draw the noise of these rows' newest action again next time: it was not played, as where a fault lost it.

        Args:
            ids: Numbers of rows, or a mask `[N]`.

        Only managers that step all environments together can say so; with an asynchronous one it stays drawn.
        """
        self._noise.take_back(ids)

    @property
    def steps(self) -> Array:
        """`[N]`: see `Manager.steps`."""
        steps: Array = self.manager.steps
        return steps

    @property
    def sent(self) -> dict[str, Column]:
        """The columns `[N, ...]` of the newest action of each row, as `step` returns them."""
        return {name: column for name, column in self._sent.items() if name != "env_action"}

    def send(self, env_steps: int = 0, version: int = 0, wait: Array | None = None) -> tuple[Array, Array | None]:
        """Act for the rows that are ready, and keep what was sent until it is answered; arguments as for `step`.

        Returns: Mask `[N]` of these rows; the environments' actions `[N, ...]`, of which theirs are new, None if no
            row ever acted.
        """
        manager, ready = self.manager, self.manager.ready
        mask: Array = ready if wait is None else ready & ~wait
        if count := int(np.count_nonzero(mask)):
            ids = None if count == len(mask) else np.flatnonzero(mask)
            obs, episode_id, t = (
                _copy(column) if ids is None else column[ids] for column in (manager.obs, manager.episode_id, manager.t)
            )
            row = self._act(obs, env_steps, ids)
            row["obs"], row["episode_id"], row["t"] = obs, episode_id, t
            row["policy_version"] = self._versions_of(version)[:count]
            row.setdefault("env_action", row["action"])
            self._keep(ids, row)
        return mask, self._sent["env_action"] if self._sent else None

    def _versions_of(self, version: int) -> Array:
        if self._versions[0] != version:
            self._versions = np.full(self.manager.num_envs, version)
        return self._versions

    def _act(self, obs: Any, env_steps: int, ids: Array | None) -> dict[str, Column]:
        self._check_choices(obs, ids)
        noise = self._noise.next(ids)
        row: dict[str, Column]
        if self._state is None:
            row = self._mode.act(obs, noise, env_steps)
            return row
        which: Any = slice(None) if ids is None else ids
        state = _copy(self._state[which])
        if (begins := self.manager.t[which] == 0).any():
            state[begins] = initial_states(self._mode, 1)  # anew: it may depend on what was learned
        row = self._mode.act(obs, noise, env_steps, state)
        self._state[which] = row["next_state"]
        row["state"] = state
        return row

    def _check_choices(self, obs: Any, ids: Array | None) -> None:
        manager, mask = self.manager, action_mask(obs)
        if mask is None:
            return
        for row in without_choice(mask, manager.action_space).tolist():
            env_id = row if ids is None else int(ids[row])
            if env_id in manager.ready_obs:  # and is not at an end, where the next step only resets it
                raise SchemaError(
                    f"environment {env_id} has no valid action in episode {manager.episode_id[env_id]}, step "
                    f"{manager.t[env_id]}: its action_mask is {mask[row].astype(int)}. Where nothing can be done the "
                    "episode must have ended: set terminated in the step that leads there"
                )

    def _keep(self, ids: Array | None, row: dict[str, Column]) -> None:
        """Store the rows sent to these environments (None: all), until their answers arrive."""
        if ids is None:
            self._sent, self._borrowed = row, True
            return
        if self._borrowed:
            self._sent, self._borrowed = _copies(self._sent), False
        num_envs = self.manager.num_envs
        if row.keys() != self._sent.keys():
            if self._sent and len(ids) < num_envs:
                on_their_way = "environments still step with another policy's actions (reset_env() cuts that short)"
                check_names(self._sent, row, f"{on_their_way}; the policy's row")
            like = Batch(row).map(lambda column: np.zeros((num_envs, *column.shape[1:]), column.dtype))
            self._sent = dict(like.items())
        for name, column in self._sent.items():
            column[ids] = row[name]

    def state_dict(self) -> dict[str, Any]:
        state = None if self._state is None else Batch(state=_copy(self._state)).to_dict()
        return {"noise": self._noise.state_dict(), "state": state, "sent": Batch(_copies(self._sent)).to_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._noise.load_state_dict(state["noise"])
        self._sent, self._borrowed = _copies(dict(Batch(state["sent"]).items())), False
        if self._state is not None:
            self._state = _copy(Batch(state["state"])["state"])


def initial_states(mode: ActMode | RecurrentMode, num_envs: int) -> Column | None:
    """The initial states `[N, ...]` of a recurrent mode; None for other modes."""
    if not isinstance(mode, HasMemory):
        return None
    one = Batch(state=mode.initial_state())
    states: Column = one.map(lambda column: np.repeat(column, num_envs, axis=0))["state"]
    return states


def _copy(column: Column) -> Column:
    return column.map(np.copy) if isinstance(column, Batch) else column.copy()


def _copies(columns: dict[str, Column]) -> dict[str, Column]:
    return {name: _copy(column) for name, column in columns.items()}
