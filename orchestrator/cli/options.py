"""Arguments and options shared by several commands, and how their values are interpreted."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from orchestrator.cli import completing
from orchestrator.config.keys import KEYS
from orchestrator.config.limits import AUTO, MAX_EPOCHS
from orchestrator.errors import InputError, Problems
from orchestrator.problems import SET, File, Operand, Option, Problem, unknown
from orchestrator.search.lab import VARIABLES, LabDefaults
from orchestrator.storage import paths
from orchestrator.storage.address import PROVIDERS
from orchestrator.text import join_names

if TYPE_CHECKING:
    from orchestrator.search.benchmark import Benchmark
    from orchestrator.storage.places import Places


WORDS = "orchestrator.words"
"""Where a context holds the words of its command line, for messages."""


class WrongOptions(Exception):
    """Usage errors of one command line."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = errors


class UnknownCommand(Exception):
    """The name of no command."""

    def __init__(self, ctx: Any, name: str) -> None:
        super().__init__(name)
        self.ctx, self.name = ctx, name


class ExtraArguments(Exception):
    """Words that a command does not take."""

    def __init__(self, ctx: Any, extra: list[str]) -> None:
        super().__init__(*extra)
        self.ctx, self.extra = ctx, extra


class WrongValue(typer.BadParameter):
    """A value that an option does not take."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def choices_of(context: Any, parameter: Any) -> tuple[str, ...]:
    """The values of an option that takes one of a few (a Literal); empty for others."""
    hint = get_type_hints(inspect.unwrap(context.command.callback)).get(parameter.name) if context else None
    literals = [one for one in (hint, *get_args(hint)) if get_origin(one) is Literal]
    return tuple(choice for one in literals for choice in get_args(one))


class Command(TyperCommand):
    """A command that reports all wrong options at once; typer itself stops at the first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises WrongOptions if a value is invalid, ExtraArguments for words too many."""
        words = list(args)
        ctx.meta[WORDS], ctx.allow_extra_args = words, True
        ctx.default_map = LabDefaults(quiet=ctx.resilient_parsing)
        try:
            extra = super().parse_args(ctx, args)
            if extra and not ctx.resilient_parsing:
                raise ExtraArguments(ctx, extra)
            return extra
        except Exception as error:
            if getattr(error, "param", None) is None:  # for example an unknown option: the rest cannot be parsed
                raise
        values, rest, _ = self.make_parser(ctx).parse_args(args=words)
        errors: list[Exception] = []
        for parameter in self.get_params(ctx):
            try:
                _, rest = parameter.handle_parse_result(ctx, values, rest)
            except Exception as error:
                if getattr(error, "param", None) is None:
                    raise
                errors.append(error)
        raise WrongOptions(errors)

    def invoke(self, ctx: Any) -> Any:
        """What is wrong with a value that came from the lab's file is told as the file's."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            error.details = tuple(_of_its_file(problem, ctx) for problem in error.details)
            error.render(str)
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Fill in the names of tables. A lab's defaults are not shown: an address may hold a password."""
        ctx.default_map = None
        for parameter in self.params:
            for text in ("help", "metavar"):
                if "{" in (getattr(parameter, text, None) or ""):
                    setattr(parameter, text, getattr(parameter, text).format_map(Tables()))
        super().format_help(ctx, formatter)


def _of_its_file(problem: Problem, ctx: Any) -> Problem:
    option = problem.path[0] if problem.path else None
    if not isinstance(option, Option) or option.name not in VARIABLES:
        return problem
    if (source := ctx.get_parameter_source(option.name)) is None or source.name != "DEFAULT_MAP":
        return problem
    return replace(problem, path=(File(paths.lab_file()), option.name, *problem.path[1:]))


class Names(list[str]):
    """The names of a table: in a help text `{...}` lists them (`tpe, random or grid`), `{...:|}` joins them by bars."""

    def __format__(self, bar: str) -> str:
        return bar.join(self) if bar else join_names(self)


class Tables(dict[str, Names]):
    """The tables that options take names from, by the name in braces; read when needed."""

    def __missing__(self, table: str) -> Names:
        if table == "schedulers":
            from orchestrator.config.schedulers import SCHEDULERS

            return Names([AUTO, *SCHEDULERS])
        if table in ("algorithms", "single_algorithms"):
            from orchestrator.config.algorithms import ALGORITHMS

            single = table == "single_algorithms"
            usable = [name for name, algorithm in ALGORITHMS.items() if not single or 1 in algorithm.objectives]
            return Names([AUTO, *usable])
        if table == "final_protocols":
            from orchestrator.config.limits import FinalProtocol

            return Names(get_args(FinalProtocol))
        if table == "formats":
            from orchestrator.report.formats import FORMATS

            return Names(FORMATS)
        raise KeyError(table)


def one_of(table: str, *others: str) -> Callable[[str | None], str | None]:
    """Checks that a value is a name of a table, or one of the others."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in others and value not in (choices := [*others, *Tables()[table]]):
            raise WrongValue(unknown(value, choices))
        return value

    return check


DEFAULT_STORAGE = paths.DEFAULT_STORAGE
PORT = 5000
"""The port on which `ui` shows MLflow, also named at the end of a search."""


def not_empty(value: str | None) -> str | None:
    """An empty value comes from an unset shell variable; it does not mean the default."""
    if value is not None and not value.strip():
        raise typer.BadParameter("empty; give a value or leave the option out")
    return value


def local_path(given: str | Path) -> Path:
    """A path; typer passes the default as a Path already."""
    if isinstance(given, str) and "://" in given:
        raise typer.BadParameter("an address cannot be taken here; give a path")
    return Path(not_empty(str(given)) or ".")


def storage_folder(given: str | Path) -> Path:
    path = local_path(given)
    scheme, colon, rest = str(given).partition(":/")
    if colon and scheme in PROVIDERS:
        raise typer.BadParameter(f"{given} is no address: did you mean {scheme}://{rest.lstrip('/')}?")
    if path.expanduser().is_file():
        raise typer.BadParameter(f"{path} is a file: name a folder")
    return path


def disk_folder(instead: str) -> Callable[[str | Path], Path]:
    """A parser of folders on a disk; of an address it says what to do `instead`."""

    def parse(given: str | Path) -> Path:
        if isinstance(given, str) and "://" in given:
            raise typer.BadParameter(instead)
        return storage_folder(given)

    return parse


_disk = disk_folder("data sets are prepared on a disk; orchestrator datasets publish copies them to S3")


def _storage(given: str | Path) -> Path:
    """A folder; for an address, its working copy."""
    if isinstance(given, str) and "://" in given:
        try:
            return paths.working_copy(given)
        except InputError as error:
            raise typer.BadParameter(str(error)) from None
    return storage_folder(given)


def key_option(key: str, help: str | None = None, **more: Any) -> Any:
    """The option of a key of search files, as `config.keys` describes it: its name, its bounds where it is a whole
    number, and its text (`help`: another one, of a command where it means something else)."""
    described = KEYS[key]
    if "ge" in described.bounds:
        more = {"min": described.bounds["ge"], "max": described.bounds.get("le"), **more}
    return typer.Option(f"--{key.replace('_', '-')}", help=help or described.option, **more)


Storage = Annotated[
    Path,
    typer.Option(
        help="Folder of data sets, searches and runs, or s3://bucket/prefix.",
        envvar=paths.VARIABLE,
        parser=_storage,
        metavar="DIR",
    ),
]
DiskStorage = Annotated[
    Path,
    typer.Option(help="Folder of data sets, searches and runs.", envvar=paths.VARIABLE, parser=_disk, metavar="DIR"),
]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        help="MLflow address; a database in the storage folder by default.",
        envvar=VARIABLES["tracking_uri"],
        metavar="URI",
        callback=not_empty,
    ),
]
SEARCH_NAMES = ("Name of the search.", "Name of the search, or of a benchmark.")
"""The help of arguments that name one."""
SearchName = Annotated[str, typer.Argument(help=SEARCH_NAMES[0], metavar="NAME", autocompletion=completing.searches)]
PresetName = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="A paper's settings, METHOD/DATASET/BACKBONE; see `orchestrator presets`.",
        metavar="NAME",
        callback=not_empty,
        autocompletion=completing.presets,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Fix a setting; repeat as needed.",
        autocompletion=completing.settings,
    ),
]
BudgetWords = Annotated[list[str], key_option("budget", metavar="KEY=LIMIT")]
Epochs = Annotated[int | None, typer.Option(min=1, max=MAX_EPOCHS, help="Epochs per trial.")]
MaxConcurrent = Annotated[int | None, key_option("max_concurrent")]
Workers = Annotated[int | None, key_option("workers")]
TrialTimeout = Annotated[float | None, key_option("trial_timeout", metavar="SECONDS")]
StallTimeout = Annotated[float | None, key_option("stall_timeout", metavar="SECONDS")]
Retry = Annotated[int | None, key_option("retry")]
MaxRestarts = Annotated[int | None, key_option("max_restarts")]
Experiment = Annotated[
    str | None,
    typer.Option(
        help="MLflow experiment of its runs; the data set's name by default.",
        envvar=VARIABLES["experiment"],
        metavar="NAME",
        callback=not_empty,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="RAY",
        help="A running Ray cluster, e.g. auto; or `storage`: processes that join (`orchestrator work`).",
        envvar=VARIABLES["address"],
        callback=not_empty,
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="How to print it; > FILE keeps it.",
        metavar="<table|{formats:|}>",
        callback=one_of("formats", "table"),
    ),
]
NotifyCommand = Annotated[
    str | None,
    typer.Option(
        "--notify-command",
        metavar="COMMAND",
        help="Run this at the end, with the result as JSON on its standard input.",
        envvar="ORCHESTRATOR_NOTIFY_COMMAND",
        callback=not_empty,
    ),
]
NotifyUrl = Annotated[
    str | None,
    typer.Option(
        "--notify-url",
        metavar="URL",
        help="Post the result to this webhook at the end, as JSON.",
        envvar="ORCHESTRATOR_NOTIFY_URL",
        callback=not_empty,
    ),
]
RayOutput = Annotated[bool, typer.Option("--ray-output", help="Show Ray's own messages.")]


def assignments(words: list[str], options: Mapping[str, object], problems: Problems | None = None) -> dict[str, object]:
    """The values of `--set`; one that is also given by its own option is refused. What is wrong with them goes into
    `problems`; without it, InputError lists it."""
    from orchestrator.config.files import parse_assignments

    collected = Problems() if problems is None else problems
    overrides = parse_assignments(words, problems=collected)
    for key, value in options.items():
        if value is not None and key in overrides:
            rule = (SET, f" {key}={overrides.pop(key)} is given too; keep one")
            collected.found.append(Problem((Option(key), Operand(value)), rule=rule))
    if problems is None:
        collected.tell()
    return overrides


def check_format(format_: str, *, as_json: bool) -> None:
    """`--json` and another `--format` would both print to stdout."""
    if as_json and format_ != "table":
        raise InputError(f"--format {format_}: --json prints to stdout too; keep one")


def places_of(storage: Path) -> "Places":
    """The locations in a storage folder."""
    from orchestrator.storage.places import Places

    return Places(storage.expanduser().resolve())


def refuse_benchmark(name: str, storage: Path, instead: str) -> None:
    """InputError if the name of a benchmark is given where a search is expected."""
    if (benchmark := benchmark_of(name, storage)) is not None:
        raise InputError(
            f"NAME: {name}: is a benchmark: {instead} ({', '.join(map(benchmark.member, benchmark.labels))})"
        )


def benchmark_of(name: str, storage: Path) -> "Benchmark | None":
    """The benchmark of this name, unless a search has the same name."""
    from orchestrator.storage.places import JOURNAL

    places = places_of(storage)
    if (places.search(name) / JOURNAL).exists() or not places.has_benchmark(name):
        return None
    from orchestrator.search.benchmark import find_benchmark

    return find_benchmark(places, name)
