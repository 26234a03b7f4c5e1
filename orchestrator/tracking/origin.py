"""Which folder sent a run to a tracker: a copy of a search has the same records of what was sent, and sent nothing."""

import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from orchestrator.errors import InputError
from orchestrator.storage.cursors import Cursor
from orchestrator.storage.folder import Folder
from orchestrator.storage.paths import address_of, working_copy

ORIGIN = "orchestrator.sent_from"
"""The tag of a run that says it."""


@dataclass(frozen=True)
class Origin:
    """A folder of a search or a benchmark: its path on a machine, or its address in an object store."""

    folder: str
    host: str = ""
    inode: int = 0
    """The same on all machines that share its disk, and after it was renamed; a copy has another. 0 for an address."""

    @classmethod
    def of(cls, folder: Path) -> Self:
        if (address := address_of(folder)) is not None:
            return cls(address)
        resolved = folder.resolve()
        return cls(str(resolved), socket.gethostname(), resolved.stat().st_ino)

    @classmethod
    def read(cls, text: str | None) -> Self | None:
        """What `tag` wrote; None if it is missing, as in runs of earlier versions, or does not have this form."""
        try:
            read = cls(**json.loads(text or ""))
        except (ValueError, TypeError):
            return None
        return read if [type(value) for value in asdict(read).values()] == [str, str, int] else None

    @property
    def tag(self) -> str:
        """As a tag's text."""
        return json.dumps(asdict(self), ensure_ascii=False)

    def other_than(self, folder: Path, record: str, run_id: str) -> str | None:
        """Where this is, if it is another folder than this one, of which it cannot be said that it is gone; else None.

        `record`: the name of the file in it that lists the runs that it sent to the tracker. A folder that was moved is
        the same one: on its disk by its inode, to another disk because nothing is left at its place.
        """
        here = type(self).of(folder)
        same_place = self.folder == here.folder
        if same_place and (self.host == here.host or self.inode == here.inode):
            return None
        if not self.host:
            return self.folder if _has_objects(self.folder) else None
        if self.host == here.host:
            return self.folder if run_id in Cursor.load(Path(self.folder) / record).runs.values() else None
        return None if self.inode == here.inode else f"{self.folder} on {self.host}"


def _has_objects(address: str) -> bool:
    """Whether something is at an address in an object store; also if the store does not say."""
    try:
        return not Folder(working_copy(address), patient=False).is_empty()
    except (InputError, OSError):
        return True
