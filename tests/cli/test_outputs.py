"""With --json every command prints what the published schema says."""

import contextlib
import io
import json
import shlex
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import typer
from pydantic import ValidationError
from support.made_pages import made, spread
from support.output_schemas import conforms
from support.point_ledgers import ledger_of

from orchestrator.cli.main import main, program
from orchestrator.cli.outputs import OUTPUTS, outputs_schema
from orchestrator.cli.written import Written
from orchestrator.report.status import Used
from orchestrator.search import control
from orchestrator.storage import presence

BEGUN = Path(__file__).parents[1] / "goldens" / "begun"

RUN = [
    "list",
    "status golden",
    "report golden",
    "compare golden other",
    "search demo --dry-run",
    "benchmark --methods pfml,triplet --dataset glyphs-small --num-trials 2 --dry-run",
    "train --method triplet --dataset glyphs-small --dry-run",
    "train --method triplet --dataset cub200 --dry-run",
    "claim --list",
    "claim pfml/label_noise --dry-run",
    "tag golden paper",
    "note golden text",
    "sync golden --to tensorboard",
    "rename golden first",
    "delete other --yes",
    "presets",
    "presets pfml/cub200/resnet50",
    "datasets show",
    "datasets show glyphs-small",
    "methods",
    "methods idml",
    "settings lr",
    "doctor",
    "new-method my_loss",
    "init my.yaml --method pfml --dataset glyphs",
    "schema --output search.schema.json",
    "schema --of outputs",
]


SLOW = ["check contrastive"]
ELSEWHERE = {
    *("best", "check", "stop", "pause", "results show", "results add", "results page"),
    *("resume", "evaluate", "export", "embed", "query", "ui", "watch", "datasets prepare", "datasets publish"),
}
"""Compared below, and by the tests that have what they need: a model, a server, images."""
WITHOUT = {"mcp", "work"}
"""The output of `mcp` is a protocol, whose answers are those of other commands; `work` trains for another command."""


def commands() -> dict[str, Any]:
    """Every command with its options, those of groups as `group command`."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(program()).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {f"{name} {key}": one for key, one in inner.items()} if inner else {name: command}
    return found


def test_every_command_has_json_and_a_schema() -> None:
    found = {name: one for name, one in commands().items() if name not in WITHOUT}
    assert [name for name, one in found.items() if not any("--json" in p.opts for p in one.params)] == []
    assert found.keys() == OUTPUTS.keys() == outputs_schema()["properties"].keys()


@pytest.mark.parametrize("lines", [RUN, pytest.param(SLOW, marks=pytest.mark.slow)], ids=["quick", "slow"])
def test_what_is_printed_is_what_the_schema_says(
    lines: list[str],
    data_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("golden", "other"):
        shutil.copytree(BEGUN, tmp_path / "runs" / "searches" / name)
    (tmp_path / "runs" / "data").symlink_to(data_folder)
    monkeypatch.chdir(tmp_path)
    seen = set()
    for line in lines:
        with pytest.raises(SystemExit) as ended:
            main([*shlex.split(line), "--json"])
        said = capsys.readouterr()
        assert ended.value.code == 0, (line, said.err)
        words = line.split()
        name = " ".join(words[:2]) if words[0] == "datasets" else words[0]
        conforms(name, json.loads(said.out.splitlines()[-1]))
        seen.add(name)
    assert lines is not RUN or seen == OUTPUTS.keys() - ELSEWHERE


@pytest.mark.parametrize("command", ["stop", "pause"])
def test_what_a_driver_that_obeys_makes_of_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search that ends when it is told to, as its driver does."""
    for module in (control, presence):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    folder = tmp_path / "searches" / "golden"
    shutil.copytree(BEGUN, folder)
    conductor: Any = SimpleNamespace(folder=folder, stopping=False, pausing=False, stopped_by=None)

    def drive() -> None:
        with control.driver_lease(conductor):
            while not conductor.stopping and not over.is_set():
                time.sleep(0.01)

    over, driving = threading.Event(), threading.Thread(target=drive)
    driving.start()
    try:
        while presence.driver(folder) is None:
            time.sleep(0.01)
        with pytest.raises(SystemExit) as ended:
            main([command, "golden", "--storage", str(tmp_path), "--json"])
        asked = conductor.stopping, conductor.pausing
    finally:
        over.set()
        driving.join()
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    answer = json.loads(said.out)
    conforms(command, answer)
    assert asked == (command == "stop", command == "pause") and (answer["driver"] is None) == (command == "stop")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of searches with final runs, and of a grid over seeds."""
    storage = tmp_path_factory.mktemp("outputs")
    points = spread(3)
    best = f"{max(range(3), key=lambda n: points[n]['delta']):04d}"
    for name, values in (("one", [0.5, 0.52, 0.51]), ("two", [0.6, 0.64, 0.61])):
        made(storage / "searches" / name, points, lambda p: p["delta"], epochs=2, finals={best: values})
    ledger_of(storage / "searches" / "grid")
    said = {}
    for line in ("report one", "report grid", "compare one two", "status one", "list"):
        with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
            main([*line.split(), "--storage", str(storage), "--json"])
        said[line] = json.loads(out.getvalue().splitlines()[-1])
    return said


def test_what_final_runs_and_seeds_add(answers: dict[str, Any]) -> None:
    for line, answer in answers.items():
        conforms(line.split()[0], answer)
    one, grid, compared = (answers[line] for line in ("report one", "report grid", "compare one two"))
    assert one["finals"] and one["repeated"] and one["next_steps"] and grid["points"][1]["best_less_this"]
    assert compared["members"][0]["test"] and compared["differences"]


def test_an_output_has_its_fields_and_no_others(answers: dict[str, Any]) -> None:
    used: dict[str, Any] = {"used": 1.0, "of": 3}
    assert Used(**used).plain == used and isinstance(Used(**used).plain["of"], int)
    status = json.loads(json.dumps(answers["status one"]))
    status["budget"]["trials"] = used
    conforms("status", status)
    for wrong in (used | {"more": 1}, used | {"used": "much"}, {"used": 1.0}):
        with pytest.raises(ValidationError):
            Used.model_validate(wrong)
        status["budget"]["trials"] = wrong
        with pytest.raises(jsonschema.ValidationError):
            conforms("status", status)


def test_a_field_with_a_default_is_absent_unless_it_is_given() -> None:
    assert Written(path="a").plain == {"path": "a"}
    assert Written(path="a", method=None).plain == {"path": "a", "method": None}
