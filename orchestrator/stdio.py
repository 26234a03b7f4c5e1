"""How the program ends: closed or full output streams, and unexpected errors."""

import atexit
import contextlib
import errno
import io
import os
import signal
import stat
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from orchestrator.errors import redact, visible


class OutputFailed(OSError):
    """Standard output is closed, or its target is full."""


class _Stdout(io.FileIO):
    """Standard output; its errors have a class of their own."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if _reader_gone(self.fileno(), error):
                return memoryview(data).nbytes
            raise OutputFailed(error.errno, error.strerror, "standard output") from None


class _Stderr(io.FileIO):
    """Standard error; a failed write is ignored."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _reader_gone(self.fileno(), error)
            return memoryview(data).nbytes


_broken_pipes: list[int] = []
"""Descriptors of streams whose reader closed the pipe, as `| head` does."""


def code_of_hangup() -> int:
    """The exit code after a SIGHUP: 141, that of SIGPIPE, if the cause is a closed pipe; otherwise 129."""
    return 128 + (signal.SIGPIPE if _broken_pipes else signal.SIGHUP)


def _reader_gone(descriptor: int, error: OSError) -> bool:
    """Whether the reader of this stream is gone, with its pipe or terminal. Then this process gets a SIGHUP, as for any
    closed terminal, and later output to the stream is discarded."""
    if error.errno not in (errno.EPIPE, errno.EIO) or stat.S_ISREG(os.fstat(descriptor).st_mode):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    if error.errno == errno.EPIPE:
        _broken_pipes.append(descriptor)
    os.kill(os.getpid(), signal.SIGHUP)
    return True


def write_line(line: str) -> None:
    """Write a line to standard error, from a signal handler or another thread."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def read_lines() -> Iterator[bytes]:
    """The lines of stdin, read without a buffer, which a thread would hold locked when Python ends."""
    rest = b""
    while block := os.read(0, 1 << 16):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines


def prepare_streams() -> None:
    """Run this first. If a standard stream is closed, no file opened later can take its descriptor; write errors are
    uniform, and an error in a thread is reported in one line too."""
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):  # writing to 1 then fails
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 (held for the process's life)
    sys.stdout, sys.stderr = _stream(sys.stdout, _Stdout(1, "w", False)), _stream(sys.stderr, _Stderr(2, "w", False))
    threading.excepthook = lambda failed: (
        report_internal_error(failed.exc_value) if failed.exc_value is not None else None
    )


def _stream(given: Any, raw: io.FileIO) -> io.TextIOWrapper:
    """A text stream that accepts any text: characters missing from its encoding are escaped."""
    lines = raw.isatty() or raw.fileno() == 2
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(given, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=lines,
        write_through=bool(getattr(given, "write_through", False)),
    )


def flush() -> int:
    """Flush standard output. If that fails, print one line and return the exit code."""
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"error: standard output: cannot be written ({error.strerror or error})", file=sys.stderr)
        return silence(2)
    return 0


def silence(code: int) -> int:
    """Discard the rest of standard output's buffer, so that Python does not retry; returns the code."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return code


def leave(code: object) -> None:
    """End this process as `sys.exit(code)` would: threads are waited for, functions registered for the end run, streams
    are flushed. But Python does not free each object first, which takes up to 3 s after torch, Ray and MLflow."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]  # as processes of multiprocessing end
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def report_internal_error(error: BaseException) -> int:
    """Print one line about an internal error and write the traceback to a file; returns the exit code."""
    what = " ".join(traceback.format_exception_only(error)[-1].split())
    what = redact(what)
    where = ""
    with (
        contextlib.suppress(OSError),
        tempfile.NamedTemporaryFile(
            "w", prefix="orchestrator-error-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file,
    ):
        file.write(redact("".join(traceback.format_exception(error))))
        where = f"; where it happened is written in {file.name}"
    print(f"error: unexpected: {visible(what[:500])}{where}", file=sys.stderr)
    return 1
