"""What tests share: one drawing of the data, one pair of gloo processes, one Ray cluster per session."""

import atexit
import contextlib
import csv
import gc
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# before numpy, torch and faiss are imported: two processes of tests, on two cores, take one thread each
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["ORCHESTRATOR_CONFIG"] = os.devnull  # a developer's own defaults are not those of the tests

# a shell that starts them in the background has them ignore Ctrl-C, and all that they start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest
import torch

from orchestrator.data.catalog import open_dataset
from orchestrator.data.store import Store
from orchestrator.training.distributed import process_group

with contextlib.suppress(ModuleNotFoundError):  # a GPU machine may lack what the command line needs
    from orchestrator.cli import output
    from orchestrator.search import finish

    output.QUIET_SECONDS = 3600.0  # how slow the machine is does not show in what a command prints
    finish.TRACKER_SECONDS = 300.0  # ... nor in what MLflow has at a search's end


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write tests/goldens anew instead of comparing")
    parser.addoption("--minutes", type=float, help="begin no test later; those left out are skipped and named")


BEGAN = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: nothing begins after `--minutes`."""
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - BEGAN > 60 * minutes:
        pytest.skip(f"left out: {minutes:g} minutes were over")


LONGEST = [
    "test_loop",
    "test_s3",
    "test_check",
    "test_cli",
    "test_faults",
    "test_tracking",
    "test_evaluation",
    "test_null_faults",
    "test_remote",
    "test_contract",
    "test_imports",
    "test_null_device",
    "test_watch",
    "test_benchmark",
    "test_study",
    "test_outputs",
    "test_wrong_input",
    "test_protocols",
    "test_hub",
    "test_gpu_report",
    "test_retrieval",
    "test_recipes",
    "test_light",
    "test_search_page",
    "test_readme",
    "test_export",
    "test_python",
    "test_folds",
    "test_importance",
    "test_kernels",
    "test_compiled_kernels",
    "test_ccp",
    "test_scaffold",
    "test_mcp",
    "test_streams",
    "test_pipeline",
    "test_journal",
    "test_eager",
]
"""The files whose quick tests take longest, from the longest on."""
LONGEST_SLOW = [
    "test_search",
    "test_faults",
    "test_s3",
    "test_claims",
    "test_cluster_page",
    "test_lost",
    "test_benchmark",
    "test_waiting",
    "test_notebooks",
    "test_layouts",
    "test_gpu_report",
    "test_cluster",
    "test_security",
    "test_backends",
    "test_shipped_spaces",
    "test_python",
    "test_new_method",
    "test_null_device",
    "test_scaffold",
    "test_null_faults",
    "test_own_photographs",
    "test_joining",
    "test_scheduling",
    "test_recount",
    "test_mlflow_pages",
    "test_parts",
    "test_streams",
    "test_tracking",
    "test_mcp",
    "test_deploy",
    "test_search_page",
    "test_connected_page",
    "test_partitions",
]
"""The same of the slow tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first where processes share the files, so that none waits for another at the end; else last.
    Tests that need CUDA are skipped without it."""
    shared = "PYTEST_XDIST_WORKER" in os.environ

    def place(item: pytest.Item) -> int:
        files = LONGEST_SLOW if item.get_closest_marker("slow") else LONGEST
        longest = files.index(item.path.stem) if item.path.stem in files else len(files)
        return longest if shared else -longest

    items.sort(key=place)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs CUDA"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """A million objects live from here to the end: they are looked through for garbage neither now ..."""
    gc.disable()


def pytest_collection_finish() -> None:
    """... nor while tests run."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # nanobind counts what the interpreter could not free at its end


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """Only a machine that fails loses what was not synced, and no test makes one fail: what a test kills is a process.
    Tests of what is synced put a function of their own in its place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which fails as well for what is not open
        yield


@pytest.fixture(scope="session", autouse=True)
def addresses_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The trackers that tests name are not remembered for the user who runs them."""
    file = tmp_path_factory.mktemp("trackers") / "trackers.txt"
    with pytest.MonkeyPatch.context() as patch:
        with contextlib.suppress(ImportError):  # a GPU machine may lack a package
            patch.setattr("orchestrator.tracking.address._given_addresses", lambda: file)
        yield


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small glyphs, drawn once, and embeddings of their classes' names."""
    folder = tmp_path_factory.mktemp("data")
    names = open_dataset("glyphs-small", folder).class_names
    numbers = np.random.default_rng(0).normal(size=(len(names), 5))
    with (folder / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([name, *row] for name, row in zip(names, numbers, strict=True))
    return folder


@pytest.fixture(scope="session")
def glyphs(data_folder: Path) -> Store:
    """The small glyphs."""
    return open_dataset("glyphs-small", data_folder)


@pytest.fixture
def no_ray_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Ray starts while a search is read, as where one runs already."""
    monkeypatch.setattr("orchestrator.cli.starting._ray_runs", lambda: True)


class Pair:
    """Two processes in one gloo group, waiting for work for the whole session."""

    def __init__(self, rendezvous: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.ends: list[Connection] = []
        self.processes = []
        for rank in range(2):
            mine, its = context.Pipe()
            process = context.Process(target=_serve, args=(rank, rendezvous, its), daemon=True)
            process.start()
            self.ends.append(mine)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`function(*arguments)` on both, at the same time; its results in rank order."""
        for end in self.ends:
            end.send((function, arguments))
        answers = [end.recv() for end in self.ends]
        for succeeded, answer in answers:
            if not succeeded:
                pytest.fail(f"on one of two processes:\n{answer}")
        return [answer for _, answer in answers]

    def close(self) -> None:
        for end in self.ends:
            end.send(None)
        for process in self.processes:
            process.join(timeout=20)


def _serve(rank: int, rendezvous: Path, connection: Connection) -> None:
    torch.set_num_threads(1)
    with process_group(rank, 2, rendezvous):
        while (work := connection.recv()) is not None:
            function, arguments = work
            try:
                connection.send((True, function(*arguments)))
            except Exception:
                connection.send((False, traceback.format_exc()))


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two gloo processes for the whole session."""
    pair = Pair(tmp_path_factory.mktemp("gloo") / "rendezvous")
    yield pair
    pair.close()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One Ray cluster of two CPUs for the whole session; a RayRunner finds it and leaves it running."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
