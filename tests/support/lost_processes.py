"""Processes of a trial that can be followed and killed."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.conductors import conductor

from orchestrator.execution import ray_tune
from orchestrator.execution.ray_tune import ConductorSearcher, ProcessCallback
from orchestrator.search.conductor import Conductor

Followed = tuple[ProcessCallback, Any, list[str]]


PLUGIN = '''
import os, sys, time
from pathlib import Path
import torch
from orchestrator.method import Method, MethodConfig


class Stuck(Method):
    """L = mean of (1 - cosine similarity) over positive pairs, unless the fault comes first."""

    name = "stuck"
    paper = "unpublished"

    class Config(MethodConfig):
        fault: str = "none"

    def loss(self, outputs, labels):
        if self.config.fault != "none":
            print("its last word", file=sys.stderr, flush=True)
        stalled = Path(__file__).with_name("stalled")
        if self.config.fault.startswith("hang") or self.config.fault == "stall_once" and not stalled.exists():
            stalled.touch()
            time.sleep(100000)
        if self.config.fault == "os._exit":
            os._exit(3)
        if self.config.fault == "sys.exit":
            sys.exit("enough")
        e = torch.nn.functional.normalize(outputs["embedding"], dim=1)
        same = labels[:, :1] == labels[:, :1].T
        return {"pairs": ((1 - e @ e.T) * same).mean()}
'''


def plugin(folder: Path, name: str = "stuck", text: str = PLUGIN) -> str:
    """A package with this method, as it is installed; what PYTHONPATH has to say."""
    (folder / f"{name}-1.dist-info").mkdir(parents=True)
    (folder / f"{name}_plugin.py").write_text(text)
    metadata = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        "entry_points.txt": f"[orchestrator.methods]\n{name} = {name}_plugin\n",
        "RECORD": f"{name}-1.dist-info/entry_points.txt,,\n{name}_plugin.py,,\n",
    }
    for file, content in metadata.items():
        (folder / f"{name}-1.dist-info" / file).write_text(content)
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Followed:
    """The follower of a search's processes, a trial of Tune's that runs, and what became of its actor."""
    driver, done = conductor(tmp_path), []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # a process of Tune's without a GPU hides them
    driver.search = driver.search.model_copy(update={"stall_timeout": 30.0})
    monkeypatch.setattr(ray_tune, "resources", lambda *_: {"CPU": 1})
    monkeypatch.setattr(ray_tune, "release", lambda _: done.append("released"))
    monkeypatch.setattr("ray.kill", lambda actor: done.append(f"killed {actor}"))
    searcher = ConductorSearcher(driver)
    followed = ProcessCallback(searcher)
    trial = SimpleNamespace(
        trial_id="tune",
        config=searcher.suggest("tune"),
        max_failures=2,
        temporary_state=SimpleNamespace(ray_actor="actor"),
    )
    followed.on_trial_start(1, [], trial)
    return followed, trial, done


def source(followed: ProcessCallback) -> Conductor:
    """The search behind what its processes see of it."""
    assert isinstance(followed.conductor, Conductor)
    return followed.conductor
