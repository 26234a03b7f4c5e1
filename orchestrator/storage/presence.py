"""A driver's heartbeat and the requests to it: two small files in a search's folder."""

import contextlib
import getpass
import json
import math
import os
import socket
import time
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from orchestrator.errors import InputError
from orchestrator.problems import describe
from orchestrator.storage import paths
from orchestrator.storage.files import check_size, parse_json
from orchestrator.storage.folder import Folder

DRIVER = "driver.json"
"""The driver of the search, and its last heartbeat; removed when the search ends."""
REQUEST = "request.json"
"""The request to a driver; removed when the driver has taken it."""
LOOK_SECONDS = 2.0
"""How often a driver checks for requests and sends a heartbeat."""
SILENT_LOOKS = 8
"""How many looks a new driver of a search on an object store waits for another driver's heartbeat."""
SILENT_SECONDS = 60.0
"""A driver without a heartbeat for this long is dead (on its own machine its process is checked)."""

Request = Literal["stop", "pause"]
DONE_BY = {"stop": "stopped", "pause": "paused"}


class DriverNote(BaseModel):
    by: str
    host: str
    pid: int = Field(gt=0, lt=2**31)
    time: FiniteFloat = Field(0, ge=0)


class RequestNote(BaseModel):
    request: Request = Field(alias="wish")
    by: str = "somebody"


Note = TypeVar("Note", DriverNote, RequestNote)


def myself() -> str:
    """`user@host`"""
    user = "somebody"
    with contextlib.suppress(KeyError, OSError):
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


def show_driver(folder: Path) -> None:
    _write(folder, DRIVER, this_process())


def this_process() -> dict[str, Any]:
    return {"by": myself(), "host": socket.gethostname(), "pid": os.getpid()}


def send_request(folder: Path, request: Request) -> None:
    """Ask the driver of the search in this folder; it reacts within seconds."""
    _write(folder, REQUEST, {"wish": request, "by": myself()})


def pending_request(folder: Path) -> Request | None:
    """The request that the driver has not taken yet."""
    note = read_note(folder, REQUEST, RequestNote)
    return None if note is None else note.request


def driver(folder: Path) -> dict[str, Any] | None:
    """Who drives the search in this folder now (`by`, `host`, `pid`), or None if nobody does."""
    note = read_note(folder, DRIVER, DriverNote)
    if note is None or died_here(note):
        return None
    silent = time.time() - note.time / 1000
    return note.model_dump() if abs(silent) < SILENT_SECONDS else None


def living_driver(folder: Path) -> dict[str, Any] | None:
    """The live driver of a search on an object store, None if there is none; always None for a disk, which has a lock.
    A live driver repeats its heartbeat, so no clocks are compared. OSError if the store does not answer."""
    if paths.address_of(folder) is None or (before := Folder(folder).read(DRIVER)) is None:
        return None
    end = time.monotonic() + SILENT_LOOKS * LOOK_SECONDS
    while time.monotonic() < end and (note := read_note(folder, DRIVER, DriverNote)) and not died_here(note):
        time.sleep(LOOK_SECONDS / 4)
        if Folder(folder).read(DRIVER) != before:
            note = read_note(folder, DRIVER, DriverNote)
            return None if note is None else note.model_dump()
    return None


def died_here(note: DriverNote) -> bool:
    """Whether a driver was a process of this machine that is gone."""
    return is_gone(note.host, note.pid)


def is_gone(host: str, pid: int) -> bool:
    """Whether a process was one of this machine and is gone, or dead and only not yet waited for by its parent."""
    if host != socket.gethostname():
        return False
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _write(folder: Path, name: str, content: dict[str, Any]) -> None:
    text = json.dumps(content | {"time": math.floor(time.time() * 1000)})
    Folder(folder, patient=False).write(name, text.encode())


def read_note(folder: Path, name: str, kind: type[Note]) -> Note | None:
    """The content of this file of a search's folder; None if there is none, or the storage does not answer. InputError
    if it is damaged."""
    try:
        content = Folder(folder, patient=False).read(name)
        return None if content is None else kind.model_validate(parse_json(check_size(content)))
    except OSError:
        return None
    except ValidationError as error:
        reason = describe(error)
    except ValueError as error:
        reason = str(error)
    raise InputError(
        f"{paths.display_path(folder / name)}: damaged ({reason[:200]}): if nothing drives the search, delete this file"
    )
