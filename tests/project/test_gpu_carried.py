"""`make gpu` on a machine with little installed: what is carried there, what is left out, what is kept."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import gpu
import gpu_wheels
import numpy as np
import pytest
from gpu_parts import OURS, PARTS
from gpu_results import INCOMPLETE, NOT_RUN, PASSED, TRIED, Result, kept
from gpu_trainings import store_of

from orchestrator.data import store as stores

ROOT = Path(__file__).parents[2]
HIDDEN = "ray faiss mlflow optuna timm typer rich matplotlib pandas plotly sklearn".split()  # noqa: SIM905  a list of names
WHERE = {"device": "cuda", "python": "3", "cores": 1, "versions": {}}


def hidden(folder: Path, names: list[str]) -> dict[str, str]:
    """The environment of a process that does not find these packages."""
    (folder / "sitecustomize.py").write_text(
        f"""
import sys
from importlib.machinery import PathFinder

class Finder:
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {names!r} else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder()
"""
    )
    return os.environ | {"PYTHONPATH": str(folder)}


def run(folder: Path, part: str, names: list[str]) -> Result:
    """A part of `make gpu DEVICE=cpu`, without these packages."""
    number = [each.name for each in PARTS].index(part) + 1
    words = ["benchmarks/gpu.py", "--device", "cpu", "--part", str(number), "--output", str(folder)]
    subprocess.run([sys.executable, *words], cwd=ROOT, env=hidden(folder, names), capture_output=True, check=False)
    return kept(folder / "results.json")[part]


def test_what_a_part_lacks_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, "everything", ["pydantic", "pyarrow", "ray"])
    assert (result.outcome, result.why) == (NOT_RUN, "not installed: pydantic, pyarrow")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["everything", "energy"])
def test_parts_run_without_what_only_searches_need(part: str, tmp_path: Path) -> None:
    result = run(tmp_path, part, HIDDEN)
    assert (result.outcome, result.why) == (TRIED, "") and result.figures


def test_the_first_parts_fit_into_nine_minutes() -> None:
    first = PARTS[: [part.name for part in PARTS].index("fused")]
    assert [part.name for part in first] == [
        *("environment", "everything", "steps", "validation", "sharing", "trials", "energy")
    ]
    assert sum(part.seconds for part in first) <= 9 * 60


def test_figures_are_kept_when_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not at the part's end, to which it may never come."""
    part, other = PARTS[2], PARTS[0]
    came = gpu.keeper(part, tmp_path, {other.name: Result(other.name, PASSED, where=WHERE)}, WHERE)
    came("words\n")
    assert not (tmp_path / "results.json").exists()
    came('{"a: ms a step": 12.5}\n')
    came('{"b: ms a step": 7}\n')
    found = kept(tmp_path / "results.json")
    assert found[other.name].outcome == PASSED and found[part.name].outcome == INCOMPLETE
    assert found[part.name].figures == {"a: ms a step": 12.5, "b: ms a step": 7}
    assert "a: ms a step: 12.5" in capsys.readouterr().out


def test_all_that_is_carried_fits(tmp_path: Path) -> None:
    """Ten of the sixty MB are left to the wheels that `make gpu-wheels` fetches, which have three."""
    assert gpu_wheels.tracked() < gpu_wheels.MOST - 10_000_000
    assert {name.partition("==")[0] for name in gpu_wheels.locked([*gpu_wheels.CARRIED])} == set(gpu_wheels.CARRIED)
    with pytest.raises(SystemExit, match=r"not in uv\.lock: nothing-like-it"):
        gpu_wheels.locked(["nothing-like-it"])
    assert {"pydantic", "ruamel-yaml"} <= set(gpu_wheels.CARRIED) and {"pydantic", "ruamel.yaml"} <= set(OURS)
    wheel = tmp_path / "large-1-py3-none-any.whl"
    wheel.touch()
    os.truncate(wheel, 1_000_000)
    assert gpu_wheels.check_size(tmp_path, 7_000_000) == "7.0 MB of tracked files and 1.0 MB in 1 wheels"
    os.truncate(wheel, 54_000_000)
    with pytest.raises(SystemExit, match="more than the 60 MB that can be carried; the largest: large-1"):
        gpu_wheels.check_size(tmp_path, 7_000_000)


def test_a_store_of_pictures_needs_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "matplotlib":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(stores, "version", version)
    made = store_of(tmp_path, "small", 240)
    assert json.loads((tmp_path / "small" / "manifest.json").read_text())["versions"] == {"pillow": "1"}
    assert len(made) == 240 and len(np.unique(made.labels)) == 12 and set(made.splits) == {"train", "test"}
