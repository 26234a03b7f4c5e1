"""On the null device: a GPU that breaks, memory that is short or given back, several GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.lost_processes import plugin
from support.null_cuda import environment, run_on_null_device

from orchestrator.storage.journal import Journal

pytestmark = pytest.mark.slow

TRAINED = """
import json, sys, tempfile
import torch
from methods.baselines import ProxyAnchor
from orchestrator.config.training import resolve_experiment
from orchestrator.execution.protocol import Work
from orchestrator.execution.worker import results
from support.null_cuda import break_device, counts

settings = resolve_experiment(
    {{"method": "proxy_anchor", "dataset": "glyphs-small", "epochs": 1, "device": "cuda", "threads": 1,
     "classes_per_batch": 8, "images_per_class": 4}}, "test").flat()

def train():
    with tempfile.TemporaryDirectory() as folder:
        return list(results(Work("0000", resolve_experiment(settings, "trial"), {data!r}, folder, stop_after=1)))
"""


def trained(code: str, data: Path, **devices: Any) -> Any:
    """What code prints last, as JSON, that has `train` to train a small network."""
    return json.loads(run_on_null_device(TRAINED.format(data=str(data)) + code, **devices).splitlines()[-1])


def test_a_broken_gpu_comes_out_of_its_process(data_folder: Path) -> None:
    """torch would end the process where it frees the batches that were read ahead."""
    code = """
import os
from orchestrator.evaluation.gpu import is_broken
step, steps = ProxyAnchor.step, []
def failing(self, *given):
    steps.append(1)
    if len(steps) == 3:
        break_device()
    return step(self, *given)

ProxyAnchor.step = failing
torch.ones(3, device="cuda")
told = [is_broken(torch.device("cuda"))]
(only,) = train()
told += [only.failure, only.reason]
told.append(is_broken(torch.device("cuda")))
print(json.dumps(told), flush=True)
os._exit(0)
"""
    before, failure, reason, later = trained(code, data_folder)
    assert before is False and failure == "device"
    assert reason.startswith("its process can no longer use its GPU: AcceleratorError: CUDA error: device-side assert")
    assert later, "which is why the process must end"


def test_a_trial_gives_its_gpu_s_memory_back(data_folder: Path) -> None:
    """But for what cuBLAS keeps of it for its next product."""
    code = """
from orchestrator.training import memory
free, held = memory.free_memory, []
for memory.free_memory in (lambda: None, free):
    (only,) = train()
    assert only.finished, only
    held.append(counts().bytes)
torch._C._cuda_clearCublasWorkspaces()
free()
print(json.dumps([*held, counts().bytes]))
"""
    kept, given_back, without_workspaces = trained(code, data_folder)
    assert kept > 20e6, "the planted bug"
    assert given_back < kept / 2 and without_workspaces < 3e6


def test_the_batch_that_fits_is_found(data_folder: Path) -> None:
    """In memory that is short: what is advised trains, and twice as many classes do not."""
    code = """
def of(classes):
    with tempfile.TemporaryDirectory() as folder:
        (only,) = results(
            Work("0000", resolve_experiment(settings | {{"classes_per_batch": classes}}, "trial"), {data!r}, folder,
                 stop_after=1))
    return only

failed = of(32).reason
advised = int(failed.partition("set classes_per_batch=")[2].partition(",")[0] or 0)
again = of(2 * advised).reason
print(json.dumps([failed, advised, of(advised).finished, again]))
"""
    failed, advised, fits, again = trained(code.format(data=str(data_folder)), data_folder, gigabytes=0.08)
    assert failed.startswith("out of GPU memory with a batch of 128 images (0.0 of 0.1 GiB are free): ")
    assert f"{4 * advised} fit when tried; set classes_per_batch={advised}, or try images_per_pass" in failed
    assert fits and 2 <= advised < 32
    assert again.startswith(f"out of GPU memory with a batch of {8 * advised} images")


SEARCH = """
import json, sys, warnings
import numpy as np
import torch
from orchestrator.evaluation import neighbours
from orchestrator.evaluation.gpu import lacks_memory
from support.null_cuda import counts

rows = np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32)
torch.from_numpy(rows).cuda()
kept = [torch.empty(2**20, 2**8, device="cuda") for _ in range(3)]  # 1 GiB each
del kept

def in_full_rows(self, rows, k, hit_test):
    return np.zeros((len(rows), k), dtype=np.int64), neighbours.NO_TIES

neighbours.NeighbourSearch._nearest_in_full_rows = in_full_rows  # all distances are zero here
neighbours.NeighbourSearch._order_near_ties = lambda *_: neighbours.NO_TIES

def search():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        neighbours.nearest_neighbours(torch.from_numpy(rows[:1000]).cuda(), torch.from_numpy(rows).cuda(), 10)
    return [str(one.message) for one in told if "faiss" in str(one.message)]
"""


def test_faiss_gets_the_memory_that_torch_only_keeps() -> None:
    code = """
told = [search()]
kept = [torch.empty(2**20, 2**8, device="cuda") for _ in range(3)]
del kept
empty = torch.cuda.empty_cache
neighbours.torch.cuda.empty_cache = lambda: None  # the planted bug
told.append(search())
print(json.dumps(told))
"""
    mended, planted = json.loads(run_on_null_device(SEARCH + code, gigabytes=3.4).splitlines()[-1])
    assert mended == []
    assert [one.startswith("faiss does not find enough free memory on the GPU for 20000 rows") for one in planted] == [
        True
    ]


def test_faiss_without_memory_is_out_of_memory() -> None:
    code = """
filled = torch.empty(int(3.35e9), dtype=torch.uint8, device="cuda")
try:
    resources = neighbours.faiss_resources()
    neighbours.faiss_on_gpu(resources, torch.ones(4, 8, device="cuda"), torch.ones(9, 8, device="cuda"), 2, False)
    print(json.dumps("it fits"))
except RuntimeError as error:
    print(json.dumps([lacks_memory(error), str(error)]))
"""
    found = json.loads(run_on_null_device(SEARCH + code, gigabytes=3.5).splitlines()[-1])
    assert found[0] is True and "alloc fail" in found[1], found


def test_a_training_among_four_gpus_keeps_to_its_own(data_folder: Path) -> None:
    """As a worker of a group does, which sees all of its node; also for the final test."""
    code = """
from orchestrator.execution.worker import run_test
with tempfile.TemporaryDirectory() as folder, torch.cuda.device(2):
    (only,) = results(Work("0000", resolve_experiment(settings, "trial"), {data!r}, folder, stop_after=1, test=True,
        objective={{"metric": "val/map_at_r", "mode": "max"}}))
    assert only.finished, only
    assert "map_at_r" in only.test, only
print(json.dumps([torch.cuda.max_memory_allocated(number) for number in range(4)]))
"""
    used = trained(code.format(data=str(data_folder)), data_folder, devices=4)
    assert [bytes > 0 for bytes in used] == [False, False, True, False], used


def test_an_evaluation_divides_its_rows_among_four_gpus() -> None:
    code = """
search = neighbours.NeighbourSearch(rows[:1000], rows, False, torch.device("cuda"))
list(search.nearest(np.arange(1000), 10, 500))
print(json.dumps([[str(shard.device), len(shard)] for shard in search.index.shards]))
"""
    shards = json.loads(run_on_null_device(SEARCH + code, devices=4).splitlines()[-1])
    assert shards == [[f"cuda:{number}", 5000] for number in range(4)]


METHOD = '''
import os
from pathlib import Path
import torch
from orchestrator.method import Method, MethodConfig
from support.null_cuda import break_device


class Breaking(Method):
    """L = mean of (1 - cosine similarity), until an assertion on the device fails."""

    name = "breaking"
    paper = "unpublished"

    class Config(MethodConfig):
        breaks: str = "never"

    def loss(self, outputs, labels):
        place = Path(os.environ["BREAKING"])
        with (place / "processes").open("a") as file:
            print(self.config.breaks, os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"), file=file)
        once = self.config.breaks == "once" and not (place / "broken").exists()
        if once or (self.config.breaks == "always" and not (place / "mended").exists()):
            (place / "broken").touch()
            break_device()
        e = torch.nn.functional.normalize(outputs["embedding"], dim=1)
        return {"pairs": (1 - e @ e.T).mean()}
'''

SEARCHES = """
import sys
from pathlib import Path
import ray
from orchestrator.config.resolve import resolve_search
from orchestrator.execution import ray_start
from orchestrator.execution.ray_tune import RayRunner
from orchestrator.search import driver

storage = Path(sys.argv[1])
ray_start.start_ray([], num_cpus=1, num_gpus=1, include_dashboard=False, **ray_start.ray_options(False))
driver.write_report = lambda *_: None
search = resolve_search(
    {"method": "breaking", "dataset": "glyphs-small", "algorithm": "grid", "scheduler": "none", "final": False,
     "settings": {"device": "cuda", "epochs": 1, "classes_per_batch": 8, "images_per_class": 4, "threads": 1},
     "space": {"breaks": ["once", "always", "never"]}}, name="s", source="s.yaml")
print(driver.start(search, RayRunner(), storage=storage).state)
(storage / "mended").touch()
print(driver.resume("s", RayRunner(), storage=storage).state)
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_broken_gpu_costs_a_process_and_no_trial(data_folder: Path, tmp_path: Path) -> None:
    """Under Ray: the trial begins again once in another process; later ones succeed; a resume tries again the one whose
    second process broke too."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "data").symlink_to(data_folder)
    plugin(tmp_path, "breaking", METHOD)
    variables = environment() | {"BREAKING": str(tmp_path / "s"), "RAY_worker_niceness": "0"}
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), variables["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", SEARCHES, str(tmp_path / "s")],
        env=variables,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == ["done", "done"]
    events = Journal.read(tmp_path / "s" / "searches" / "s" / "journal.jsonl")
    ended = [
        (event["trial_id"], event["state"], event.get("failure")) for event in events if event["event"] == "trial_ended"
    ]
    assert ended == [
        ("0000", "done", None),
        ("0001", "failed", "device"),
        ("0002", "done", None),
        ("0001", "done", None),
    ]
    reason = next(event["reason"] for event in events if event.get("failure"))
    assert reason.startswith("its process can no longer use its GPU: AcceleratorError: CUDA error: device-side assert")
    assert ", in loss, breaking_plugin.py line " in reason and reason.endswith(", twice")
    lines = [line.split() for line in (tmp_path / "s" / "processes").read_text().splitlines()]
    processes = {breaks: list(dict.fromkeys(pid for name, pid, _ in lines if name == breaks)) for breaks, _, _ in lines}
    assert [len(processes[breaks]) for breaks in ("once", "always", "never")] == [2, 3, 1]
    assert not set(processes["never"]) & {processes["once"][0], *processes["always"]}
    assert {gpu for _, _, gpu in lines} == {"0"}
