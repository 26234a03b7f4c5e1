"""`orchestrator new-method`: what it writes is installed by its own build backend, checked, trained and searched."""

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from orchestrator.cli.scaffold import FILES, class_name, new_method
from orchestrator.errors import InputError

PROGRAMS = Path(sys.executable).parent
TINY = "--set embedding_dim=8 --set classes_per_batch=8 --set images_per_class=2 --set validate_every='20 steps'"


def apart(command: list[str], folder: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A program of this environment in a process of its own; `path` is where a plugin was installed to."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": str(path)} if path else {})
    command = [str(PROGRAMS / command[0]), *command[1:]]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )


def test_a_name_that_no_file_can_have_is_refused_as_a_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^NAME: 'aaa.*too long: at most 60 characters") as refused:
        new_method("a" * 300, tmp_path / "new")
    assert len(str(refused.value)) < 200 and not (tmp_path / "new").exists()
    assert new_method("a" * 60, tmp_path / ("b" * 200)).is_dir()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of `warm_loss`."""
    return new_method("warm_loss", tmp_path_factory.mktemp("projects") / "warm")


@pytest.fixture(scope="module")
def installed(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with the project's wheel, as an installer unpacks it: its entry point is found there."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("target")
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    ran = apart(["python", "-c", build, str(wheels)], project)
    assert ran.returncode == 0, ran.stderr
    (wheel,) = wheels.glob("warm_loss-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    assert not (target / "tests").exists()
    return target


def test_the_project_is_whole_and_in_order(project: Path) -> None:
    files = sorted(str(path.relative_to(project)) for path in project.rglob("*") if path.is_file())
    named = sorted(place.replace("{name}", "warm_loss") for place in FILES)
    assert [name for name in files if "build" not in name and "egg-info" not in name] == named
    assert not [name for name in named if "{name}" in (project / name).read_text()]
    assert "class WarmLoss(Method)" in (project / "warm_loss" / "__init__.py").read_text()
    space = YAML(typ="safe", pure=True).load((project / "warm_loss.yaml").read_text())
    assert space["method"] == "warm_loss" and set(space["space"]) == {"scale", "base"}


def test_the_project_is_clean_by_our_own_rules(project: Path) -> None:
    rules = "E,F,W,I,B,UP,SIM,C4,PT,RET,RUF,PIE,PTH,NPY,PERF"
    for command in (f"ruff check --select {rules} .", "ruff format --check ."):
        ran = apart([*shlex.split(command), "--exclude", "build"], project)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("name", "expected"), [("my_loss", "MyLoss"), ("x", "X"), ("method", "MethodLoss"), ("f", "FLoss")]
)
def test_the_class_never_hides_what_its_module_imports(name: str, expected: str) -> None:
    assert class_name(name) == expected


@pytest.mark.parametrize("there", [False, True])
def test_nothing_is_left_of_a_project_that_cannot_be_written(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, *arguments: object, **options: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    if there:
        (tmp_path / "mine").mkdir()
    with pytest.raises(OSError, match="No space"):
        new_method("my_loss", tmp_path / "mine")
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"] * there


def test_a_folder_that_is_there_is_left_alone(project: Path) -> None:
    with pytest.raises(InputError, match="already exists"):
        new_method("other_loss", project)
    assert (project / "warm_loss.yaml").exists() and not (project / "other_loss.yaml").exists()


def test_an_empty_folder_is_filled_and_stays_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    before = folder.stat().st_ino
    assert new_method("my_loss", folder) == folder
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {place.replace("{name}", "my_loss") for place in FILES}
    assert folder.stat().st_ino == before
    assert list(tmp_path.iterdir()) == [folder]


def test_installed_it_is_listed_and_conforms(installed: Path, tmp_path: Path) -> None:
    ran = apart(["orchestrator", "methods", "--json"], tmp_path, installed)
    assert "warm_loss" in {method["name"] for method in json.loads(ran.stdout)}, ran.stderr
    assert ran.stderr == ""
    ran = apart(["orchestrator", "check", "warm_loss", "--json"], tmp_path, installed)
    verdict = json.loads(ran.stdout)
    assert (ran.returncode, verdict["conforms"]) == (0, True), ran.stderr
    assert {check["state"] for check in verdict["checks"]} == {"passed"}, verdict


@pytest.mark.slow
def test_its_own_tests_pass(project: Path, installed: Path) -> None:
    ran = apart(["pytest", "-q", "-p", "no:cacheprovider"], project, installed)
    assert ran.returncode == 0, ran.stdout
    assert "skipped" not in ran.stdout


@pytest.mark.slow
def test_installed_it_trains(installed: Path, data_folder: Path, tmp_path: Path) -> None:
    storage = tmp_path / "runs"
    storage.mkdir()
    (storage / "data").symlink_to(data_folder)
    command = f"orchestrator train --method warm_loss --dataset glyphs-small --epochs 1 --json {TINY}"
    ran = apart([*shlex.split(command), "--storage", str(storage)], tmp_path, installed)
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout.splitlines()[-1])
    assert summary["state"] == "done"
    assert 0 < summary["trials"][0]["objective"] < 1


@pytest.mark.slow
def test_installed_it_is_searched_on_a_cluster_and_seen_in_mlflow(
    project: Path, installed: Path, data_folder: Path, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    storage = tmp_path / "runs"
    storage.mkdir()
    (storage / "data").symlink_to(data_folder)
    options = f"--name warm --num-trials 2 --max-concurrent 1 --epochs 1 --json {TINY}"
    command = ["orchestrator", "search", str(project / "warm_loss.yaml"), *shlex.split(options)]
    ran = apart([*command, "--storage", str(storage)], tmp_path, installed)
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout.splitlines()[-1])
    assert summary["state"] == "done" and len(summary["trials"]) == 2
    assert 0 < summary["final"]["metrics"]["test/map_at_r"] < 1
    client = MlflowClient(f"sqlite:///{storage / 'mlflow.db'}")
    for trial in summary["trials"]:
        data = client.get_run(trial["run_id"]).data
        assert {"scale", "base"} <= set(data.params)
        assert any("map_at_r" in name for name in data.metrics)
