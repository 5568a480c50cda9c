"""Standard streams that outlive their readers, and errors of the machine in one line."""

from __future__ import annotations

import errno
import io
import os
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

import click

from flowrl.errors import EnvFault, FlowError, notes_of, out_of_memory, printable
from flowrl.frames import in_lines, own_frames

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


def unclosable(stream: TextIO | None, number: int) -> TextIO:
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


def lost_output(stream: TextIO) -> bool:
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


def complain(error: Exception, *, whole: bool = False) -> None:
    """Print why a run failed: see `message_of`."""
    click.echo(printable(message_of(error, whole=whole)), err=True)


def message_of(error: Exception, *, whole: bool = False) -> str:
    """Why something failed, with the user's own lines of the traceback; with all of them if `whole`.

    A fault of an environment says where it was and what to do; nothing else is of interest then. An error that is none
    of flowrl's and has no line of the user's has its whole traceback.
    """
    text, notes = "".join(traceback.format_exception(error)).rstrip(), notes_text(error)
    if whole:
        return text
    if (words := in_a_line(error)) is not None:
        return "\n".join([f"Error: {words}", *notes])
    frames = in_lines(own_frames(text))
    name = "" if isinstance(error, FlowError) else f"{type(error).__name__}: "
    first = f"Error: {name}{error}".removesuffix(": ")
    if isinstance(error, EnvFault):
        return first
    if is_env_fault(error):
        where = next(note for note in notes if note.startswith(IN_ENV))
        return "\n".join([first, *frames, *(note for note in notes if not note.startswith(_PLACES)), where])
    if not frames and not isinstance(error, FlowError):
        return text
    return "\n".join([first, *frames * bool(name or notes), *notes])


def notes_text(error: BaseException) -> list[str]:
    """What was added to an error on its way, but for the tracebacks of workers; nothing to a fault, which says all."""
    notes = [] if isinstance(error, EnvFault) else notes_of(error)
    return [note.partition(":\nTraceback")[0] for note in notes]


#: How the note begins that names the environment whose error it was, and all notes of places.
IN_ENV = "in environment"
_PLACES = (IN_ENV, "in operator ", "raised in ")


def is_env_fault(error: Exception) -> bool:
    """Whether an environment failed, or gave what it should not."""
    return isinstance(error, EnvFault) or any(note.startswith(IN_ENV) for note in notes_of(error))


def echo(text: str, *, err: bool = False) -> None:
    """Print text, part of which may come from a file of somebody else."""
    click.echo(printable(text), err=err)
