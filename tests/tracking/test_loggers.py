"""TensorBoard and Weights & Biases get from the journal what MLflow gets, and each event once."""

import json
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from support.memory_tracking import MemoryTracker

import orchestrator.tracking.loggers.base
from orchestrator.cli import searches
from orchestrator.cli.main import main
from orchestrator.tracking.loggers import LOGGERS
from orchestrator.tracking.projection import TRIAL
from orchestrator.tracking.trackers import write_log

BEGUN = Path(__file__).parents[1] / "goldens" / "begun"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    shutil.copytree(BEGUN, tmp_path / "searches" / "golden")
    return tmp_path / "searches" / "golden" / "journal.jsonl"


def curves(journal: Path, tag: str = TRIAL) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Run -> metric -> points, as MLflow gets them."""
    tracker = MemoryTracker(journal)
    tracker.notify()
    assert tracker.backlog == 0  # the golden journal's artifacts are not kept
    return {
        run["tags"].get(tag, run["name"]): {
            key: [(step, value) for step, _, value in rows] for key, rows in run["metrics"].items()
        }
        for run in tracker.runs.values()
    }


def test_the_command_names_every_logger() -> None:
    hint = get_type_hints(searches.sync)["to"]
    assert set(get_args(hint)) == {"mlflow", *LOGGERS}


def test_tensorboard_gets_every_point_once(journal: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    plugin_data_pb2 = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    wanted, folder = curves(journal), tmp_path / "tensorboard"
    report = write_log(journal, LOGGERS["tensorboard"], folder)
    assert report.runs == len(wanted) and report.events > 0 and report.refused == []
    assert write_log(journal, LOGGERS["tensorboard"], folder).events == 0
    (search,) = (name for name in wanted if (folder / name).is_dir())
    seen = 0
    for name, metrics in wanted.items():
        place = folder / search if name == search else folder / search / name
        events = accumulator.EventAccumulator(str(place), size_guidance={"scalars": 0}).Reload()
        found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        assert found.keys() == metrics.keys()
        if name != search:  # a row of the table of hyperparameters
            content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
            row = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
            assert row["backbone"].string_value and row["lr"].number_value > 0
        for tag, points in metrics.items():
            assert found[tag] == [(step, pytest.approx(value, rel=1e-6)) for step, value in points]
            seen += len(points)
    assert seen > 0
    shutil.rmtree(folder)
    assert write_log(journal, LOGGERS["tensorboard"], folder).events == report.events, "what was deleted comes back"


def records(content: bytes) -> Iterator[bytes]:
    """The records of W&B's file: a head of 7 bytes, then LevelDB's log, in blocks of 32 KiB."""
    place, whole = 7, b""
    while place < len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def test_wandb_is_written_offline(journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two parts, as of a search that runs: what comes later is in the same project."""
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    wanted, folder, whole = curves(journal, "none"), tmp_path / "wandb", journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    assert write_log(journal, LOGGERS["wandb"], folder).events > 0
    journal.write_bytes(whole)
    assert write_log(journal, LOGGERS["wandb"], folder).runs == len(wanted) < len([*folder.rglob("*.wandb")])
    project = json.loads(lines[0])["dataset"]
    expected = {(project, name): metrics for name, metrics in wanted.items() if metrics}  # the search's has no curve
    end = time.monotonic() + 60
    while (found := written_by_wandb(folder)) != expected and time.monotonic() < end:
        time.sleep(0.2)  # a process of its own writes the files
    assert found == expected and any(expected.values())


def written_by_wandb(folder: Path) -> dict[tuple[str, str], dict[str, list[tuple[int, float]]]]:
    """The curves in its files, of each run of each project."""
    from wandb.proto import wandb_internal_pb2

    found: dict[tuple[str, str], dict[str, list[tuple[int, float]]]] = {}
    for path in sorted(folder.rglob("*.wandb")):
        metrics: dict[str, list[tuple[int, float]]] = {}
        run = ("", "")
        for data in records(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.run.display_name:
                run = (record.run.project, record.run.display_name)
                metrics = found.setdefault(run, {})
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            for key, value in row.items():
                if key != "validation" and not key.startswith("_"):
                    metrics.setdefault(key, []).append((row["validation"], value))
    return {run: {key: sorted(points) for key, points in metrics.items()} for run, metrics in found.items() if metrics}


def test_a_logger_that_is_not_installed_is_named(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> Any:
        return None

    monkeypatch.setattr(orchestrator.tracking.loggers.base, "find_spec", absent)
    with pytest.raises(SystemExit) as ended:
        main(["sync", "golden", "--to", "wandb", "--storage", str(tmp_path)])
    assert ended.value.code == 2 and not (tmp_path / "wandb").exists()
    assert capsys.readouterr().err.strip() == ("error: --to wandb: needs the package wandb: uv pip install wandb")
