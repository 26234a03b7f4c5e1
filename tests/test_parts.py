"""Backbones, augmentations, optimisers and metrics of other packages, announced as entry points."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "your_own_parts.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def installed(folder: Path, announced: str, module: str = "our_parts", source: str = "") -> Path:
    """A package with this module and these lines of a pyproject.toml, as it is installed."""
    lines = announced.replace("[project.entry-points.", "[").replace('"', "")
    (folder / f"{module}-1.dist-info").mkdir(parents=True)
    (folder / f"{module}-1.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    (folder / f"{module}-1.dist-info" / "entry_points.txt").write_text(lines)
    (folder / f"{module}.py").write_text(source or block("python"))
    return folder


def run(folders: list[Path], *words: str, storage: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-m", "orchestrator", *words, *(["--storage", str(storage)] if storage else [])]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


CHOSEN = ("--set", "backbone=wide_cnn", "--set", "augmentation=mirror", "--set", "optimizer=nadam")
TRAIN = (
    "train",
    "--method",
    "contrastive",
    "--dataset",
    "glyphs-small",
    "--epochs",
    "1",
    "--set",
    "validate_every=5 steps",
)


def test_the_parts_of_the_page_train_and_are_reported(data_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "data").symlink_to(data_folder)
    package = installed(tmp_path / "package", block("toml"))
    words = [*TRAIN, *CHOSEN, "--set", "selection_metric=val/reciprocal_rank", "--name", "own", "--json"]
    done = run([package], *words, storage=tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    metrics, *_ = [value for value in walk(told) if isinstance(value, dict) and "test/reciprocal_rank" in value]
    rank, r_precision = metrics["test/reciprocal_rank"], metrics["test/r_precision"]
    assert r_precision <= rank <= 1 and rank >= metrics["test/recall_at_1"]


def walk(value: object) -> list[object]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(found for item in inside for found in walk(item))]


BROKEN = "raise RuntimeError('no such library')"


@pytest.mark.parametrize(
    ("kind", "lines", "source", "words", "says"),
    [
        (
            "backbones",
            "net = our_parts:NET",
            BROKEN,
            ["--set", "backbone=net"],
            "cannot be imported: RuntimeError: no such",
        ),
        (
            "backbones",
            "net = our_parts:NET",
            "NET = 3",
            ["--set", "backbone=net"],
            "is a int, it should be a Architecture",
        ),
        ("backbones", "net = our_parts:NET", BROKEN, ["--set", "backbone=nett"], "did you mean 'net'"),
        ("optimizers", "fast = our_parts:NADAM", "", ["--set", "optimizer=fast"], "calls itself 'nadam'"),
        ("augmentations", "turn = our_parts:T", BROKEN, ["--set", "augmentation=turn"], "RuntimeError: no such"),
        ("augmentations", "turn = our_parts:T", BROKEN, ["--set", "augmentation=turm"], "did you mean 'turn'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_line(
    kind: str, lines: str, source: str, words: list[str], says: str, tmp_path: Path
) -> None:
    package = installed(tmp_path / "package", f"[orchestrator.{kind}]\n{lines}\n", source=source)
    done = run([package], *TRAIN, *words, storage=tmp_path / "runs")
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_metric_that_cannot_be_imported_is_left_out(tmp_path: Path) -> None:
    package = installed(tmp_path / "package", "[orchestrator.metrics]\nodd = our_parts:ODD\n", source=BROKEN)
    done = run([package], "methods")
    assert done.returncode == 0
    assert "warning: odd: announced under orchestrator.metrics by our_parts: our_parts:ODD cannot be" in done.stderr


def test_two_packages_may_not_announce_one_name_and_none_a_built_in_one(tmp_path: Path) -> None:
    one = installed(tmp_path / "one", "[orchestrator.backbones]\nsmall_cnn = our_parts:X\nwide = our_parts:WIDE_CNN\n")
    two = installed(tmp_path / "two", "[orchestrator.backbones]\nwide = parts_too:W\n", "parts_too")
    twice = run([one, two], *TRAIN, "--set", "backbone=wide", storage=tmp_path / "runs")
    assert twice.returncode == 2 and "only one of them may be installed" in twice.stderr
    script = "from orchestrator import parts; print(parts.names('backbones', ['small_cnn']))"
    environment = os.environ | {"PYTHONPATH": str(one)}
    ours = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ours.stdout == "('wide',)\n"
