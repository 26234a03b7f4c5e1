"""What is wrong with an input, as a type: where, which value, what would be right. Each interface renders it."""

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_SHOWN = 60
"""Characters of a value that a message shows."""


def format_value(value: object) -> str:
    """A given value as shown in a message; a long one is truncated."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python prints
        return f"a very long {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 20]}... ({len(text):,} characters)"


# Where it is ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """An option of the command line, `--num-trials`; in Python the argument `num_trials`."""

    name: str
    """As Python spells it."""
    variable: str = ""
    """The environment variable that may give it too."""

    def __str__(self) -> str:
        return f"--{self.name.replace('_', '-')}{self._or_variable}"

    @property
    def argument(self) -> str:
        """Its name in Python."""
        return f"{ARGUMENTS.get(self.name, self.name)}{self._or_variable}"

    @property
    def _or_variable(self) -> str:
        return f" (or {self.variable})" if self.variable else ""


ARGUMENTS = {"set": "settings", "range": "space"}
"""Options whose argument in Python has another name than the option."""
SET, RANGE = Option("set"), Option("range")


class File(str):
    """The name of a file, whose line a message gives: `demo.yaml, line 3`."""

    __slots__ = ()


class Inner(str):
    """A key that is written with the mapping it stands in: `space.delta`."""

    __slots__ = ()


class Operand(str):
    """What was given to an option and is written after it: `--set delta`."""

    __slots__ = ()


Step = str | int | Option
KeyPath = tuple[Step, ...]
"""From an option or a file inwards, key by key; a number is an item's place in a list."""
Words = str | tuple[str | Option, ...]
"""A text; with parts where it names options."""


def as_path(where: Step | KeyPath) -> KeyPath:
    """A path, also of a single step."""
    return where if isinstance(where, tuple) else (where,)


def option_in_python(option: Option) -> str:
    """The argument of an option."""
    return option.argument


Naming = Callable[[Option], str]
"""How an interface names an option."""


def path_text(path: KeyPath, line: int | None = None, naming: Naming = str) -> str:
    """`demo.yaml, line 3: space.delta: low`"""
    text = ""
    for step in path:
        name = naming(step) if isinstance(step, Option) else f"[{step}]" if isinstance(step, int) else str(step)
        if isinstance(step, File) and line is not None:
            name += f", line {line}"
        before = "" if isinstance(step, int) else "." if isinstance(step, Inner) else " "
        text += name if not text else f"{before if isinstance(step, int | Inner | Operand) else ': '}{name}"
    return text


# What it is ----------------------------------------------------------------------------------------------------


class Bare(str):
    """A value that messages show as it is, whole and without quotation marks."""

    __slots__ = ()


class _NoValue(Enum):
    NO_VALUE = "none"  # of an Enum, there is one in every process


NO_VALUE = _NoValue.NO_VALUE


@dataclass(frozen=True)
class Problem:
    """`path: value: rule (suggestion)advice`, each known by itself.

    `path` is where the value stands, `value` what is wrong there, `rule` what would be right, `suggestion` the names
    that may be meant, `line` the place in the file that the path begins with.
    """

    path: KeyPath = ()
    value: Any = NO_VALUE
    rule: Words = ""
    suggestion: "Suggestion | None" = None
    line: int | None = None
    advice: Words = ""
    """What to do instead, after the suggestion."""
    begins_rule: bool = False
    """Whether the value is the rule's first word: `3 should be a list`."""

    def text(self, naming: Naming = str) -> str:
        """The message, with options as an interface names them."""
        where = path_text(self.path, self.line, naming)
        value = str(self.value) if isinstance(self.value, Bare) else format_value(self.value)
        if naming is str and (self.value is None or isinstance(self.value, bool)):
            value = "null" if self.value is None else value.lower()  # as a file spells it
        parts = [
            f"{where}: " if where else "",
            "" if self.value is NO_VALUE else f"{value}{' ' if self.begins_rule else ': '}",
            words_text(self.rule, naming),
            str(self.suggestion or ""),
            words_text(self.advice, naming),
        ]
        return "".join(parts)

    def __str__(self) -> str:
        return self.text()

    def under(self, where: Step | KeyPath) -> Self:
        """The same, of a value that stands further inside."""
        return replace(self, path=(*as_path(where), *self.path))

    def with_advice(self, advice: Words) -> Self:
        """The same, with further advice."""
        return replace(self, advice=(*_parts(self.advice), *_parts(advice)))


def _parts(words: Words) -> tuple[str | Option, ...]:
    return (words,) if isinstance(words, str) else words


def words_text(words: Words, naming: Naming = str) -> str:
    """A text with its options named."""
    return "".join(naming(part) if isinstance(part, Option) else part for part in _parts(words))


# Which name is meant -------------------------------------------------------------------------------------------

MAX_LISTED = 24
"""Names that a message lists; of more, it says where they are listed, if it can."""


@dataclass(frozen=True)
class Suggestion:
    """` (did you mean 'delta'?)`, else the known names; where these are many, ` (see orchestrator settings)`."""

    names: tuple[str, ...] = ()
    """Those that may be meant."""
    known: tuple[str, ...] = ()
    see: str = ""
    """The command that lists them."""

    def __str__(self) -> str:
        if self.names:
            return f" (did you mean {' or '.join(map(repr, self.names))}?)"
        if self.see and len(self.known) > MAX_LISTED:
            return f" (see {self.see})"
        return f" (known: {', '.join(self.known)})" if self.known else ""

    @property
    def name(self) -> str | None:
        """The first of those that may be meant."""
        return next(iter(self.names), None)


def suggestion(name: object, known: Iterable[str], see: str = "") -> Suggestion:
    """The known names that are meant by a misspelling or another word."""
    names = sorted(known)
    if len(str(name)) > 2 * MAX_SHOWN:
        return Suggestion()
    return Suggestion(tuple(_meant(str(name), names)), tuple(names), see)


def unknown(name: object, known: Iterable[str]) -> Problem:
    """`'gpu' is unknown (known: auto, cpu, cuda)`; of more than three choices, the one that may be meant."""
    names = tuple(sorted(known))
    hint = Suggestion(known=names) if len(names) <= 3 else suggestion(name, names)
    return Problem(value=name, rule="is unknown", suggestion=hint, begins_rule=True)


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
    **dict.fromkeys(("leaderboard", "result", "summary", "plot"), ("report",)),
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


# pydantic's errors, and those of a plugin's fields -------------------------------------------------------------

RULES = {
    "greater_than_equal": "should be at least {ge}",
    "less_than_equal": "should be at most {le}",
    "greater_than": "should be above {gt}",
    "less_than": "should be below {lt}",
    "finite_number": "should be a finite number",
    "int_type": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number, got a number with a fractional part",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false, unable to interpret input",
    "string_type": "should be text",
    "list_type": "should be a list",
    "dict_type": "should be a mapping",
    "model_type": "should be a mapping",
    "model_attributes_type": "should be a mapping or object to extract fields from",
    "too_short": "should have at least {min_length}",
    "string_too_short": "should be text, not empty",
    "none_required": "should be None",
    "multiple_of": "should be a multiple of {multiple_of}",
    "extra_forbidden": "no such key",
    "missing": "this key is required",
}
"""pydantic's kinds of errors, in words for the author of a search file."""
PATTERNS = {"^[0-9a-fA-F]{64}$": "should be 64 hexadecimal digits"}
BRANCHES = ("int", "float", "str", "range")
"""What pydantic puts into the place of an error for the branch of a union."""


def complaints(error: "ValidationError") -> list[Problem]:
    """pydantic's errors, one per field."""
    by_field: dict[str, Problem] = {}
    # a misspelt key is said before the one that is missing for it
    errors = sorted(error.errors(), key=lambda details: details["type"] == "missing")
    for number, details in enumerate(errors):
        by_field.setdefault(str(details["loc"][0]) if details["loc"] else f" {number}", _complaint(details))
    return list(by_field.values())


def describe(error: "ValidationError") -> str:
    """The first of them."""
    return str(complaints(error)[0])


def _complaint(details: Any) -> Problem:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    keys = [str(part) for part in details["loc"] if part not in BRANCHES and "[" not in str(part)]
    path: KeyPath = (*keys[:1], *map(Inner, keys[1:]))
    if kind in ("extra_forbidden", "missing"):
        return Problem(path, rule=RULES[kind])
    if kind == "literal_error":  # the choices are in this text alone
        return unknown(value, re.findall(r"'([^']*)'", context["expected"])).under(path)
    if kind == "value_error":
        return _own(context["error"], path, value)
    rule = PATTERNS.get(context.get("pattern", "")) or _rule(details)
    return Problem(path, _hidden(value) if path else NO_VALUE, rule[:1].lower() + rule[1:])


def _rule(details: Any) -> str:
    if (rule := RULES.get(details["type"])) is None:
        return str(details["msg"])
    return rule.format_map({key: _number(bound) for key, bound in details.get("ctx", {}).items()})


def _number(bound: object) -> str:
    """`1` of 1.0, `0.00001` of 1e-05"""
    from decimal import Decimal

    return f"{Decimal(repr(bound)).normalize():f}" if isinstance(bound, float) else str(bound)


def _own(error: ValueError, path: KeyPath, value: object) -> Problem:
    """What a field's own check raises. One of a plugin raises a text, `key: what is wrong` where it is of the whole."""
    details: tuple[Problem, ...] = getattr(error, "details", ())
    if len(details) == 1:
        problem = details[0].under(path)
    else:
        key, colon, rest = ("", "", "") if path else str(error).partition(": ")
        problem = Problem((key,), rule=rest) if colon and key.isidentifier() else Problem(path, rule=str(error))
        rule = str(problem.rule)
        if path:
            problem = replace(problem, rule=rule[:1].lower() + rule[1:])
    is_stated = isinstance(value, str) and format_value(value) in problem.text()  # once is enough
    return problem if not path or problem.value is not NO_VALUE or is_stated else replace(problem, value=_hidden(value))


def _hidden(value: object) -> object:
    """The value, without the password that an address in it may contain."""
    text = format_value(value)
    safe = re.sub(r"://[^\s'\"]*@", "://***@", text)
    return value if safe == text else Bare(safe)
