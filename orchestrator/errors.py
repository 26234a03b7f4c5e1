"""The errors that a user reads: one line each, and the exit code that goes with it."""

import contextlib
import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class InputError(ValueError):
    """Bad input. The message is one line naming the file or option, the value, and what would be right; of several
    problems, all of them.

    The command line prints it without a traceback, a line for each of the problems, and exits with code 2.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Problems:
    """Collects what is wrong with a file or a command line, to tell it at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """An InputError ends this part only."""
        try:
            yield
        except InputError as error:
            self.found += error.problems

    def tell(self) -> None:
        """InputError with all of them, each once, if there are any."""
        if self.found:
            raise InputError(*dict.fromkeys(self.found))


class TrainingFailed(RuntimeError):
    """A training that cannot go on (its loss is not finite, say). Ends its trial; the search goes on."""


class OutOfMemory(TrainingFailed):
    """A training that asks for more memory than there is; it would again. `of_batch`: a smaller batch asks for less."""

    def __init__(self, message: str, *, of_batch: bool) -> None:
        super().__init__(message)
        self.of_batch = of_batch


class ClusterFailed(RuntimeError):
    """Ray could not be started here. One line; exit code 1."""


STORAGE_FAULTS = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "ESTALE", "ENODEV", "ENXIO", "ENOTCONN", "ETIMEDOUT")
    if hasattr(errno, name)
}


def storage_fault(error: BaseException) -> str | None:
    """What is wrong with the disk that an error tells of, in one line; None if it tells of something else.

    No point of a search is to blame for it: the search stops, and goes on when the disk is mended. An error from
    another process brings only its text.
    """
    if not isinstance(error, OSError):
        numbers = [int(number) for number in re.findall(r"\bOSError: \[Errno (\d+)\]", str(error))]
        return next((os.strerror(number) for number in numbers if number in STORAGE_FAULTS), None)
    if error.errno not in STORAGE_FAULTS:
        return None
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tab and line feed, those that turn the direction of a text, and halves of characters."""


def visible(text: str) -> str:
    """A text with these escaped: what comes from files and names must not steer a terminal."""
    return UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


MOST_SHOWN = 60
MOST_OF_A_LINE = 2_000


def shown(value: object) -> str:
    """A value that somebody gave, as a message says it: a long one is cut."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python writes
        return f"a very long {type(value).__name__}"
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 20]}... ({len(text):,} characters)"


def one_line(message: str) -> str:
    """A message as one line for a terminal: words and lines that are too long are cut."""
    words = [
        w if len(w) <= 10 * MOST_SHOWN else f"{w[:MOST_SHOWN]}... ({len(w):,} characters)" for w in message.split()
    ]
    line = visible(" ".join(words))
    return line if len(line) <= MOST_OF_A_LINE else f"{line[:MOST_OF_A_LINE]}..."


def suggestion(name: object, known: Iterable[str]) -> str:
    """` (did you mean 'delta'?)` for a misspelling of a known name, otherwise the list of known names."""
    names = sorted(known)
    if len(str(name)) > 2 * MOST_SHOWN:
        return ""
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return f" (did you mean '{close[0]}'?)"
    return f" (known: {', '.join(names)})" if names else ""


def describe(error: "ValidationError") -> str:
    """pydantic's first complaint as `field: value: what would be right`."""
    return complaints(error)[0]


def complaints(error: "ValidationError") -> list[str]:
    """pydantic's complaints, one of each field, as `field: value: what would be right`."""
    found: dict[str, str] = {}
    for number, its in enumerate(error.errors()):
        found.setdefault(str(its["loc"][0]) if its["loc"] else f" {number}", _complaint(its))
    return list(found.values())


def _complaint(its: Any) -> str:
    parts = [str(part) for part in its["loc"] if part not in ("int", "float", "str") and "[" not in str(part)]
    name, message = ".".join(parts), its["msg"].removeprefix("Value error, ")
    if its["type"] == "extra_forbidden":
        return f"{name}: no such key"
    if its["type"] == "missing":
        return f"{name}: this key is required"
    if its["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", its["ctx"]["expected"])
        message += suggestion(its["input"], known) if len(known) > 3 else ""
    for theirs, ours in PLAIN_WORDS.items():
        message = message.replace(theirs, ours)
    message = re.sub(r" or instance of \w+", "", message)
    given = re.sub(r"://[^\s'\"]*@", "://***@", shown(its["input"]))  # an address may hold a password
    return f"{name}: {given}: {message[:1].lower() + message[1:]}" if name else message


PLAIN_WORDS = {
    "Input should be": "should be",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid list": "a list",
    "a valid dictionary": "a mapping",
    "String should match pattern '^[0-9a-fA-F]{64}$'": "should be 64 hexadecimal digits",
}
"""pydantic's words, and those of somebody who writes a search file."""


class DataError(InputError):
    """Something is wrong with a data set or with what is asked of it; one line that says how to make it right."""
