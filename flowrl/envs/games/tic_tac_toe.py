"""Tic-tac-toe: three in a line on three by three squares; a draw between players who make no mistake."""

from __future__ import annotations

from flowrl.envs.games.line_game import LineGame


class TicTacToe(LineGame):
    """See `LineGame`.

    >>> game = TicTacToe()
    >>> game.reset(seed=0).keys()
    dict_keys(['x'])
    >>> for agent, square in zip("xoxox", (0, 3, 1, 4, 2)):
    ...     turn = game.step({agent: square})
    >>> print(game.render(), turn.reward)
    xxx
    oo.
    ... {'x': 1.0, 'o': -1.0}
    """

    rows, columns, length = 3, 3, 3
