"""Backbones, augmentations, optimisers and metrics of other packages, announced as entry points."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "your_own_parts.md").read_text(encoding="utf-8")


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


def run(folders: list[Path], *words: str, storage: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-m", "orchestrator", *words, "--storage", str(storage)]
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


@pytest.mark.slow
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


WRONG = {
    "our_parts": (
        """
        [orchestrator.backbones]
        number = our_parts:NUMBER
        twice = our_parts:WIDE_CNN
        small_cnn = our_parts:WIDE_CNN
        [orchestrator.optimizers]
        fast = our_parts:NADAM
        """,
        block("python") + "\nNUMBER = 3\n",
    ),
    "others_parts": (
        """
        [orchestrator.backbones]
        broken = others_parts:NET
        twice = others_parts:NET
        [orchestrator.augmentations]
        turn = others_parts:TURN
        [orchestrator.metrics]
        odd = others_parts:ODD
        """,
        "raise RuntimeError('no such library')",
    ),
}
REFUSED = {
    "backbone=number": "our_parts:NUMBER is a int, it should be a Architecture",
    "backbone=nummber": "did you mean 'number'",
    "backbone=broken": "others_parts:NET cannot be imported: RuntimeError: no such library",
    "backbone=twice": "by our_parts and others_parts: only one of them may be installed",
    "optimizer=fast": "our_parts:NADAM calls itself 'nadam': announce it by that name",
    "augmentation=turn": "others_parts:TURN cannot be imported: RuntimeError",
    "augmentation=turm": "did you mean 'turn'",
}


def test_searches_take_the_algorithm_and_the_scheduler_of_the_page(tmp_path: Path) -> None:
    package = installed(tmp_path / "package", block("toml"))
    wrong = "[orchestrator.schedulers]\nlate = wrong_parts:LATE\n[orchestrator.algorithms]\nodd = wrong_parts:LATE\n"
    broken = installed(tmp_path / "wrong", wrong, "wrong_parts", "LATE = 3\n")
    script = """
import optuna
from pathlib import Path
from orchestrator import parts
from orchestrator.config.resolve import resolve_search
from orchestrator.search.study import Study
raw = {"method": "pfml", "dataset": "glyphs-small", "space": {"delta": {"low": 0.1, "high": 0.3}}, "num_trials": 5}
raw |= {"algorithm": "narrow", "scheduler": {"name": "lagging", "grace_validations": 3}}
search = resolve_search(raw, name="s", source="s")
point = Study(search).ask("0000", 0)
print(type(search.scheduler).__name__, search.scheduler.first_stop, 0.1 <= point["delta"] <= 0.3)
print(*parts.problems, sep="\\n")
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (package, broken)))}
    command = [sys.executable, "-c", script.replace("\\\\n", "\\n")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told, *problems = done.stdout.splitlines()
    assert told == "Lagging 3 True"
    assert any("wrong_parts:LATE should be a subclass of Scheduler; it was left out" in line for line in problems)
    assert any("wrong_parts:LATE is a int, it should be a Algorithm; it was left out" in line for line in problems)


def test_what_cannot_be_used_is_refused_in_a_line(tmp_path: Path) -> None:
    """A metric is left out, for it would stand in every report."""
    folders = []
    for name, (announced, source) in WRONG.items():
        lines = "".join(line.strip() + "\n" for line in announced.splitlines())
        folders.append(installed(tmp_path / name, lines, name, source))
    script = (
        "import sys\nfrom orchestrator.config.training import resolve_experiment\nfrom orchestrator import parts\n"
        "for given in sys.argv[1:]:\n    key, _, value = given.partition('=')\n"
        "    try:\n        resolve_experiment({'method': 'pfml', key: value}, 'x')\n"
        "    except Exception as error:\n        print(f'{type(error).__name__}: {error}')\n"
        "print(*parts.problems)\n"
        "print(resolve_experiment({'method': 'pfml'}, 'x').training.backbone, parts.names('backbones', ['small_cnn']))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-c", script, *REFUSED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    *told, problem, own = done.stdout.splitlines()
    assert len(told) == len(REFUSED)
    for line, says in zip(told, REFUSED.values(), strict=True):
        assert line.startswith("InputError: ") and says in line, line
    assert problem.startswith(
        "odd: announced under orchestrator.metrics by others_parts: others_parts:ODD cannot be imp"
    )
    assert problem.endswith("no such library; it was left out")
    assert own == "small_cnn ('broken', 'number', 'twice')"
