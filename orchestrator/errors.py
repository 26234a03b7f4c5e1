"""The errors shown to a user: one line each, and the exit code of each."""

import contextlib
import difflib
import errno
import functools
import os
import platform
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pydantic import ValidationError

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
}
"""Packages that an extra brings."""
EXTRA_PACKAGES = {
    "export": "onnx onnxruntime onnxscript",
    "language": "open-clip-torch",
    "mcp": "mcp",
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


def missing_for(option: str, package: str, extra: str) -> str:
    """The same of one value of an option, `--to onnx`."""
    return f"{option}: needs the package {package}: uv pip install {EXTRA_PACKAGES[extra]}"


class InputError(ValueError):
    """Bad input. The message is one line: the file or option, the value, and what is allowed. It lists all problems
    if there are several.

    The command line prints it without a traceback, one line per problem, and exits with code 2.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


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


COMMAND_OR_OPTION = re.compile(r"\borchestrator [^;)]*|(?<![\w-])--([a-z][a-z-]*)")
IN_PYTHON = {"set": "settings", "range": "space"}
"""Options whose argument in Python has another name than the option."""


TAKES_ANY = 0x08
"""The flag of a function that takes keywords of any name."""


def _no_argument(key: str, function: str, arguments: Iterable[str]) -> str:
    hint = suggestion(key, arguments)
    if "did you mean" not in hint and "settings" in arguments:
        hint = f"; a setting is given as settings={{'{key}': ...}}"
    return f"{function}: {key}: no such argument{hint}"


def as_mapping(name: str, given: object) -> dict[str, Any]:
    """An argument of the Python interface that maps names to values, or is None."""
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"{name}: {shown(given)} should be a mapping, such as {{'epochs': 20}}")
    return dict(given or {})


def in_python(function: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
    """A function whose InputErrors name its arguments, `settings`, `num_trials`, where the command line's name options,
    `--set`, `--num-trials`; the commands that a message gives stay."""

    def named(match: re.Match[str]) -> str:
        option = match[1]
        return match[0] if option is None else IN_PYTHON.get(option, option.replace("-", "_"))

    code = function.__code__
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(function)
    def asked(*args: Asked.args, **named_: Asked.kwargs) -> Answer:
        if not code.co_flags & TAKES_ANY and (unknown := [key for key in named_ if key not in arguments]):
            raise InputError(*(_no_argument(key, function.__name__, arguments) for key in unknown))
        try:
            return function(*args, **named_)
        except InputError as error:
            error.problems = tuple(COMMAND_OR_OPTION.sub(named, problem) for problem in error.problems)
            error.args = ("; ".join(error.problems),)
            raise

    return asked


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


MAX_SHOWN = 60
MAX_OF_A_LINE = 2_000


def shown(value: object) -> str:
    """A given value as shown in a message; a long one is truncated."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python prints
        return f"a very long {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 20]}... ({len(text):,} characters)"


def one_line(message: str) -> str:
    """A message as one line for a terminal: words and lines that are too long are truncated."""
    words = [w if len(w) <= 10 * MAX_SHOWN else f"{w[:MAX_SHOWN]}... ({len(w):,} characters)" for w in message.split()]
    line = visible(" ".join(words))
    return line if len(line) <= MAX_OF_A_LINE else f"{line[:MAX_OF_A_LINE]}..."


MAX_LISTED = 24
"""Names that a message lists; of more, it says where they are listed, if it can."""


def suggestion(name: object, known: Iterable[str], see: str = "") -> str:
    """` (did you mean 'delta'?)` for a misspelling or another word for a known name, otherwise the list of known names;
    where that is long, ` (see orchestrator settings)`, with the command that `see` gives."""
    names = sorted(known)
    if len(str(name)) > 2 * MAX_SHOWN:
        return ""
    if candidates := _meant(str(name), names):
        return f" (did you mean {' or '.join(map(repr, candidates))}?)"
    if see and len(names) > MAX_LISTED:
        return f" (see {see})"
    return f" (known: {', '.join(names)})" if names else ""


def _meant(name: str, known: list[str]) -> list[str]:
    """The known names that are meant by another word, or are spelt much like it."""
    plain = re.sub(r"[ -]", "_", name.lower().replace("@", "_at_"))
    other = [word for word in SYNONYMS.get(plain, ()) if word in known]
    if other:
        return other
    by_plain = {known_name.rpartition("/")[2].lower(): known_name for known_name in reversed(known)}
    if plain in by_plain:
        return [by_plain[plain]]
    return difflib.get_close_matches(name, known, n=1, cutoff=0.62)


SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("learning_rate", "base_lr", "initial_lr", "eta"), ("lr",)),
    **dict.fromkeys(("batch_size", "batchsize", "bs"), ("classes_per_batch", "images_per_class")),
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs", "epoch"), ("epochs",)),
    **dict.fromkeys(("wd", "l2", "weightdecay"), ("weight_decay",)),
    **dict.fromkeys(("optim", "opt"), ("optimizer",)),
    **dict.fromkeys(("momentum", "beta1"), ("optimizer_momentum",)),
    **dict.fromkeys(("eps", "adam_epsilon"), ("optimizer_epsilon",)),
    **dict.fromkeys(("model", "arch", "architecture", "network", "encoder"), ("backbone",)),
    **dict.fromkeys(("embedding_size", "embed_dim", "emb_dim", "dim", "dimension"), ("embedding_dim",)),
    **dict.fromkeys(("transform", "transforms", "augmentations"), ("augmentation",)),
    **dict.fromkeys(("num_workers", "dataloader_workers"), ("loader_threads",)),
    **dict.fromkeys(("lr_scheduler",), ("lr_schedule",)),
    **dict.fromkeys(("warmup",), ("warmup_epochs", "lr_warmup")),
    **dict.fromkeys(("grad_clip", "clip_grad", "gradient_clip", "max_grad_norm"), ("clip_norm",)),
    **dict.fromkeys(("amp", "fp16", "mixed_precision", "dtype"), ("precision",)),
    **dict.fromkeys(("random_seed", "random_state", "manual_seed"), ("seed",)),
    **dict.fromkeys(("ema", "swa"), ("ema_decay",)),
    **dict.fromkeys(("criterion", "loss_function"), ("method",)),
    **dict.fromkeys(("data", "data_set", "data_name"), ("dataset",)),
    **dict.fromkeys(("trials", "n_trials", "max_trials", "num_samples"), ("num_trials",)),
    **dict.fromkeys(("sampler", "search_algorithm", "search_alg"), ("algorithm",)),
    **dict.fromkeys(("pruner", "early_stopping"), ("scheduler", "stop_patience")),
    **dict.fromkeys(("metric", "goal", "target"), ("objective",)),
    **dict.fromkeys(("search_space", "parameters", "params", "hyperparameters", "param_space"), ("space",)),
    **dict.fromkeys(("recall", "recall_1", "r_at_1", "recall1", "r1", "top1", "accuracy"), ("val/recall_at_1",)),
    **dict.fromkeys(("map", "map_r", "mapr"), ("val/map_at_r",)),
    **dict.fromkeys(("loss", "train_loss"), ("method", "train/loss")),
    **dict.fromkeys(("best", "leaderboard", "results", "result", "summary", "plot"), ("report",)),
    **dict.fromkeys(("run", "optimize", "optimise", "tune", "sweep"), ("search",)),
    **dict.fromkeys(("fit",), ("train",)),
    **dict.fromkeys(("ls", "searches", "runs"), ("list",)),
    **dict.fromkeys(("show", "info", "describe", "state"), ("status", "report")),
    **dict.fromkeys(("kill", "cancel", "abort", "end"), ("stop",)),
    **dict.fromkeys(("continue", "restart"), ("resume",)),
    **dict.fromkeys(("rm", "remove", "del"), ("delete",)),
    **dict.fromkeys(("mv", "move"), ("rename",)),
    **dict.fromkeys(("eval", "test", "score"), ("evaluate",)),
    **dict.fromkeys(("serve", "dashboard", "mlflow", "server", "view"), ("ui",)),
    **dict.fromkeys(("prepare", "import", "download"), ("datasets",)),
    **dict.fromkeys(("new", "create", "plugin"), ("new-method",)),
}
"""Other words for the names of settings, keys of search files, metrics and commands."""


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
    by_field: dict[str, str] = {}
    for number, details in enumerate(error.errors()):
        by_field.setdefault(str(details["loc"][0]) if details["loc"] else f" {number}", _complaint(details))
    return list(by_field.values())


def _complaint(details: Any) -> str:
    parts = [str(part) for part in details["loc"] if part not in ("int", "float", "str") and "[" not in str(part)]
    name, message = ".".join(parts), details["msg"].removeprefix("Value error, ")
    if details["type"] == "extra_forbidden":
        return f"{name}: no such key"
    if details["type"] == "missing":
        return f"{name}: this key is required"
    if details["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", details["ctx"]["expected"])
        return f"{name}: {unknown(details['input'], choices)}"
    message = in_plain_words(message)
    value = re.sub(r"://[^\s'\"]*@", "://***@", shown(details["input"]))  # an address may contain a password
    is_in_message = isinstance(details["input"], str) and value in message  # once is enough
    value = "" if is_in_message else f"{value}: "
    return f"{name}: {value}{message[:1].lower() + message[1:]}" if name else message


def in_plain_words(message: str) -> str:
    """A message of pydantic in our words."""
    for original, plain in PLAIN_WORDS.items():
        message = message.replace(original, plain)
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
