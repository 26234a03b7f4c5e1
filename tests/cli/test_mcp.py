"""The MCP server, by the protocol's own client over stdio: what it offers, answers and refuses."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from support.output_schemas import conforms

BEGUN = Path(__file__).parents[1] / "goldens" / "begun"
LOOK = {"list", "status", "report"}
WRONG_TYPES = (
    "status: name: 3: should be text",
    "start: epochs: 'many': should be a whole number; settings: 3: should be a mapping",
)
Answers = list[tuple[bool, str]]


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    shutil.copytree(BEGUN, tmp_path / "runs" / "searches" / "golden")
    return tmp_path / "runs"


def talk(storage: Path, calls: list[tuple[str, dict[str, Any]]], *options: str) -> tuple[set[str], Answers]:
    """The tools that the server offers, and for each call whether it failed, and its text."""

    async def run() -> tuple[set[str], Answers]:
        command = ["-m", "orchestrator", "mcp", "--storage", str(storage), *options]
        async with Client(StdioServerParameters(command=sys.executable, args=command)) as client:
            offered = {tool.name for tool in (await client.list_tools()).tools}
            answers = []
            for name, arguments in calls:
                result = await client.call_tool(name, arguments)
                (content,) = result.content
                answers.append((bool(result.is_error), str(getattr(content, "text", ""))))
            return offered, answers

    return anyio.run(run)


def test_it_answers_as_the_commands_and_starts_nothing(storage: Path) -> None:
    calls = [(name, {} if name == "list" else {"name": "golden"}) for name in ("list", "status", "report")]
    refused: list[tuple[str, dict[str, Any]]] = [("start", {"search": "nope"}), ("stop", {"name": "golden"})]
    offered, answers = talk(storage, [*calls, *refused, ("report", {"name": "goldem"})])
    assert offered == LOOK
    for (name, _), (failed, text) in zip(calls, answers, strict=False):
        assert not failed, text
        conforms(name, json.loads(text))
    assert [one["name"] for one in json.loads(answers[0][1])] == ["golden"]
    assert json.loads(answers[2][1])["next_steps"] is not None
    for (name, _), (failed, text) in zip(refused, answers[3:], strict=False):
        assert failed and text.startswith(f"{name}: refused") and "--allow-start" in text and "\n" not in text
    failed, text = answers[-1]
    assert failed and "goldem" in text and "Traceback" not in text
    assert [path.name for path in (storage / "searches").iterdir()] == ["golden"]


@pytest.mark.slow
def test_with_consent_it_offers_start_and_stop(storage: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("start", {"search": "pfml", "dataset": "glyphs-small", "settings": {"learning_rate": 1}}),
        ("stop", {"name": "golden"}),
        ("start", {"search": "demo", "num_trails": 3}),
        ("list", {"bad": 1}),
        ("status", {}),
        ("status", {"name": 3}),
        ("start", {"search": "demo", "epochs": "many", "settings": 3}),
    ]
    offered, (start, stop, *wrong) = talk(storage, calls, "--allow-start")
    assert [failed for failed, _ in wrong] == [True] * 5
    for (_, text), said in zip(
        wrong,
        (
            "start: no argument 'num_trails' (did you mean 'num_trials'?)",
            "has: none",
            "'name' is missing",
            *WRONG_TYPES,
        ),
        strict=True,
    ):
        assert said in text and "pydantic" not in text
    assert offered == LOOK | {"start", "stop"}
    assert start[0] and "did you mean 'lr'?" in start[1]
    assert stop[0] and "is not running" in stop[1]
    assert [path.name for path in (storage / "searches").iterdir()] == ["golden"]


@pytest.mark.slow
def test_a_search_that_was_started_goes_on_without_the_server(storage: Path, data_folder: Path) -> None:
    (storage / "data").symlink_to(data_folder)
    tiny = {"embedding_dim": 8, "validate_every": "20 steps"}
    given = {"search": "pfml", "dataset": "glyphs-small", "name": "own", "epochs": 1, "num_trials": 1}
    given |= {"settings": tiny, "space": {"delta": [0.1, 0.2]}}
    _, ((failed, text),) = talk(storage, [("start", given)], "--allow-start")
    assert not failed and json.loads(text)["name"] == "own", text
    command = [sys.executable, "-m", "orchestrator", "status", "own", "--watch", "--json", "--storage", str(storage)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["state"] == "done"


@pytest.mark.slow
def test_it_stops_a_search_that_it_started(storage: Path, data_folder: Path) -> None:
    (storage / "data").symlink_to(data_folder)
    long = {"embedding_dim": 8, "epochs": 500, "validate_every": "20 steps"}
    given = {"search": "pfml", "dataset": "glyphs-small", "name": "own", "num_trials": 9}
    given |= {"settings": long, "space": {"delta": [0.1, 0.2]}}
    calls: list[tuple[str, dict[str, Any]]] = [("start", given), ("stop", {"name": "own"}), ("status", {"name": "own"})]
    _, answers = talk(storage, calls, "--allow-start")
    assert [failed for failed, _ in answers] == [False] * 3, answers
    states = [json.loads(text)["state"] for _, text in answers]
    assert states[0] == "running" and states[2] in ("running", "interrupted")
    command = [sys.executable, "-m", "orchestrator", "status", "own", "--watch", "--json", "--storage", str(storage)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout.splitlines()[-1])["state"] == "interrupted"


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    absent = "import sys; sys.modules['mcp'] = None; from orchestrator.cli.main import main; main(['mcp'])"
    done = subprocess.run([sys.executable, "-c", absent], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    wanted = "this needs the package mcp, which is not installed: uv pip install mcp"
    assert done.stderr.strip().endswith(wanted) and done.stderr.count("\n") == 1
