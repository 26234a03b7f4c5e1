"""Backbones by name or file, the errors when their weights cannot be had, and their layers' learning rates."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torchvision import models

from orchestrator.config.training import Training
from orchestrator.errors import InputError
from orchestrator.method import Task, find_method
from orchestrator.networks import frozen_batch_norm, relu6, timm_norm
from orchestrator.networks.backbones import BACKBONES, build_backbone
from orchestrator.networks.backbones.base import Pooling
from orchestrator.networks.backbones.network import Backbone
from orchestrator.networks.bn_inception import BLOCKS, BNInception
from orchestrator.networks.embedding import EmbeddingNetwork
from orchestrator.networks.operators import Operator
from orchestrator.networks.relu6 import LeanReLU6
from orchestrator.networks.timm_body import TimmBody
from orchestrator.training.learner import Learner
from orchestrator.training.optimizer import build_optimizer


def backbone_of(name: str, **settings: Any) -> Backbone:
    defaults: dict[str, Any] = {"channels": 3, "weights": "random"}
    return build_backbone(name, **defaults | settings).eval()


@pytest.mark.parametrize(
    ("name", "features", "size"),
    [("small_cnn", 128, 8), ("resnet18", 512, 1), ("resnet50", 2048, 1), ("timm/resnet18", 512, 1)],
)
def test_shapes(name: str, features: int, size: int) -> None:
    backbone = backbone_of(name, channels=1)
    assert backbone.feature_dim == features
    assert backbone(torch.rand(2, 1, 32, 32)).shape == (2, features, size, size)


def test_every_listed_backbone_builds() -> None:
    for name, architecture in BACKBONES.items():
        backbone = backbone_of(name)
        assert f"{backbone.feature_dim} features" in architecture.about or name == "small_cnn"
        halves = ("small_cnn", "vit_small", "vit_small_in21k", "efficientnet_lite0")
        colours = [0.5] * 3 if name in halves else [0.485, 0.456, 0.406]
        colours = [104 / 255, 117 / 255, 128 / 255] if name == "bn_inception" else colours
        assert torch.allclose(backbone.mean.flatten(), torch.tensor(colours)), name


# Inception with batch norm --------------------------------------------------------------------------------------

SUFFIXES = ["1x1", "3x3_reduce", "3x3", "double_3x3_reduce", "double_3x3_1", "double_3x3_2", "pool_proj"]
# the published structure: input channels, then output channels of the seven convolutions above; 0: there is none
STRUCTURE = {
    "3a": (192, 64, 64, 64, 64, 96, 96, 32),
    "3b": (256, 64, 64, 96, 64, 96, 96, 64),
    "3c": (320, 0, 128, 160, 64, 96, 96, 0),
    "4a": (576, 224, 64, 96, 96, 128, 128, 128),
    "4b": (576, 192, 96, 128, 96, 128, 128, 128),
    "4c": (576, 160, 128, 160, 128, 160, 160, 128),
    "4d": (608, 96, 128, 192, 160, 192, 192, 128),
    "4e": (608, 0, 128, 192, 192, 256, 256, 0),
    "5a": (1056, 352, 192, 320, 160, 224, 224, 128),
    "5b": (1024, 352, 192, 320, 192, 224, 224, 128),
}


def convolutions() -> dict[str, tuple[int, int, int]]:
    """Name -> (inputs, outputs, kernel), by hand."""
    found = {"conv1_7x7_s2": (3, 64, 7), "conv2_3x3_reduce": (64, 64, 1), "conv2_3x3": (64, 192, 3)}
    for block, (inputs, *outputs) in STRUCTURE.items():
        sources = [inputs, inputs, outputs[1], inputs, outputs[3], outputs[4], inputs]
        for suffix, source, output, kernel in zip(SUFFIXES, sources, outputs, [1, 1, 3, 1, 3, 3, 1], strict=True):
            if output:
                found[f"inception_{block}_{suffix}"] = (source, output, kernel)
    return found


def reference(state: dict[str, Tensor], images: Tensor) -> Tensor:
    """The whole network once more, in functions."""

    def unit(name: str, x: Tensor, stride: int = 1) -> Tensor:
        kernel = state[f"{name}.weight"].shape[-1]
        x = F.conv2d(x, state[f"{name}.weight"], state[f"{name}.bias"], stride=stride, padding=kernel // 2)
        mean, var, weight, bias = (
            state[f"{name}_bn.{key}"] for key in ("running_mean", "running_var", "weight", "bias")
        )
        return F.relu(F.batch_norm(x, mean, var, weight, bias, eps=1e-5))

    x = F.max_pool2d(unit("conv1_7x7_s2", images, 2), 3, 2, ceil_mode=True)
    x = F.max_pool2d(unit("conv2_3x3", unit("conv2_3x3_reduce", x)), 3, 2, ceil_mode=True)
    for block in STRUCTURE:
        name, stride = f"inception_{block}", 2 if block in ("3c", "4e") else 1
        three = unit(f"{name}_3x3", unit(f"{name}_3x3_reduce", x), stride)
        double = unit(f"{name}_double_3x3_1", unit(f"{name}_double_3x3_reduce", x))
        double = unit(f"{name}_double_3x3_2", double, stride)
        if stride == 2:
            x = torch.cat([three, double, F.max_pool2d(x, 3, 2, ceil_mode=True)], 1)
            continue
        pooled = F.max_pool2d(x, 3, 1, 1) if block == "5b" else F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1)
        x = torch.cat([unit(f"{name}_1x1", x), three, double, unit(f"{name}_pool_proj", pooled)], 1)
    return x


@pytest.fixture(scope="module")
def inception() -> Backbone:
    """With statistics of batch norm that keep the signal alive and tell every channel from the others."""
    torch.manual_seed(0)
    backbone = backbone_of("bn_inception")
    with torch.no_grad():
        for module in backbone.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            if isinstance(module, nn.BatchNorm2d):
                for vector in (module.running_mean, module.bias):
                    assert vector is not None
                    vector.normal_(0, 0.3)
                assert module.running_var is not None
                module.running_var.uniform_(0.5, 2)
                module.weight.uniform_(0.5, 1.5)
    return backbone


def test_inception_has_the_published_parameters(inception: Backbone) -> None:
    by_hand = convolutions()
    assert len(by_hand) == 69
    # weights and bias of a convolution, weight and bias of its batch norm
    count = sum(source * output * kernel**2 + output + 2 * output for source, output, kernel in by_hand.values())
    assert count == 10_270_240
    assert count + 1000 * 1024 + 1000 == 11_295_240
    assert sum(parameter.numel() for parameter in inception.parameters()) == count
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (source, output, kernel) in by_hand.items():
        shapes[f"{name}.weight"] = (output, source, kernel, kernel)
        vectors = ("bias", "_bn.weight", "_bn.bias", "_bn.running_mean", "_bn.running_var")
        shapes |= {f"{name}{vector if vector[0] == '_' else '.' + vector}": (output,) for vector in vectors}
        shapes[f"{name}_bn.num_batches_tracked"] = ()
    assert {key: tuple(tensor.shape) for key, tensor in inception.network.state_dict().items()} == shapes
    assert {module.eps for module in inception.modules() if isinstance(module, nn.BatchNorm2d)} == {1e-5}


@torch.no_grad()
def test_inception_has_the_published_shapes(inception: Backbone) -> None:
    network = inception.network
    assert isinstance(network, BNInception)
    shapes = {}
    x = network.stem(torch.rand(1, 3, 224, 224))
    assert x.shape == (1, 192, 28, 28)
    for block in BLOCKS:
        x = network.block(block, x)
        shapes[block.name.removeprefix("inception_")] = tuple(x.shape[1:])
        assert block.outputs == x.shape[1]
    sides = [28, 28, 14, 14, 14, 14, 14, 7, 7, 7]
    channels = [256, 320, 576, 576, 576, 608, 608, 1056, 1024, 1024]
    assert shapes == {
        block: (channel, side, side) for block, channel, side in zip(STRUCTURE, channels, sides, strict=True)
    }


@torch.no_grad()
def test_inception_computes_the_published_function(inception: Backbone) -> None:
    images = torch.rand(2, 3, 96, 64)
    expected = reference(inception.network.state_dict(), inception_input(images))
    features = inception(images)
    assert features.shape == (2, 1024, 3, 2)
    assert features.std() > 0.01
    assert torch.allclose(features, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def inception_input(images: Tensor) -> Tensor:
    """BGR in [0, 255] minus (104, 117, 128)."""
    return 255 * images[:, [2, 1, 0]] - torch.tensor([104.0, 117.0, 128.0]).view(3, 1, 1)


def test_the_input_convention(inception: Backbone) -> None:
    pixel = torch.tensor([1.0, 0.6, 0.2]).view(1, 3, 1, 1)  # red, green, blue
    network = Backbone(nn.Identity(), feature_dim=3, channels=3, mean=[0.5] * 3, std=[0.5] * 3, layers=None)
    taken = {}
    for convention in ("default", "bgr_255", "rgb_255"):
        network.take(convention)
        taken[convention] = network(pixel).flatten().tolist()
    assert taken["default"] == pytest.approx([1.0, 0.2, -0.6])
    assert taken["bgr_255"] == pytest.approx([51 - 104, 153 - 117, 255 - 128], abs=1e-3)
    assert taken["rgb_255"] == pytest.approx([255 - 104, 153 - 117, 51 - 128], abs=1e-3)
    assert inception.blue_first and inception.mean.flatten().tolist() == pytest.approx(
        [x / 255 for x in (104, 117, 128)]
    )
    with pytest.raises(InputError, match="input_convention: 'rgb_255' .* small_cnn"):
        backbone_of("small_cnn", input_convention="rgb_255")


def test_the_input_convention_is_recorded() -> None:
    assert Training(backbone="bn_inception").model_dump()["input_convention"] == "bgr_255"
    assert Training(backbone="bn_inception", input_convention="rgb_255").input_convention == "rgb_255"
    assert Training(backbone="resnet50").input_convention == "default"


def test_files_of_inception(inception: Backbone, tmp_path: Path) -> None:
    state = inception.network.state_dict()
    # as the oldest files are: vectors of batch norm as (1, n), no counts of batches, the classifier still there
    old = {key: tensor for key, tensor in state.items() if not key.endswith("num_batches_tracked")}
    old = {key: tensor[None] if "_bn." in key else tensor for key, tensor in old.items()}
    old |= {"last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}
    path = tmp_path / "bn_inception.pth"
    torch.save(old, path)
    loaded = backbone_of("bn_inception", weights=str(path)).network.state_dict()
    for key, tensor in state.items():
        assert torch.equal(loaded[key], tensor), key
    del old["inception_4c_3x3.bias"]
    torch.save(old, path)
    with pytest.raises(InputError, match=r"not those of bn_inception: 1 tensors are missing, .*inception_4c_3x3.bias"):
        backbone_of("bn_inception", weights=str(path))


def test_inception_says_where_its_weights_come_from() -> None:
    with pytest.raises(InputError) as caught:
        backbone_of("bn_inception", weights="default")
    message = str(caught.value)
    for part in ("52deb4733.pth", "239d2248.pth", "weights=/path/to", "weights_sha256=", "weights=random"):
        assert part in message


def test_sides_that_inception_cannot_halve(inception: Backbone) -> None:
    assert inception(torch.rand(1, 3, 31, 38)).shape == (1, 1024, 1, 1)
    with pytest.raises(InputError, match="images of 32 x 40 pixels: sides must be a multiple of 32"):
        inception(torch.rand(1, 3, 32, 40))


# Tokens and pooling ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transformer() -> Backbone:
    torch.manual_seed(0)
    return backbone_of("timm/vit_tiny_patch16_224")


@torch.no_grad()
def test_tokens_are_places(transformer: Backbone) -> None:
    images = torch.rand(2, 3, 224, 224)
    tokens = transformer.network.forward_features((images - 0.5) / 0.5)  # type: ignore[operator]
    assert tokens.shape == (2, 1 + 14 * 14, 192)
    maps = transformer(images)
    assert maps.shape == (2, 192, 196, 1)
    assert torch.allclose(maps.mean((2, 3)), tokens[:, 1:].mean(1), atol=1e-5)
    assert torch.equal(maps.amax((2, 3)), tokens[:, 1:].amax(1))
    body = TimmBody(transformer.network, "vit", class_token=True)
    head = transformer.network.forward_head(tokens, pre_logits=True)  # type: ignore[operator]
    assert torch.equal(body((images - 0.5) / 0.5)[:, :, 0, 0], head)


def test_a_transformer_takes_images_of_its_size(transformer: Backbone) -> None:
    with pytest.raises(InputError, match="takes images of 224 x 224 pixels, these are 224 x 240"):
        transformer(torch.rand(1, 3, 224, 240))


@torch.no_grad()
def test_a_transformer_takes_other_sizes_with_its_position_embeddings_interpolated() -> None:
    name, built = "timm/vit_tiny_patch16_224", []
    sized: dict[int, Any] = {}
    for size in (224, 96, 320):
        torch.manual_seed(0)
        built.append(backbone_of(name, image_size=size))
        sized[size] = built[-1].network
    own = sized[224].pos_embed
    for size, places in ((96, 6), (320, 20)):
        found = sized[size].pos_embed
        assert found.shape == (1, 1 + places**2, 192) and torch.equal(found[:, 0], own[:, 0])
        grid = own[:, 1:].reshape(1, 14, 14, 192).permute(0, 3, 1, 2)
        expected = F.interpolate(grid, (places, places), mode="bicubic", antialias=True)
        assert torch.allclose(found[:, 1:], expected.permute(0, 2, 3, 1).reshape(1, -1, 192), atol=1e-6)
        (backbone,) = (backbone for backbone in built if backbone.network is sized[size])
        assert backbone(torch.rand(2, 3, size, size)).shape == (2, 192, places**2, 1)
        with pytest.raises(InputError, match=f"takes images of {size} x {size} pixels, these are 224 x 224"):
            backbone(torch.rand(1, 3, 224, 224))
        others = [key for key, tensor in sized[224].state_dict().items() if key != "pos_embed"]
        assert all(torch.equal(sized[224].state_dict()[key], sized[size].state_dict()[key]) for key in others)
    plain = backbone_of(name)
    assert plain.network.pos_embed.shape == own.shape
    resnet = backbone_of("timm/resnet18", image_size=96)
    assert resnet(torch.rand(1, 3, 96, 96)).shape == (1, 512, 3, 3)


@pytest.mark.parametrize(
    ("backbone", "size", "said"),
    [
        (
            "vit_small",
            230,
            "230: backbone: vit_small takes multiples of its patches of 16 pixels: 224 or 240",
        ),
        ("timm/vit_base_patch32_224", 16, "takes multiples of its patches of 32 pixels: 32"),
        ("timm/vit_large_patch14_dinov2.lvd142m", 224, None),
        ("resnet50", 230, None),
    ],
)
def test_images_must_consist_of_whole_patches(backbone: str, size: int, said: str | None) -> None:
    settings: dict[str, Any] = {"backbone": backbone, "augmentation": "random_crop_224", "image_size": size}
    if said is None:
        assert Training(**settings).image_size == size
        return
    with pytest.raises(ValueError, match=said):
        Training(**settings)


def test_what_a_built_transformer_cannot_take_is_told_in_a_line(transformer: Backbone) -> None:
    body = transformer.body
    with pytest.raises(InputError, match="100: backbone: .*_224 takes multiples of its patches of 16 pixels"):
        body.resize(100)  # type: ignore[operator]
    model = nn.Module()
    model.patch_embed = nn.Module()
    model.patch_embed.img_size, model.patch_embed.strict_img_size = (32, 32), True  # type: ignore[assignment]
    model.patch_embed.patch_size = (8, 8)  # type: ignore[assignment]
    with pytest.raises(InputError, match="image_size: 64: backbone: other takes images of 32 x 32 pixels only"):
        TimmBody(model, "other", class_token=False).resize(64)


@pytest.mark.parametrize("name", ["small_cnn", "resnet50", "bn_inception", "timm/resnet18"])
def test_a_class_token_is_for_networks_that_have_one(name: str) -> None:
    with pytest.raises(InputError, match=f"pooling: 'token' needs a class token, which {name} does not have"):
        backbone_of(name, class_token=True)


class Swin(nn.Module):
    """As timm's windowed transformers: maps, with the channels last."""

    output_fmt = "NHWC"

    def forward_features(self, images: Tensor) -> Tensor:
        return images.permute(0, 2, 3, 1)


def test_maps_with_channels_last_are_turned() -> None:
    images = torch.rand(2, 5, 3, 4)
    assert torch.equal(TimmBody(Swin(), "swin", class_token=False)(images), images)


@pytest.mark.parametrize("dim", [64, 1024])
@pytest.mark.parametrize("pooling", ["average", "max", "average+max"])
def test_pooling(pooling: Pooling, dim: int) -> None:
    torch.manual_seed(0)
    backbone = backbone_of("small_cnn")
    network = EmbeddingNetwork(backbone, dim, pooling)
    images = torch.rand(3, 3, 16, 24)
    maps = backbone(images).flatten(2)
    mean, largest = maps.mean(2), maps.max(2).values
    pooled = {"average": mean, "max": largest, "average+max": mean + largest}[pooling]
    embedding = network(images)["embedding"]
    assert embedding.shape == (3, dim)
    assert torch.allclose(embedding, network.head(pooled), atol=1e-6)


# Weights --------------------------------------------------------------------------------------------------------


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A ResNet-18 with its classifier, as the published files have it."""
    torch.manual_seed(1)
    path = tmp_path / "resnet18.pth"
    torch.save(models.resnet18(weights=None).state_dict(), path)
    return path


def test_weights_of_a_file_are_the_library_s_own(weights: Path) -> None:
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    backbone = backbone_of("resnet18", weights=str(weights), sha256=digest)
    model = models.resnet18(weights=None).eval()
    state = torch.load(weights, weights_only=True)
    model.load_state_dict(state)
    images = torch.rand(2, 3, 64, 64)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    features = backbone(images).mean((2, 3))
    expected = model.fc(features)
    assert torch.allclose(model((images - mean.view(3, 1, 1)) / std.view(3, 1, 1)), expected, atol=1e-5)
    path = weights.with_suffix(".safetensors")
    save_file(state, path)
    again = backbone_of("resnet18", weights=str(path))
    assert torch.equal(again(images), backbone(images))


def test_another_file_is_refused(weights: Path) -> None:
    with pytest.raises(InputError, match="weights_sha256: .* it is another file"):
        backbone_of("resnet18", weights=str(weights), sha256="0" * 64)
    with pytest.raises(InputError, match=r"not those of resnet50: .* 0 not of this network.*layer1.0.conv3.weight"):
        backbone_of("resnet50", weights=str(weights))
    with pytest.raises(InputError, match=r"not those of bn_inception: .*; the first: conv1_7x7_s2.weight"):
        backbone_of("bn_inception", weights=str(weights))
    state = torch.load(weights, weights_only=True)
    torch.save(state | {"conv1.weight": torch.zeros(64, 1, 7, 7)}, weights)
    with pytest.raises(InputError, match=r"1 of other shapes.*conv1.weight is 64 x 1 x 7 x 7, .* 64 x 3 x 7 x 7"):
        backbone_of("resnet18", weights=str(weights))
    # all of the smaller network's weights are in the larger one's file
    deeper = models.resnet18(weights=None).state_dict()
    torch.save(deeper | {"layer1.2.conv1.weight": torch.zeros(64, 64, 3, 3)}, weights)
    with pytest.raises(InputError, match=r"0 tensors are missing, 0 of other shapes.*layer1.2.conv1.weight"):
        backbone_of("resnet18", weights=str(weights))
    for content in (b"not weights", b""):
        weights.write_bytes(content)
        with pytest.raises(InputError, match="not a state-dict file"):
            backbone_of("resnet18", weights=str(weights))
    torch.save([torch.zeros(1)], weights)
    with pytest.raises(InputError, match="not a state-dict file"):
        backbone_of("resnet18", weights=str(weights))


def test_weights_that_cannot_be_had_name_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", away)
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", away)
    for name in ("resnet18", "dino_small"):
        with pytest.raises(InputError, match=rf"weights of {name} .*weights=/path/to/.*weights=random"):
            backbone_of(name, weights="default")


@pytest.mark.parametrize("name", ["resnet_50", "timm/resnet188", "timm/resnet18.no_such_tag", "bninception"])
def test_a_misspelt_backbone_gets_a_suggestion(name: str) -> None:
    with pytest.raises(InputError, match=r"did you mean|known|Invalid pretrained tag"):
        backbone_of(name)


# Learning rates of layers ---------------------------------------------------------------------------------------


def learner_of(backbone: str) -> Learner:
    method = find_method("proxy_anchor")
    sizes: dict[str, Any] = {"channels": 3, "pooling": "average", "weights": "random", "weights_sha256": None}
    return Learner(method, method.Config(), Task(4, 8, 0), backbone=backbone, **sizes)


def rates(learner: Learner, **settings: Any) -> dict[str, float]:
    """The learning rate of every trained parameter, by its name."""
    optimizer = build_optimizer(learner, Training(lr=1e-3, **settings))
    of = {id(parameter): group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    return {name: of[id(parameter)] for name, parameter in learner.named_parameters() if parameter.requires_grad}


LAYERS = [
    ("resnet18", {"conv1.weight": 4, "bn1.": 4, "layer1.": 3, "layer2.": 2, "layer3.": 1, "layer4.": 0}),
    ("timm/resnet18", {"model.conv1": 4, "model.bn1": 4} | {f"model.layer{i}.": 4 - i for i in range(1, 5)}),
    ("bn_inception", {"conv1": 3, "conv2": 3, "inception_3": 2, "inception_4": 1, "inception_5": 0}),
    ("small_cnn", {"0.": 2, "1.": 1, "2.": 0}),
    (
        "timm/vit_tiny_patch16_224",
        {"model.cls_token": 12, "model.pos_embed": 12, "model.patch_embed": 12, "model.norm.": 0}
        | {f"model.blocks.{block}.": 11 - block for block in range(12)},
    ),
]


@pytest.mark.parametrize("backbone, layers", LAYERS, ids=[name for name, _ in LAYERS])
def test_learning_rates_fall_from_layer_to_layer(backbone: str, layers: dict[str, int]) -> None:
    learner = learner_of(backbone)
    found, plain = rates(learner, backbone_lr_multiplier=0.1, layer_decay=0.8), rates(learner)
    seen = set()
    for name, lr in found.items():
        if name.startswith("network.backbone.body."):
            inside = name.removeprefix("network.backbone.body.")
            (layer,) = (layer for layer in layers if inside.startswith(layer))
            assert plain[name] == 1e-3
            assert lr == pytest.approx(1e-3 * 0.1 * 0.8 ** layers[layer], rel=1e-12), name
            seen.add(layer)
        else:
            assert lr == plain[name]
    assert seen == set(layers)
    assert found["network.head.weight"] == 1e-3
    assert found["method.proxies.weight"] > 1e-3


def test_without_them_the_network_is_one_group() -> None:
    learner = learner_of("small_cnn")
    assert len(build_optimizer(learner, Training()).param_groups) == 2  # the network and the proxies
    assert set(rates(learner, backbone_lr_multiplier=0.5)) == {name for name, _ in learner.named_parameters()}
    learner.network.backbone.requires_grad_(False)
    first, _ = build_optimizer(learner, Training(layer_decay=0.5)).param_groups
    assert len(first["params"]) == 2  # the head's


def test_a_backbone_without_an_order_of_layers_says_so() -> None:
    network = Backbone(nn.Linear(1, 1), feature_dim=1, channels=3, mean=[0.0] * 3, std=[1.0] * 3, layers=None)
    with pytest.raises(InputError, match="layer_decay: .* only 1.0"):
        network.depths()


def kept(network: nn.Module, images: Tensor) -> tuple[int, list[Tensor]]:
    """Bytes that a training step keeps for its backward pass, parameters aside, and all gradients."""
    mine, sizes = {parameter.data_ptr() for parameter in network.parameters()}, {}

    def note(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        sizes[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        value = network(images).square().sum()
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    first = torch.autograd.grad(value, trained, create_graph=True, allow_unused=True)
    second = torch.autograd.grad(torch.stack([g.square().sum() for g in first if g is not None]).sum(), images)
    return sum(size for at, size in sizes.items() if at not in mine), [*(g for g in first if g is not None), *second]


def test_relu6_keeps_one_tensor_and_computes_the_same_bits() -> None:
    """torch's copies its input when it works in place: a third of what a network of them keeps."""
    found = {}
    for kind in (nn.ReLU6, LeanReLU6):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), kind(inplace=True)) for _ in range(6)]
        images = torch.linspace(-40, 40, 4 * 8 * 16 * 16).reshape(4, 8, 16, 16).requires_grad_()
        found[kind] = kept(nn.Sequential(*layers), images)
    assert all(torch.equal(one, other) for one, other in zip(found[nn.ReLU6][1], found[LeanReLU6][1], strict=True))
    assert found[LeanReLU6][0] < 0.75 * found[nn.ReLU6][0]


def frozen(kind: str) -> Any:
    """A batch norm of torch or of timm that is frozen, with numbers of a training."""
    torch.manual_seed(1)
    norm: Any = nn.BatchNorm2d(8) if kind == "torch" else BatchNormAct2d(8, act_layer=nn.Identity)
    for tensor in (norm.weight, norm.running_mean, norm.bias):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.1, 3.0)
    return norm.eval().requires_grad_(False)


@pytest.mark.parametrize("kind", ["torch", "timm"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_frozen_batch_norm_keeps_nothing_and_computes_the_same_bits(kind: str, channels_last: bool) -> None:
    """The second derivatives to rounding: their formula is another one."""
    found = []
    for lean in (False, True):
        norms = [frozen(kind) for _ in range(6)]
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Conv2d(8, 8, 1), norm, LeanReLU6(inplace=True)) for norm in norms]
        for norm in norms if lean else ():
            (frozen_batch_norm if kind == "torch" else timm_norm).keep_less(norm)
        images = torch.linspace(-4, 4, 4 * 8 * 16 * 16).reshape(4, 8, 16, 16)
        if channels_last:
            images = images.to(memory_format=torch.channels_last)
        found.append(kept(nn.Sequential(*layers), images.requires_grad_()))
        (plain,) = torch.autograd.grad(nn.Sequential(*layers)(images).square().sum(), images)
        found[-1][1].append(plain)
    (bytes_of_torch, theirs), (bytes_of_ours, ours) = found
    assert torch.equal(theirs[-1], ours[-1]) and theirs[-1].abs().sum() > 0
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(theirs, ours, strict=True))
    assert bytes_of_ours < 0.6 * bytes_of_torch


@pytest.mark.parametrize("kind", ["torch", "timm"])
def test_batch_norm_that_is_not_frozen_is_torch_s(kind: str) -> None:
    norm, lean = frozen(kind), frozen(kind)
    (frozen_batch_norm if kind == "torch" else timm_norm).keep_less(lean)
    assert type(lean) is not type(norm)
    images = torch.randn(4, 8, 6, 6)
    for training, trained in ((True, False), (False, True), (True, True)):
        for each in (norm, lean):
            each.train(training).requires_grad_(trained)
        x, y = images.clone().requires_grad_(), images.clone().requires_grad_()
        one, other = norm(x), lean(y)
        assert torch.equal(one, other)
        torch.autograd.backward([one.square().sum(), other.square().sum()])
        assert x.grad is not None and y.grad is not None and torch.equal(x.grad, y.grad)
        assert not trained or torch.equal(norm.weight.grad, lean.weight.grad)
        assert torch.equal(norm.running_mean, lean.running_mean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("affine", [True, False])
def test_derivatives_by_public_operators_are_torch_s(
    dtype: torch.dtype, layout: torch.memory_format, affine: bool
) -> None:
    torch.manual_seed(0)
    gradient = torch.randn(4, 8, 6, 6).to(dtype).contiguous(memory_format=layout)
    mean, variance, weight = torch.rand(3, 8, dtype=torch.promote_types(dtype, torch.float32))
    arguments = mean, variance, weight if affine else None, 1e-5
    theirs = frozen_batch_norm.aten_derivative(gradient, *arguments)
    ours = frozen_batch_norm.plain_derivative(gradient, *arguments)
    assert ours.dtype == theirs.dtype == dtype and theirs.abs().sum() > 0
    assert torch.allclose(ours, theirs, rtol=4 * torch.finfo(dtype).eps, atol=0)
    clipped = (gradient * 20).clamp(0, 6)
    assert torch.equal(relu6.plain_derivative(gradient, clipped), relu6.aten_derivative(gradient, clipped))


def test_an_operator_is_tried_once_on_each_kind_of_device_and_element() -> None:
    tried: list[torch.dtype] = []

    def moved(gradient: torch.Tensor) -> torch.Tensor:
        tried.append(gradient.dtype)
        raise AttributeError("no such operator")

    operator = Operator(moved, lambda gradient: gradient + 1, lambda device, dtype: (torch.ones(1, dtype=dtype),))
    for dtype in (torch.float32, torch.float64, torch.float32):
        assert torch.equal(operator(torch.ones(2, dtype=dtype)), torch.full((2,), 2.0, dtype=dtype))
    assert tried == [torch.float32, torch.float64]
    operator.fast = lambda gradient: (_ for _ in ()).throw(torch.OutOfMemoryError("full"))
    with pytest.raises(torch.OutOfMemoryError):
        operator(torch.ones(2, dtype=torch.bfloat16))


def test_second_derivatives_of_frozen_batch_norm() -> None:
    norm = frozen("torch").double()
    frozen_batch_norm.keep_less(norm)
    images = torch.randn(2, 8, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: norm(x).sin(), images)


def test_timm_s_networks_use_it() -> None:
    network = backbone_of("timm/efficientnet_lite0").body
    assert any(isinstance(module, LeanReLU6) for module in network.modules())
    assert any(isinstance(module, timm_norm.LeanBatchNormAct2d) for module in network.modules())
    assert not any(type(module) in (nn.ReLU6, BatchNormAct2d) for module in network.modules())


def test_freezing_makes_batch_norm_keep_nothing() -> None:
    learner = learner_of("resnet18")
    learner.freeze_batch_norm()
    norms = [module for module in learner.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms and all(isinstance(module, frozen_batch_norm.LeanBatchNorm2d) for module in norms)
