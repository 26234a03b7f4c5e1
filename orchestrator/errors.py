"""The errors shown to a user: one line each, and the exit code of each."""

import contextlib
import difflib
import errno
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class InputError(ValueError):
    """Bad input. The message is one line: the file or option, the value, and what is allowed. It lists all problems
    if there are several.

    The command line prints it without a traceback, one line per problem, and exits with code 2.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Problems:
    """Collects the problems of a file or a command line, to report them at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """An InputError in this block is collected; it ends only the block."""
        try:
            yield
        except InputError as error:
            self.found += error.problems

    def tell(self) -> None:
        """Raise InputError with all problems, each once, if there are any."""
        if self.found:
            raise InputError(*dict.fromkeys(self.found))


class TrainingFailed(RuntimeError):
    """A training that cannot continue (e.g. a loss that is not finite). It ends its trial; the search continues."""


class OutOfMemory(TrainingFailed):
    """A training that needs more memory than there is; a retry would too. `of_batch`: a smaller batch needs less."""

    def __init__(self, message: str, *, of_batch: bool) -> None:
        super().__init__(message)
        self.of_batch = of_batch


def place_of(error: BaseException) -> str:
    """Where a user's code raised an error: ", in loss, method.py line 9"; "" where that is not in a user's file."""
    packages, ours = Path(sysconfig.get_path("purelib")), Path(__file__).parent
    python = Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not any(path.is_relative_to(folder) for folder in (packages, ours, python)):
            return f", in {frame.name}, {path.name} line {frame.lineno}"
    return ""


class ClusterFailed(RuntimeError):
    """Ray could not be started on this machine. One line; exit code 1."""


STORAGE_FAULTS = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "ESTALE", "ENODEV", "ENXIO", "ENOTCONN", "ETIMEDOUT")
    if hasattr(errno, name)
}


def storage_fault(error: BaseException) -> str | None:
    """The disk fault behind an error, in one line; None if it is another error.

    It is not the fault of a point: the search stops, and can be resumed when the disk is repaired. Of an error in
    another process only the text is known.
    """
    if not isinstance(error, OSError):
        numbers = [int(number) for number in re.findall(r"\bOSError: \[Errno (\d+)\]", str(error))]
        return next((os.strerror(number) for number in numbers if number in STORAGE_FAULTS), None)
    if error.errno not in STORAGE_FAULTS:
        return None
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, characters that change the text direction, and lone surrogates."""


def visible(text: str) -> str:
    """A text with these escaped: text from files and names must not control the terminal."""
    return UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


MOST_SHOWN = 60
MOST_OF_A_LINE = 2_000


def shown(value: object) -> str:
    """A given value as shown in a message; a long one is truncated."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python prints
        return f"a very long {type(value).__name__}"
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 20]}... ({len(text):,} characters)"


def one_line(message: str) -> str:
    """A message as one line for a terminal: words and lines that are too long are truncated."""
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


def unknown(name: object, known: Iterable[str]) -> str:
    """`'gpu' is unknown (known: auto, cpu, cuda)`; of more than three choices, the one that may be meant."""
    names = sorted(known)
    return f"{shown(name)} is unknown" + (
        f" (known: {', '.join(names)})" if len(names) <= 3 else suggestion(name, names)
    )


def describe(error: "ValidationError") -> str:
    """pydantic's first error as `field: value: what is allowed`."""
    return complaints(error)[0]


def complaints(error: "ValidationError") -> list[str]:
    """pydantic's errors, one per field, as `field: value: what is allowed`."""
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
        return f"{name}: {unknown(its['input'], known)}"
    message = in_plain_words(message)
    given = re.sub(r"://[^\s'\"]*@", "://***@", shown(its["input"]))  # an address may contain a password
    return f"{name}: {given}: {message[:1].lower() + message[1:]}" if name else message


def in_plain_words(message: str) -> str:
    """A message of pydantic in our words."""
    for theirs, ours in PLAIN_WORDS.items():
        message = message.replace(theirs, ours)
    return re.sub(r" or instance of \w+", "", message)


PLAIN_WORDS = {
    "Input should be": "should be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
    "a valid integer, unable to parse string as an integer": "a whole number",
    "a valid number, unable to parse string as a number": "a number",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid list": "a list",
    "a valid dictionary": "a mapping",
    "String should match pattern '^[0-9a-fA-F]{64}$'": "should be 64 hexadecimal digits",
}
"""pydantic's terms, and those for the author of a search file."""


class DataError(InputError):
    """An error in a data set or in its use; one line that says how to fix it."""
