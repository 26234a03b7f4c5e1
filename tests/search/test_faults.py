"""Disks that are full or gone, and a search that is disturbed at random; its faults one by one are in test_search."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import torch
from support.conductors import SETTINGS, conductor
from support.memory_tracking import MemoryStore

import orchestrator.execution.ray_train
import orchestrator.report.html.search_page
import orchestrator.storage.atomic
import orchestrator.storage.cursors
import orchestrator.training.checkpoint
import orchestrator.training.embed
import orchestrator.training.loop
from methods.baselines import ProxyAnchor
from orchestrator.cli.main import main
from orchestrator.config.resolve import single_training
from orchestrator.config.training import resolve_experiment
from orchestrator.errors import InputError, storage_fault
from orchestrator.execution.inline import InlineRunner
from orchestrator.execution.protocol import Failed, Interrupted, Result, Validated, Work
from orchestrator.execution.ray_train import Mailbox, train_worker
from orchestrator.execution.worker import results
from orchestrator.method import Batch
from orchestrator.search.driver import resume, start
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import PAGE, Places
from orchestrator.storage.scratch import scratch
from orchestrator.storage.trial_folder import BEST, CHECKPOINT, TrialPaths
from orchestrator.tracking.sender import Sender
from orchestrator.tracking.store import TrackingError
from orchestrator.training import loop  # noqa: F401 (they bind what is patched here)
from orchestrator.training.checkpoint import damage, discard_damaged, save_checkpoint
from orchestrator.training.device import free_memory

ROOT = Path(__file__).parents[2]


def full(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """`write_atomically` on a disk without room."""
    with open("/dev/full", "wb", buffering=0) as file:
        write(file)


def limited(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """The same under `ulimit -f`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path.parent.mkdir(parents=True, exist_ok=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with open(path, "wb", buffering=0) as file:
            write(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        path.unlink()


@pytest.mark.parametrize(("disk", "number"), [(full, errno.ENOSPC), (limited, errno.EFBIG)])
def test_torch_on_a_full_disk_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Callable[..., None], number: int
) -> None:
    monkeypatch.setattr(orchestrator.storage.atomic, "write_atomically", disk)
    monkeypatch.setattr(orchestrator.training.checkpoint, "write_atomically", disk)
    with pytest.raises(OSError) as raised:
        save_checkpoint(tmp_path / CHECKPOINT, {"weights": torch.zeros(1000)})
    assert storage_fault(raised.value, tmp_path) == f"{tmp_path}: {os.strerror(number)}"


@pytest.mark.parametrize(("disk", "fault"), [(full, "No space left on device"), (limited, "File too large")])
def test_a_full_disk_is_no_fault_of_the_trial(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Callable[..., None], fault: str
) -> None:
    work = Work("0000", resolve_experiment(SETTINGS, "trial"), str(data_folder), str(tmp_path / "t"), stop_after=1)
    monkeypatch.setattr(orchestrator.storage.atomic, "write_atomically", disk)
    monkeypatch.setattr(orchestrator.training.checkpoint, "write_atomically", disk)
    (only,) = results(work)
    assert only == Interrupted("0000", f"{tmp_path / 't'}: {fault}")
    monkeypatch.undo()
    (only,) = results(work)
    assert isinstance(only, Validated) and only.finished, "with room again it trains as if nothing had been"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EROFS, "Read-only file system", "/s/a"), "/s/a: Read-only file system"),
        (FileNotFoundError(errno.ENOENT, "No such file", "weights.pt"), None),
        (RuntimeError("No space left on device"), None),
        (OSError(errno.ENOSPC, "No space left on device"), "/s: No space left on device"),
        (RuntimeError("died: OSError: [Errno 28] No space left on device: '/s/a'"), "/s: No space left on device"),
        (RuntimeError("died: FileNotFoundError: [Errno 2] weights.pt"), None),
    ],
)
def test_what_is_the_disks_fault(error: Exception, told: str | None) -> None:
    assert storage_fault(error, "/s") == told


def test_a_trial_whose_disk_is_full_stops_the_search_and_goes_on_later(tmp_path: Path) -> None:
    driver = conductor(tmp_path)
    assert driver.next() is not None
    assert driver.report(Interrupted("0000", "/s: No space left on device"))
    assert driver.fault == "/s: No space left on device"
    assert driver.next() is None and driver.is_finished
    assert driver.end() == "interrupted"
    driver.journal.close()
    assert [event["state"] for event in Journal.read(tmp_path / "journal.jsonl") if "state" in event] == [
        "interrupted",
        "interrupted",
    ]


# Damaged files -------------------------------------------------------------------------------------------


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    """One bit of one weight."""
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


def two_validations(data_folder: Path, folder: Path) -> Work:
    settings = SETTINGS | {"validate_every": "4 steps", "classes_per_batch": 8, "images_per_class": 4}
    return Work("0000", resolve_experiment(settings, "trial"), str(data_folder), str(folder), stop_after=2)


def metrics_of(given: Iterable[Result]) -> list[dict[str, float]]:
    return [dict(result.metrics) if isinstance(result, Validated) else {} for result in given]


@pytest.fixture(scope="module")
def halfway(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, float]]]:
    """The folder of a training that was interrupted after its first validation, and the metrics of all of it."""
    base = tmp_path_factory.mktemp("halfway")
    whole = metrics_of(results(two_validations(data_folder, base / "whole")))
    training = results(two_validations(data_folder, base / "half"))
    assert metrics_of([next(training)]) == whole[:1]
    training.close()
    return base / "half", whole


@pytest.mark.parametrize(
    ("name", "spoil", "told"),
    [
        (CHECKPOINT, cut, "checkpoint.pt is damaged"),
        (CHECKPOINT, lambda content: b"not a checkpoint at all", "checkpoint.pt is damaged"),
        (CHECKPOINT, lambda content: b"", "checkpoint.pt is damaged"),
        (CHECKPOINT, flip, "checkpoint.pt is damaged"),
        (BEST, cut, "best.pt is damaged"),
        (BEST, flip, "best.pt is damaged"),
        (BEST, None, "best.pt is missing"),
        (CHECKPOINT, lambda content: content, None),
    ],
)
def test_a_training_whose_files_are_damaged_begins_anew(
    data_folder: Path,
    tmp_path: Path,
    halfway: tuple[Path, list[dict[str, float]]],
    name: str,
    spoil: Callable[[bytes], bytes] | None,
    told: str | None,
) -> None:
    """And comes to what it would have come to; told with its first result only."""
    folder, whole = halfway
    shutil.copytree(folder, tmp_path / "t")
    path = tmp_path / "t" / name
    if spoil is None:
        path.unlink()
    else:
        path.write_bytes(spoil(path.read_bytes()))
    found = list(results(two_validations(data_folder, tmp_path / "t")))
    assert metrics_of(found) == whole
    assert [result.anew for result in found] == [told, None]
    assert damage(tmp_path / "t" / CHECKPOINT) is None and damage(tmp_path / "t" / BEST) is None


def test_one_damaged_fold_begins_anew_and_the_others_stay(tmp_path: Path) -> None:
    for fold in range(2):
        for name in (CHECKPOINT, BEST):
            save_checkpoint(TrialPaths(tmp_path).fold(fold).folder / name, {"best": 0.5, "weights": torch.zeros(1000)})
    assert discard_damaged(tmp_path) is None
    path = TrialPaths(tmp_path).fold(1).folder / BEST
    path.write_bytes(flip(path.read_bytes()))
    assert discard_damaged(tmp_path) == "fold-1/best.pt is damaged"
    assert sorted(path.name for path in tmp_path.rglob("*.pt")) == [BEST, CHECKPOINT]
    assert discard_damaged(tmp_path) is None


def test_a_disk_that_cannot_be_read_damages_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / CHECKPOINT, {"best": None})

    def broken(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("zipfile.ZipFile", broken)
    with pytest.raises(OSError, match="Input/output"):
        discard_damaged(tmp_path)
    assert (tmp_path / CHECKPOINT).exists()


def test_a_trial_that_begins_anew_is_told_and_noted(tmp_path: Path) -> None:
    driver, told = conductor(tmp_path), list[tuple[str, str | None]]()
    driver.listener = lambda event, trial: told.append((event, trial.note))
    assert driver.next() is not None
    assert not driver.report(Validated("0000", 1, {"epoch": 0.5}, 1.0, anew="checkpoint.pt is damaged"))
    note = "begun anew: checkpoint.pt is damaged"
    assert told == [("started", None), ("anew", note), ("validated", note)]
    driver.journal.close()
    events = Journal.read(tmp_path / "journal.jsonl")
    assert events[2]["tags"]["orchestrator.note"] == note
    record = Ledger.of(events).trials["0000"]
    assert (record.note, record.state, record.validations) == (note, "running", 1)


# Out of memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), "out of GPU memory with a batch"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 12 bytes"), "out of memory with a"),
        (MemoryError(), "out of memory with a batch"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "out of GPU mem"),
        (
            RuntimeError(
                "Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type TemporaryMemoryOverflow dev "
                "0 space Device stream 0x1 size 1073741824 bytes (cudaMalloc error out of memory [2])"
            ),
            "out of GPU memory with a batch",
        ),
    ],
)
def test_a_batch_that_does_not_fit_fails_its_trial_with_one_that_does(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    """What fits is tried: half of the classes, a quarter, ..."""
    step, sizes = ProxyAnchor.step, []

    def greedy(self: ProxyAnchor, batch: Batch, *rest: Any) -> Any:
        sizes.append(len(batch.labels))
        if len(batch.labels) > 40:
            raise error
        return step(self, batch, *rest)

    monkeypatch.setattr(ProxyAnchor, "step", greedy)
    settings = SETTINGS | {"classes_per_batch": 32, "images_per_class": 4}
    (only,) = results(
        Work("0000", resolve_experiment(settings, "trial"), str(data_folder), str(tmp_path / "t"), stop_after=1)
    )
    assert isinstance(only, Failed) and only.reason.startswith(told) and "of 128 images" in only.reason
    advice = "set classes_per_batch=8, or try images_per_pass=32, which keeps the batch, or set precision=bf16"
    assert only.reason.endswith(f": 32 fit when tried; {advice}")
    assert sizes == [128, 64, 32, 32]
    assert only.repeats and not (tmp_path / "t" / CHECKPOINT).exists()


def test_nothing_of_a_failed_step_is_kept_while_smaller_batches_are_tried() -> None:
    """Neither what its functions hold, nor what they took from around them."""

    class Activations:
        pass

    def step() -> list[weakref.ref[Activations]]:
        local, taken = Activations(), Activations()
        kept.extend([weakref.ref(local), weakref.ref(taken)])
        return (lambda: [taken, 1 // 0])()  # type: ignore[return-value]

    kept: list[weakref.ref[Activations]] = []
    try:
        step()
    except ZeroDivisionError as error:
        free_memory(error)
        assert [one() for one in kept] == [None, None]


def test_a_validation_that_does_not_fit_blames_no_batch(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(orchestrator.training.embed, "embed_split", greedy)
    monkeypatch.setattr(orchestrator.training.loop, "embed_split", greedy)
    settings = SETTINGS | {"validate_every": "1 steps"}
    (only,) = results(
        Work("0000", resolve_experiment(settings, "trial"), str(data_folder), str(tmp_path / "t"), stop_after=1)
    )
    advice = "use a smaller backbone or embedding_dim, or set precision=bf16"
    assert only == Failed("0000", f"out of GPU memory in a validation: {advice}", repeats=True, failure="memory")


def test_one_worker_out_of_memory_fails_the_trial_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for it for ever: their group is ended, and the trial has its result, no second attempt."""
    failed = Failed("0000", "out of GPU memory", repeats=True)
    told: list[Any] = []

    class Answering:
        def __getattr__(self, name: str) -> Any:
            answers = {"arrive": None, "begin": 1, "fail": False, "put": True}

            def remote(*words: Any) -> Any:
                told.append((name, *words))
                return answers[name]

            return SimpleNamespace(remote=remote)

    monkeypatch.setattr(orchestrator.execution.ray_train, "own_results", lambda work: iter([failed]))
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here"))
    monkeypatch.setattr("ray.get", lambda answer: answer)
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: None)
    with pytest.raises(RuntimeError, match="out of GPU memory"):
        train_worker({"work": SimpleNamespace(workers=1), "mailbox": Answering()})
    assert told == [("arrive", 0, "here", os.getpid()), ("begin",), ("fail", 1, 1, failed), ("put", failed)]


def test_why_a_group_of_workers_was_begun_again_is_told() -> None:
    import asyncio

    async def group() -> list[Result]:
        mailbox = Mailbox()
        for failure in ("KeyError: 'x'", None):
            assert await mailbox.begin()
            if failure:
                mailbox.failures.append(Failed("0000", failure))
        await mailbox.begin()
        mailbox.answered = 2
        await mailbox.put(Validated("0000", 1))
        return mailbox.results

    assert asyncio.run(group()) == [Validated("0000", 1, lost_workers=("KeyError: 'x'", "it ended"))]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_group_waits_with_its_first_step_until_its_costs_are_judged(*, goes_on: bool) -> None:
    import asyncio

    async def group() -> bool:
        mailbox, begun = Mailbox("0000"), Validated("0000", 0)
        await mailbox.begin()
        assert await mailbox.take() == begun
        told = asyncio.create_task(mailbox.put(Validated("0000", 0, costs={"cost/megabytes": 94.2})))
        assert await mailbox.take() != begun, "the trial answers it"
        await asyncio.sleep(0)
        assert not told.done()
        await (mailbox.answer(0) if goes_on else mailbox.stop())
        assert not await mailbox.put(begun) if goes_on else True, "a score needs no answer"
        return not await told

    assert asyncio.run(asyncio.wait_for(group(), 5)) == goes_on


def test_the_first_group_of_workers_says_that_it_trains() -> None:
    import asyncio

    async def groups() -> list[Result]:
        mailbox = Mailbox("0000")
        for _ in range(2):
            await mailbox.begin()
        return mailbox.results

    assert asyncio.run(groups()) == [Validated("0000", 0)]


class Broken:
    """A journal's file on a disk that takes nothing more."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_what_cannot_be_recorded_does_not_happen(tmp_path: Path) -> None:
    driver = conductor(tmp_path)
    before = (tmp_path / "journal.jsonl").read_bytes()
    driver.journal._file = Broken(driver.journal._file)  # type: ignore[assignment]
    with pytest.raises(OSError, match="journal.jsonl"):
        driver.next()
    assert driver.stopping and driver.fault == f"{tmp_path / 'journal.jsonl'}: No space left on device"
    assert not driver.ledger.trials
    assert (tmp_path / "journal.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_search_that_could_not_be_recorded_has_not_begun(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up before its first event: its name stays free."""
    (tmp_path / "data").symlink_to(data_folder)
    search = single_training("s", SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", lambda *_, **__: Broken(None).write(b""))
        with pytest.raises(InputError, match=r"s/journal.jsonl: cannot be written \(No space left on device\): fix"):
            start(search, InlineRunner(), storage=tmp_path)
    assert not (tmp_path / "searches" / "s").exists()
    places = Places(tmp_path)
    for left in (b"", b'{"event": "search_sta'):  # by a driver that was killed there
        path = places.new_journal("s")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(left)
        assert places.journals() == []
        with pytest.raises(InputError, match="its first line is incomplete" if left else "no search 's'"):
            places.journal("s")
    assert start(search, InlineRunner(), storage=tmp_path).state == "done"


def test_pages_that_ctrl_c_cut_short_are_written_by_a_resume(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").symlink_to(data_folder)
    page = tmp_path / "searches" / "s" / PAGE

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(orchestrator.report.html.search_page, "write_page", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start(single_training("s", SETTINGS), InlineRunner(), storage=tmp_path)
    said = "all results are kept; the pages were not all written: write them with: orchestrator resume s --storage "
    assert f"{said}{tmp_path}" in capsys.readouterr().err and not page.exists()
    assert resume("s", InlineRunner(), storage=tmp_path).state == "done" and page.exists()
    written = page.stat().st_mtime_ns
    resume("s", InlineRunner(), storage=tmp_path)
    assert page.stat().st_mtime_ns == written


def test_a_resume_on_a_storage_that_is_read_only_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conductor(tmp_path / "searches" / "s").journal.close()

    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "touch", read_only)
    with pytest.raises(InputError, match=r"cannot be written \(Read-only file system\): fix that, then resume again"):
        resume("s", InlineRunner(), storage=tmp_path)


@pytest.mark.parametrize("to", ["mlflow", "tensorboard"])
def test_a_sync_of_a_storage_that_is_read_only_says_what_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    folder = tmp_path / "searches" / "s"
    conductor(folder).journal.close()

    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    with pytest.raises(SystemExit) as ended:
        main(["sync", "s", "--to", to, "--storage", str(tmp_path)])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "journal.jsonl" not in said
    assert said.startswith(f"error: {folder}: cannot be written (Read-only file system)") and "make it writable" in said


def test_a_sync_whose_disk_is_full_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conductor(tmp_path / "s").journal.close()
    monkeypatch.setattr(orchestrator.storage.cursors.Cursor, "save", lambda *_: Broken(None).write(b""))
    sender = Sender(tmp_path / "s" / "journal.jsonl", MemoryStore(), tmp_path / "cursor.json", "memory")
    with pytest.raises(TrackingError) as raised:
        sender.send()
    assert str(raised.value) == f"{tmp_path / 's'}: No space left on device"


def test_what_is_temporary_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end; what a killed process left, with the next search; and never what another still uses."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        killed = "import os, sys, tempfile\nfrom orchestrator.storage.scratch import scratch\n"
        killed += "with scratch() as folder:\n    tempfile.mkdtemp()\n    print(folder, flush=True)\n    os._exit(9)"
        environment = os.environ | {"TMPDIR": base}
        done = subprocess.run([sys.executable, "-c", killed], env=environment, capture_output=True, text=True)
        left = Path(done.stdout.strip())
        assert left.parent == Path(base) and len(list(left.iterdir())) == 2
        with scratch() as folder:
            assert not left.exists()
            assert Path(tempfile.mkdtemp()).parent == folder == Path(os.environ["TMPDIR"])
            other = subprocess.run([sys.executable, "-c", killed], env=environment, capture_output=True, text=True)
            assert folder.exists() and Path(other.stdout.strip()) != folder
            ghost, notes = Path(base) / "orchestrator-ghost", Path(base) / "orchestrator-notes"
            (ghost / "ray" / "session_2026" / "logs").mkdir(parents=True)  # by Ray, when its folder was gone
            (ghost / "torchinductor_me").mkdir()
            (notes / "ray").mkdir(parents=True)
        assert not folder.exists() and not ghost.exists() and notes.exists()
        assert tempfile.tempdir == base


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_search_disturbed_at_random_loses_nothing(tmp_path: Path) -> None:
    """The campaign of benchmarks/faults.py, in short: one fault of each kind that has no test of its own."""
    from services import Postgres

    if not Postgres.installed():
        pytest.skip("needs PostgreSQL (initdb, postgres)")
    words = [sys.executable, str(ROOT / "benchmarks" / "faults.py"), "--faults", "4", "--trials", "3", "--seed", "12"]
    words += ["--final-seeds", "1", "--kinds", "trial", "database", "disk", "readonly"]
    done = subprocess.run([*words, "--output", str(tmp_path / "table.md")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) | {"seconds": 0} == {"faults": 4, "failed": [], "seconds": 0}
    assert "| no finished trial run again | holds |" in (tmp_path / "table.md").read_text()
