"""The command line: what it prints, and that every wrong input is one good line and leaves nothing behind."""

import functools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import torch
import typer.main
from support.command_line import TINY, run
from support.output_schemas import conforms
from support.recorded import record

import orchestrator
import orchestrator.check
import orchestrator.data.store
import orchestrator.execution.ray_address
from orchestrator import method as contract
from orchestrator.cli import output
from orchestrator.cli.main import main
from orchestrator.config.training import Training
from orchestrator.data.store import Store
from orchestrator.errors import InputError
from orchestrator.execution.ray_address import reachable_address
from orchestrator.method import Method, MethodConfig
from orchestrator.search.control import starting
from orchestrator.storage.journal import Journal
from orchestrator.storage.presence import driver, myself
from orchestrator.training.checkpoint import save_checkpoint
from orchestrator.training.model_schema import FORMAT

TRAINED = "trained"
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORCHESTRATOR_STORAGE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module", autouse=True)
def _signatures_are_read_once() -> Iterator[None]:
    """typer reads those of all commands for each command, which takes longer than most refusals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> Path:
    """A storage folder with the small glyphs and one finished training, called `trained`."""
    storage = tmp_path_factory.mktemp("storage")
    (storage / "data").symlink_to(data_folder)
    command = f"train --method pfml --dataset glyphs-small --epochs 1 --name {TRAINED} --storage {storage} {TINY}"
    with pytest.raises(SystemExit) as leaving:
        main(shlex.split(command))
    assert not leaving.value.code
    return storage


@pytest.fixture
def storage(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "storage", symlinks=True))


def contents(folder: Path) -> list[str]:
    """Every path below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Bad input -------------------------------------------------------------------------------------------------

HEAD = "method: pfml\ndataset: glyphs-small\nnum_trials: 2\n"
SPACE = "space:\n  delta: {low: 0.1, high: 0.3}\n"
GOOD = HEAD + SPACE


@dataclass(frozen=True)
class Bad:
    """A command that must be refused. `{storage}` and `{tmp}` are folders, `{file}` holds `file`'s text; `says` are
    what its line must hold. `--storage` is added to a command that has a place for it and does not say it."""

    command: str
    says: tuple[str, ...]
    file: str | bytes | None = None
    prepare: Callable[[Path], Any] | None = None
    environment: dict[str, str] = field(default_factory=dict)


def bad(command: str, *says: str, **more: Any) -> Bad:
    return Bad(command, says, **more)


def damage_journal(line: int, text: str) -> Callable[[Path], Any]:
    """Replace a line of the finished training's journal (from 1)."""

    def prepare(storage: Path) -> None:
        path = storage / "searches" / TRAINED / "journal.jsonl"
        lines = path.read_text().splitlines()
        lines[line - 1] = text
        path.write_text("\n".join(lines) + "\n")

    return prepare


def own_data(change: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Copy the data set into the storage and change it there."""

    def prepare(storage: Path) -> None:
        shared = (storage / "data").resolve()
        (storage / "data").unlink()
        shutil.copytree(shared / "glyphs-small", storage / "data" / "glyphs-small")
        change(storage / "data" / "glyphs-small")

    return prepare


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def other_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"images": 7}))


def other_channels(storage: Path) -> None:
    saved: dict[str, Any] = {"experiment": {"method": "pfml", "dataset": "x"}, "channels": 3, "num_classes": 2}
    saved |= {"format": FORMAT, "dataset_digest": "0", "learner": {"weight": torch.zeros(2)}}
    save_checkpoint(storage / "colour.pt", saved)


def unknown_trial(storage: Path) -> None:
    with Journal(storage / "searches" / TRAINED / "journal.jsonl") as journal:
        record(journal, "trial_ended", trial_id="0815", state="done", reason=None)


def nothing_trained(storage: Path) -> None:
    path = storage / "searches" / TRAINED / "journal.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    for cursor in path.parent.glob("tracking-*.json"):
        cursor.unlink()


def lost_end(storage: Path) -> None:
    path = storage / "searches" / TRAINED / "journal.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))


def pipe(storage: Path) -> None:
    os.mkfifo(storage / "pipe")


def linked_pipe(storage: Path) -> None:
    pipe(storage)
    for ending in ("pt2", "csv"):
        (storage / f"to-pipe.{ending}").symlink_to("pipe")


def write(name: str, content: str | bytes) -> Callable[[Path], Any]:
    def prepare(storage: Path) -> None:
        (storage / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return prepare


TRAIN = "train --method pfml --dataset glyphs-small --epochs 1"

BAD = [
    # commands and options
    bad("serach demo", "no such command 'serach'", "search"),
    bad("search", "SPACE: missing", "search --help"),
    bad("search demo --nmae x", "--nmae: no such option", "did you mean '--name'"),
    bad("search demo --storage {storage} --name", "'--name' requires an argument"),
    bad("search demo other", "unexpected extra argument", "other"),
    bad("search demo --num-trials 0", "--num-trials: '0'", "at least 1"),
    bad("search demo --num-trials many", "--num-trials: 'many': should be a whole number"),
    bad("search demo --max-concurrent 0", "--max-concurrent: '0'"),
    bad("search demo --workers 0", "--workers: '0'"),
    bad("search demo --epochs 1.5", "--epochs: '1.5': should be a whole number"),
    bad("search demo --seed=-1", "--seed: '-1'", "at least 0"),
    bad("search demo --seed 2147483648", "seed: 2147483648", "below 2147483648"),
    bad("search demo --epochs 3 --set epochs=5", "--epochs 3", "keep one"),
    bad("search demo --seed 3 --set seed=5", "--seed 3", "keep one"),
    bad("search demo --dataset glyphs --set dataset=glyphs-small", "--dataset glyphs", "keep one"),
    bad("search demo --name ''", "--name: empty"),
    bad("search demo --name ../x", "--name: '../x'", "letters, digits"),
    bad(f"search demo --name {TRAINED}", "--name", f"orchestrator resume {TRAINED}"),
    bad(f"search demo --name {TRAINED} --dry-run", "--name", f"orchestrator resume {TRAINED}"),
    bad("search demo --storage ''", "--storage: empty"),
    bad("search demo --address ''", "--address: empty"),
    bad("search demo --address 127.0.0.1:1", "--address", "127.0.0.1:1", "refused"),
    bad("search demo --address 127.0.0.1", "--address", "host:port"),
    bad("search demo --address ray://head:10001", "--address: ray://head:10001", "as head:6379, or auto"),
    bad("search demo --storage s3:/bucket/p", "--storage", "is no address: did you mean s3://bucket/p?"),
    bad("search demo --dry-run --address ray://head:10001", "--address: ray://head:10001", "as head:6379, or auto"),
    bad("search demo --address k8s://head:10001", "--address", "k8s:// is no kind of address"),
    bad(f"resume {TRAINED} --address 127.0.0.1:port", "--address", "host:port"),
    bad("train --dataset glyphs-small", "--method: missing"),
    bad("train --method pfml", "--dataset: missing"),
    bad("train --method pmfl --dataset glyphs-small", "'pmfl'", "did you mean 'pfml'"),
    bad("train --method pfml --dataset glyph-small", "'glyph-small'", "did you mean 'glyphs-small'"),
    bad(f"{TRAIN} --name .hidden", "--name: '.hidden'"),
    bad(f"{TRAIN} --set method=proxy_anchor", "--method pfml", "keep one"),
    bad("train --method idml --dataset glyphs-small --set mixup_blocks=7", "mixup_blocks: 7", "batch of 64", "divisor"),
    bad(
        "train --method pfml --dataset glyphs-small --set backbone=vit_small --set weights=random",
        "backbone: timm/vit_small",
        "224 x 224",
        "32 x 32",
    ),
    bad("search idml --dataset glyphs-small --dry-run --set mixup_blocks=7", "mixup_blocks: 7", "batch of 64"),
    bad(
        "train --method anti_collapse --dataset glyphs-small --set guidance_weight=1 --set text_embeddings=none.csv",
        "text_embeddings: none.csv",
        "cannot be read",
    ),
    bad("train --method idml --dataset glyphs-small --set margin=-1", "margin: -1.0", "at least 0"),
    bad("methods pmfl", "'pmfl'", "did you mean 'pfml'"),
    bad("check", "NAME: missing", "check --help"),
    bad("check pmfl", "'pmfl'", "did you mean 'pfml'"),
    bad("check pfml --set detla=0.2", "detla", "did you mean 'delta'"),
    bad("check pfml --set delta=3", "delta: 3", "at most 2"),
    bad("check pfml --set delta", "--set delta", "KEY=VALUE"),
    bad("new-method", "NAME: missing"),
    bad("new-method MyLoss", "'MyLoss'", "snake_case"),
    bad("new-method lambda", "'lambda'", "snake_case"),
    bad("new-method ../x", "'../x'", "snake_case"),
    bad("new-method pfml", "'pfml' is installed already"),
    bad("new-method torch", "package 'torch' already exists"),
    bad("new-method tests", "package 'tests' already exists"),
    bad("new-method my_loss --folder {storage}", "already exists", "--folder"),
    bad("new-method my_loss --folder /proc/my_loss", "--folder", "/proc/my_loss"),
    bad("new-method my_loss --folder ''", "--folder: empty"),
    bad("datasets glyps", "'glyps'", "did you mean 'glyphs'"),
    # --set
    bad("search demo --set lr", "--set lr", "KEY=VALUE"),
    bad("search demo --set =3", "--set =3", "KEY=VALUE"),
    bad("search demo --set lr=1 --set lr=2", "lr is set twice"),
    bad("search demo --set lr=", "--set lr=: no value after '='; for none write lr=none"),
    bad("search demo --set detla=0.2", "detla", "did you mean 'delta'"),
    bad("search demo --set lr=fast", "lr: 'fast'", "number"),
    bad("search demo --set lr=0", "lr: 0", "above 0"),
    bad("search demo --set lr=.inf", "lr: inf", "finite"),
    bad("search demo --set epochs=1.5", "epochs: 1.5", "whole number"),
    bad("search demo --set delta=3", "delta: 3", "at most 2"),
    bad("search demo --set backbone=resnet5", "backbone: unknown backbone 'resnet5'", "did you mean 'resnet50'"),
    bad("search demo --set augmentation=afine", "augmentation: 'afine'", "did you mean 'affine'"),
    bad("search demo --set optimizer=lian", "optimizer: 'lian' is unknown (did you mean 'lion'?)"),
    bad("search demo --set precision=half", "precision: 'half' is unknown", "known: bf16"),
    bad("search demo --set validate_every='1 week'", "validate_every: '1 week'", "25 steps"),
    bad("search demo --set validation_share=0", "validation_share", "0.3"),
    bad("search demo --set classes_per_batch=500", "classes_per_batch is 500", "training classes"),
    bad("search demo --set backbone=resnet18 --set weights={tmp}/none.pth", "weights", "none.pth"),
    bad("search demo --set weights={tmp}/none.pth", "weights", "small_cnn"),
    bad("search demo --set backbone=bn_inception", "weights: bn_inception", "52deb4733", "weights=/path"),
    bad("search demo --set input_convention=bgr", "input_convention: 'bgr'", "known: bgr_255, default, rgb_255"),
    bad("search demo --set pooling=token", "pooling: 'token'", "small_cnn", "average+max"),
    bad("search demo --set layer_decay=0", "layer_decay: 0", "above 0"),
    bad(
        "search demo --set backbone=resnet18 --set weights={storage}/text.pth",
        "weights",
        "text.pth",
        prepare=write("text.pth", "not tensors"),
    ),
    bad(
        "search demo --set backbone=resnet18 --set weights={storage}/other.pth",
        "weights",
        "other.pth",
        "resnet18",
        prepare=lambda storage: torch.save({"a": torch.zeros(1)}, storage / "other.pth"),
    ),
    bad(f"{TRAIN} --set threads=1000", "threads: 1000", "CPUs"),
    # search files
    bad("search dmeo", "'dmeo'", "did you mean 'demo'"),
    bad("search {tmp}/none.yaml", "none.yaml", "no such search file", "demo"),
    bad("search {tmp}/", "is a folder"),
    bad("search {file}", "is empty", "mapping", file=""),
    bad("search {file}", "should be a mapping", file="- 1\n"),
    bad("search {file}", "line 2", "not YAML", file="space: [1, 2\n"),
    bad("search {file}", "not UTF-8 text", file=b"\x80\x02\xff\x00"),
    bad("search {file}", "not YAML", file="a: \x00\n"),
    bad("search {file}", "duplicate key", file=GOOD + "method: pfml\n"),
    bad("search {file}", "algoritm", "did you mean 'algorithm'", file=GOOD + "algoritm: tpe\n"),
    bad("search {file}", "gpus_per_trial: 2", "at most 1", file=GOOD + "gpus_per_trial: 2\n"),
    bad("search {file}", "final_trials: 3", "2 trials in all", file=GOOD + "final_trials: 3\n"),
    bad("search {file}", "final_protocol: 'other'", "known: conventional, same", file=GOOD + "final_protocol: other\n"),
    bad("search {file}", "gpus_per_trial: 0.5", "whole GPU", file=GOOD + "gpus_per_trial: 0.5\nworkers: 2\n"),
    bad("search {file}", "algorithm: 'tbe'", "did you mean 'tpe'", file=GOOD + "algorithm: tbe\n"),
    bad("search {file}", "scheduler", "'ashaa'", "'asha'", file=GOOD + "scheduler: ashaa\n"),
    bad("search {file}", "grace", "no such key", file=GOOD + "scheduler: {name: asha, grace: 3}\n"),
    bad("search {file}", "objective", "did you mean 'val/map_at_r'", file=GOOD + "objective: val/map_at_R\n"),
    bad("search {file}", "mode: 'up' is unknown (known: max, min)", file=GOOD + "objective: {mode: up}\n"),
    bad("search {file}", "num_trials: 'two'", "whole number", file=HEAD.replace("2", "two") + SPACE),
    bad("search {file}", "num_trials", "required", file=HEAD.replace("num_trials: 2\n", "") + SPACE),
    bad("search {file}", "final: 'perhaps'", "true or false", file=GOOD + "final: perhaps\n"),
    bad("search {file}", "settings: 3", "mapping", file=GOOD + "settings: 3\n"),
    bad("search {file}", "no method is named", file=GOOD.replace("method: pfml\n", "")),
    bad("search {file}", "'pmfl'", "did you mean 'pfml'", file=GOOD.replace("pfml", "pmfl")),
    bad("search {file}", "data set 'glyps'", "did you mean 'glyphs'", file=GOOD.replace("glyphs-small", "glyps")),
    bad("search {file}", "space: this key is required", file=HEAD),
    bad("search {file}", "space", "empty", file=HEAD + "space: {}\n"),
    bad("search {file}", "space: 3", "mapping", file=HEAD + "space: 3\n"),
    bad("search {file}", "detla", "did you mean 'delta'", file=HEAD + "space: {detla: [0.1]}\n"),
    bad("search {file}", "space.delta", "0.3 is above high 0.1", file=HEAD + "space: {delta: {low: 0.3, high: 0.1}}\n"),
    bad("search {file}", "delta: 5", "at most 2", file=HEAD + "space: {delta: {low: 1, high: 5}}\n"),
    bad("search {file}", "space.delta", "lo", "did you mean", file=HEAD + "space: {delta: {lo: 1, high: 2}}\n"),
    bad("search {file}", "space.delta", "both low and high", file=HEAD + "space: {delta: {low: 1}}\n"),
    bad("search {file}", "space.alpha", "above 0", file=HEAD + "space: {alpha: {low: 0, high: 6, log: true}}\n"),
    bad("search {file}", "space.delta", "empty list", file=HEAD + "space: {delta: []}\n"),
    bad("search {file}", "space.delta", "twice", file=HEAD + "space: {delta: [0.1, 0.1]}\n"),
    bad("search {file}", "space.delta", "wide", file=HEAD + "space: {delta: [0.1, wide]}\n"),
    bad("search {file}", "space.delta", "grid", file=GOOD + "algorithm: grid\n"),
    bad("search {file}", "delta", "both fixed", file=GOOD + "settings: {delta: 0.2}\n"),
    # places
    bad("search demo --storage /proc/runs", "--storage", "/proc/runs", "name another folder"),
    bad("search demo --storage {storage}/file", "--storage", "/file is a file: name", prepare=write("file", "")),
    bad(
        "search demo --name x --storage {storage}/file/runs",
        "--storage",
        "/file/runs cannot be written",
        prepare=write("file", ""),
    ),
    bad(TRAIN, "ORCHESTRATOR_STORAGE", "/proc/runs", environment={"ORCHESTRATOR_STORAGE": "/proc/runs"}),
    bad(
        "report x --storage {tmp}/none",
        "--storage (or ORCHESTRATOR_STORAGE): ",
        "no storage at",
        "none: name the folder of one",
    ),
    bad("ui --storage {tmp}", "holds no runs yet", "search demo"),
    bad(f"report {TRAINED} --html {{tmp}}/none/x.html", "--html", "none/x.html", "does not exist"),
    bad(f"report {TRAINED} --html {{tmp}}", "--html", "is a folder"),
    bad(f"report {TRAINED} --format csv --json", "--format csv", "keep one"),
    bad(f"report {TRAINED} --format latx", "error: --format: 'latx' is unknown (did you mean 'latex'?)"),
    bad(f"report {TRAINED} --format pdf", "--format: 'pdf' is unknown (known: csv, latex, markdown, table)"),
    bad(f"compare {TRAINED} --format cvs", "--format: 'cvs' is unknown (did you mean 'csv'?)"),
    bad(
        f"evaluate {TRAINED} --dataset glyphs --device gpu",
        "error: --device: 'gpu' is unknown (known: auto, cpu, cuda)",
    ),
    # trackers
    bad("search demo --tracking-uri ftp://host", "'ftp://host'", "unknown scheme 'ftp'"),
    bad("search demo --tracking-uri htp://host", "did you mean 'http'"),
    bad("search demo --tracking-uri file:/tmp/mlruns", "plain folders", "sqlite:"),
    bad("search demo --tracking-uri mlruns", "'mlruns'", "sqlite:"),
    bad("search demo --tracking-uri http://", "names no host"),
    bad("search demo --tracking-uri http://host:port", "http://host:port", "port"),
    bad("search demo --tracking-uri sqlite:////proc/x/mlflow.db", "--tracking-uri", "/proc/x"),
    bad("search demo --tracking-uri ''", "--tracking-uri: empty"),
    bad("search demo --tracking-uri ftp://me:hunter2@host", "ftp://***@host", "unknown scheme"),
    bad("search demo --tracking-uri me:hunter2@host:5000", "***@host:5000", "http://host:5000"),
    bad("search demo", "'ftp://***@host'", environment={"MLFLOW_TRACKING_URI": "ftp://me:hunter2@host"}),
    bad(f"sync {TRAINED} --tracking-uri http://me:hunter2@127.0.0.1:1", "no MLflow server answers", "***@127.0.0.1:1"),
    bad(f"resume {TRAINED} --tracking-uri ftp://host", "unknown scheme"),
    bad("ui --tracking-uri http://127.0.0.1:5000", "is a server already"),
    bad("ui --port 0", "--port: '0'"),
    bad("ui --port 65536", "--port: '65536'", "65535"),
    # what does not exist, and what is damaged
    bad("resume traned", "no search 'traned'", "did you mean 'trained'"),
    bad("sync traned", "no search 'traned'", "did you mean 'trained'"),
    bad("resume ended --set epochs=4", "--set: a started search keeps its settings", "--start-from"),
    bad("resume trained --num-trials 3", "'trained' is a training, not a search"),
    bad("resume trained --budget hours", "--budget hours: should read KEY=VALUE, for example --budget hours=8"),
    bad("status traned", "no search 'traned'", "did you mean 'trained'"),
    bad("stop trained", "stop: training 'trained' is not running (it is done)"),
    bad("pause trained", "pause: training 'trained' is not running (it is done)"),
    bad("search {file} --budget hour=3", "--budget: hour: no such limit", "did you mean 'hours'", file=GOOD),
    bad("search {file} --algorithm tppe", "error: --algorithm: 'tppe' is unknown", "did you mean 'tpe'", file=GOOD),
    bad("search {file} --scheduler ahsa", "--scheduler: 'ahsa' is unknown (did you mean 'asha'?)", file=GOOD),
    bad("search {file} --start-from traned", "no search 'traned'", "did you mean 'trained'", file=GOOD),
    bad("search {file} --start-from trained:0", "start_from: trained:0: should be SEARCH or SEARCH:K", file=GOOD),
    bad("search {file} --start-from pfml/cub20/x", "start_from: pfml/cub20/x", "did you mean 'cub200'", file=GOOD),
    bad(
        "list --storage {tmp}/nowhere",
        "--storage (or ORCHESTRATOR_STORAGE): ",
        "no storage at",
        "nowhere: name the folder",
    ),
    bad("search {file} --algorithm cmaes", "error: --algorithm: cmaes: needs two ranges or more", file=GOOD),
    bad("report traned", "no search 'traned'", "did you mean 'trained'"),
    bad("report ../searches/trained", "NAME", "letters, digits"),
    bad("export traned --to pt2", "'traned'", "did you mean 'trained'"),
    bad(f"export {TRAINED}", "--to: missing", "onnx, torchscript, pt2, mlflow and hub"),
    bad("search demo --set num_trials=3", "--set num_trials: belongs to the search", "write --num-trials 3"),
    bad("search demo --set num_trials=3 --num-trials 4", "--num-trials 4: --set num_trials=3 is given too; keep one"),
    bad(f"export {TRAINED} --to onx", "--to: 'onx' is unknown", "did you mean 'onnx'"),
    bad(f"export {TRAINED}/0007 --to pt2", f"'{TRAINED}/0007'", "no such trial"),
    bad(f"export {TRAINED} --to pt2", "no trial of this search has a model yet", prepare=nothing_trained),
    bad(f"export {TRAINED} --to pt2 --dataset glyps", "'glyps'", "did you mean 'glyphs'"),
    bad(f"export {TRAINED} --register birds --output x.pt2", "--output: x.pt2", "needs --to"),
    bad(f"export {TRAINED} --to pt2 --output {{storage}}", "--output", "is a folder"),
    bad(f"export {TRAINED} --to pt2 --output {{tmp}}/no/x.pt2", "--output", "no/x.pt2", "does not exist"),
    bad(f"export {TRAINED} --to pt2 --output /proc/x.pt2", "--output: /proc/x.pt2 cannot be written"),
    bad(f"export {TRAINED} --to pt2 --output {{storage}}/pipe", "pipe: is a device or a pipe", prepare=pipe),
    bad(f"export {TRAINED} --to mlflow --output {{storage}}/data", "data exists", "another folder"),
    bad(f"export {TRAINED} --to pt2 --register birds --tracking-uri {NOBODY}", f"no MLflow server answers at {NOBODY}"),
    bad(f"export {TRAINED} --register a/b", "'a/b'", "cannot contain '/'"),
    bad(f"export {TRAINED} --register birds --alias latest", "'latest'", "reserved"),
    bad("export {storage}/colour.pt --to pt2 --register birds", "no run in MLflow", prepare=other_channels),
    bad("evaluate traned --dataset glyphs-small", "'traned'", "did you mean 'trained'"),
    bad(f"evaluate {TRAINED}/0007 --dataset glyphs-small", f"'{TRAINED}/0007'", "no such trial"),
    bad(f"evaluate {TRAINED} --dataset glyps", "'glyps'", "did you mean 'glyphs'"),
    bad(
        f"evaluate {TRAINED} --dataset glyphs-small --device tpu", "--device: 'tpu' is unknown (known: auto, cpu, cuda)"
    ),
    bad(f"evaluate {TRAINED} --dataset glyphs-small --per-query {{tmp}}/x.txt", "--per-query", "x.txt", ".parquet"),
    bad(f"evaluate {TRAINED} --dataset glyphs-small --per-class {{tmp}}/no/x.csv", "--per-class", "no/x.csv", "exist"),
    bad(f"evaluate {TRAINED} --dataset glyphs-small --per-query x.csv --per-class x.csv", "--per-class", "x.csv"),
    bad(
        "evaluate {storage}/text.pt --dataset glyphs-small",
        "text.pt",
        "not a checkpoint",
        prepare=write("text.pt", "not tensors"),
    ),
    bad(
        "evaluate {storage}/other.pt --dataset glyphs-small",
        "other.pt",
        "no model of this tool",
        prepare=lambda storage: torch.save({"a": torch.zeros(1)}, storage / "other.pt"),
    ),
    bad("evaluate {storage}/colour.pt --dataset glyphs-small", "3 channels", "has 1", prepare=other_channels),
    bad(f"report {TRAINED}", "journal.jsonl:2", "corrupt", prepare=damage_journal(2, "{half")),
    bad(f"resume {TRAINED}", "journal.jsonl:2", "corrupt", prepare=damage_journal(2, "{half")),
    bad(f"sync {TRAINED}", "journal.jsonl:2", "corrupt", prepare=damage_journal(2, "{half")),
    bad(f"evaluate {TRAINED} --dataset glyphs-small", "journal.jsonl:2", prepare=damage_journal(2, "{half")),
    bad(
        f"report {TRAINED}",
        "journal.jsonl:2",
        "has no checksum",
        f"line 1 is intact: orchestrator resume {TRAINED} --cut-damaged",
        prepare=damage_journal(2, '{"event": "trial_started", "seq": 1, "time": 1}'),
    ),
    bad(f"report {TRAINED}", "journal.jsonl", "0815", prepare=unknown_trial),
    bad(f"report {TRAINED}", "journal.jsonl:5: ", "sent to MLflow", "--cut-damaged", prepare=lost_end),
    bad(f"export {TRAINED} --to pt2 --output {{storage}}/to-pipe.pt2", "a device or a pipe", prepare=linked_pipe),
    bad(f"evaluate {TRAINED} --dataset glyphs-small --per-class {{storage}}/to-pipe.csv", "pipe", prepare=linked_pipe),
    bad(f"evaluate {TRAINED} --dataset glyphs-small --gallery {{storage}}/to-pipe.csv", "pipe", prepare=linked_pipe),
    bad("search demo --dry-run --tracking-uri sqlite:///{storage}", "tracking URI", "is a folder"),
    bad("new-method mine --folder {storage}/pipe", "pipe", "not an empty folder", prepare=pipe),
    bad(TRAIN, "images.arrow", "not a complete Arrow file", prepare=own_data(lambda f: truncate(f / "images.arrow"))),
    bad(TRAIN, "images.arrow", "no such file", prepare=own_data(lambda f: (f / "images.arrow").unlink())),
    bad(TRAIN, "manifest.json says 7", prepare=own_data(other_manifest)),
    bad(TRAIN, "manifest.json", "JSON", prepare=own_data(lambda folder: (folder / "manifest.json").write_text("{"))),
]


def identity(case: Bad) -> str:
    text = case.command if case.file is None else f"{case.command} {case.file!r}"
    return re.sub(r"[^\w=.,:{}-]+", " ", text)[:80]


@pytest.mark.usefixtures("no_ray_beside")
@pytest.mark.parametrize("case", BAD, ids=identity)
def test_bad_input_is_one_good_line(
    case: Bad,
    request: pytest.FixtureRequest,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By a search beside which no Ray starts; the test after it starts one."""
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    file = tmp_path / "search.yaml"
    if case.file is not None:
        file.write_bytes(case.file if isinstance(case.file, bytes) else case.file.encode())
    storage = finished if case.prepare is None else request.getfixturevalue("storage")
    if case.prepare is not None:
        case.prepare(storage)
    before = contents(storage)
    journal = storage / "searches" / TRAINED / "journal.jsonl"
    recorded = journal.read_bytes()
    command = case.command
    takes_storage = command.split()[0] not in ("methods", "datasets", "serach", "check", "new-method")
    if takes_storage and "--storage" not in command and "ORCHESTRATOR_STORAGE" not in case.environment:
        command += f" --storage {storage}"
    for place, path in (("{storage}", storage), ("{tmp}", elsewhere), ("{file}", file)):
        command = command.replace(place, str(path))

    ran = run(capsys, command)

    assert ran.code == 2, ran
    assert ran.out == ""
    assert ran.err.startswith("error: ") and ran.err.endswith("\n") and ran.err.count("\n") == 1, ran.err
    for text in case.says:
        assert text in ran.err
    assert "hunter2" not in ran.err
    assert contents(storage) == before
    assert journal.read_bytes() == recorded
    assert not contents(elsewhere)


def test_a_search_that_is_refused_while_ray_starts_ends_it(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def servers() -> list[psutil.Process]:
        children = psutil.Process().children(recursive=True)
        return [child for child in children if child.name() in ("raylet", "gcs_server")]

    def watch() -> None:
        while not ended.wait(0.05):
            seen.update(servers())

    before, seen, ended = servers(), set[psutil.Process](), threading.Event()
    watching = threading.Thread(target=watch)
    watching.start()
    ran = run(capsys, f"search demo --storage {storage} --set classes_per_batch=500")
    ended.set()
    watching.join()
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "classes_per_batch is 500" in ran.err
    assert seen > set(before), "Ray was started"
    assert servers() == before


def test_there_are_at_least_sixty_of_them() -> None:
    assert len({identity(case) for case in BAD}) >= 60


def test_a_setting_of_a_method_that_every_training_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Greedy(Method):
        """Wants a learning rate of its own."""

        name = "greedy"
        paper = "none"

        class Config(MethodConfig):
            lr: float = 0.1

    monkeypatch.setattr(contract, "registry", lambda: {"greedy": Greedy})
    ran = run(capsys, f"train --method greedy --dataset glyphs-small --storage {tmp_path}")
    assert ran.code == 2
    assert ran.err == "error: method 'greedy': lr is already a setting of every training\n"


def test_a_port_that_is_taken(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = run(capsys, f"ui --port {port} --storage {finished}")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: --port: {port} cannot be used")


@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b""])
def test_something_else_that_answers_at_the_address(
    answer: bytes, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        def serve() -> None:
            with other.accept()[0] as connection:
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        ran = run(capsys, f"search demo --address 127.0.0.1:{port} --storage {finished}")
        thread.join()
    assert (ran.code, ran.out) == (2, "")
    assert f"127.0.0.1:{port}" in ran.err and "Ray" in ran.err and ran.err.count("\n") == 1


def test_nothing_is_said_to_a_cluster_with_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with socket.socket() as cluster:
        cluster.bind(("127.0.0.1", 0))
        cluster.listen()
        address = f"127.0.0.1:{cluster.getsockname()[1]}"
        assert reachable_address(address) == address
        with cluster.accept()[0] as connection:
            assert connection.recv(100) == b"", "it cannot read what comes before its handshake"


def test_auto_is_the_cluster_that_was_started_here_or_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrator.execution.ray_address, "_speaks", lambda host, port: port < 3 or unwilling())
    monkeypatch.setattr(orchestrator.execution.ray_address, "_check_versions", lambda address: None)

    def unwilling() -> bool:
        raise ConnectionRefusedError

    def auto(started: str | None, *seen: str) -> str | None:
        monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda folder: started)
        monkeypatch.setattr("ray._private.services.find_gcs_addresses", lambda: set(seen))
        return reachable_address("auto")

    assert auto("a:1", "a:1", "b:2") == "a:1"
    assert auto("gone:9", "gone:9", "b:2") == "b:2"
    assert auto(None, "gone:9", "b:2") == "b:2"
    with pytest.raises(InputError, match="several Ray clusters run on this machine: name one of a:1, b:2"):
        auto(None, "b:2", "a:1")
    with pytest.raises(InputError, match="no Ray cluster runs on this machine"):
        auto(None, "gone:9")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_what_is_half_drawn_is_removed_when_the_user_ends_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drafts: list[list[Path]] = []

    def ended(*_: object) -> None:
        drafts.append(list((tmp_path / "data").iterdir()))
        assert signal.getsignal(getattr(signal, name)) is not signal.SIG_DFL, "it would end the tests"
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(10)  # another thread may have taken the signal, and this one hears of it a little later

    monkeypatch.setattr(orchestrator.data.store, "_write_images", ended)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # a shell may have it ignored for what it runs behind
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ran = run(capsys, f"train --method pfml --dataset glyphs-small --storage {tmp_path} {TINY}")
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)
    assert (ran.code, ran.out) == (130, "")
    assert "Traceback" not in ran.err
    assert len(drafts) == 1 and len(drafts[0]) == 1, "it was being drawn"
    assert list((tmp_path / "data").iterdir()) == []


def test_a_setting_without_effect_is_told(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(capsys, f"search demo --dry-run --storage {finished} --set proxies_per_class=0 --set delta_rep=0.3")
    assert (ran.code, ran.err) == (0, "")
    ran = run(capsys, f"search demo --dry-run --storage {finished} --set alpha=0 --set delta_rep=0.3 --json")
    assert ran.err.splitlines() == [f"note: {key} has no effect with alpha=0.0" for key in ("delta", "delta_rep")]
    assert json.loads(ran.out)["settings"]["alpha"] == 0


def test_a_password_is_written_nowhere(tmp_path: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that is away: the training runs and is journaled, and says how to send it."""
    (tmp_path / "data").symlink_to(data_folder)
    ran = run(
        capsys,
        f"train --method proxy_anchor --dataset glyphs-small --epochs 1 --name away --storage {tmp_path} {TINY} "
        "--set class_subset=16 --tracking-uri http://me:hunter2@127.0.0.1:1",
    )
    assert ran.code == 0, ran.err
    assert f"orchestrator sync away --storage {tmp_path}" in ran.out
    assert "***@127.0.0.1:1" in ran.out
    assert "hunter2" not in ran.out + ran.err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert tmp_path / "searches" / "away" / "journal.jsonl" in files
    assert not [path for path in files if b"hunter2" in path.read_bytes()]


def test_a_torn_last_line_of_the_journal_is_no_error(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (storage / "searches" / TRAINED / "journal.jsonl").open("a") as journal:
        journal.write('{"event": "sear')
    ran = run(capsys, f"report {TRAINED} --storage {storage} --json")
    assert json.loads(ran.out)["state"] == "done"


def test_a_damaged_note_of_what_was_sent_is_no_error(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cursor in (storage / "searches" / TRAINED).glob("tracking-*.json"):
        cursor.write_text("{")
    ran = run(capsys, f"report {TRAINED} --storage {storage} --json")
    assert ran.code == 0
    assert json.loads(ran.out)["parent_run_id"] is None


# In processes of their own ---------------------------------------------------------------------------------


def apart(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, started in `folder`, which comes first on its path."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *shlex.split(command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
def test_a_trial_that_cannot_fit_the_cluster(storage: Path, tmp_path: Path) -> None:
    before = contents(storage)
    ran = apart(f"search demo --storage {storage} --set threads=1000", tmp_path)
    assert (ran.returncode, ran.stdout) == (2, ""), ran.stderr
    (error,) = (line for line in ran.stderr.splitlines() if not line.endswith(" ..."))
    assert error.startswith("error: ") and "1000 CPU" in error
    assert contents(storage) == before


def hide_packages(folder: Path, *names: str) -> None:
    """Somebody's own packages of these names, which end a process that imports them."""
    for name in names:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise SystemExit('another {name}')\n")


def test_a_users_own_folders_of_the_same_names(tmp_path: Path) -> None:
    """`search_spaces` is found beside the package, and so is `methods`."""
    hide_packages(tmp_path, "search_spaces", "methods")
    (tmp_path / "search_spaces" / "demo.yaml").write_text("method: mine\n")
    ran = apart("methods --json", tmp_path)
    assert "pfml" in {method["name"] for method in json.loads(ran.stdout)}, ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("program", ["-m", "script"])
def test_a_search_among_somebodys_own_packages(program: str, storage: Path, tmp_path: Path) -> None:
    """Neither the driver nor Ray's workers look there first. (`python -m orchestrator` itself would start another
    `orchestrator` there: that is Python's own rule.)"""
    (tmp_path / "s.yaml").write_text(
        "{method: contrastive, dataset: glyphs-small, settings: {epochs: 1, embedding_dim: 8, threads: 1},"
        " space: {lr: [1e-3, 1e-2]}, num_trials: 1, final: false}"
    )
    alone = program == "-m"
    hide_packages(tmp_path, "methods", *(() if alone else ("orchestrator",)))
    words = [sys.executable, "-m", "orchestrator"] if alone else [str(Path(sys.executable).with_name("orchestrator"))]
    words += ["search", "s.yaml", "--name", f"among{program}", "--storage", str(storage)]
    words += ["--workers", "1" if alone else "2"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "done" in ran.stdout


@pytest.mark.parametrize("program", [["-m", "orchestrator"], [str(Path(sys.executable).with_name("orchestrator"))]])
def test_an_end_while_modules_are_loaded_is_one_line(program: list[str], tmp_path: Path) -> None:
    """The user's Ctrl-C comes while the first library of the command line is imported."""
    (tmp_path / "typer.py").write_text(
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored\n"
        "signal.raise_signal(signal.SIGINT)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, *program, "list"], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "interrupted\n")


# Good input ------------------------------------------------------------------------------------------------


COMMANDS = [
    "search",
    "resume",
    "sync",
    "train",
    "evaluate",
    "report",
    "methods",
    "settings",
    "presets",
    "check",
    "new-method",
    "ui",
]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_teaches_by_example_and_is_quick(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(capsys, f"{command} --help")
    assert ran.code == 0
    assert f"orchestrator {command or 'search'}" in ran.out.split("Usage:")[1].split("\n", 1)[1]
    assert max(len(line) for line in ran.out.splitlines()) <= 80


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(capsys, "--version")
    assert (ran.code, ran.err) == (0, "")
    assert re.fullmatch(r"dml-orchestrator \d+\.\d+\.\d+\n", ran.out)
    assert ran.out.split()[1] == orchestrator.__version__


def test_the_settings_of_every_training_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(capsys, "settings --json")
    assert {row["name"] for row in json.loads(ran.out)} == set(Training.model_fields)
    found = run(capsys, "settings weight_decay")
    assert "weight_decay" in found.out and "loader_threads" not in found.out


def test_json_is_one_object_on_one_line(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(capsys, f"report {TRAINED} --storage {finished} --json")
    assert ran.out.count("\n") == 1
    summary = json.loads(ran.out)
    assert summary["name"] == TRAINED
    assert summary["objective"] == "val/map_at_r"
    assert summary["parent_run_id"] and summary["experiment_id"]
    (trial,) = summary["trials"]
    assert {"trial_id", "run_id", "state", "objective", "params"} <= trial.keys()
    assert summary["best"] == trial
    resumed = run(capsys, f"resume {TRAINED} --storage {finished} --json")
    assert json.loads(resumed.out) == summary
    conforms("resume", summary)
    assert resumed.out.count("\n") == 1


@pytest.mark.parametrize("command", ["methods", "methods pfml", "datasets", "datasets glyphs"])
def test_json_of_the_lists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(capsys, f"{command} --json")
    assert (ran.code, ran.err) == (0, "")
    listed = json.loads(ran.out)
    named = [listed] if isinstance(listed, dict) else listed
    assert all(entry["name"] for entry in named)
    assert {"pfml", "glyphs"} & {entry["name"] for entry in named}


def test_hyperparameters_are_described_by_what_they_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    described = json.loads(run(capsys, "methods idml --json").out)
    types = {row["name"]: row["type"] for row in described["hyperparameters"]}
    assert types["references"] == "one of batch, proxies, memory, batch+memory or null"
    assert types["metric"] == "one of euclidean, squared_euclidean, cosine or null"
    assert types["epsilon"] == "float or null"
    assert types["learn_beta"] == "one of no, one, per_class or null"
    assert types["norm"] == "one of sum, separate"
    assert types["tau"] == "float"


class Positional(Method):
    """Weighs samples by their places in the batch, L = mean of (place |z - 1|^2)."""

    name = "positional"
    paper = "unpublished"

    def loss(self, outputs: dict[str, torch.Tensor], labels: torch.Tensor) -> dict[str, torch.Tensor]:
        distance = (outputs["embedding"] - 1).square().sum(1)
        return {"loss": (distance * torch.arange(len(labels))).mean()}


class Admitted(Positional):
    """Says so, L = mean of (place |z - 1|^2)."""

    name = "admitted"
    expected_failures: ClassVar[Mapping[str, str]] = {"permutation": "places are its point", "terms": "once"}


@pytest.mark.parametrize("method", [Positional, Admitted])
def test_check_tells_of_every_check(
    method: type[Method], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(contract.registry(), method.name, method)
    ran = run(capsys, f"check {method.name}")
    told = dict(line.split(": ", 1) for line in ran.out.splitlines())
    as_json = run(capsys, f"check {method.name} --json")
    assert as_json.out.count("\n") == 1
    listed = json.loads(as_json.out)
    states = {check["name"]: check["state"] for check in listed["checks"]}
    assert list(states) == list(told)[:-1]
    assert told["state_round_trip"] == states["state_round_trip"] == "passed"
    if method is Positional:
        assert (ran.code, as_json.code, listed["conforms"]) == (1, 1, False)
        assert told["permutation"].startswith("FAILED: with the batch in another order: ")
        assert told["positional"].endswith(", 1 failed")
        assert {name for name, state in states.items() if state != "passed"} == {"permutation"}
    else:
        assert (ran.code, as_json.code, listed["conforms"]) == (0, 0, True)
        assert told["permutation"] == "expected failure: places are its point"
        assert told["terms"].startswith("unexpected pass: ")


def test_check_takes_hyperparameters(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given: list[Any] = []

    def verdicts(method: type[Method], **others: Any) -> tuple[()]:
        given.append((method.name, others))
        return ()

    monkeypatch.setattr(orchestrator.check, "verdicts", verdicts)
    assert run(capsys, "check contrastive --set references=memory --set memory_size=8").code == 0
    assert given == [("contrastive", {"references": "memory", "memory_size": 8})]


def test_a_dry_run_warns_of_gpu_hours(tmp_path: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").symlink_to(data_folder)
    words = f"search pfml --dataset glyphs-small --num-trials 2 --epochs 1 --dry-run --storage {tmp_path} {TINY}"
    ran = run(capsys, f"{words} --set device=cpu --budget gpu_hours=2")
    assert (ran.code, "gpu_hours" in ran.out) == (0, True)
    assert "warning: pfml.yaml: budget: gpu_hours: trials use no GPU here: use cpu_hours\n" in ran.err
    assert "warning" not in run(capsys, f"{words} --set device=cpu --budget cpu_hours=2").err


def test_a_search_that_is_starting_can_be_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with starting(tmp_path / "searches" / "s"):
        while not driver(tmp_path / "searches" / "s"):
            time.sleep(0.01)
        ran = run(capsys, f"status s --storage {tmp_path}")
        assert ran.out.startswith(f"s: starting, driven by {myself()} (process {os.getpid()})")
        assert json.loads(run(capsys, f"status s --storage {tmp_path} --json").out)["state"] == "starting"
        ran = run(capsys, f"stop s --storage {tmp_path}")
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert "'s' is starting and has recorded nothing yet" in ran.err
    assert not (tmp_path / "searches" / "s").exists()
    assert "no search 's'" in run(capsys, f"status s --storage {tmp_path}").err


def test_evaluate_and_the_dry_run_as_json(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = run(capsys, f"evaluate {TRAINED} --dataset glyphs-small --storage {finished} --json")
    found = json.loads(measured.out)
    conforms("evaluate", found)
    for over in ("classes", "queries"):
        low, high = found[f"intervals_over_{over}"]["map_at_r"]
        assert 0 < low < found["metrics"]["map_at_r"] < high < 1
    assert (found["interval_of_the_claim"], found["classes"]) == ("classes", 60)
    before = contents(finished)
    planned = json.loads(run(capsys, f"search demo --dry-run --storage {finished} --json").out)
    step = re.fullmatch(
        r"(\d+) MB in one process, with its batch of 64", planned["memory"]["of a training step's tensors"]
    )
    assert step is not None and 5 < int(step[1]) < 100, planned["memory"]
    assert re.fullmatch(r"[\d.]+ GB free of [\d.]+ GB", planned["memory"]["of this machine"])
    assert planned["trials"] == 12
    assert planned["cost"]["steps per model"] > 0
    command = f"train --method pfml --dataset glyphs-small --dry-run --storage {finished} {TINY} --repeats 2 --json"
    planned = json.loads(run(capsys, command).out)
    assert (planned["trials"], planned["final runs"], planned["space"]) == (2, 0, {"seed": [0, 1]})
    assert planned["cost"]["steps per model"] > 0
    assert contents(finished) == before


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_evaluate_writes_queries_and_classes(
    suffix: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyarrow import csv, parquet

    files = [tmp_path / f"{name}{suffix}" for name in ("queries", "classes")]
    line = (
        f"evaluate {TRAINED} --dataset glyphs-small --storage {finished} --per-query {files[0]} --per-class {files[1]}"
    )
    ran = run(capsys, line)
    assert ran.code == 0
    queries, classes = (csv.read_csv(file) if suffix == ".csv" else parquet.read_table(file) for file in files)
    assert f"{len(queries)} rows written to {files[0]}" in ran.err
    means = [np.average(table["map_at_r"], weights=w) for table, w in ((queries, None), (classes, classes["queries"]))]
    assert means[0] == pytest.approx(means[1])
    (shown,) = (line.split() for line in ran.out.splitlines() if line.strip().startswith("map_at_r "))
    assert shown[1] == f"{means[0]:.4f}"
    assert float(shown[2]) < means[0] < float(shown[4])
    names = Store.open(finished / "data" / "glyphs-small").class_names
    if suffix == ".csv":  # the plus sign begins a spreadsheet's formula
        names = [f"'{name}" if name[0] in "=+-@" else name for name in names]
    assert classes["class"].to_pylist() == [names[label] for label in classes["label"].to_pylist()]


@pytest.mark.slow
def test_the_end_says_where_to_look(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(capsys, f"resume {TRAINED} --storage {storage}")
    summary = json.loads(run(capsys, f"report {TRAINED} --storage {storage} --json").out)
    assert f"orchestrator ui {TRAINED} --storage {storage}  (while it runs, these addresses work)\n" in ran.out
    page = re.search(r"on a page:  (.*)\n", ran.out)
    assert page is not None and Path(page[1]).is_file()
    experiment = f"http://127.0.0.1:5000/#/experiments/{summary['experiment_id']}/runs"
    report = f"{experiment}/{summary['parent_run_id']}/artifacts/report/search.html?workflowType=machine_learning\n"
    assert report in ran.out
    for view in ("table", "charts"):
        assert re.search(rf"{re.escape(experiment)}\?viewStateShareKey=[0-9a-f]{{16}}-{view}&", ran.out)


def test_the_report_goes_where_it_is_wanted(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(capsys, f"report {TRAINED} --storage {finished} --format csv")
    head, row = ran.out.splitlines()
    assert head.startswith("rank,trial_id,state,val/map_at_r")
    assert row.startswith("1,0000,done,0.") and "test/map_at_r_over_classes_low" in head
    numbers = json.loads(run(capsys, f"report {TRAINED} --storage {finished} --json").out)["numbers"]
    assert 0 < numbers["held_out_set"]["chance"]["map_at_r"] < numbers["untrained"]["metrics"]["map_at_r"] < 1
    assert numbers["test_set"]["classes"] == 60 and len(list((finished / "untrained").iterdir())) == 1
    shown = " ".join(run(capsys, f"report {TRAINED} --storage {finished}").out.split())
    assert "map_at_r 95% over 60 classes: 0." in shown and "Held-out and test values are not of equal" in shown
    ran = run(capsys, f"report {TRAINED} --storage {finished} --html {tmp_path / 'report.html'}")
    assert (ran.code, ran.out) == (0, "")
    written = (tmp_path / "report.html").read_text()
    assert written.startswith("<!doctype html>") and f"<h1>{TRAINED}</h1>" in written
    assert (finished / "searches" / TRAINED / "report" / "search.html").read_text().startswith("<!doctype html>")


@pytest.fixture(params=[40, 60, 80, 120])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


def test_the_leaderboard_fits_the_terminal(
    width: int, finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands to copy are each on one line, however long."""
    ran = run(capsys, f"report {TRAINED} --storage {finished}")
    assert max(len(line) for line in ran.out.splitlines() if not line.strip().startswith("orchestrator ")) <= width
    head = next(line for line in ran.out.splitlines() if "trial" in line and "state" in line)
    assert "map@r" in head
    assert "…" not in head


def test_without_a_terminal_what_takes_long_is_told_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "QUIET_SECONDS", 0.1)
    with output.waiting("reading") as shown:
        time.sleep(0.3)
        shown.update("writing ...")
        time.sleep(0.3)
        shown.update("a moment ...")
        shown.update("checking ...")
        time.sleep(0.3)
        shown.stop()
        shown.start()
    time.sleep(0.3)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "reading ...\nwriting ...\nchecking ...\n")
