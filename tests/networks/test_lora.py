"""LoRA: what is trained, that training is exact, and that a merged model is the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Pair
from support.image_pipelines import photographs as photographs
from support.image_pipelines import told, train, weights
from torch import Tensor, nn

from orchestrator.config.training import Training, resolve_experiment
from orchestrator.data.store import Store
from orchestrator.errors import InputError
from orchestrator.method import Task, find_method
from orchestrator.networks.backbones import build_backbone
from orchestrator.networks.lora import AdaptedConvolution, AdaptedLinear, LoRA, adapt, merge
from orchestrator.search.source import ModelSource
from orchestrator.storage.trial_folder import BEST, CHECKPOINT
from orchestrator.training.checkpoint import load_checkpoint
from orchestrator.training.embed import evaluate_model
from orchestrator.training.learner import Learner
from orchestrator.training.optimizer import build_optimizer

VIT = {
    "backbone": "timm/test_vit",
    "weights": "random",
    "image_size": 32,
    "pooling": "average",
    "lora_rank": 3,
    "lora_alpha": 6.0,
    "lr": 0.01,
    "precision": "float64",
    "degradation": "none",
    "extra_augmentations": None,
}
EVERYTHING = {"images_per_pass": 1, "accumulate_batches": 2, "ema_decay": 0.5, "layer_decay": 0.9, "clip_norm": 5.0}


def layer(kind: str) -> nn.Module:
    torch.manual_seed(1)
    made: nn.Module = nn.Linear(5, 7) if kind == "linear" else nn.Conv2d(5, 7, 1, stride=2)
    return nn.Sequential(made).double()


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_the_change_is_the_formula_s_and_merging_keeps_the_function(kind: str) -> None:
    network = layer(kind)
    x = torch.rand(4, 5, dtype=torch.float64) if kind == "linear" else torch.rand(4, 5, 6, 6, dtype=torch.float64)
    plain = network(x)
    before = torch.get_rng_state()
    adapt(network, LoRA(rank=2, alpha=3.0), "it")
    assert torch.equal(torch.get_rng_state(), before) and torch.equal(network(x), plain)
    changed: Any = network[0]  # type: ignore[index]
    assert isinstance(changed, AdaptedLinear if kind == "linear" else AdaptedConvolution)
    names = {name for name, value in network.named_parameters() if value.requires_grad}
    assert names == {"0.lora_down", "0.lora_up"} and {"0.weight", "0.bias"} < network.state_dict().keys()
    with torch.no_grad():
        changed.lora_up.normal_()
        own = changed.weight.clone()
        product = changed.lora_up.flatten(1) @ changed.lora_down.flatten(1)
        expected = layer(kind)
        expected[0].weight += 1.5 * product.view_as(own)  # type: ignore[index]
        found = network(x)
        assert torch.allclose(found, expected(x), atol=1e-12) and not torch.allclose(found, plain, atol=1e-3)
        merge(network)
    assert type(network[0]) in (nn.Linear, nn.Conv2d) and network.state_dict().keys() == expected.state_dict().keys()  # type: ignore[index]
    assert torch.allclose(network(x), found, atol=1e-12)


def learner_of(backbone: str, lora: LoRA | None, **settings: Any) -> Learner:
    torch.manual_seed(0)
    method = find_method("proxy_anchor")
    return Learner(
        method,
        method.Config(),
        Task(5, 4, 0),
        channels=3,
        backbone=backbone,
        weights="random",
        weights_sha256=None,
        pooling="average",
        lora=lora,
        **settings,
    )


@pytest.mark.parametrize(
    ("backbone", "layers", "count"),
    [("timm/test_vit", "all", 6 * 4), ("timm/test_vit", "attention", 6 * 2), ("resnet50", "all", 16 * 2 + 4)],
)
def test_what_is_trained(backbone: str, layers: Any, count: int) -> None:
    """The layers of each block of a transformer: qkv, proj and two of the MLP; a ResNet's 1 x 1 convolutions."""
    plain, learner = learner_of(backbone, None), learner_of(backbone, LoRA(2, layers=layers))
    own, names = plain.state_dict(), [name for name, value in learner.named_parameters() if value.requires_grad]
    adapted = [name for name in names if "lora" in name]
    assert len(adapted) == 2 * count and all(("attn" in name) for name in adapted if layers == "attention")
    assert set(names) - set(adapted) == {"network.head.weight", "network.head.bias", "method.proxies.weight"}
    assert all(torch.equal(learner.state_dict()[name], value) for name, value in own.items()), "the same draws"
    optimizer = build_optimizer(learner, Training(backbone_lr_multiplier=0.5, layer_decay=0.9))
    grouped = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    assert grouped == {value for value in learner.parameters() if value.requires_grad}
    assert len({group["lr"] for group in optimizer.param_groups}) > 4


def test_what_has_no_such_layer_is_refused() -> None:
    with pytest.raises(InputError, match="lora_rank: 2: backbone: small_cnn has no linear layer or 1 x 1 convolution"):
        learner_of("small_cnn", LoRA(2))
    with pytest.raises(InputError, match="lora_rank: 2: backbone: resnet18 has no linear layer of an attention"):
        learner_of("resnet18", LoRA(2, layers="attention"))
    for settings, said in (
        ({"lora_alpha": 2.0}, "lora_alpha: 2.0: is not read without lora_rank"),
        ({"lora_layers": "all"}, "lora_layers: 'all': is not read without lora_rank"),
        ({"lora_rank": 2, "epochs": 3, "warmup_epochs": 3}, "lora_rank: 2: warmup_epochs: 3 of 3 epochs leave"),
    ):
        with pytest.raises(ValueError, match=said):
            Training(**settings)


def apart(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def test_only_the_changes_and_heads_move_and_resuming_is_exact(photographs: Store, tmp_path: Path) -> None:
    settings = VIT | EVERYTHING | {"precision": "float32"}
    whole = train(tmp_path / "whole", photographs.path, settings)
    train(tmp_path / "broken", photographs.path, settings, take=1)
    first = load_checkpoint(tmp_path / "broken" / CHECKPOINT)
    assert told(train(tmp_path / "broken", photographs.path, settings)) == told(whole)
    found = weights(tmp_path / "whole")
    assert apart(found, weights(tmp_path / "broken")) == 0
    moved = {name for name in found if not torch.equal(found[name], first["model"]["learner"][name])}
    assert {name for name in moved if "lora" not in name} == {
        "network.head.weight",
        "network.head.bias",
        "method.proxies.weight",
    }
    assert len(moved) == 3 + 6 * 4 * 2
    # frozen weights are in the model only: no moments, no second copy
    assert len(first["optimizer"]["state"]) == len(moved)
    assert {name for name in first["averaged"] if "backbone" in name} == {name for name in moved if "lora" in name}


def test_one_process_equals_two_and_parts_equal_the_whole(photographs: Store, tmp_path: Path, pair: Pair) -> None:
    for name, settings in (("everything", VIT | EVERYTHING), ("plain", VIT)):
        one = train(tmp_path / name, photographs.path, settings)
        two = pair.run(train, tmp_path / f"{name} of two", photographs.path, settings)
        assert apart(weights(tmp_path / name), weights(tmp_path / f"{name} of two")) < 1e-10
        assert one[-1].metrics == pytest.approx(two[0][-1].metrics, abs=1e-9)
    train(tmp_path / "parts", photographs.path, VIT | {"images_per_pass": 3})
    assert apart(weights(tmp_path / "parts"), weights(tmp_path / "plain")) < 1e-10


def test_a_resnet_with_everything_too(photographs: Store, tmp_path: Path, pair: Pair) -> None:
    """Its 1 x 1 convolutions, gradients of two batches, and one image at a time: on two processes, and resumed."""
    settings = VIT | EVERYTHING | {"backbone": "timm/test_resnet"}
    whole = train(tmp_path / "whole", photographs.path, settings)
    pair.run(train, tmp_path / "two", photographs.path, settings)
    assert apart(weights(tmp_path / "whole"), weights(tmp_path / "two")) < 1e-10
    train(tmp_path / "broken", photographs.path, settings, take=1)
    first = weights(tmp_path / "broken")
    assert told(train(tmp_path / "broken", photographs.path, settings)) == told(whole)
    found = weights(tmp_path / "whole")
    assert apart(found, weights(tmp_path / "broken")) == 0
    moved = {name for name in found if "lora_up" in name and not torch.equal(found[name], first[name])}
    # the others are in branches that begin at zero, by the frozen weight of their last batch norm
    assert {name.split("model.")[1].split(".lora")[0] for name in moved} == {
        f"layer{stage}.0.downsample.1" for stage in (2, 3, 4)
    }


def test_an_exported_model_has_plain_weights_and_the_same_embeddings(photographs: Store, tmp_path: Path) -> None:
    validations = train(tmp_path, photographs.path, VIT | {"precision": "float32"})
    source = ModelSource.of(tmp_path / BEST, photographs)
    assert not any("lora" in name for name in source.encoder.state_dict())
    assert source.about["preprocessing"] == {
        "of_images_more_than_16_times_as_long_as_wide": "the middle, 16 to 1",
        "resize_shorter_side": 37,
        "interpolation": "bilinear, antialiased",
        "center_crop": 32,
    }
    saved = load_checkpoint(tmp_path / BEST)["learner"]
    plain = build_backbone("timm/test_vit", channels=3, weights="random", image_size=32)
    assert {name for name in saved if "backbone" in name and "lora" not in name} == {
        f"network.backbone.{name}" for name in plain.state_dict()
    }
    from orchestrator.training.model_file import load_learner

    learner, experiment = load_learner(tmp_path / BEST, photographs)
    assert experiment == resolve_experiment(experiment.flat(), "again") and experiment.training.lora_rank == 3
    with torch.no_grad():
        images = source.images.permute(0, 3, 1, 2).float() / 255
        expected = learner.eval().outputs(images)["embedding"]
        assert torch.allclose(source.embeddings, expected, atol=1e-6)
        assert float(learner.network.backbone.network.blocks[0].attn.qkv.lora_up.abs().max()) > 1e-4  # type: ignore[union-attr, index]
    best = max(found.metrics["val/map_at_r"] for found in validations)
    from orchestrator.data.splits import class_split

    rows = class_split(photographs, validation_share=0.3, seed=0).validation
    assert evaluate_model(tmp_path / BEST, photographs, rows)["map_at_r"] == best
