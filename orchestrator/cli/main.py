"""The command line: the commands in the order of the help text, and the handling of their errors."""

import gc
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperGroup

from orchestrator.cli import hints
from orchestrator.cli.options import (
    SEARCH_NAMES,
    WORDS,
    Command,
    ExtraArguments,
    UnknownCommand,
    WrongOptions,
    WrongValue,
    choices_of,
)
from orchestrator.cli.terminal import echo
from orchestrator.errors import (
    EXTRAS,
    FULL,
    HEAVY,
    REVIEW,
    ClusterFailed,
    InputError,
    TrainingFailed,
    missing_part,
    one_line,
    visible,
)
from orchestrator.problems import Problem, complaints, unknown
from orchestrator.stdio import OutputFailed, code_of_hangup, flush, report_internal_error, silence

if TYPE_CHECKING:
    from pydantic import ValidationError


class _Commands(TyperGroup):
    """Reports Ctrl-C in any command, where typer itself would exit silently, and a command that does not exist."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises UnknownCommand."""
        name = args[0]
        if self.get_command(ctx, name) is None and name[:1].isalnum() and not ctx.resilient_parsing:
            raise UnknownCommand(ctx, name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command after its arguments are parsed."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None


HELP = """Find out which deep-metric-learning method, with which hyperparameters, really works.

- `orchestrator search demo`: a first search, in minutes, on images that come with the package

- `orchestrator report NAME`: its leaderboard, also while it runs

- `orchestrator benchmark --methods a,b,c`: which of some methods is best, at an equal budget

- `orchestrator list`, `status NAME`, `stop NAME`: running searches, here or elsewhere

- `orchestrator ui`: every trial's curves, in MLflow

- `orchestrator methods pfml`: what there is to search over

- `orchestrator new-method NAME`: a method of your own
"""
COMMANDS = {
    "search": "search.search",
    "benchmark": "benchmark.benchmark",
    "best": "best.best",
    "claim": "claim.claim",
    "compare": "results.compare",
    "resume": "search.resume",
    "work": "work.work",
    "status": "searches.status",
    "stop": "searches.stop",
    "pause": "searches.pause",
    "list": "searches.list_",
    "delete": "housekeeping.delete",
    "rename": "housekeeping.rename",
    "tag": "housekeeping.tag",
    "note": "housekeeping.note",
    "sync": "searches.sync",
    "train": "train.train",
    "evaluate": "evaluate.evaluate",
    "report": "results.report",
    "init": "files.init",
    "schema": "files.schema",
    "export": "export.export",
    "embed": "embedding.embed",
    "query": "embedding.query",
    "methods": "methods.methods",
    "settings": "methods.settings",
    "presets": "methods.presets",
    "check": "methods.check",
    "new-method": "methods.new_method",
    "ui": "results.ui",
    "watch": "watching.watch",
    "mcp": "agents.mcp",
    "doctor": "doctor.doctor",
    "datasets": "datasets.app",
    "results": "record.app",
}
"""Where the function of each command is, or the program of its own commands, beneath `orchestrator.cli`."""


def command_of(name: str) -> Any:
    """The function of a command; imports its module."""
    module, _, function = COMMANDS[name].partition(".")
    return getattr(import_module(f"orchestrator.cli.{module}"), function)


def program(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands: a look needs only its own, whose imports are fewer."""
    app = typer.Typer(
        cls=_Commands,
        help=HELP,
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"]},
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    for name in names:
        part = command_of(name)
        if isinstance(part, typer.Typer):
            app.add_typer(part, name=name)
        else:
            app.command(name, cls=Command)(part)
    app.callback()(_of_the_program)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        from orchestrator.storage.provenance import versions

        installed = versions([FULL, REVIEW]) or {FULL: "is not installed: this is its source"}
        echo(" ".join(next(iter(installed.items()))))
        raise typer.Exit


def _of_the_program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Its own text is the help of the program."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script (`arguments` replace those of the command line). Bad input: one line, exit code 2."""
    gc.set_threshold(50_000, *gc.get_threshold()[1:])  # most of what a look makes are its imports, which stay
    # our line numbers are of no use to a user
    warnings.formatwarning = lambda message, *_, **__: visible(f"warning: {message}") + "\n"
    if threading.current_thread() is threading.main_thread():
        # both remove half-written files; SIGHUP prints nothing, since the terminal is gone, and `nohup` ignores it
        for number, handler in ((signal.SIGTERM, signal.default_int_handler), (signal.SIGHUP, _hung_up)):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, handler)
    try:
        # typer returns the code of an Exit as the command's value
        words = sys.argv[1:] if arguments is None else arguments
        names = [words[0]] if words and words[0] in COMMANDS else COMMANDS
        code = program(names)(words, prog_name="orchestrator", standalone_mode=False) or 0
    except Exception as error:
        from orchestrator.storage.journal import JournalError
        from orchestrator.tracking.store import TrackingError

        code = _explain(error, (InputError, JournalError, TrackingError))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    sys.exit(flush() or code)


def _hung_up(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(code_of_hangup())


def _explain(error: Exception, input_errors: tuple[type[Exception], ...]) -> int:
    if isinstance(error, WrongOptions):
        return max(_explain(one, input_errors) for one in error.errors)
    # a usage error; the class of typer's own depends on its version
    if isinstance(error, UnknownCommand | ExtraArguments) or hasattr(error, "format_message"):
        if type(error).__name__ == "NoArgsIsHelpError":
            return 0  # the help has been printed
        _complain(_usage(error))
        return 2
    if isinstance(error, typer.Abort):  # Ctrl-C in a command that does not handle it itself
        print("interrupted", file=sys.stderr)
        return 130
    if isinstance(error, input_errors):
        for problem in getattr(error, "problems", (str(error),)):
            _complain(problem)
        return 2
    if isinstance(error, ModuleNotFoundError) and (part := str(error.name).partition(".")[0]) in (*HEAVY, *EXTRAS):
        _complain(missing_part(part))
        return 2
    if isinstance(error, TrainingFailed | ClusterFailed):
        _complain(str(error))
        return 1
    if isinstance(error, OutputFailed):
        _complain(f"{error.filename}: cannot be written ({error.strerror})")
        return silence(2)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        _complain(f"{place}{error.strerror or error}; fix this and continue with: orchestrator resume NAME")
        return 1
    return report_internal_error(error)


def _complain(what: str) -> None:
    print(f"error: {one_line(what)}", file=sys.stderr)


def _usage(error: Any) -> str:
    """The text of a usage error: the option or argument, the value, and what is allowed."""
    context = getattr(error, "ctx", None)
    where = f" (see {context.command_path} --help)" if context else ""
    problem = _problem(error, context)
    return str(problem) if problem.advice else f"{problem}{where}"


def _problem(error: Any, context: Any) -> Problem:
    """A usage error as a problem; its advice says what to type. All that is read of typer's errors is read here, by
    their classes and attributes."""
    parameter = getattr(error, "param", None)
    words = context.meta.get(WORDS, []) if context else []
    command = str(context.info_name) if context else ""
    if isinstance(error, UnknownCommand):
        return hints.command_hint(error.name, context.command.commands)
    if isinstance(error, ExtraArguments):
        return hints.argument_hint(command, error.extra, words)
    if type(error).__name__ == "NoSuchOption":
        from orchestrator.config.training import Training

        names = [word for other in context.command.params for word in other.opts] if context else []
        options = [word for word in names if word.startswith("-")]
        return hints.option_hint(command, error.option_name, options, words, list(Training.model_fields))
    if parameter is None:
        return Problem(rule=_sentence(error.format_message()))
    name = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar or parameter.name.upper()
    if type(error).__name__ == "MissingParameter":
        if context and (parameter.metavar in ("RUN", "CHECKPOINT_OR_RUN") or parameter.help in SEARCH_NAMES):
            return hints.missing_name_hint(name, context.params.get("storage"))
        return Problem((name,), rule="missing")
    variable = parameter.envvar
    if context and variable and context.get_parameter_source(parameter.name).name == "ENVIRONMENT":
        name = str(variable)
    if context and context.get_parameter_source(parameter.name).name == "DEFAULT_MAP":
        from orchestrator.storage.paths import lab_file

        name = f"{lab_file()}: {parameter.name}"
    if isinstance(error, WrongValue):
        return error.problem.under(name)
    if not isinstance(cause := error.__cause__, ValueError) or not hasattr(cause, "errors"):
        return Problem((name,), rule=_sentence(error.message))
    details = cause.errors()[0]
    if details["type"] == "value_error" and (choices := choices_of(context, parameter)):
        return unknown(details["input"], choices).under(name)
    rule = complaints(cast("ValidationError", cause))[0].rule
    return Problem((name,), details["input"], rule)


def _sentence(message: str) -> str:
    """A message of typer as part of one of ours."""
    return f"{message[:1].lower()}{message[1:].rstrip('.')}"
