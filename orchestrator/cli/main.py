"""The command line: the commands in the order of the help text, and the handling of their errors."""

import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from orchestrator.cli import (
    agents,
    benchmark,
    claim,
    datasets,
    doctor,
    embedding,
    evaluate,
    export,
    files,
    housekeeping,
    meant,
    methods,
    results,
    search,
    searches,
    train,
    watching,
)
from orchestrator.cli.options import SEARCH_NAME, WORDS, Command, WrongOptions
from orchestrator.cli.terminal import echo
from orchestrator.endings import OutputFailed, code_of_hangup, flush, silenced, unforeseen
from orchestrator.errors import (
    EXTRAS,
    FULL,
    HEAVY,
    REVIEW,
    ClusterFailed,
    InputError,
    TrainingFailed,
    in_plain_words,
    missing_part,
    one_line,
    unknown,
    visible,
)


class _Interruptible(TyperGroup):
    """Reports Ctrl-C in any command; typer itself would exit silently."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command after its arguments are parsed."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None


app = typer.Typer(
    cls=_Interruptible,
    help="""Find out which deep-metric-learning method, with which hyperparameters, really works.

- `orchestrator search demo`: a first search, in minutes, on images that come with the package

- `orchestrator report NAME`: its leaderboard, also while it runs

- `orchestrator benchmark --methods a,b,c`: which of some methods is best, at an equal budget

- `orchestrator list`, `status NAME`, `stop NAME`: running searches, here or elsewhere

- `orchestrator ui`: every trial's curves, in MLflow

- `orchestrator methods pfml`: what there is to search over

- `orchestrator new-method NAME`: a method of your own
""",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
COMMANDS: dict[str, Callable[..., None]] = {
    "search": search.search,
    "benchmark": benchmark.benchmark,
    "claim": claim.claim,
    "compare": results.compare,
    "resume": search.resume,
    "status": searches.status,
    "stop": searches.stop,
    "pause": searches.pause,
    "list": searches.list_,
    "delete": housekeeping.delete,
    "rename": housekeeping.rename,
    "tag": housekeeping.tag,
    "note": housekeeping.note,
    "sync": searches.sync,
    "train": train.train,
    "evaluate": evaluate.evaluate,
    "report": results.report,
    "init": files.init,
    "schema": files.schema,
    "export": export.export,
    "embed": embedding.embed,
    "query": embedding.query,
    "methods": methods.methods,
    "settings": methods.settings,
    "presets": methods.presets,
    "check": methods.check,
    "new-method": methods.new_method,
    "ui": results.ui,
    "watch": watching.watch,
    "mcp": agents.mcp,
    "doctor": doctor.doctor,
}


for name, command in COMMANDS.items():
    app.command(name, cls=Command)(command)
app.add_typer(datasets.app, name="datasets")


def _print_version(asked: bool) -> None:
    if asked:
        from orchestrator.storage.provenance import versions

        installed = versions([FULL, REVIEW]) or {FULL: "is not installed: this is its source"}
        echo(" ".join(next(iter(installed.items()))))
        raise typer.Exit


@app.callback()
def _of_the_program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Its own text is the help of the program."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script (`arguments` replace those of the command line). Bad input: one line, exit code 2."""
    from orchestrator.storage.journal import JournalError
    from orchestrator.tracking.store import TrackingError

    # our line numbers are of no use to a user
    warnings.formatwarning = lambda message, *_, **__: visible(f"warning: {message}") + "\n"
    if threading.current_thread() is threading.main_thread():
        # both remove half-written files; SIGHUP prints nothing, since the terminal is gone, and `nohup` ignores it
        for number, handler in ((signal.SIGTERM, signal.default_int_handler), (signal.SIGHUP, _hung_up)):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, handler)
    try:
        # typer returns the code of an Exit as the command's value
        code = app(arguments, prog_name="orchestrator", standalone_mode=False) or 0
    except Exception as error:
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
    if hasattr(error, "format_message"):  # a usage error; its class depends on typer's version
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
        return silenced(2)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        _complain(f"{place}{error.strerror or error}; fix this and continue with: orchestrator resume NAME")
        return 1
    return unforeseen(error)


def _of_a_search(help_text: str | None) -> bool:
    return bool(help_text) and str(help_text).startswith(SEARCH_NAME.rstrip("."))


def _complete(line: str, where: str) -> str:
    """The line, with where to read on unless it says what to type."""
    return line if "orchestrator " in line or "KEY=VALUE" in line else line + where


def _complain(what: str) -> None:
    print(f"error: {one_line(what)}", file=sys.stderr)


def _usage(error: Any) -> str:
    """The text of a usage error: the option or argument, the value, and what is allowed."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    where = f" (see {context.command_path} --help)" if context else ""
    if type(error).__name__ == "NoSuchOption":
        from orchestrator.config.training import Training

        words = [word for other in context.command.params for word in other.opts] if context else []
        options = [word for word in words if word.startswith("-")]
        typed = context.meta.get(WORDS, []) if context else []
        command = str(context.info_name) if context else ""
        return _complete(
            meant.of_option(command, error.option_name, options, typed, list(Training.model_fields)), where
        )
    if parameter is None:
        message = error.format_message()
        if context and (unknown_command := re.match(r"No such command '(.*?)'", message)):
            return _complete(meant.of_command(unknown_command[1], context.command.commands), where)
        if context and (extra := re.search(r"unexpected extra arguments? \((.*)\)", message.replace("(s)", ""))):
            return _complete(meant.of_arguments(str(context.info_name), extra[1], context.meta.get(WORDS, [])), where)
        return f"{message[:1].lower()}{message[1:].rstrip('.')}{where}"
    name = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar or parameter.name.upper()
    if type(error).__name__ == "MissingParameter":
        newest = ""
        if context and (parameter.metavar in ("RUN", "CHECKPOINT_OR_RUN") or _of_a_search(parameter.help)):
            newest = meant.of_missing_name(context.params.get("storage"))
        return _complete(f"{name}: missing{newest}", where)
    variable = parameter.envvar
    if context and variable and str(context.get_parameter_source(parameter.name)).endswith("ENVIRONMENT"):
        name = str(variable)
    complaints: list[Any] = getattr(error.__cause__, "errors", list)()
    value = f"{complaints[0]['input']!r}: " if complaints else ""
    message = in_plain_words(error.message.removeprefix("Value error, ").rstrip("."))
    if choice := re.fullmatch(r"'(.*)' is not one of ('.*)", message):  # this message already contains the value
        value, options = "", re.findall(r"'([^']*)'", choice[2])
        message = unknown(choice[1], options)
    return f"{name}: {value}{message[:1].lower()}{message[1:]}{where}"
