"""The export of a model as a folder in Hugging Face's layout, with a model card."""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from orchestrator.config.training import Experiment
from orchestrator.errors import InputError
from orchestrator.evaluation.measures import metric_of
from orchestrator.networks.backbones import architecture_of
from orchestrator.networks.backbones.timm_models import TIMM, timm_weights
from orchestrator.networks.lora import merge
from orchestrator.networks.timm_body import TimmBody
from orchestrator.problems import Operand, Option, Problem
from orchestrator.search.source import TOLERANCE, ModelSource, parity
from orchestrator.search.using import photograph_example
from orchestrator.training.encoder import Encoder
from orchestrator.training.hub_folder import (
    CARD,
    CONFIG,
    KEY,
    NETWORK,
    PROGRAM,
    REST,
    TRAINED_ON,
    WEIGHTS,
    split_state,
)
from orchestrator.training.learner import Learner
from orchestrator.training.model_file import load_learner, saved_model
from orchestrator.training.model_schema import FORMAT

Embed = Callable[[Tensor], Tensor]
CLOSE = 1e-5
"""timm's network is used only if its coordinates differ by no more than this from the trained model's."""
POOLS = {"average": "avg", "max": "max", "token": "token", "average+max": "avgmax"}
"""Our names of pooling, and timm's. Its `avgmax` is half of our sum, so that the weight after it is doubled."""


def write_folder(source: ModelSource, folder: Path, write_program: Callable[[ModelSource, Path], Any]) -> Embed:
    """Write weights, config and card, and read them again as evaluation does; returns what others load.

    That is timm's network where timm has one that computes the same, else the program that `write_program` writes.
    """
    learner, experiment = load_learner(source.model)
    merge(learner.network)
    timm_config = _of_timm(source, learner, experiment)
    if timm_config is not None:
        embed = _write(source, folder, learner, experiment, timm_config, write_program)
        if _close(embed, source):
            return embed
        shutil.rmtree(folder)
    return _write(source, folder, learner, experiment, None, write_program)


def _close(embed: Embed, source: ModelSource) -> bool:
    return float((embed(source.images) - source.embeddings).abs().max()) <= CLOSE


def _write(
    source: ModelSource,
    folder: Path,
    learner: Learner,
    experiment: Experiment,
    found: tuple[dict[str, Any], str] | None,
    write_program: Callable[[ModelSource, Path], Any],
) -> Embed:
    from safetensors.torch import save_file

    folder.mkdir()
    settings = experiment.flat() | dict.fromkeys(("lora_rank", "lora_alpha", "lora_layers"))  # they are merged
    names, doubled = {"": NETWORK}, None
    config: dict[str, Any] = {}
    if found is not None:
        config, classifier = found
        inner = "backbone.body.model." if isinstance(learner.network.backbone.body, TimmBody) else "backbone.body."
        names = {"": NETWORK + inner, f"{classifier}.": f"{NETWORK}head."}
        doubled = f"{classifier}.weight" if experiment.training.pooling == "average+max" else None
    saved = saved_model(source.model)
    trained = saved.get("trained_on")
    config[KEY] = {
        "format": FORMAT,
        "names": names,
        "doubled": doubled,
        "experiment": settings,
        **{key: saved[key] for key in ("dataset_digest", "channels", "num_classes")},
        **{key: saved[key] for key in ("kept",) if key in saved},
        **({"trained_on": {key: trained[key] for key in ("dataset", "classes")}} if trained else {}),
        "num_samples": saved.get("num_samples", 0),
        "about": source.about,
    }
    weights, rest = split_state(learner.state_dict(), names)
    if doubled is not None:
        weights[doubled] *= 2
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    if rest:
        save_file(rest, folder / REST, metadata={"format": "pt"})
    if trained:
        save_file({"pictures": trained["pictures"]}, folder / TRAINED_ON)
    (folder / CONFIG).write_text(json.dumps(config, indent=2, default=str) + "\n", encoding="utf-8")
    if found is None:
        embed: Embed = write_program(source, folder / PROGRAM)
    else:
        embed = _timm_embedder(learner, f"local-dir:{folder}")
    example = _example(learner) if found is not None else PLAIN
    (folder / CARD).write_text(card(source, saved["experiment"], config, example), encoding="utf-8")
    for path in folder.iterdir():  # safetensors writes for the owner only
        path.chmod((folder / CARD).stat().st_mode)
    _check_own(source, folder)
    return embed


def _check_own(source: ModelSource, folder: Path) -> None:
    """The folder as `evaluate` reads it."""
    learner, _ = load_learner(folder / WEIGHTS)
    again = Encoder(learner.float().eval().requires_grad_(False), source.encoder.named).eval()
    if not parity(source, again) <= TOLERANCE:
        raise InputError(
            Problem(
                (Option("to"), Operand("hub")),
                rule="the weights that were written give other embeddings: nothing was written",
            )
        )


def _of_timm(source: ModelSource, learner: Learner, experiment: Experiment) -> tuple[dict[str, Any], str] | None:
    """config.json for timm, and the name of its last layer; None if no network of timm computes the same."""
    import timm

    training, body = experiment.training, learner.network.backbone.body
    name = body.name.removeprefix(TIMM) if isinstance(body, TimmBody) else training.backbone
    if source.encoder.ranked or source.encoder.named or training.pooling not in POOLS or not timm.is_model(name):
        return None
    height, width = source.images.shape[1:3]
    dims, pool_arguments = learner.network.head.out_features, {"global_pool": POOLS[training.pooling]}
    inner = learner.network.backbone.network.state_dict()
    backbone = learner.network.backbone
    cfg: dict[str, Any] = {"mean": backbone.mean.flatten().tolist(), "std": backbone.std.flatten().tolist()}
    cfg |= {"input_size": [3, height, width], "num_classes": dims, "interpolation": "bilinear", "crop_pct": 1.0}
    patches = getattr(learner.network.backbone.network, "patch_embed", None)
    size_arguments = {"img_size": size} if (size := getattr(patches, "img_size", None)) else {}
    for more in (size_arguments, size_arguments | {"fc_norm": False}):
        arguments = pool_arguments | more
        try:
            model = timm.create_model(name, pretrained=False, num_classes=dims, **arguments)
            last = str(model.pretrained_cfg["classifier"])
            head = {f"{last}.{key}": value for key, value in learner.network.head.state_dict().items()}
            if training.pooling == "average+max":
                head[f"{last}.weight"] = 2 * head[f"{last}.weight"]
            model.load_state_dict(inner | head)
            embed = _timm_embedder(learner, model)
            close = _close(embed, source)
        except (RuntimeError, TypeError, KeyError, ValueError, AssertionError, AttributeError):
            continue  # it has other layers, or does not take this argument
        if close:
            first = {key: model.pretrained_cfg.get(key) for key in ("first_conv", "classifier")}
            config = {"architecture": name.split(".")[0], "num_classes": dims, "num_features": model.num_features}
            return config | {"model_args": arguments, "pretrained_cfg": cfg | first}, last
    return None


def _timm_embedder(learner: Learner, model: Any) -> Embed:
    """What the card's example computes."""
    import timm

    if isinstance(model, str):
        model = timm.create_model(model, pretrained=True)
    model = model.float().eval()
    backbone = learner.network.backbone

    def embed(images: Tensor) -> Tensor:
        pixels = images.movedim(-1, 1).float() / 255
        pixels = pixels.expand(-1, 3, -1, -1)
        pixels = pixels.flip(1) if backbone.blue_first else pixels
        with torch.no_grad():
            rows: Tensor = F.normalize(model((pixels - backbone.mean.float()) / backbone.std.float()))
        return rows

    return embed


PLAIN = """\
import torch

model = torch.export.load(f"{folder}/model.pt2").module()


def embed(images):  # uint8 (batch, height, width, channels) -> float32 embeddings
    with torch.no_grad():
        return model(images)
"""


def _example(learner: Learner) -> str:
    """The card's example where timm loads the network."""
    flip = ".flip(1)" if learner.network.backbone.blue_first else ""
    return f"""\
import timm
import torch

model = timm.create_model(f"local-dir:{{folder}}", pretrained=True).eval()
mean, std = (torch.tensor(model.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))


def embed(images):  # uint8 (batch, height, width, channels) -> float32 embeddings of length 1
    pixels = (images.movedim(-1, 1).float() / 255).expand(-1, 3, -1, -1){flip}
    with torch.no_grad():
        return torch.nn.functional.normalize(model((pixels - mean) / std))
"""


def card(source: ModelSource, trained: Mapping[str, Any], config: Mapping[str, Any], example: str) -> str:
    """The model card: front matter as Hugging Face reads it, then what is known of the model and of its training."""
    about, settings = source.about, source.about["settings"]
    settings = settings | {"weights": Path(str(trained.get("weights", "default"))).name}
    front = {
        **({"license": about["licence"]} if "licence" in about else {}),
        "library_name": "timm" if "architecture" in config else "pytorch",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["deep-metric-learning", "image-retrieval", str(about["method"])],
    }
    head = "\n".join(f"{key}: {json.dumps(value)}" for key, value in front.items())
    rows = [f"| {name} | {value:.4f} | {interval} |" for name, value, interval in _scores(about)]
    scores = (
        "\n".join(["| metric | value | 95% interval |", "| --- | ---: | --- |", *rows]) if rows else "Not recorded."
    )
    prepared = about["preprocessing"]
    order = ", then ".join(f"{key.replace('_', ' ')} {value}" for key, value in prepared.items())
    origin = f", trial {about['trial']} of the search {about['search']}" if "search" in about else ""
    commit = f" Code: commit {about['git.commit']}." if "git.commit" in about else ""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    remarks = "".join(f"\n- {line}." for line in about.get("remarks", []))
    listed = "\n".join(f"{key}: {json.dumps(value, default=str)}" for key, value in settings.items())
    return f"""---
{head}
---

# {about["method"]} on {about["dataset"]}

An embedding of images, for retrieval: {settings["backbone"]} with {settings["embedding_dim"]} dimensions, trained by
dml-orchestrator with the method `{about["method"]}`{origin}.{commit}

- Data set: `{about["dataset"]}` (digest `{about["dataset_digest"]}`).{remarks}
- Protocol: {settings["protocol"]}; selection on: {settings["selection"]}; seed {settings["seed"]}.
- Input: {about["input"]}.
- Preparation of a photograph: {order or "none; images come as they are in the data set"}.
- Output: {about["output"]}.
- Licence: {about.get("licence") or _licence(settings)}.

## Scores

{scores}

## Use

`folder` is this folder. The function gives the trained model's embeddings.

```python
{example}```

{_photographs(source)}With dml-orchestrator: `orchestrator evaluate FOLDER --dataset {about["dataset"]}`.

## Settings

```yaml
{listed}
```

Versions: {versions}.
"""


def _photographs(source: ModelSource) -> str:
    """How photographs are prepared, embedded and compared; empty where images are not cut."""
    if source.preparation.crop is None:
        return ""
    return f"For photographs:\n\n```python\n{photograph_example(source)}```\n\n"


def _scores(about: dict[str, Any]) -> list[tuple[str, float, str]]:
    """The recorded metrics that the tool knows, with the interval of the claim where there is one."""
    intervals = about.get("intervals", {})
    scores = []
    for name, value in about.get("metrics", {}).items():
        if metric_of(name.rpartition("/")[2]) and isinstance(value, int | float):
            ends = intervals.get(name)
            scores.append((name, value, f"{ends[0]:.4f} to {ends[1]:.4f}" if ends else "not recorded"))
    return scores


def _licence(settings: dict[str, Any]) -> str:
    """What is known of the licence: the tool cannot know the data set's, and packages seldom state the weights'."""
    pretrained = architecture_of(settings["backbone"]).pretrained
    if settings["weights"] == "random" or pretrained is None:
        return "not stated; trained from scratch, so that the terms of the data set decide: look them up"
    licence = None
    if settings["weights"] == "default" and isinstance(pretrained, partial) and pretrained.func is timm_weights:
        import timm

        licence = getattr(timm.models.get_pretrained_cfg(pretrained.args[1]), "license", None)
    stated = f"timm states {licence} for them" if licence else "look them up"
    return f"not stated; it began from pretrained weights, which have terms ({stated}), and so has the data set"
