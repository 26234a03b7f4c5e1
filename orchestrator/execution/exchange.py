"""What the driver of a search and the processes that join it write for each other: small files in the search's folder.

Each file has one writer at a time, so that no lock is needed, and what a reader sees is whole or is looked at again:

- `work/code.json`, by the driver: the versions and the code that all must have (`Code`);
- `work/JOINER/task.json`, by the driver: what the process trains, how many of its messages are answered (`Assignment`);
- `work/JOINER/messages.jsonl`, by the process: what it did, a `Message` a line, and a sign of life every few seconds;
- `work/JOINER/output.log`, by the process that trains for it: all that the training prints;
- `work/driver.NNNN`, created by the process that begins to drive the search as its NNNN-th successor (`Takeover`): only
  one can create it;
- `work/stopped.json`, by a driver whose search goes on only if it is resumed (`Stopped`).

Nobody compares clocks: who lives, makes a file change. All is JSON, and a process works in the trial's folder of its
own storage only, whatever these files say.
"""

import contextlib
import json
import re
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.execution.protocol import Failed, Interrupted, Result, Validated, Work
from orchestrator.storage.folder import Folder
from orchestrator.storage.opening import make_folder, open_file
from orchestrator.storage.paths import NAME
from orchestrator.storage.places import WORK
from orchestrator.storage.presence import DriverNote, died_here, this_process

if TYPE_CHECKING:
    from orchestrator.storage.places import Places

CODE = "code.json"
STOPPED = "stopped.json"
TASK = "task.json"
MESSAGES = "messages.jsonl"
OUTPUT = "output.log"
TAKEOVER = re.compile(r"driver\.(\d{4,9})")
OVER = b"over\n"
"""The last line of a takeover whose driver has ended."""

LOOK_SECONDS = 0.2
"""How often both sides look for what the other wrote."""
BEAT_SECONDS = 2.0
"""How often a process that joined gives a sign of life."""
LOST_SECONDS = 60.0
"""After how many seconds without one it is lost, unless it says another limit; likewise the driver."""

RESULTS: Mapping[str, Any] = {"validated": Validated, "failed": Failed, "interrupted": Interrupted}


class Code(BaseModel):
    """What the driver has, and those who join must have too."""

    versions: dict[str, str]
    digest: str


class Stopped(BaseModel):
    """Why a search goes on only if it is resumed."""

    reason: str


class Assignment(BaseModel):
    """What a process trains: nothing, without `id`."""

    id: str = ""
    trial_id: str = ""
    work: dict[str, Any] = {}
    answered: int = 0
    """Up to which of the task's messages the driver has taken them; the training goes on."""
    ended: str = ""
    """The state of the search, once it has ended."""


class Message(BaseModel):
    """What a process says. `returned`: it gives its trial back; `lost`: the process that trained it died."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    kind: Literal["joined", "alive", "validated", "failed", "interrupted", "lost", "returned", "left"]
    host: str = ""
    by: str = ""
    pid: int = 0
    lost_after: float = Field(LOST_SECONDS, gt=0, le=86400)
    """Of `joined`: the seconds without a sign of life after which it is lost."""
    task: str = ""
    number: int = 0
    """Of a task's messages: 1, 2, 3, ..."""
    reason: str = ""
    result: dict[str, Any] = {}

    def content(self, trial_id: str) -> Result:
        """The result that a message holds, of this trial; whatever is no result fails it."""
        try:
            result: Result = _adapter(self.kind).validate_python(self.result)
            if result.trial_id == trial_id:
                return result
        except ValidationError:
            pass
        return Failed(trial_id, "the process that trained it sent no valid result", failure="code")


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(RESULTS[kind])


def result_fields(result: Result) -> dict[str, Any]:
    """A result as a message's `kind` and `result`."""
    kind = next(kind for kind, of in RESULTS.items() if isinstance(result, of))
    return {"kind": kind, "result": asdict(result)}


def task_work(work: Work) -> dict[str, Any]:
    """A work as plain values, without the places: a process knows its own."""
    values = {one.name: getattr(work, one.name) for one in fields(work)}
    for place in ("experiment", "data", "folder"):
        del values[place]
    return json.loads(json.dumps({**values, "settings": work.experiment.flat()}, default=str))  # type: ignore[no-any-return]


def read_work(values: Mapping[str, Any], places: "Places", search: str) -> Work:
    """The work of a task, in the places of this machine. InputError or TypeError if it is none."""
    from orchestrator.config.training import resolve_experiment

    plain = dict(values)
    if not NAME.fullmatch(trial_id := str(plain.get("trial_id", ""))):
        raise TypeError(f"the trial {trial_id!r}")
    experiment = resolve_experiment(plain.pop("settings"), "work")
    folder = places.search(search) / "trials" / trial_id
    return Work(**plain, experiment=experiment, data=str(places.data), folder=str(folder))


Note = TypeVar("Note", Code, Stopped, Assignment)


def read(folder: Path, name: str, kind: type[Note]) -> Note | None:
    """One of these files; None if there is none, or for now none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        content = Folder(folder, patient=False).read(name)
        return None if content is None else kind.model_validate_json(content)
    return None


def write(folder: Path, name: str, note: BaseModel) -> None:
    """Write one of these files, whole or not at all."""
    Folder(folder, patient=False).write(name, note.model_dump_json().encode())


class Messages:
    """The messages of one process, as far as they were read."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / MESSAGES
        self.offset = 0

    def read(self) -> list[Message]:
        """The new ones. Of a line that is none nothing is said: its writer may have died in it."""
        with contextlib.suppress(OSError, ValueError), open_file(self.path) as file:
            file.seek(self.offset)
            *lines, _ = file.read().split(b"\n")
            self.offset += sum(len(line) + 1 for line in lines)
            messages = []
            for line in lines:
                with contextlib.suppress(ValueError):
                    messages.append(Message.model_validate_json(line))
            return messages
        return []


def send(folder: Path, **message: Any) -> None:
    """Add a message of the process of this folder. OSError if it cannot be written."""
    line = Message(**message).model_dump_json(exclude_defaults=True)
    with open_file(folder / MESSAGES, "ab") as file:
        file.write(f"{line}\n".encode())


def join_folder(search: Path) -> Path:
    """A folder for a process that joins a search, with a name that no other has."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40].lstrip("-") or "host"
    folder = search / WORK / f"{host}-{this_process()['pid']}-{uuid.uuid4().hex[:6]}"
    make_folder(folder)
    return folder


def joiners(search: Path) -> list[Path]:
    """The folders of the processes that joined a search, in the order of their names."""
    return [search / WORK / name for name in Folder(search / WORK).folders() if NAME.fullmatch(name)]


@dataclass
class Pulse:
    """Whether a file changes, by this process's clock."""

    path: Path
    content: bytes | None = None
    changed: float = 0.0

    def silent_seconds(self) -> float:
        """Seconds since it was last seen to change; it counts as changed when first looked at. Infinite if there is no
        file, or its process was one of this machine and is gone."""
        try:
            content = Folder(self.path.parent, patient=False).read(self.path.name)
        except (OSError, ValueError):
            content = self.content
        if content is None or content.endswith(OVER) or _writer_died_here(content):
            return float("inf")
        if content != self.content or not self.changed:
            self.content, self.changed = content, time.monotonic()
        return time.monotonic() - self.changed


def _writer_died_here(content: bytes) -> bool:
    try:
        return died_here(DriverNote.model_validate_json(content.partition(b"\n")[0]))
    except ValidationError:
        return False


class Takeover:
    """The right to drive a search whose driver is gone. Of those who see that, one gets it: its file is new."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def latest(cls, search: Path) -> int:
        """The number of the last one; 0 if there was none."""
        names = (TAKEOVER.fullmatch(path.name) for path in (search / WORK).glob("driver.*"))
        return max((int(name[1]) for name in names if name), default=0)

    @classmethod
    def path_of(cls, search: Path, number: int) -> Path:
        """Its file."""
        return search / WORK / f"driver.{number:04d}"

    @classmethod
    def attempt(cls, search: Path, number: int) -> "Takeover | None":
        """The takeover of this number, None if another process has it. OSError if the folder cannot be written."""
        path = cls.path_of(search, number)
        try:
            with open_file(path, "xb") as file:
                file.write(json.dumps(this_process()).encode() + b"\n")
        except FileExistsError:
            return None
        return cls(path)

    def renew(self) -> None:
        """Give a sign of life, while its driver begins and runs."""
        self._add(b".")

    def end(self) -> None:
        """Say that its driver has ended."""
        self._add(b"\n" + OVER)

    def _add(self, content: bytes) -> None:
        with contextlib.suppress(OSError), open_file(self.path, "ab") as file:
            file.write(content)
