"""`make gpu` says that a part passed only if all of it ran and passed; looked at without a GPU."""

import ast
import json
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import gpu
import pytest
from gpu import FAILED, INCOMPLETE, NOT_RUN, PARTS, PASSED, TRIED, Part, Result

ROOT = Path(__file__).parents[1]
GOOD = "def test_good(): pass\n"
SKIPPED = "import pytest\ndef test_skipped(): pytest.skip('no GPU | here')\n"
BAD = "def test_bad(): assert 1 == 2\n"


@pytest.fixture
def try_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a part of one test file or one script."""
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "benchmarks").mkdir()

    def run(
        source: str,
        tests: tuple[str, ...] = (),
        seconds: float = 60,
        left: float = 60,
        device: str = "cuda",
        **more: Any,
    ) -> Result:
        (tmp_path / "tests" / "test_gpu.py").write_text(source)
        (tmp_path / "benchmarks" / "script.py").write_text(source)
        part = Part("tried", "a trial", seconds, tests, () if tests else ("script.py",), **more)
        return gpu.run(part, device, {"PYTHONPATH": ""}, min(seconds, left))

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
    assert gpu.of_tests(Part("p", "w", 1, ("test_good",)), 0, Path("none.xml")).outcome == NOT_RUN


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
    assert (stopped.outcome, cut.outcome) == (FAILED, INCOMPLETE) and "time for all parts" in cut.why
    absent = try_part("print('{\"a\": 1}')", needs=("nothing_like_it",))
    assert (absent.outcome, absent.why) == (NOT_RUN, "not installed: nothing_like_it")


def test_the_report_claims_nothing_that_did_not_run(tmp_path: Path) -> None:
    where = {"device": "cpu", "machine": "m", "date": "d", "commit": "c", "python": "3", "cores": 2, "versions": {}}
    results = {
        PARTS[0].name: Result(PARTS[0].name, PASSED, figures={"torch": "2"}, where=where),
        PARTS[1].name: Result(
            PARTS[1].name, NOT_RUN, "needs | CUDA", {"passed": 0, "failed": 0, "skipped": 27}, where=where
        ),
    }
    gpu.save(tmp_path, results)
    assert gpu.kept(tmp_path / "results.json") == results
    page = (tmp_path / "results.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert len(rows) == len(PARTS)
    assert [" passed |" in row for row in rows] == [True] + [False] * (len(PARTS) - 1)
    assert "**not run**: needs \\| CUDA (27 skipped)" in rows[1]
    assert all("**not run**: no run asked for it yet" in row for row in rows[2:])
    assert "ran on a CPU" in page
    (tmp_path / "results.json").write_text("{")
    assert gpu.kept(tmp_path / "results.json") == {}


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
    gpu.save(tmp_path, {PARTS[0].name: passed})
    words = ["gpu.py", "--device", "cpu", "--minutes", "0", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 1
    found = gpu.kept(tmp_path / "results.json")
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


def test_every_gpu_test_is_in_one_part_and_every_script_exists() -> None:
    tree = ast.parse((ROOT / "tests" / "test_gpu.py").read_text())
    tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert sorted(name for part in PARTS for name in part.tests) == sorted(tests)
    assert all((ROOT / "benchmarks" / part.script[0]).exists() for part in PARTS if part.script)
    assert json.dumps([part.name for part in PARTS]) and len({part.name for part in PARTS}) == len(PARTS)
