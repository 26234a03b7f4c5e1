"""A lab's file: its values hold where neither an option, an argument nor an environment variable gives one."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import orchestrator as dml
from orchestrator.cli import main as command_line
from orchestrator.cli.completing import _storage
from orchestrator.cli.main import main
from orchestrator.cli.options import DEFAULT_STORAGE, Address, Command, Experiment, Storage, TrackingUri
from orchestrator.errors import InputError
from orchestrator.search.beginning import resolve_request
from orchestrator.search.doctor import CHECKS, Site
from orchestrator.search.lab import VARIABLES, in_force, storage_places, values_in_force
from orchestrator.storage import paths
from orchestrator.storage.places import Places

KEYS = "storage: /lab/runs\ntracking_uri: http://me:hunter2@mlflow:5000\naddress: head:6379\nexperiment: retrieval\n"
FILE = {
    "storage": "/lab/runs",
    "tracking_uri": "http://me:hunter2@mlflow:5000",
    "address": "head:6379",
    "experiment": "retrieval",
}

program = typer.Typer()


@program.command(cls=Command)
def told(
    storage: Storage = DEFAULT_STORAGE,
    tracking_uri: TrackingUri = None,
    address: Address = None,
    experiment: Experiment = None,
) -> None:
    """What a command is given."""
    print(json.dumps([str(storage), tracking_uri, address, experiment]))


def given(*words: str) -> dict[str, str | None]:
    result = CliRunner().invoke(program, [*words], catch_exceptions=False)
    return dict(zip(FILE, json.loads(result.stdout), strict=True))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file, with nothing in the environment."""
    for name in (paths.LAB_VARIABLE, *VARIABLES.values()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "orchestrator.yaml"
    path.write_text(KEYS)
    return path


def test_an_option_comes_before_a_variable_and_a_variable_before_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert given() == FILE
    variables = {"storage": "/env", "tracking_uri": "http://env:1", "address": "env:1", "experiment": "env"}
    for key, value in variables.items():
        monkeypatch.setenv(VARIABLES[key], value)
    assert given() == variables
    options = {"storage": "/o", "tracking_uri": "http://o:1", "address": "o:1", "experiment": "o"}
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)]
    assert given(*words) == options
    assert given("--address", "local") == variables | {"address": "local"}


def test_in_python_it_is_the_same(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert {key: in_force(key) for key in FILE} == FILE
    assert storage_places(None).storage == Path("/lab/runs") and storage_places(tmp_path).storage == tmp_path
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://env:1")
    assert (in_force("tracking_uri"), in_force("tracking_uri", "http://o:1")) == ("http://env:1", "http://o:1")
    file.write_text(f"storage: {tmp_path / 'other'}\n")
    with pytest.raises(InputError, match=str(tmp_path / "other")):
        dml.load("nothing")
    file.unlink()
    assert storage_places(None).storage == Path("runs").resolve()


def test_a_search_file_comes_before_the_file_of_the_lab(file: Path, tmp_path: Path) -> None:
    file.write_text("workers: 2\nmax_concurrent: 3\n")
    raw: dict[str, Any] = {"method": "pfml", "space": {"alpha": [1, 2]}, "algorithm": "grid"}

    def sizes(raw: dict[str, Any], **changes: Any) -> tuple[int, int | None]:
        places = Places(tmp_path)
        resolved = resolve_request(raw, places, source="s", name="s", overrides={}, changes=changes, prepared=False)
        assert isinstance(resolved.workers, int)
        return resolved.workers, resolved.max_concurrent

    assert sizes(raw) == (2, 3)
    assert sizes(raw | {"workers": 1}) == (1, 3)
    assert sizes(raw, workers=4, max_concurrent=None) == (4, 3)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("storag: /x\n", ["line 1: storag: no such key of this file (did you mean 'storage'?)"]),
        ("storage: /x\nworkers: many\n", ["line 2: workers: 'many': should be a whole number"]),
        ("\nworkers: 0\nstorage: runs\n", ["line 2: workers: 0: should be at least 1", "line 3: storage: 'runs': "]),
        ("address: ''\n", ["line 1: address: '': is empty"]),
        ("storage: ftp://x\n", ["line 1: storage: "]),
        ("tracking_uri: ftp://me:hunter2@h\n", ["line 1: tracking_uri: tracking URI 'ftp://***@h': unknown scheme"]),
        ("tracking_uri: [http://me:hunter2@h]\n", ["line 1: tracking_uri: "]),
        ("workers: 1\nworkers: 2\n", ["line 2: not YAML: "]),
        ("- 1\n", ["should be a mapping"]),
        ("# nothing\n", ["is empty; it should be a mapping with storage, tracking_uri, ..."]),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    file: Path, text: str, problems: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    with pytest.raises(SystemExit) as end:
        main(["status", "x"])
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        mark = ", " if problem.startswith("line") else ": "
        assert line.startswith(f"error: {file}{mark}{problem}") and "hunter2" not in line


def test_a_wrong_file_hinders_neither_help_nor_a_command_that_does_not_need_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("storag: /x\n")
    assert CliRunner().invoke(command_line.program(), ["search", "--help"]).exit_code == 0
    assert CliRunner().invoke(command_line.program(), ["settings"]).exit_code == 0
    group: Any = typer.main.get_command(command_line.program())
    context = group.commands["status"].make_context("status", [], resilient_parsing=True)
    assert _storage(context) == DEFAULT_STORAGE, "completing prints no error"
    file.write_text("storage: /lab/runs\n")
    context = group.commands["status"].make_context("status", [], resilient_parsing=True)
    assert _storage(context) == Path("/lab/runs")


def test_help_shows_no_value_of_it(file: Path) -> None:
    help_ = CliRunner().invoke(command_line.program(), ["search", "--help"]).stdout
    assert "hunter2" not in help_ and "/lab/runs" not in help_


def test_which_file_is_in_force(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named one, else the user's, else the machine's; an empty one is none."""
    assert paths.lab_folders() == [str(file.parent), "/etc"]
    machine = tmp_path / "etc"
    machine.mkdir()
    (machine / "orchestrator.yaml").write_text("workers: 8\n")
    monkeypatch.setattr(paths, "lab_folders", lambda: [str(file.parent), str(machine)])
    assert paths.lab_file() == file
    file.unlink()
    assert values_in_force() == {"workers": 8}
    (tmp_path / "named.yaml").write_text("workers: 5\n")
    monkeypatch.setenv("ORCHESTRATOR_CONFIG", str(tmp_path / "named.yaml"))
    assert values_in_force() == {"workers": 5}
    monkeypatch.setenv("ORCHESTRATOR_CONFIG", os.devnull)
    assert paths.lab_file() is None and values_in_force() == {}
    monkeypatch.setenv("ORCHESTRATOR_CONFIG", str(tmp_path))
    with pytest.raises(InputError, match=r"^ORCHESTRATOR_CONFIG: .*: is a folder; it should be a file$"):
        values_in_force()
    monkeypatch.setenv("ORCHESTRATOR_CONFIG", str(tmp_path / "missing.yaml"))
    with pytest.raises(InputError, match=r"^ORCHESTRATOR_CONFIG: .*missing.yaml: no such file$"):
        values_in_force()


def test_a_file_that_everybody_may_write_names_no_tracker(file: Path) -> None:
    file.chmod(0o646)
    with pytest.raises(InputError, match="may be written by everybody: chmod o-w"):
        values_in_force()
    file.chmod(0o664)
    assert values_in_force()["address"] == "head:6379"


def test_a_value_that_an_option_refuses_is_told_as_the_file_s(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"storage: {file}\n")
    with pytest.raises(SystemExit):
        main(["list"])
    assert f"error: {file}: storage: {file} is a file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "search demo", "status x"])
def test_a_storage_that_cannot_be_used_is_told_as_the_file_s(
    command: str, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "/proc/none"  # no system lets one be made
    file.write_text(f"storage: {wrong}\n")
    assert _refusal(command, capsys).startswith(f"{file}: storage: ")
    assert _refusal(f"{command} --storage {wrong}", capsys).startswith("--storage (or ORCHESTRATOR_STORAGE): ")
    monkeypatch.setenv("ORCHESTRATOR_STORAGE", wrong)
    assert _refusal(command, capsys).startswith("--storage (or ORCHESTRATOR_STORAGE): ")


def _refusal(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    return capsys.readouterr().err.rpartition("error: ")[2]


def test_its_tracker_is_the_user_s_own(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a storage records of it is then trusted, as after an option."""
    from orchestrator.tracking import address

    monkeypatch.setattr(address, "_given_addresses", lambda: tmp_path / "trackers.txt")
    file.write_text("tracking_uri: http://mlflow:5000\n")
    assert not address.is_trusted("http://mlflow:5000")
    assert address.tracking_address(given()["tracking_uri"], Places(tmp_path)) == "http://mlflow:5000"
    assert address.is_trusted("http://mlflow:5000")


def test_the_doctor_names_it(file: Path, tmp_path: Path) -> None:
    (said,) = CHECKS["configuration"](Site(tmp_path))
    assert said.state == "ok" and said.fact.startswith(
        f"{file}: storage=/lab/runs, tracking_uri=http://***@mlflow:5000"
    )
    file.unlink()
    (said,) = CHECKS["configuration"](Site(tmp_path))
    assert said.fact == f"no defaults in {file} or /etc/orchestrator.yaml"


def test_printed_commands_name_the_storage(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.in_command(Path("runs")) == " --storage runs", "without it the file's would be taken"
    file.unlink()
    assert paths.in_command(Path("runs")) == ""
