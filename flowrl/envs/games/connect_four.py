"""Connect four: stones fall into seven columns of six squares; four in a line win."""

from __future__ import annotations

from flowrl.envs.games.line_game import LineGame


class ConnectFour(LineGame):
    """See `LineGame`; an action is a column. The first player wins between players who make no mistake.

    >>> game = ConnectFour()
    >>> game.reset(seed=0)["x"]["action_mask"].shape
    (7,)
    """

    rows, columns, length, falls = 6, 7, 4, True
