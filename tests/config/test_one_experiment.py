"""An experiment is resolved where the search runs, once for each point, and travels whole to the trial's process."""

import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from orchestrator.config.files import find_search, read_yaml
from orchestrator.config.resolve import resolve_search
from orchestrator.config.training import Experiment, resolve_experiment
from orchestrator.execution.protocol import Work
from orchestrator.execution.worker import results

SETTINGS = {"method": "pfml", "dataset": "glyphs-small", "epochs": 1, "device": "cpu", "threads": 1, "delta": 0.3}


def resolved_during(work: Callable[[], object]) -> Counter[str]:
    """The settings that were resolved meanwhile, and how often each."""
    counts: Counter[str] = Counter()

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is resolve_experiment.__code__:
            counts[json.dumps(dict(frame.f_locals["settings"]), sort_keys=True)] += 1

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counts


@pytest.mark.parametrize("name", ["demo", "method_comparison"])
def test_a_search_resolves_each_point_once(name: str) -> None:
    path = find_search(name)
    counts = resolved_during(lambda: resolve_search(read_yaml(path), name="s", source=path.name))
    assert counts and counts.most_common(1)[0][1] == 1
    twice = resolved_during(lambda: [resolve_experiment(SETTINGS, "s") for _ in range(2)])
    assert twice.most_common(1)[0][1] == 2, "so it can be seen"


def work_of(experiment: Experiment, data: Path, folder: Path) -> Work:
    return Work("0000", experiment, str(data), str(folder), stop_after=1)


def test_a_trial_resolves_nothing(data_folder: Path, tmp_path: Path) -> None:
    work = work_of(resolve_experiment(SETTINGS, "search"), data_folder, tmp_path)
    carried = pickle.dumps(work)
    assert resolved_during(lambda: next(results(pickle.loads(carried)))) == Counter()
    assert pickle.loads(carried) == work


def test_another_process_has_the_same_experiment(tmp_path: Path) -> None:
    """Also where the hyperparameters' class is one that was built from the record of methods."""
    work = work_of(resolve_experiment(SETTINGS, "search"), tmp_path, tmp_path)
    code = "import pickle, sys, json; print(json.dumps(pickle.load(sys.stdin.buffer).experiment.flat()))"
    there = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(work), capture_output=True, check=True)
    assert json.loads(there.stdout) == work.experiment.flat()


def test_a_method_that_is_not_installed_there_fails_the_trial_alone(data_folder: Path, tmp_path: Path) -> None:
    here = resolve_experiment(SETTINGS, "search")
    elsewhere = Experiment("my_loss", here.config, here.training)
    work = pickle.loads(pickle.dumps(work_of(elsewhere, data_folder, tmp_path)))
    (result,) = results(work)
    assert result.done and "my_loss" in str(getattr(result, "reason", ""))
