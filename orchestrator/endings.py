"""How the program ends whatever comes: streams that are closed or full, and errors that nobody foresaw."""

import contextlib
import errno
import io
import os
import re
import signal
import stat
import sys
import tempfile
import threading
import traceback
from typing import Any

from orchestrator.errors import visible


class OutputFailed(OSError):
    """Standard output is closed, or what takes it is full."""


class _Results(io.FileIO):
    """Standard output; its errors are told from all others."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if _left(self.fileno(), error):
                return memoryview(data).nbytes
            raise OutputFailed(error.errno, error.strerror, "standard output") from None


class _Words(io.FileIO):
    """Standard error: a word that nobody takes ends nothing."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _left(self.fileno(), error)
            return memoryview(data).nbytes


def _left(descriptor: int, error: OSError) -> bool:
    """Whether whoever read this stream has gone, with its pipe or terminal. Then this process gets a SIGHUP, as of any
    closed terminal, and what is written to the stream from here on goes nowhere."""
    if error.errno not in (errno.EPIPE, errno.EIO) or stat.S_ISREG(os.fstat(descriptor).st_mode):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    os.kill(os.getpid(), signal.SIGHUP)
    return True


def say(line: str) -> None:
    """A line on standard error, from a signal's handler or another thread."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def prepare() -> None:
    """Before anything else: no file that is opened later becomes a standard stream because that was closed, writing to
    them fails in one way, and an error in a thread is one line too."""
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):  # what is written to 1 then fails
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 (held for the process's life)
    sys.stdout, sys.stderr = _stream(sys.stdout, _Results(1, "w", False)), _stream(sys.stderr, _Words(2, "w", False))
    threading.excepthook = lambda failed: unforeseen(failed.exc_value) if failed.exc_value is not None else None


def _stream(given: Any, raw: io.FileIO) -> io.TextIOWrapper:
    """Text of any kind can be written to it: what its encoding lacks is escaped."""
    lines = raw.isatty() or raw.fileno() == 2
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(given, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=lines,
        write_through=bool(getattr(given, "write_through", False)),
    )


def flush() -> int:
    """Standard output is written out; the exit code if it cannot be, after one line."""
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"error: standard output: cannot be written ({error.strerror or error})", file=sys.stderr)
        return silenced(2)
    return 0


def silenced(code: int) -> int:
    """What is left in the buffer of standard output goes nowhere, so that Python does not try again; the code."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return code


def unforeseen(error: BaseException) -> int:
    """One line about an error that is the program's own fault, and a file with the rest; the exit code."""
    what = " ".join(traceback.format_exception_only(error)[-1].split())
    what = re.sub(r"://[^\s'\"]*@", "://***@", what)  # an address may hold a password
    where = ""
    with (
        contextlib.suppress(OSError),
        tempfile.NamedTemporaryFile(
            "w", prefix="orchestrator-error-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file,
    ):
        file.write("".join(traceback.format_exception(error)))
        where = f"; where it happened is written in {file.name}"
    print(f"error: nobody foresaw this: {visible(what[:500])}{where}", file=sys.stderr)
    return 1
