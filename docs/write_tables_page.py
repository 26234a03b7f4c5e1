"""Writes docs/tables.md: `make tables-page`. For each table of the papers: its rows with the command that
runs them, and those that cannot be run, with the reason."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.config.presets import FOLDER, Preset, read_presets
from orchestrator.config.training import resolve_experiment
from orchestrator.report.published import FOLDER as PUBLISHED
from orchestrator.report.published import Paper, PaperTable, PublishedRow, read_paper

PAGE = Path(__file__).with_name("tables.md")
FIRST = ["pfml", "idml", "ccp", "anti_collapse"]
"""The files whose tables begin the page; the others follow by name."""
WEIGHTS = {"bn_inception": "bn_inception.pth"}
"""Backbones whose weights are a file that one brings."""
NO_PRESET = "the method is here, but no preset has its data set and backbone under this protocol"
HEAD = """\
# The papers' tables, row by row

Written by `make tables-page` from the tables in `orchestrator/report/published/` and the
[presets](presets.md). {runnable} of {all} results (a row on one data set) have a command. No number has been compared
with the papers' yet: that takes their data sets and GPUs. Where a table's metrics are found, and how it is read, is in
[protocols](protocols.md).

A command takes the preset of the row's own paper, or else that of another one under the same protocol (then it says
whose settings these are: a row that a paper copied from elsewhere was trained by others), and sets what the row has
otherwise. `selection=test` is set where a paper chose its best epoch on the test classes, or does not say on what;
`--repeats 5` where the row has a deviation.
"""


@dataclass(frozen=True)
class Result:
    """A row on one data set: its commands, or the reason why there are none."""

    row: PublishedRow
    commands: tuple[str, ...] = ()
    note: str = ""
    reason: str = ""


@cache
def _all_presets() -> list[tuple[str, Preset, Mapping[str, Any]]]:
    """The file, the preset, and all its settings, of each preset."""
    return [
        (path.stem, preset, resolve_experiment(preset.settings, preset.name).flat())
        for path in sorted(FOLDER.glob("*.yaml"))
        for preset in read_presets(path)
    ]


@cache
def _names() -> dict[str, str]:
    return {path.stem: read_paper(path).paper for path in PUBLISHED.glob("*.yaml")}


def result_of(row: PublishedRow, file: str) -> Result:
    """How a row of the paper in this file is run."""
    if row.commands:
        return Result(row, row.commands)
    if row.not_here is not None:
        return Result(row, reason=row.not_here)
    if not row.ours:
        return Result(row, reason="not a method of this project")
    if row.condition is not None and row.condition_settings is None:
        return Result(row, reason="its condition has no settings here")
    wanted = {**row.ours, **row.settings, **(row.condition_settings or {})}
    if row.dimension is not None:
        wanted["embedding_dim"] = row.dimension
    method = wanted["method"]
    place = f"{method}/{row.dataset}/{row.backbone}"
    found = [
        (source, preset, settings)
        for source, preset, settings in _all_presets()
        if (preset.name == place or preset.name.startswith(f"{place}/"))
        and settings["protocol"] == row.protocol
        and settings.get("objective") == wanted.get("objective", settings.get("objective"))
    ]
    found = [one for one in found if one[0] == file] or found
    if not found:
        return Result(row, note=f"`{method}`", reason=NO_PRESET)
    fewest = min(len(_changes(wanted, settings)) for _, _, settings in found)
    best = [one for one in found if len(_changes(wanted, one[2])) == fewest]
    source, preset, settings = best[0]
    notes = [f"with {_names().get(source, 'the released code')}'s settings"] if source != file else []
    others = [one.name for _, one, also in best[1:] if also.get("objective") == settings.get("objective")]
    if others:
        notes.append("or the preset " + ", ".join(others))
    if row.values.keys() <= settings.keys() | {"batch_size", "proxy_lr"}:  # what is printed are settings
        return Result(row, (f"orchestrator presets {preset.name}",), ", ".join(notes))
    repeats = " --repeats 5" if any(value.deviation is not None for value in row.values.values()) else ""
    sets = {"selection": "test"} if row.protocol == "conventional" else {}
    sets |= _changes(wanted, settings)
    sets |= {"weights": WEIGHTS[row.backbone]} if row.backbone in WEIGHTS else {}
    words = "".join(f" --set {key}={_word(value)}" for key, value in sets.items())
    return Result(row, (f"orchestrator train --preset {preset.name}{repeats}{words}",), ", ".join(notes))


def _word(value: Any) -> str:
    """As `--set` takes it."""
    return json.dumps(value).strip('"')


def _changes(wanted: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in wanted.items() if settings.get(key) != value}


def _paper(file: str) -> Paper:
    return read_paper(PUBLISHED / f"{file}.yaml")


def results(file: str, table: str) -> list[Result]:
    """Of every row and data set of a table, in its order."""
    return [result_of(row, file) for row in _paper(file).rows() if row.table == table]


def _label(row: PublishedRow, table: PaperTable) -> str:
    """How the page tells a row from the others of its table."""
    parts = [row.method]
    parts += [str(row.backbone)] if "backbone" in table.columns else []
    parts += [f"{row.dimension}-D"] if "dimension" in table.columns and row.dimension is not None else []
    parts += [row.condition] if row.condition is not None else []
    return ", ".join(parts)


def _table_lines(file: str, name: str, table: PaperTable) -> Iterator[str]:
    found = results(file, name)
    yield f"### Table {name}: {table.title}"
    yield ""
    by_commands: dict[tuple[str, ...], list[Result]] = {}
    for result in found:
        if result.commands:
            by_commands.setdefault(result.commands, []).append(result)
    if by_commands:
        yield "```bash"
        for commands, of in by_commands.items():
            labels = dict.fromkeys(_label(one.row, table) for one in of)
            note = f" ({of[0].note})" if of[0].note else ""
            for command in commands:
                yield f"{command}  # {'; '.join(labels)}{note}"
        yield "```"
        yield ""
    reasons: dict[str, dict[str, list[str]]] = {}
    for result in found:
        if not result.commands:
            label = " ".join(filter(None, [_label(result.row, table), result.note]))
            reasons.setdefault(result.reason, {}).setdefault(label, []).append(result.row.dataset)
    if reasons:
        yield "Not runnable:"
        yield ""
    runs = {_label(result.row, table) for result in found if result.commands}
    for reason, rows in reasons.items():
        # of a row that runs on some data sets, the others
        texts = [
            f"{label} on {', '.join(sets)}" if label.split(" `")[0] in runs else label for label, sets in rows.items()
        ]
        yield f"- {reason}: {'; '.join(texts)}."
    if reasons:
        yield ""
    if table.left_out:
        yield f"Left out: {'; '.join(table.left_out)}."
        yield ""


def page() -> str:
    """The whole page."""
    files = sorted(_names(), key=lambda file: (file not in FIRST, FIRST.index(file) if file in FIRST else file))
    lines: list[str] = []
    counts = [
        bool(result.commands) for file in files for table in _paper(file).tables for result in results(file, table)
    ]
    for file in files:
        paper = _paper(file)
        lines += [f"## {paper.paper} ({paper.citation})", ""]
        for name, table in paper.tables.items():
            lines += _table_lines(file, name, table)
    return HEAD.format(runnable=sum(counts), all=len(counts)) + "\n" + "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} written", file=sys.stderr)
