"""The threads of numpy's matrix products, for which numpy has no function of its own."""

from __future__ import annotations

import functools
import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

#: Variables by which users set the number themselves.
VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")


def blas_threads(count: int) -> AbstractContextManager[Any]:
    """Give numpy's matrix products `count` threads from now on; left as a context, it restores the number.

    Idle threads of OpenBLAS wait by spinning, which costs cores that others need, and products of small networks gain
    nothing by them. Where one of `VARIABLES` is set, the number stays as it is.
    """
    if any(name in os.environ for name in VARIABLES):
        return nullcontext()
    limited: AbstractContextManager[Any] = _controller().limit(limits=count, user_api="blas")
    return limited


@functools.cache
def _controller() -> ThreadpoolController:
    import numpy  # noqa: F401 - its library must be there to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
