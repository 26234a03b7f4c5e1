"""`make gpu` says that a part passed only if all of it ran and passed; looked at without a GPU."""

import ast
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import gpu
import gpu_parts
import pytest
import test_gpu
import torch
from _pytest.mark import ParameterSet
from gpu_parts import PARTS, Part
from gpu_results import FAILED, INCOMPLETE, NOT_RUN, PASSED, TRIED, Result, kept, of_tests, save
from support.training_loops import resolved

import orchestrator.training.loop

ROOT = Path(__file__).parents[2]
GOOD = "def test_good(): pass\n"
SKIPPED = "import pytest\ndef test_skipped(): pytest.skip('no GPU | here')\n"
BAD = "def test_bad(): assert 1 == 2\n"


@pytest.fixture
def try_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a part of one test file or one script."""
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    (tmp_path / "tests" / "training").mkdir(parents=True)
    (tmp_path / "benchmarks").mkdir()

    def run(
        source: str,
        tests: tuple[str, ...] = (),
        seconds: float = 60,
        left: float = 60,
        device: str = "cuda",
        environment: dict[str, str] | None = None,
        **more: Any,
    ) -> Result:
        (tmp_path / "tests" / "training" / "test_gpu.py").write_text(source)
        (tmp_path / "benchmarks" / "script.py").write_text(source)
        part = Part("tried", "a trial", seconds, tests, () if tests else ("script.py",), **more)
        return gpu.run(part, device, environment or {"PYTHONPATH": ""}, min(seconds, left))

    return run


def test_a_part_of_tests_passes_only_if_all_ran_and_passed(try_part: Any) -> None:
    assert try_part(GOOD, ("test_good",)).outcome == PASSED
    skipped = try_part(SKIPPED, ("test_skipped",))
    assert (skipped.outcome, skipped.tests["skipped"]) == (NOT_RUN, 1) and "no GPU | here" in skipped.why
    some = try_part(GOOD + SKIPPED, ("test_good", "test_skipped"))
    assert some.outcome == INCOMPLETE and "no GPU" in some.why
    for source in (GOOD + BAD, GOOD + BAD + SKIPPED):
        failed = try_part(source, ("test_good", "test_bad"))
        assert (failed.outcome, failed.tests["failed"]) == (FAILED, 1) and "test_bad" in failed.why
    assert try_part("import nothing_like_it\n" + GOOD, ("test_good",)).outcome == FAILED
    assert try_part(GOOD, ("test_good", "test_renamed")).outcome == FAILED
    assert of_tests(Part("p", "w", 1, ("test_good",)), 0, Path("none.xml")).outcome == NOT_RUN


def test_a_part_runs_where_pytest_has_no_plugin_for_time_limits(
    try_part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our settings name its option, and unknown options are refused."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:timeout")
    monkeypatch.setattr(gpu, "there", lambda package, _: package != "pytest_timeout")
    assert try_part(GOOD, ("test_good",), environment=dict(os.environ)).outcome == PASSED


def test_a_script_s_part_passes_only_with_figures(try_part: Any) -> None:
    found = try_part("print('words'); print('{\"images/s\": 5.5}')")
    assert (found.outcome, found.figures) == (PASSED, {"images/s": 5.5})
    one = try_part('print(\'{"not run": "one GPU"}\')')
    assert (one.outcome, one.why, one.figures) == (NOT_RUN, "one GPU", {})
    assert try_part("print('{\"a\": 1}')", device="cpu").outcome == TRIED
    for source in (
        "",
        "print('all is well')",
        "print('{}')",
        "print('[1]')",
        "print('{\"a\": 1}'); raise SystemExit(3)",
    ):
        assert try_part(source).outcome == FAILED
    slow = "import time; print('{\"a\": 1}', flush=True); time.sleep(60)"
    stopped, cut = try_part(slow, seconds=1), try_part(slow, left=1)
    assert (stopped.outcome, cut.outcome) == (INCOMPLETE, INCOMPLETE) and "time for all parts" in cut.why
    assert stopped.figures == cut.figures == {"a": 1}  # what was measured before is kept
    assert try_part("import time; time.sleep(60)", seconds=1).outcome == FAILED
    broken = try_part('print(\'{"a": 1}\'); print(\'{"net: failed": "no cuDNN"}\'); print(\'{"b": 2}\')')
    assert (broken.outcome, broken.why) == (FAILED, "1 failed; net: no cuDNN") and broken.figures["b"] == 2
    some = try_part('print(\'{"a": 1}\'); print(\'{"not run": "not installed: timm"}\')')
    assert (some.outcome, some.why, some.figures) == (INCOMPLETE, "not installed: timm", {"a": 1})
    absent = try_part("print('{\"a\": 1}')", needs=("nothing_like_it",))
    assert (absent.outcome, absent.why) == (NOT_RUN, "not installed: nothing_like_it")


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in PARTS if part.script], ids=lambda part: str(part.name))
def test_every_script_gives_figures_in_small_on_a_cpu(part: Part) -> None:
    """What a GPU would measure is measured here on little, so that no name or option has moved since."""
    found = gpu.run(part, "cpu", os.environ | {"PYTHONPATH": str(ROOT)}, 300)
    assert (found.outcome, found.why) == (TRIED, "") and found.figures


def test_the_report_claims_nothing_that_did_not_run(tmp_path: Path) -> None:
    where = {"device": "cpu", "machine": "m", "date": "d", "commit": "c", "python": "3", "cores": 2, "versions": {}}
    results = {
        PARTS[0].name: Result(PARTS[0].name, PASSED, figures={"torch": "2"}, where=where),
        PARTS[1].name: Result(
            PARTS[1].name, NOT_RUN, "needs | CUDA", {"passed": 0, "failed": 0, "skipped": 27}, where=where
        ),
    }
    save(tmp_path, results)
    assert kept(tmp_path / "results.json") == results
    page = (tmp_path / "results.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert len(rows) == len(PARTS)
    assert [" passed |" in row for row in rows] == [True] + [False] * (len(PARTS) - 1)
    assert "**not run**: needs \\| CUDA (27 skipped)" in rows[1]
    assert all("**not run**: no run asked for it yet" in row for row in rows[2:])
    assert "ran on a CPU" in page
    (tmp_path / "results.json").write_text("{")
    assert kept(tmp_path / "results.json") == {}


def test_planted_claims_are_seen(try_part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pytest's exit status alone, a part whose tests are all skipped would have passed."""
    monkeypatch.setattr(gpu, "of_tests", lambda part, code, report: Result(part.name, FAILED if code else PASSED))
    with pytest.raises((AssertionError, KeyError)):
        test_a_part_of_tests_passes_only_if_all_ran_and_passed(try_part)


def test_without_a_gpu_nothing_is_run_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match="torch finds no GPU here: nothing was run"):
        gpu.main()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--part", "99"])
    with pytest.raises(SystemExit, match="give a number from 1 to"):
        gpu.main()


def test_time_that_is_over_is_said_and_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result of an earlier run stays, with its date, but does not count for this one."""
    passed = Result(
        PARTS[0].name, PASSED, figures={"a": 1}, where={"date": "before", "python": "3", "cores": 1, "versions": {}}
    )
    save(tmp_path, {PARTS[0].name: passed})
    words = ["gpu.py", "--device", "cpu", "--minutes", "0", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 1
    found = kept(tmp_path / "results.json")
    assert found.pop(PARTS[0].name) == passed
    assert {(result.outcome, "go on with PART=" in result.why) for result in found.values()} == {(NOT_RUN, True)}
    assert len(found) == len(PARTS) - 1


@pytest.mark.skipif(not (find_spec("pip") or which("uv")), reason="neither pip nor uv")
def test_carried_wheels_are_found(tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    with pytest.raises(SystemExit, match="no wheel in"):
        gpu.unpack(wheels, str(site))
    with zipfile.ZipFile(wheels / "made_package-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("made_package/__init__.py", "")
        about = {"METADATA": "Metadata-Version: 2.1\nName: made-package\nVersion: 1\n", "RECORD": ""}
        about["WHEEL"] = "Wheel-Version: 1.0\nGenerator: made\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        for name, text in about.items():
            wheel.writestr(f"made_package-1.dist-info/{name}", text)
    gpu.unpack(wheels, str(site))
    assert gpu.there("made_package", {"PYTHONPATH": str(site)}) and not gpu.there("made_package", {})
    (wheels / "broken-1-py3-none-any.whl").write_text("no wheel")
    with pytest.raises(SystemExit, match="could not be installed"):
        gpu.unpack(wheels, str(site))


class Resolved(Exception):
    """A test has come to its training."""


def first_of(given: Any) -> Any:
    """The parameters of one test, of `pytest.param` or as they are."""
    return given.values[0] if isinstance(given, ParameterSet) else given


def come_to_training(function: Any, folder: Path) -> list[str]:
    """Calls a test of test_gpu.py with each of its parameters, up to its first training: those that do not get there.

    Without a GPU nothing else shows that a name which a test patches has moved, or that its settings are refused."""
    lost = []

    def stand_in(_: object, data: Path, settings: dict[str, Any], **__: Any) -> None:
        resolved(data, settings)
        raise Resolved

    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    tables: list[list[dict[str, Any]]] = [
        [dict(zip(names, row if len(names) > 1 else [row], strict=True)) for row in rows]
        for mark in marks
        for names in [mark.args[0].split(", ") if isinstance(mark.args[0], str) else list(mark.args[0])]
        for rows in [[first_of(one) for one in mark.args[1]]]
    ]
    for rows in itertools.product(*tables):
        given = {key: value for row in rows for key, value in row.items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(function.__module__ + ".train", stand_in)
            patch.setattr(torch.cuda, "set_sync_debug_mode", lambda _: None)
            fixtures = {"data_folder": folder, "tmp_path": folder, "monkeypatch": patch}
            wanted = inspect.signature(function).parameters
            try:
                function(**given, **{name: fixtures[name] for name in wanted if name in fixtures})
            except Resolved:
                continue
            except Exception as error:
                lost.append(f"{function.__name__} {given}: {error!r}")
                continue
        lost.append(f"{function.__name__} {given}: came to no training")
    return lost


def test_every_gpu_test_of_a_training_comes_to_it(tmp_path: Path) -> None:
    tests = [each for name, each in vars(test_gpu).items() if name.startswith("test_")]
    trainings = [test for test in tests if "train" in test.__code__.co_names]
    assert len(trainings) >= 7
    assert [lost for test in trainings for lost in come_to_training(test, tmp_path)] == []


@pytest.mark.parametrize("extra", [{"kernels": "triton", "precision": "float64"}, {"epoch": 1}])
def test_a_gpu_test_that_is_refused_is_seen(extra: dict[str, Any], tmp_path: Path) -> None:
    def test_planted(data_folder: Path) -> None:
        vars(test_gpu)["train"](None, data_folder, {"method": "pfml", "device": "cuda"} | extra)

    test_planted.__module__ = "test_gpu"
    (lost,) = come_to_training(test_planted, tmp_path)
    assert next(iter(extra)) in lost


def test_a_gpu_test_that_patches_a_name_which_has_moved_is_seen(tmp_path: Path) -> None:
    def test_planted(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(orchestrator.training.loop, "moved", None)
        vars(test_gpu)["train"](None, data_folder, {"method": "pfml", "device": "cuda"})

    test_planted.__module__ = "test_gpu"
    (lost,) = come_to_training(test_planted, tmp_path)
    assert "moved" in lost


def test_a_training_of_the_gpu_tests_needs_no_other_package_of_ours(data_folder: Path) -> None:
    """A GPU machine has a Python of its own, which may lack them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in project["dependencies"]}
    modules = {"pillow": "PIL", "scikit-learn": "sklearn", "faiss-gpu": "faiss", "faiss-cpu": "faiss"}
    others = {modules.get(name, name) for name in names} - {"torch", "numpy", *gpu_parts.TESTS}
    assert {"ray", "faiss", "mlflow"} <= others
    code = f"""
import sys
from pathlib import Path
sys.path[:0] = ["tests", "tests/training"]
sys.modules |= dict.fromkeys({others!r})
import conftest, test_gpu
test_gpu.train(None, Path({str(data_folder)!r}), {{"method": "pfml"}}, stop_after=1)
"""
    tried = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr


def test_every_gpu_test_is_in_one_part_and_every_script_exists() -> None:
    tree = ast.parse((ROOT / "tests" / "training" / "test_gpu.py").read_text())
    tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert sorted(name for part in PARTS for name in part.tests) == sorted(tests)
    assert all((ROOT / "benchmarks" / part.script[0]).exists() for part in PARTS if part.script)
    assert json.dumps([part.name for part in PARTS]) and len({part.name for part in PARTS}) == len(PARTS)
