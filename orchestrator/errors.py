"""The errors shown to a user: one line each, and the exit code of each."""

import contextlib
import errno
import functools
import os
import platform
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

from orchestrator.problems import (
    MAX_SHOWN,
    KeyPath,
    Naming,
    Operand,
    Option,
    Problem,
    Step,
    option_in_python,
    suggestion,
)

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")

FULL = "dml-orchestrator"
REVIEW = "dml-orchestrator-review"
EXTRAS = {
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "export",
    "open_clip": "language",
    "psycopg": "server",
    "mcp": "mcp",
    "pytorch_metric_learning": "pml",
    "optunahub": "optunahub",
    "resvg_py": "emoji",
}
"""Packages that an extra brings."""
EXTRA_PACKAGES = {
    "emoji": "resvg-py",
    "export": "onnx onnxruntime onnxscript",
    "language": "open-clip-torch",
    "pml": "pytorch-metric-learning",
    "mcp": "mcp",
    "optunahub": "optunahub",
    "server": "'mlflow[auth]' 'psycopg[binary]'",
    "tensorboard": "tensorboard tensorboardX",
    "wandb": "wandb",
}
"""What is typed for an extra: the packages themselves, as this package's name is not registered at an index."""
HEAVY = (
    *("torch", "torchvision", "timm", "ray", "optuna", "mlflow", "faiss", "matplotlib", "safetensors", "cmaes"),
    *("pyarrow", "PIL", "packaging"),
)
"""Packages that the full installation has, and the one that only looks at a storage has not (deploy/review)."""


def missing_part(package: str) -> str:
    """What to install for a command that needs a package which is not installed."""
    needs = f"this needs the package {package}, which is not installed"
    if (extra := EXTRAS.get(package)) is not None:
        return f"{needs}: uv pip install {EXTRA_PACKAGES[extra]}"
    return f"{needs}: install {FULL}, of which this is a part, from its wheel or checkout"


def missing_for(option: Option, value: str, package: str, extra: str) -> Problem:
    """The same of one value of an option, `--to onnx`."""
    rule = f"needs the package {package}: uv pip install {EXTRA_PACKAGES[extra]}"
    return Problem((option, Operand(value)), rule=rule)


class InputError(ValueError):
    """Bad input: `details`, each a Problem. The message is one line and lists all.

    The command line prints it without a traceback, one line per problem, and exits with code 2.
    """

    problems: tuple[str, ...]
    """The message of each."""

    def __init__(self, *details: str | Problem) -> None:
        super().__init__()
        self.details = tuple(Problem(rule=one) if isinstance(one, str) else one for one in details)
        self.render(str)

    def render(self, naming: Naming) -> None:
        """Word the message for an interface, which names options in its own way."""
        self.problems = tuple(problem.text(naming) for problem in self.details)
        self.args = ("; ".join(self.problems),)

    def under(self, where: Step | KeyPath) -> Self:
        """The same, of values that stand further inside."""
        return type(self)(*(problem.under(where) for problem in self.details))


def refuse_system() -> None:
    """InputError on a system without POSIX's file locks, which keep a search to one process: Windows."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        raise InputError(
            f"{platform.system()} is not supported: use Linux or macOS, in Windows WSL 2 (orchestrator.Loss works here)"
        ) from None


ADDRESS = re.compile(r"\b(?!sqlite:)([a-zA-Z][\w+.-]*://)([^\s'\"]*)")


def redact(text: str) -> str:
    """A text in which `***` stands for the user part, the query and the fragment of each address: any may be secret.

    `http://***@host:5000/x?***`. A password may contain `@`, `?` and `#` as they are; if it is not clear where it ends,
    nothing of the address is left. Addresses of SQLite are paths and stay.
    """

    def hidden(address: re.Match[str]) -> str:
        user, at, rest = address[2].rpartition("@")
        if re.search("[?#]", user):
            return f"{address[1]}***"
        hidden_address = re.sub("([?#]).*", r"\1***", rest, count=1)
        return f"{address[1]}{'***@' if at else ''}{hidden_address}"

    return ADDRESS.sub(hidden, text)


TAKES_ANY = 0x08
"""The flag of a function that takes keywords of any name."""


def _no_argument(key: str, function: str, arguments: Iterable[str]) -> Problem:
    hint = suggestion(key, arguments)
    if not hint.names and "settings" in arguments:
        return Problem(
            (function, key), rule="no such argument", advice=f"; a setting is given as settings={{'{key}': ...}}"
        )
    return Problem((function, key), rule="no such argument", suggestion=hint)


def as_mapping(name: str, given: object) -> dict[str, Any]:
    """An argument of the Python interface that maps names to values, or is None."""
    if given is not None and not isinstance(given, Mapping):
        raise InputError(Problem((name,), given, "should be a mapping, such as {'epochs': 20}", begins_rule=True))
    return dict(given or {})


TEXTS: dict[Any, tuple[type, ...]] = {str | None: (str,), str | Path | None: (str, Path)}
"""The types of optional arguments that are texts, or paths."""


def _text_problem(argument: str, value: object, kinds: tuple[type, ...]) -> Problem | None:
    """What is wrong with an argument that should be a text, if anything is."""
    if value is not None and not isinstance(value, kinds):
        return Problem((argument,), value, "should be text", begins_rule=True)
    if isinstance(value, str) and not value.strip():
        return Problem((argument,), rule="is empty; give a value, or leave it out")
    return None


def in_python(function: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
    """A function whose InputErrors name its arguments, `settings`, `num_trials`, where the command line's name options,
    `--set`, `--num-trials`; it refuses what is no text where one is asked for."""
    code = function.__code__
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    texts = {name: TEXTS[kind] for name, kind in function.__annotations__.items() if kind in TEXTS}

    @functools.wraps(function)
    def call(*args: Asked.args, **named_: Asked.kwargs) -> Answer:
        if not code.co_flags & TAKES_ANY and (unknown := [key for key in named_ if key not in arguments]):
            raise InputError(*(_no_argument(key, function.__name__, arguments) for key in unknown))
        given = ((key, kinds) for key, kinds in texts.items() if key in named_)
        if wrong := [one for key, kinds in given if (one := _text_problem(key, named_[key], kinds)) is not None]:
            raise InputError(*wrong)
        try:
            return function(*args, **named_)
        except InputError as error:
            error.render(option_in_python)
            raise

    return call


class Problems:
    """Collects the problems of a file or a command line, to report them at once."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """An InputError in this block is collected; it ends only the block."""
        try:
            yield
        except InputError as error:
            self.found += error.details

    def tell(self) -> None:
        """Raise InputError with all problems, each once, if there are any."""
        if self.found:
            raise InputError(*{problem.text(): problem for problem in self.found}.values())


class TrainingFailed(RuntimeError):
    """A training that cannot continue (e.g. a loss that is not finite). It ends its trial; the search continues."""


class OutOfMemory(TrainingFailed):
    """A training that needs more memory than there is; a retry would too. `of_batch`: a smaller batch needs less."""

    def __init__(self, message: str, *, of_batch: bool) -> None:
        super().__init__(message)
        self.of_batch = of_batch


class Preempted(RuntimeError):
    """A training whose process is to end, as was announced: its state is written, and it goes on elsewhere."""


class DeviceLost(TrainingFailed):
    """A training that holds a GPU which its process cannot use."""


def place_of(error: BaseException) -> str:
    """Where a user's code raised an error: ", in loss, method.py line 9"; "" where that is not in a user's file."""
    packages, own_folder = Path(sysconfig.get_path("purelib")), Path(__file__).parent
    python = Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not any(path.is_relative_to(folder) for folder in (packages, own_folder, python)):
            return f", in {frame.name}, {path.name} line {frame.lineno}"
    return ""


def is_interrupt(error: BaseException) -> bool:
    """Whether it is a Ctrl-C, or another signal's; a KeyboardInterrupt that a user's code raises itself is none."""
    if not isinstance(error, KeyboardInterrupt) or (trace := error.__traceback__) is None:
        return isinstance(error, KeyboardInterrupt)
    while trace.tb_next is not None:
        trace = trace.tb_next
    import dis

    code = trace.tb_frame.f_code
    if dis.opname[code.co_code[trace.tb_lasti]] != "RAISE_VARARGS":  # a signal arrives at other instructions
        return True
    file, python = Path(code.co_filename), Path(sysconfig.get_path("stdlib"))  # both have handlers of signals
    in_python = file.is_relative_to(python) and "site-packages" not in file.relative_to(python).parts
    return in_python or file.is_relative_to(Path(__file__).parent)


class AlgorithmFailed(RuntimeError):
    """The algorithm of another package failed at a suggestion: the search stops, and can be resumed."""


class ClusterFailed(RuntimeError):
    """Ray could not be started on this machine. One line; exit code 1."""


STORAGE_FAULTS = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "ESTALE", "ENODEV", "ENXIO", "ENOTCONN", "ETIMEDOUT")
    if hasattr(errno, name)
}


def storage_fault(error: BaseException, folder: str | Path) -> str | None:
    """The disk fault behind an error, in one line; None if it is another error. `folder` is where the failed code
    writes: an error may name no file.

    It is not the fault of a point: the search stops, and can be resumed when the disk is repaired. Of an error in
    another process only the text is known.
    """
    if not isinstance(error, OSError):
        numbers = [int(number) for number in re.findall(r"\bOSError: \[Errno (\d+)\]", str(error))]
        return next((f"{folder}: {os.strerror(number)}" for number in numbers if number in STORAGE_FAULTS), None)
    return f"{error.filename or folder}: {error.strerror}" if error.errno in STORAGE_FAULTS else None


UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, characters that change the text direction, and lone surrogates."""


def visible(text: str) -> str:
    """A text with these escaped: text from files and names must not control the terminal."""
    return UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


MAX_OF_A_LINE = 2_000


def one_line(message: str) -> str:
    """A message as one line for a terminal: words and lines that are too long are truncated."""
    words = [w if len(w) <= 10 * MAX_SHOWN else f"{w[:MAX_SHOWN]}... ({len(w):,} characters)" for w in message.split()]
    line = visible(" ".join(words))
    return line if len(line) <= MAX_OF_A_LINE else f"{line[:MAX_OF_A_LINE]}..."


class DataError(InputError):
    """An error in a data set or in its use; one line that says how to fix it."""
