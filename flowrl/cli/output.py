"""Standard streams that outlive their readers, and errors of the machine in one line."""

from __future__ import annotations

import errno
import io
import os
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

import click

from flowrl.errors import FlowError, notes_of, out_of_memory, printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

#: What a machine refuses, whatever the code is: it wants a line, not a traceback.
OF_THE_MACHINE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENAMETOOLONG),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EACCES, errno.EPERM),
}


class Lasting(io.FileIO):
    """A standard stream. Once a write fails it leads nowhere: a full disk or a closed pipe ends no training.

    Attributes:
        lost: Why output was lost, None if none was.
    """

    lost: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or drop the data. Says so once, unless the reader of a pipe has left, who knows."""
        try:
            return super().write(data)
        except OSError as error:
            known, self.lost = self.lost is not None, error
            with suppress(OSError):
                if self.fileno() == 1 and error.errno != errno.EPIPE and not known:
                    os.write(2, f"standard output cannot be written: {error.strerror}\n".encode())
                null = os.open(os.devnull, os.O_WRONLY)  # for whatever else writes to this number
                os.dup2(null, self.fileno())
                os.close(null)
            return memoryview(data).nbytes


class LastingText(io.TextIOWrapper):
    """Text over a `Lasting` file."""

    def __init__(self, raw: Lasting, *, write_through: bool = False, **how: Any) -> None:
        buffer: Any = raw if write_through else io.BufferedWriter(raw)
        super().__init__(buffer, write_through=write_through, **how)
        self.raw = raw


def fill_closed() -> None:
    """Open the null device in place of standard streams that are closed, whose numbers other files would get."""
    for number in range(3):  # the lowest free number is used first
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def lasting(stream: TextIO | None, number: int) -> TextIO:
    """The stream as one that lasts, or itself if it is no file; None is a stream that was closed at the start."""
    if stream is None:
        return LastingText(Lasting(number, "wb", closefd=False))
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return LastingText(
        Lasting(stream.fileno(), "wb", closefd=False),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def was_lost(stream: TextIO) -> bool:
    """Whether a stream of `lasting` could not be written."""
    stream.flush()
    return isinstance(stream, LastingText) and stream.raw.lost is not None


def in_a_line(error: BaseException) -> str | None:
    """An error of the machine, such as a full disk, in one line; None for any other error."""
    if out_of_memory(error):
        return f"not enough memory: {str(error).strip().partition(chr(10))[0]}".removesuffix(": ")
    if not isinstance(error, OSError) or error.errno not in OF_THE_MACHINE:
        return None
    way_out = ": raise the limit with ulimit -n" if error.errno == errno.EMFILE else ""
    name = "" if error.filename is None else os.fsdecode(error.filename)
    return f"{name if len(name) < 200 else f'{name[:80]}...{name[-80:]}'}: {error.strerror}{way_out}".removeprefix(": ")


def complain(error: Exception) -> None:
    """Print why a run failed: with a traceback, unless it tells nothing more."""
    words = str(error) if isinstance(error, FlowError) and not notes_of(error) else in_a_line(error)
    if words is None:
        click.echo(printable("".join(traceback.format_exception(error))), err=True, nl=False)
    else:
        click.echo(printable("\n".join([f"Error: {words}", *notes_of(error)])), err=True)
