"""A model in Hugging Face's layout: evaluation, timm and the card's example give the trained model's embeddings."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.output_schemas import conforms

from orchestrator.config.training import resolve_experiment
from orchestrator.data.store import Store
from orchestrator.errors import InputError
from orchestrator.search.export import export
from orchestrator.search.models import find_models
from orchestrator.search.source import ModelSource
from orchestrator.storage.places import Places
from orchestrator.training.checkpoint import save_checkpoint
from orchestrator.training.encoder import Encoder
from orchestrator.training.model_file import build_learner, load_learner, model_state, saved_model

CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-6}
PARTS = {"README.md", "config.json", "model.safetensors"}
KNOWN = {"search": "s", "trial": "final", "metrics": {"test/map_at_r": 0.5}, "intervals": {"test/map_at_r": [0.4, 0.6]}}
MODELS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "a network of this package": ({"method": "idml", "mixup": False}, {"model.pt2", "method.safetensors"}),
    "torchvision's": ({"method": "triplet", "backbone": "resnet18", "input_convention": "bgr_255"}, set()),
    "timm's, changed by LoRA": (
        {"method": "triplet", "backbone": "timm/test_vit", "lora_rank": 2, "pooling": "average"},
        set(),
    ),
    "timm's, with both pools": ({"method": "triplet", "backbone": "timm/test_vit", "pooling": "average+max"}, set()),
    "timm's, with a layer between": ({"method": "triplet", "backbone": "timm/test_convnext"}, {"model.pt2"}),
    "ranked by its method": ({"method": "hyperbolic"}, {"model.pt2"}),
}


@pytest.fixture(scope="module", params=list(MODELS))
def exported(
    request: pytest.FixtureRequest, glyphs: Store, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ModelSource, set[str]]:
    """A model, as a folder; its source; the files beside the usual ones."""
    settings, more = MODELS[request.param]
    torch.manual_seed(0)
    common = {"dataset": "glyphs-small", "embedding_dim": 8, "weights": "random"}
    if "backbone" not in settings:
        del common["weights"]
    experiment = resolve_experiment(common | settings, "test")
    learner = build_learner(experiment, glyphs, num_classes=5)
    for name, parameter in learner.named_parameters():
        if "lora_up" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    folder = tmp_path_factory.mktemp("hub")
    path = folder / "model.pt"
    save_checkpoint(path, model_state(experiment, glyphs, learner))
    source = ModelSource.of(path, glyphs, KNOWN)
    return export(source, "hub", folder / "birds").path, source, more


def test_all_that_load_it_give_the_same_embeddings(
    exported: tuple[Path, ModelSource, set[str]], tmp_path: Path
) -> None:
    folder, source, more = exported
    assert {path.name for path in folder.iterdir()} == PARTS | more
    moved = tmp_path / "moved"  # nothing in it names its place
    shutil.copytree(folder, moved)
    (model,) = find_models(str(moved), Places(tmp_path))
    learner, experiment = load_learner(model)
    assert experiment.training.lora_rank is None and experiment.method == source.about["method"]
    own = Encoder(learner.float().eval().requires_grad_(False)).eval()(source.images)
    torch.testing.assert_close(own, source.embeddings, **CLOSE)
    (example,) = re.findall(r"```python\n(.*?)```", (moved / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"folder": moved}
    assert len([line for line in example.splitlines() if line]) <= 10
    exec(example, names)
    torch.testing.assert_close(names["embed"](source.images), source.embeddings, **CLOSE)


def test_a_name_of_a_file_and_of_a_search_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("birds").write_bytes(b"")
    assert find_models("birds", Places(tmp_path)) == [Path("birds")] and capsys.readouterr().err == ""
    (tmp_path / "searches" / "birds").mkdir(parents=True)
    assert find_models("birds", Places(tmp_path)) == [Path("birds")]
    assert "'birds' is a path and a search: the path is taken" in capsys.readouterr().err


def test_its_card_and_config_say_what_is_known(exported: tuple[Path, ModelSource, set[str]]) -> None:
    folder, source, more = exported
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert ("architecture" in config) == ("model.pt2" not in more)
    text = (folder / "README.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    assert {"library_name", "pipeline_tag", "tags"} == {line.partition(":")[0] for line in front.splitlines()}
    assert "| test/map_at_r | 0.5000 | 0.4000 to 0.6000 |" in body
    for fact in ("glyphs-small", source.about["dataset_digest"], "Protocol: ", "Licence: not stated", "trial final"):
        assert fact in body


def test_a_damaged_or_foreign_folder_is_refused_in_a_line(
    exported: tuple[Path, ModelSource, set[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(exported[0], folder)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:100])
    with pytest.raises(InputError, match=r"broken: its weights cannot be read"):
        load_learner(folder / "model.safetensors")
    (folder / "config.json").write_text('{"architecture": "resnet18"}', encoding="utf-8")
    with pytest.raises(InputError, match=r"holds no model of this tool: config.json has no 'dml_orchestrator'"):
        load_learner(folder / "model.safetensors")


def test_the_command_evaluates_the_folder_as_the_model(
    glyphs: Store, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.cli.main import main

    def answer(*words: str) -> dict[str, Any]:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--storage", str(data_folder.parent), "--json"])
        assert ended.value.code == 0, capsys.readouterr().err
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        conforms(words[0], found)
        return found

    experiment = resolve_experiment({"method": "triplet", "dataset": "glyphs-small", "embedding_dim": 8}, "test")
    model, folder = tmp_path / "model.pt", tmp_path / "folder"
    trained: dict[str, Any] = {"dataset": "another", "classes": ["a", "b"], "pictures": torch.arange(3)}
    save_checkpoint(model, model_state(experiment, glyphs, build_learner(experiment, glyphs, num_classes=5), trained))
    done = answer("export", str(model), "--to", "hub", "--output", str(folder), "--licence", "MIT")
    assert (folder / "README.md").read_text("utf-8").startswith('---\nlicense: "mit"\n')
    assert done["path"] == str(folder) and done["difference"] <= 1e-6
    again = saved_model(folder / "model.safetensors")["trained_on"]
    assert torch.equal(again.pop("pictures"), trained.pop("pictures")) and again == trained
    done = answer("export", str(model), "--to", "torchscript", "--output", str(tmp_path / "model.ts"))
    assert done["to"] == "torchscript" and Path(done["path"]).is_file()
    found, wanted = (answer("evaluate", str(path), "--dataset", "glyphs-small") for path in (folder, model))
    assert found["metrics"].keys() == wanted["metrics"].keys()
    for name, value in wanted["metrics"].items():
        np.testing.assert_allclose(found["metrics"][name], value, rtol=0, atol=1e-12)
