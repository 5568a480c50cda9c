"""Any order of operations: ReplayBuffer beside a plain list of the rows that are left."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowrl.data import Batch, ReplayBuffer
from flowrl.errors import CheckpointError


class ReplayMachine(RuleBasedStateMachine):
    """B1-B10, T6, N1-N4: a row of the model is what one step of a stream looks like, and whether it begins anew."""

    @initialize(
        length=st.integers(2, 7),
        envs=st.integers(1, 2),
        once=st.booleans(),
        frame_stack=st.integers(1, 3),
        n_step=st.integers(1, 3),
        max_uses=st.none() | st.integers(1, 4),
        max_staleness=st.none() | st.integers(0, 2),
        seed=st.integers(0, 99),
    )
    def begin(self, length, envs, once, frame_stack, n_step, max_uses, max_staleness, seed):
        self.folder = Path(tempfile.mkdtemp())
        self.length, self.envs = length, envs
        self.settings = {
            "store_next_obs": not once,
            "frame_stack": frame_stack,
            "n_step": n_step,
            "max_uses": max_uses,
            "max_staleness": max_staleness,
            "gamma": 0.5,
            "track_uses": True,
        }
        self.buffer = ReplayBuffer(length * envs, seed=seed, **self.settings)
        self.steps = []  # of each step a list of its environments' rows
        self.version = self.written = 0

    def teardown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- operations

    @rule(data=st.data(), steps=st.integers(1, 9), newer=st.integers(0, 1))
    def add(self, data, steps, newer):
        self.version += newer
        shape = (steps, self.envs)
        marks = np.array(
            [list(data.draw(st.text("....Tt", min_size=self.envs, max_size=self.envs))) for _ in range(steps)]
        )
        obs = 10 * (self.written + np.arange(steps)[:, None]) + np.arange(self.envs) + 1
        batch = Batch(
            obs=obs[..., None],
            next_obs=np.where(marks == ".", obs + 10, -obs)[..., None],
            reward=(obs % 7).astype(np.float32),
            terminated=marks == "T",
            truncated=marks == "t",
            policy_version=np.full(shape, self.version),
        )
        self.buffer.add(batch)
        for step in range(steps):
            before = self.steps[-1] if self.steps else [None] * self.envs
            self.steps.append([self.row(batch, step, env, before[env]) for env in range(self.envs)])
        self.written += steps
        del self.steps[: -self.length]

    def row(self, batch, step, env, before):
        made = {name: batch[name][step, env] for name in ("obs", "next_obs", "reward", "terminated", "truncated")}
        begins = before is None or before["terminated"] or before["truncated"]
        return made | {"version": self.version, "begins": bool(begins), "uses": 0}

    @precondition(lambda self: self.steps)
    @rule(rows=st.integers(1, 12))
    def sample(self, rows):
        allowed = self.allowed()
        most = self.settings["max_uses"]
        left = sum(most - row["uses"] for row in allowed.values()) if most else np.inf * bool(allowed)
        assert self.buffer.can_sample(rows) == bool(allowed and left >= rows), self.buffer.why_sample(rows)
        if not self.buffer.can_sample(rows):
            return
        drawn = self.buffer.sample(rows)
        for i in range(rows):
            step, env = self.place(drawn.index[i])
            assert (step, env) in allowed
            allowed[step, env]["uses"] += 1
        for i in range(rows):
            self.check(drawn[i], *self.place(drawn.index[i]))

    @rule()
    def save_and_load(self):
        path = self.buffer.save(self.folder / "buffer")
        if not self.steps:
            return
        self.buffer.can_sample(1) and self.buffer.sample(1)
        self.buffer = ReplayBuffer.load(path)

    @rule()
    def state_into_another(self):
        other = ReplayBuffer(self.length * self.envs, seed=0, **self.settings)
        other.load_state_dict(self.buffer.state_dict())
        self.buffer = other

    @precondition(lambda self: self.steps)
    @rule(length=st.integers(2, 9))
    def resize(self, length):
        other = ReplayBuffer(length * self.envs, seed=1, **self.settings)
        other.update(self.buffer)
        self.buffer, self.length = other, length
        for row in self.steps[0]:
            row["begins"] = True
        del self.steps[:-length]

    @precondition(lambda self: self.steps)
    @rule(capacity=st.integers(1, 30))
    def state_of_another_capacity(self, capacity):
        if capacity == self.length * self.envs:
            return
        other = ReplayBuffer(capacity, **self.settings)
        try:
            other.load_state_dict(self.buffer.state_dict())
            raise AssertionError("accepted")
        except CheckpointError:
            assert other.size == 0

    # -- what must hold

    @invariant()
    def rows_in_order(self):
        if not hasattr(self, "buffer"):
            return
        assert self.buffer.size == len(self.steps) * self.envs
        everything = self.buffer[:]
        for number in range(self.buffer.size):
            row = self.steps[number // self.envs][number % self.envs]
            for name in ("next_obs", "obs"):
                newest = everything[name][number]
                newest = newest[-1] if self.settings["frame_stack"] > 1 else newest
                assert newest.tolist() == row[name].tolist()
            assert everything.reward[number] == row["reward"]

    def allowed(self):
        """The rows that may be drawn, by step (0 is the oldest) and environment."""
        stored_once = not self.settings["store_next_obs"]
        newest = max((row["version"] for step in self.steps for row in step), default=0)
        newest = max(newest, self.buffer._newest_version or 0)
        most, stale = self.settings["max_uses"], self.settings["max_staleness"]
        return {
            (step, env): row
            for step, rows in enumerate(self.steps[: len(self.steps) - stored_once])
            for env, row in enumerate(rows)
            if (most is None or row["uses"] < most) and (stale is None or row["version"] >= newest - stale)
        }

    def place(self, slot):
        order = self.buffer._rings.chronological(np.arange(self.buffer.size)).tolist()
        return divmod(order.index(int(slot)), self.envs)

    def check(self, drawn, step, env):
        row, last, total = self.steps[step][env], step, 0.0
        for k in range(self.settings["n_step"]):
            last = step + k
            total += 0.5**k * self.steps[last][env]["reward"]
            if last + 1 == len(self.steps) or self.steps[last + 1][env]["begins"]:
                break
            if self.steps[last][env]["terminated"] or self.steps[last][env]["truncated"]:
                break
        end = self.steps[last][env]
        assert drawn.reward == total
        assert bool(drawn.terminated) == bool(end["terminated"])
        assert drawn.discount == (0 if end["terminated"] else 0.5 ** (last - step + 1))
        assert drawn.uses == row["uses"]
        frames, next_frames = self.frames(step, env), [*self.frames(last, env)[1:], end["next_obs"].tolist()]
        obs, next_obs = drawn.obs.tolist(), drawn.next_obs.tolist()
        if self.settings["frame_stack"] == 1:
            obs, next_obs = [obs], [next_obs]
        assert obs == frames
        assert next_obs == next_frames

    def frames(self, step, env):
        first = step
        while first > 0 and not self.steps[first][env]["begins"]:
            first -= 1
        stack = range(step - self.settings["frame_stack"] + 1, step + 1)
        return [self.steps[max(first, at)][env]["obs"].tolist() for at in stack]


ReplayMachine.TestCase.settings = settings(stateful_step_count=12)


class TestReplay(ReplayMachine.TestCase):
    """B5: a saved buffer goes on where it was, whatever came before."""
