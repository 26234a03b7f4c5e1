"""A user's tags and note of a search: a small file in its folder, apart from the record of what happened."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.errors import InputError
from orchestrator.problems import describe, format_value
from orchestrator.storage import paths
from orchestrator.storage.files import check_size, parse_json
from orchestrator.storage.folder import Folder

LABELS = "labels.json"
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,49}")
NOTE_CHARACTERS = 2_000
MAX_TAGS = 50


class Labels(BaseModel):
    """Tags, in the order in which they were added, and a note."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    tags: list[str] = []
    note: str = ""

    @classmethod
    def of(cls, tags: Sequence[str], note: str) -> Self:
        """InputError for a tag that is not one word, for too many, or for a note that is too long."""
        for tag in tags:
            if not TAG.fullmatch(tag):
                raise InputError(
                    f"TAG: {format_value(tag)} should be up to 50 letters, digits, '.', '_', '-' or '=', "
                    "beginning with a "
                    "letter or digit"
                )
        if len(tags) > MAX_TAGS:
            raise InputError(f"TAG: {len(tags)} tags; at most {MAX_TAGS} are allowed")
        if len(note) > NOTE_CHARACTERS:
            raise InputError(f"TEXT: {len(note):,} characters; at most {NOTE_CHARACTERS:,} are allowed")
        return cls(tags=list(tags), note=note.strip())


def read_labels(folder: Path) -> Labels:
    """The tags and the note of the search in a folder. InputError if their file is damaged."""
    try:
        content = Folder(folder, patient=False).read(LABELS)
        return Labels() if content is None else Labels.model_validate(parse_json(check_size(content)))
    except OSError:
        return Labels()
    except ValidationError as error:
        reason = describe(error)
    except ValueError as error:
        reason = str(error)
    raise InputError(f"{paths.display_path(folder / LABELS)}: damaged ({reason[:200]}): delete this file")


def write_labels(folder: Path, labels: Labels) -> None:
    """Replace the tags and the note of the search in a folder. InputError if that cannot be written."""
    try:
        Folder(folder, patient=False).write(LABELS, labels.model_dump_json().encode())
    except OSError as error:
        place = paths.display_path(folder / LABELS)
        raise InputError(f"{place}: cannot be written ({error.strerror or error})") from None
