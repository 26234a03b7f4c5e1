"""Model files, checkpoints and exported folders that are damaged or a stranger's: one line, exit code 2."""

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support.archive_trees import run

from orchestrator.config.training import resolve_experiment
from orchestrator.data.splits import class_split
from orchestrator.data.store import Store
from orchestrator.errors import InputError
from orchestrator.search.export import export
from orchestrator.search.source import ModelSource
from orchestrator.storage.trial_folder import CHECKPOINT
from orchestrator.training.checkpoint import load_checkpoint, save_checkpoint
from orchestrator.training.hub_folder import CONFIG, KEY, WEIGHTS
from orchestrator.training.loop import fit
from orchestrator.training.model_file import build_learner, load_learner, model_state
from orchestrator.training.model_schema import check_checkpoint
from orchestrator.training.trained_on import trained_on

SETTINGS = {"method": "proxy_anchor", "dataset": "glyphs-small", "embedding_dim": 8, "epochs": 2}
HEAD, PROXIES = "network.head.weight", "method.proxies.weight"
NAN, INF = float("nan"), float("inf")
State = dict[str, Any]
Damage = Callable[[State], object]


def several(cases: dict[str, list[Any]], place: Callable[[str, Any], Any]) -> dict[str, Any]:
    return {f"{key} = {value!r:.20}": place(key, value) for key, values in cases.items() for value in values}


def put(*keys: str, value: Any) -> Damage:
    """Another value at a place in the file."""

    def damage(saved: State) -> None:
        for key in keys[:-1]:
            saved = saved[key]
        saved[keys[-1]] = value

    return damage


def cut(*keys: str) -> Damage:
    """A part that is missing."""

    def damage(saved: State) -> None:
        for key in keys[:-1]:
            saved = saved[key]
        del saved[keys[-1]]

    return damage


def change(name: str, how: Callable[[torch.Tensor], Any]) -> Damage:
    """Another tensor of the weights."""
    return lambda saved: saved["learner"].update({name: how(saved["learner"][name])})


def one(value: float, kind: torch.dtype | None = None) -> Callable[[torch.Tensor], torch.Tensor]:
    def set_one(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone().to(kind or tensor.dtype)
        tensor.view(-1)[0] = value
        return tensor

    return set_one


FACTS: dict[str, list[Any]] = {
    "format": ["x", None, 0, 2, 1.0, True, [1], 10**400],
    "experiment": [None, [], "x", {}, {"method": "triplet"}, 5],
    "dataset_digest": [None, 5, ["a"]],
    "channels": [0, 2, 3, -1, "1", 1.0, True, None, 10**12, [1]],
    "num_classes": [0, -3, "4", 4.5, None, True, 10**12, [4], 5],
    "num_samples": [-1, "9", 0.5, None, 10**15],
    "kept": [5, [], {"size": -1}, {"size": "big"}, {"orientation": "sideways"}, {"importer": 3}, {"transparency": []}],
}
DAMAGES: dict[str, Damage] = {
    **several(FACTS, lambda key, value: put(key, value=value)),
    **{f"no {key}": cut(key) for key in ("format", "experiment", "dataset_digest", "channels", "num_classes")},
    "no weights": cut("learner"),
    "no method": cut("experiment", "method"),
    "no dataset": cut("experiment", "dataset"),
    "an unknown method": put("experiment", "method", value="../../etc/passwd"),
    "a method that is a list": put("experiment", "method", value=["idml"]),
    "an unknown backbone": put("experiment", "backbone", value="small_cnn; rm -rf"),
    "a backbone that is a number": put("experiment", "backbone", value=3),
    "another backbone": put("experiment", "backbone", value="resnet18"),
    "another method": put("experiment", value={"method": "idml", "dataset": "glyphs-small", "embedding_dim": 8}),
    "a wide embedding": put("experiment", "embedding_dim", value=16),
    "an endless embedding": put("experiment", "embedding_dim", value=10**12),
    "a negative embedding": put("experiment", "embedding_dim", value=-8),
    "an unknown setting": put("experiment", "colour", value="red"),
    "epochs that are a text": put("experiment", "epochs", value="many"),
    "a rate that is NaN": put("experiment", "lr", value=NAN),
    "weights that are a list": put("learner", value=[1, 2]),
    "weights that are empty": put("learner", value={}),
    "weights that are a number": put("learner", value=3),
    "a weight that is a text": put("learner", HEAD, value="x"),
    "a weight that is a list": put("learner", HEAD, value=[1.0]),
    "a name that is a number": lambda saved: saved["learner"].update({7: torch.zeros(1)}),
    "a weight more": put("learner", "network.other", value=torch.zeros(2)),
    "a weight less": cut("learner", HEAD),
    "a NaN": change(HEAD, one(NAN)),
    "an infinity": change(HEAD, one(-INF)),
    "a NaN of the method": change(PROXIES, one(NAN)),
    "another shape": change(HEAD, lambda tensor: tensor[:-1].clone()),
    "transposed": change(HEAD, lambda tensor: tensor.T.contiguous()),
    "flattened": change(HEAD, lambda tensor: tensor.reshape(-1)),
    "a scalar": change(HEAD, lambda tensor: tensor.new_zeros(())),
    "empty": change(HEAD, lambda tensor: tensor.new_zeros((0,))),
    "integers": change(HEAD, lambda tensor: tensor.to(torch.int64)),
    "complex": change(HEAD, lambda tensor: tensor.to(torch.complex64)),
    "booleans": change(HEAD, lambda tensor: tensor > 0),
    "sparse": change(HEAD, lambda tensor: tensor.to_sparse()),
    "on no device": change(HEAD, lambda tensor: tensor.to("meta")),
    "larger than any memory": change(HEAD, lambda tensor: tensor.new_zeros(1).expand(10**6, 10**6)),
    "trained on a number": put("trained_on", value=5),
    "trained on classes that are no list": put("trained_on", "classes", value=3),
    "trained on classes that are numbers": put("trained_on", "classes", value=[1, 2]),
    "trained on pictures that are a list": put("trained_on", "pictures", value=[1]),
    "trained on nothing named": put("trained_on", value={}),
}


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


FILES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "text": lambda path: path.write_text("hello"),
    "zeros": lambda path: path.write_bytes(bytes(1000)),
    "an image": lambda path: Image.new("RGB", (8, 8)).save(path, "PNG"),
    "a pipe": pipe,
    "a list": lambda path: torch.save([1, 2], path),
    "a tensor": lambda path: torch.save(torch.zeros(2), path),
    "a number": lambda path: torch.save(3, path),
    "numbered": lambda path: torch.save({1: 2}, path),
    "a model that is a list": lambda path: torch.save({"model": [1]}, path),
    "a model that is nothing": lambda path: torch.save({"model": None}, path),
}


def state(glyphs: Store) -> State:
    """A model file's content, of four classes."""
    torch.manual_seed(0)
    experiment = resolve_experiment(SETTINGS, "test")
    split = class_split(glyphs, validation_share=0.0, seed=0)
    learner = build_learner(experiment, glyphs, num_classes=4)
    return model_state(experiment, glyphs, learner, trained_on(glyphs, [split.train]))


@pytest.fixture(scope="module")
def saved(glyphs: Store) -> State:
    return state(glyphs)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    Image.new("L", (32, 32)).save(tmp_path / "photos" / "one.png")
    return tmp_path / "photos"


def is_refused(path: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `embed` says of a model."""
    code = run("embed", str(path), str(photos), f"--output={photos.parent / 'e.npy'}", "--device=cpu")
    told = capsys.readouterr().err.splitlines()
    assert code == 2 and len(told) == 1 and told[0].startswith("error: "), (code, told)
    assert "Traceback" not in told[0] and len(told[0]) < 600
    return told[0]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_model_is_refused_in_one_line(
    saved: State, name: str, tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = copy.deepcopy(saved)
    DAMAGES[name](damaged)
    torch.save(damaged, tmp_path / "model.pt")
    assert "model.pt: " in is_refused(tmp_path / "model.pt", photos, capsys)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_model_is_refused_in_one_line(
    saved: State, name: str, tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoint(tmp_path / "model.pt", saved)
    FILES[name](tmp_path / "model.pt")
    is_refused(tmp_path / "model.pt", photos, capsys)


def test_a_whole_one_is_taken_and_so_are_older_ones(saved: State, photos: Path, tmp_path: Path) -> None:
    assert len(DAMAGES) + len(FILES) + len(FOLDERS) + len(CHECKPOINTS) > 100
    for missing in ((), ("kept",), ("num_samples", "kept", "trained_on")):
        older = {key: value for key, value in saved.items() if key not in missing}
        torch.save(older, tmp_path / "model.pt")
        learner, _ = load_learner(tmp_path / "model.pt")
        assert torch.equal(learner.state_dict()[HEAD], saved["learner"][HEAD])
    older["learner"] = {**older["learner"], "method.later": torch.tensor(-INF)}
    torch.save({"model": saved}, tmp_path / "model.pt")
    assert run("embed", str(tmp_path / "model.pt"), str(photos), f"--output={tmp_path / 'e.npy'}") == 0


# Exported folders ---------------------------------------------------------------------------------------------------


def config(damage: Damage) -> Callable[[Path], object]:
    """Another value among this tool's facts in config.json."""

    def change_config(folder: Path) -> None:
        whole = json.loads((folder / CONFIG).read_text())
        damage(whole[KEY])
        (folder / CONFIG).write_text(json.dumps(whole))

    return change_config


def tensors(damage: Damage) -> Callable[[Path], object]:
    def change_weights(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        damage({"learner": weights})
        save_file(weights, folder / WEIGHTS)

    return change_weights


FOLDERS: dict[str, Callable[[Path], object]] = {
    **several(
        {
            "format": ["x", 2, None],
            "names": [None, [], {}, {"": 3}, {"x.": "network."}, {"": "method."}],
            "doubled": [3, []],
            "channels": ["3", 7],
            "num_classes": [-1, None],
            "experiment": [None, []],
        },
        lambda key, value: config(put(key, value=value)),
    ),
    "no names": config(cut("names")),
    "a NaN": tensors(change("head.weight", one(NAN))),
    "another shape": tensors(change("head.weight", lambda tensor: tensor[:-1].clone())),
    "a weight less": tensors(cut("learner", "head.weight")),
    "cut": lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-9]),
    "no config": lambda folder: (folder / CONFIG).unlink(),
    "a list": lambda folder: (folder / CONFIG).write_text("[1]"),
    "deep": lambda folder: (folder / CONFIG).write_text("[" * 100_000),
    "a pipe for the weights": lambda folder: pipe(folder / WEIGHTS),
    "a pipe for the config": lambda folder: pipe(folder / CONFIG),
    "no JSON": lambda folder: (folder / CONFIG).write_bytes(b"\xff\xfe"),
}


@pytest.fixture(scope="module")
def exported(saved: State, glyphs: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    save_checkpoint(folder / "model.pt", saved)
    return export(ModelSource.of(folder / "model.pt", glyphs), "hub", folder / "model").path


@pytest.mark.parametrize("name", FOLDERS)
def test_a_damaged_folder_is_refused_in_one_line(
    exported: Path, name: str, tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(exported, tmp_path / "model")
    FOLDERS[name](tmp_path / "model")
    assert "model" in is_refused(tmp_path / "model", photos, capsys)


# Checkpoints --------------------------------------------------------------------------------------------------------

CHECKPOINTS: dict[str, Damage] = {
    **{f"no {key}": cut(key) for key in ("model", "optimizer", "scaler", "rng", "global_rng", "step", "history")},
    **several(
        {
            "step": [-1, "3", 1.5, None],
            "best": ["high", NAN],
            "history": [3, [1], [{"number": 1}], [{"other": 1}]],
            "rng": [[1], torch.zeros(3), torch.zeros(0, dtype=torch.uint8)],
            "global_rng": [[], {}, [3], [torch.zeros(2)]],
            "optimizer": [{}, {"state": 3, "param_groups": 5}],
            "model": [[], {"learner": {}}],
            "engine": [3],
        },
        lambda key, value: put(key, value=value),
    ),
    "a weight less": cut("model", "learner", HEAD),
}


@pytest.fixture(scope="module")
def checkpoint(glyphs: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    split = class_split(glyphs, validation_share=0.5, seed=0)
    next(fit(resolve_experiment(SETTINGS, "test"), glyphs, split, folder=folder))
    return folder / CHECKPOINT


def test_a_damaged_checkpoint_ends_the_trial_in_one_line(checkpoint: Path, glyphs: Store, tmp_path: Path) -> None:
    whole = load_checkpoint(checkpoint)
    split = class_split(glyphs, validation_share=0.5, seed=0)
    experiment = resolve_experiment(SETTINGS, "test")

    def resume(saved: State) -> None:
        check_checkpoint(saved, CHECKPOINT)  # before anything is built
        torch.save(saved, tmp_path / CHECKPOINT)
        next(fit(experiment, glyphs, split, folder=tmp_path))

    for damage in CHECKPOINTS.values():
        damaged = copy.deepcopy(whole)
        damage(damaged)
        with pytest.raises(InputError, match=r"checkpoint\.pt: ") as refused:
            resume(damaged)
        assert len(str(refused.value)) < 500 and "\n" not in str(refused.value)
    torch.save(whole, tmp_path / CHECKPOINT)
    assert next(fit(experiment, glyphs, split, folder=tmp_path)).number == 1
