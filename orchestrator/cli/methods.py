"""The commands for methods and presets: list, check, create."""

import shlex
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from orchestrator.cli import completing
from orchestrator.cli.options import Json, Set, assignments, local_path
from orchestrator.cli.output import plain, print_json, waiting, warn_of_plugins
from orchestrator.cli.terminal import Terminal, echo
from orchestrator.errors import InputError
from orchestrator.storage.outputs import Output

if TYPE_CHECKING:
    from orchestrator.cli.describe import MethodFacts, SettingFacts
from orchestrator.problems import format_value


def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="Show this method's hyperparameters.", metavar="NAME", autocompletion=completing.methods),
    ] = None,
    cost: Annotated[bool, typer.Option("--cost", help="Show what a training step of each method costs.")] = False,
    json_: Json = False,
) -> None:
    """The installed methods, or one method's formula and hyperparameters.

    - `orchestrator methods`

    - `orchestrator methods --cost`: beside proxy_anchor's, by seconds and memory

    - `orchestrator methods pfml`
    """
    from orchestrator.cli.describe import describe_method
    from orchestrator.contract import FAMILIES
    from orchestrator.plugins import find_installed, installed_methods

    if name is None:
        described = [describe_method(method) for method in installed_methods().values()]
        if json_:
            print_json(described)
        elif cost:
            _show_costs(described)
        else:
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            table.add_column("name", no_wrap=True)
            table.add_column("what")
            table.add_column("paper")
            for method in described:
                table.add_row(method.name, method.summary, method.paper)
            Terminal().print(table)
            echo("details of one: orchestrator methods NAME")
            for family in FAMILIES:
                echo(f"and any loss of {family.package}: {family.prefix}/NAME, such as {family.example}")
        warn_of_plugins()
        return
    method = describe_method(find_installed(name))
    if json_:
        print_json(method)
        return
    if cost:
        _show_costs([method])
        return
    console = Terminal()
    console.print(Text(method.name, style="bold"), Text(method.paper))
    for paragraph in method.documentation.split("\n\n"):
        console.print(Text("\n" + (" ".join(paragraph.split()) if "\n  " not in paragraph else paragraph)))
    console.print(_settings_table("hyperparameter", method.hyperparameters))
    if method.presets:
        echo("presets: " + ", ".join(method.presets))


def _show_costs(described: "list[MethodFacts]") -> None:
    """A line for each method and number of classes, the dearest first."""
    from orchestrator.report.method_costs import REFERENCE, method_costs

    measured = method_costs()
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head in ("method", "classes", f"times {REFERENCE}", "seconds", "MB", "GPU seconds"):
        table.add_column(head, justify="left" if head == "method" else "right")
    rows = [(size, cost, method.name) for method in described for size, cost in method.costs.items()]
    for size, cost, name in sorted(rows, key=lambda row: (int(row[0]), -row[1].times)):
        on_gpu = "" if cost.gpu_seconds is None else f"{cost.gpu_seconds:.3g}"
        table.add_row(name, f"{int(size):,}", f"{cost.times:.3g}", f"{cost.seconds:.3g}", f"{cost.megabytes:,}", on_gpu)
    Terminal().print(table)
    echo(
        "of a training step with 128 images and 512 numbers an embedding, one thread, without a backbone: "
        f"{measured.machine}, {measured.date}{'; GPU: ' + measured.gpu if measured.gpu else ''}"
    )


def settings(
    words: Annotated[
        str | None, typer.Argument(help="Show those whose name or meaning has this in it.", metavar="WORD")
    ] = None,
    json_: Json = False,
) -> None:
    """The settings of every training, whatever its method: type, default, range and meaning.

    - `orchestrator settings`

    - `orchestrator settings batch`
    """
    from orchestrator.cli.describe import describe_settings
    from orchestrator.config.training import Training

    rows = describe_settings(Training)
    matching = [row for row in rows if words is None or words.lower() in f"{row.name} {row.description}".lower()]
    if json_:
        print_json(matching)
    elif matching:
        Terminal().print(_settings_table("setting", matching))
        echo("give one by --set NAME=VALUE, or under settings in a search file")
    else:
        raise InputError(
            f"WORD: no setting has {format_value(words)} in its name or meaning (all: orchestrator settings)"
        )


def _settings_table(head: str, rows: "list[SettingFacts]") -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(head, no_wrap=True)
    for column in ("type", "default", "range", "meaning"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row.name, row.type, plain(row.default), row.range, row.description)
    return table


def presets(
    name: Annotated[
        str | None, typer.Argument(help="Show this preset, or a method's names.", autocompletion=completing.presets)
    ] = None,
    json_: Json = False,
) -> None:
    """The papers' own settings for their data sets and backbones.

    - `orchestrator presets`

    - `orchestrator presets pfml`

    - `orchestrator presets pfml/cub200/resnet50`
    """
    from orchestrator.config.presets import PresetName, describe_preset, find_preset, preset_text, presets_of
    from orchestrator.config.presets import presets as shipped

    names = list(shipped()) if name is None else list(presets_of(name))
    if names:
        if json_:
            print_json([PresetName(name=preset_name, source=shipped()[preset_name].source) for preset_name in names])
            return
        echo("\n".join(names))
        echo("METHOD/DATASET/BACKBONE[/VARIANT]; settings of one: orchestrator presets NAME", err=True)
        return
    preset = find_preset(str(name), "NAME")
    if json_:
        print_json(describe_preset(preset))
    else:
        echo(preset_text(preset).rstrip())


class CheckVerdict(Output):
    name: str
    state: Literal["passed", "failed", "expected failure", "unexpected pass", "skipped"]
    reason: str


class Conformance(Output):
    """Whether a method keeps the contract, by its checks."""

    name: str
    conforms: bool
    checks: list[CheckVerdict]


def check(
    name: Annotated[str, typer.Argument(help="Name of the method.", metavar="NAME", autocompletion=completing.methods)],
    set_: Set = [],  # noqa: B006 (typer reads the default)
    json_: Json = False,
) -> None:
    """Check that a method keeps the contract of all methods.

    Exit code 0 if each check passed or was expected to fail, 1 otherwise.

    - `orchestrator check my_loss`

    - `orchestrator check contrastive --set references=memory`
    """
    with waiting("loading"):
        from orchestrator.plugins import find_installed

        find_installed(name)  # a wrong name is told at once
        from orchestrator.check import config_of, verdicts
        from orchestrator.method import find_method

        method = find_method(name)
        hyperparameters = assignments(set_, {})
        config_of(method, hyperparameters)
    results = []
    first: dict[str, str] = {}  # the check that gave a reason first
    for verdict in verdicts(method, **hyperparameters):
        results.append(verdict)
        if not json_:
            state = "FAILED" if verdict.state == "failed" else verdict.state
            alike = first.setdefault(verdict.reason, verdict.name) if verdict.reason else verdict.name
            reason = verdict.reason if alike == verdict.name else f"as {alike}"
            echo(f"{verdict.name}: {state}" + (f": {reason}" if reason else ""))
    failed = sum(verdict.state == "failed" for verdict in results)
    if json_:
        checks = [CheckVerdict(name=one.name, state=one.state, reason=one.reason) for one in results]
        print_json(Conformance(name=name, conforms=not failed, checks=checks))
    else:
        counts = Counter(verdict.state for verdict in results)
        echo(f"{name}: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
    raise typer.Exit(1 if failed else 0)


def new_method(
    name: Annotated[str, typer.Argument(help="Name of the method, in snake_case.", metavar="NAME")],
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder to create, or an empty one; NAME in the current folder by default.",
            metavar="DIR",
            parser=local_path,
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Write a plugin project to begin with: a loss that works, its search space, its tests.

    - `orchestrator new-method my_loss`
    """
    from orchestrator.cli.scaffold import new_method as write
    from orchestrator.cli.written import Written

    project = write(name, folder or Path(name))
    if json_:
        print_json(Written(path=str(project), method=name, search=str(project / f"{name}.yaml")))
        return
    echo(f"{project} contains a working method. Next:")
    fetched = Path(sys.prefix).parent / ".uv" / "bin" / "uv"
    uv = "uv" if shutil.which("uv") or not fetched.exists() else shlex.quote(str(fetched))
    echo(f"  {uv} pip install --python {shlex.quote(sys.executable)} -e {shlex.quote(str(project))}")
    echo(f"  orchestrator check {name}")
    echo(f"  orchestrator search {shlex.quote(str(project / name))}.yaml")
