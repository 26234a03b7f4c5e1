"""`claim`: a hypothesis from a file, tested on pairs of seeds until it is decided."""

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from orchestrator.cli.options import DEFAULT_STORAGE, Address, Json, Storage, TrackingUri, not_empty, places_of
from orchestrator.cli.output import waiting
from orchestrator.cli.starting import refuse_start
from orchestrator.cli.terminal import Terminal, echo
from orchestrator.errors import InputError, redact
from orchestrator.text import pluralize, span

if TYPE_CHECKING:
    from orchestrator.claims.hypothesis import Claim
    from orchestrator.claims.outputs import ListedClaim

NOT_RUN = "not run"


def claim(
    file: Annotated[
        str | None,
        typer.Argument(
            help="A claim's file, or a shipped claim such as pfml/label_noise.", metavar="FILE", callback=not_empty
        ),
    ] = None,
    list_: Annotated[
        bool,
        typer.Option(
            "--list",
            help="Show all shipped claims with their verdicts, those of the storage first; of one that is "
            "named, its effects.",
        ),
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run at most.")] = False,
    json_: Json = False,
) -> None:
    """Does a claim hold? A hypothesis that was written down first, tested on pairs of seeds until it is decided.

    After each pair of seeds it stops if the claim is decided; a close case ends as undecided at its budget. The same
    command, run again, continues where it stopped. A changed file is another claim.

    - `orchestrator claim pfml/label_noise`

    - `orchestrator claim my_claim.yaml --dry-run`

    - `orchestrator claim --list`

    - `orchestrator claim pfml/label_noise --list`
    """
    if list_:
        _show_list(storage, file, json_)
        return
    if file is None:
        raise InputError("FILE: name a claim's file, or give --list")
    with waiting("reading the claim") as status:
        from orchestrator.claims.file import read_claim
        from orchestrator.claims.shipped import find_claim

        claim_file = read_claim(find_claim(file), places_of(storage).storage)
        if dry_run:
            status.update("timing a few steps")
            from orchestrator.claims.cost import claim_seconds

            seconds = claim_seconds(claim_file, places_of(storage).storage, lambda line: None)
            status.stop()
            _show_plan(claim_file, seconds, json_)
            return
        refuse_start(storage, tracking_uri, address=address)
        status.update("loading torch")
        from orchestrator.claims.page import claim_command
        from orchestrator.claims.running import run_claim
        from orchestrator.search.beginning import runner_at
        from orchestrator.search.signals import continued_by

    options = {"--tracking-uri": None if tracking_uri is None else redact(tracking_uri), "--address": address}
    words = [f" {option} {shlex.quote(value)}" for option, value in options.items() if value is not None]
    again = f"{claim_command(claim_file, Path(storage))}{''.join(words)}"
    with continued_by(again):
        result = run_claim(
            claim_file,
            storage=Path(storage),
            tracking_uri=tracking_uri,
            tuner=lambda: runner_at(address),
            tell=lambda line: echo(line, err=True),
        )
    console = Terminal(stderr=json_, soft_wrap=True)
    console.print(result.verdict.line, markup=False, highlight=False)
    console.print(f"on a page:  {result.page}", markup=False, highlight=False)
    if json_:
        print(result.verdict.model_dump_json())
    if result.stopped is not None:
        console.print(f"{result.stopped}; continue with:  {again}", markup=False, highlight=False)
        raise typer.Exit(1 if result.fault else 130)
    if result.failure:
        console.print(
            f"{result.failure}: it is not trained again; change its arm, which makes another claim",
            markup=False,
            highlight=False,
        )
        raise typer.Exit(1)


def _show_plan(claim_file: "Claim", seconds: float | None, as_json: bool) -> None:
    from orchestrator.claims.design import claim_plan

    plan = claim_plan(claim_file).model_copy(update={"seconds_of_all": seconds and round(seconds, 1)})
    if as_json:
        print(plan.model_dump_json())
        return
    for key, value in plan.model_dump(exclude={"seconds_of_all"}).items():
        echo(f"{key.replace('_', ' ')}: {value}")
    unprepared = "not known: a data set is not prepared (orchestrator datasets)"
    most = "" if seconds is None else f"about {span(seconds)}, if every data set needs all its seeds"
    more = ", and the tests on other images" if plan.max_tests_on_other_images else ""
    echo(f"time, one training after another: {most + more if most else unprepared}")


def _show_list(storage: Path, name: str | None, as_json: bool) -> None:
    from orchestrator.claims.shipped import find_claim, listed_claim, listed_claims

    places = places_of(storage)
    claims = listed_claims(places) if name is None else [listed_claim(name, find_claim(name), places)]
    if as_json:
        print(json.dumps([one.model_dump() for one in claims]))
    elif name is None:
        _print_table(claims)
    else:
        (one,) = claims
        text = f"{one.claim}: {NOT_RUN}" if one.verdict is None else one.verdict.line
        echo(f"{text} ({one.source})")


def _print_table(claims: "Sequence[ListedClaim]") -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head in ("claim", "verdict", "on each data set"):
        table.add_column(head, no_wrap=head != "on each data set")
    words = Counter[str]()
    for one in claims:
        verdict = NOT_RUN if one.verdict is None else one.verdict.verdict
        each = [] if one.verdict is None else [f"{of.dataset} {of.verdict}" for of in one.verdict.datasets]
        table.add_row(one.name, verdict, ", ".join(each))
        words[verdict] += 1
    Terminal().print(table)
    echo(f"{pluralize(len(claims), 'claim')}: {', '.join(f'{count} {word}' for word, count in words.items())}")
    echo("Effects, intervals and source of one: orchestrator claim NAME --list")
