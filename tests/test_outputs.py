"""With --json every command prints what the published schema says."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer

from orchestrator.cli.main import app, main
from orchestrator.cli.outputs import OUTPUTS, outputs_schema

BEGUN = Path(__file__).parent / "goldens" / "begun"

RUN = [
    "list",
    "status golden",
    "report golden",
    "compare golden other",
    "search demo --dry-run",
    "benchmark --methods pfml,triplet --dataset glyphs-small --num-trials 2 --dry-run",
    "train --method triplet --dataset glyphs-small --dry-run",
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
    "new-method my_loss",
    "init my.yaml --method pfml --dataset glyphs",
    "schema --output search.schema.json",
    "schema --of outputs",
]


SLOW = ["check contrastive"]
WITHOUT = {"mcp"}
"""Its standard output is a protocol, whose answers are those of other commands."""


def commands() -> dict[str, Any]:
    """Every command with its options, those of groups as `group command`."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
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
    schema, seen = outputs_schema(), set()
    for line in lines:
        with pytest.raises(SystemExit) as ended:
            main([*shlex.split(line), "--json"])
        said = capsys.readouterr()
        assert ended.value.code == 0, (line, said.err)
        words = line.split()
        name = " ".join(words[:2]) if words[0] == "datasets" else words[0]
        of = schema["properties"][name]
        answer = json.loads(said.out.splitlines()[-1])
        jsonschema.validate(answer, {"$defs": schema["$defs"], **of})
        seen.add(name)
    assert lines is not RUN or seen >= OUTPUTS.keys() - {
        "check",
        *(
            "resume",
            "stop",
            "pause",
            "evaluate",
            "export",
            "embed",
            "query",
            "ui",
            "watch",
        ),  # they need a model or a run
        *("datasets prepare", "datasets publish"),
    }


def test_another_key_is_found() -> None:
    schema = outputs_schema()
    answer = {"tags": [], "note": "", "more": 1}
    with pytest.raises(jsonschema.ValidationError, match="more"):
        jsonschema.validate(answer, {"$defs": schema["$defs"], **schema["properties"]["tag"]})
