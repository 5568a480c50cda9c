"""What can be said of a buffer's draws before anything was drawn."""

from __future__ import annotations

from flowrl.data.frames import stacked_schema
from flowrl.data.store import Store
from flowrl.schema import Schema


class Foretold(Store):
    """The part of a replay buffer that `plan.check()` asks; buffers of other draws override it."""

    requires: tuple[str, ...] = ("experience",)
    n_step: int
    track_uses: bool
    frame_stack: int
    newest_frame_only: bool

    def schema(self, given: Schema) -> Schema:
        """What `sample` gives, from the schema of what is added."""
        drawn = self._schema(given.rows(), "B").having(*(("windows",) if self.n_step > 1 else ()))
        return drawn.having(discount="float32[B]") if "terminated" in given.columns else drawn

    def _schema(self, given: Schema, *axes: str) -> Schema:
        """What is drawn of rows, which are `given` in the layout in which they are drawn."""
        beside = {name: f"{dtype}[{', '.join(axes)}]" for name, dtype in self._beside(given).items()}
        drawn = given.without("on_policy").having("experience", "replayed", **beside)
        return drawn if self.newest_frame_only else stacked_schema(drawn, self.frame_stack, len(axes))

    def _beside(self, given: Schema) -> dict[str, str]:
        """The columns that are drawn beside those stored, and their dtypes."""
        names = ["index", "generation"]
        if self.track_uses:
            names += ["uses", *(["staleness"] if "policy_version" in given.columns else [])]
        return dict.fromkeys(names, "int64")
