"""The host does not wait for the device: counted on a stand-in for a GPU, which computes what the CPU does.

Methods may ask it for numbers (how many pairs are near, say): WAITS says how often at most in a step. The loop never
does.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support import standin
from support.image_pipelines import photographs as photographs
from support.standin import traffic
from support.training_loops import SETTINGS, VARIANTS, Broken, train
from support.waits import WAITS
from torch import Tensor

import orchestrator.method
from orchestrator.config.training import resolve_experiment
from orchestrator.data import pipeline
from orchestrator.data.pipeline import as_float
from orchestrator.data.splits import class_split
from orchestrator.data.store import Store
from orchestrator.errors import TrainingFailed
from orchestrator.evaluation.metrics import evaluate_queries
from orchestrator.method import registry
from orchestrator.storage.trial_folder import BEST, CHECKPOINT
from orchestrator.training import embed, feed, loop, window
from orchestrator.training.embed import evaluate_model
from orchestrator.training.learner import Learner
from orchestrator.training.loop import fit


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The stand-in, where a training or a test chooses a device other than the CPU."""

    def generator_on(rng: torch.Generator, device: torch.device) -> torch.Generator:
        made = torch.Generator() if device.type == "cpu" else standin.Generator()
        return made.manual_seed(int(torch.randint(2**62, (), generator=rng)))

    monkeypatch.setattr(orchestrator.method, "generator_on", generator_on)
    with standin.installed() as device:
        for module in (loop, embed):
            monkeypatch.setattr(module, "choose_device", lambda name: standin.CPU if name == "cpu" else device)
        yield device


@dataclass(frozen=True)
class Watched(loop.Clock):
    """Keeps what was counted at the end of each step."""

    waits: ClassVar[list[Counter[str]]] = []
    copies: ClassVar[list[Counter[str]]] = []
    bytes: ClassVar[list[Counter[str]]] = []

    def ticks(self, step: int) -> bool:
        for kept, now in ((self.waits, traffic.waits), (self.copies, traffic.copies), (self.bytes, traffic.bytes)):
            kept.append(Counter(now))
        return super().ticks(step)


Run = Callable[[dict[str, Any]], list[Any]]


@pytest.fixture
def run(device: torch.device, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Trains six steps on the stand-in, with a validation after every third."""
    monkeypatch.setattr(loop, "Clock", Watched)

    def run(settings: dict[str, Any]) -> list[Any]:
        for kept in (Watched.waits, Watched.copies, Watched.bytes):
            kept.clear()
        traffic.clear()
        return train(None, data_folder, settings | {"device": "auto"})

    return run


def steps(kept: list[Counter[str]]) -> list[Counter[str]]:
    """Of the four steps that follow no validation."""
    return [kept[number] - kept[number - 1] for number in (1, 2, 4, 5)]


def check_waits(asked: int, *, views: int = 1, clean: bool = False, of_scaler: int = 0) -> None:
    """Of the last run: none by the loop, at most these by the method; views, labels and rows in (of a clean batch too),
    loss terms out."""
    for waits, copies in zip(steps(Watched.waits), steps(Watched.copies), strict=True):
        assert waits.pop("item in training/engine.py", 0) == of_scaler
        assert not [place for place in waits if "methods/" not in place and "a backward pass" not in place], waits
        assert waits.total() <= asked, waits
        assert copies == {"in": 2 + views + 3 * clean, "out": 1}


DRAWN_BY_DEVICE = ("hier",)
"""Those whose noise is drawn in other portions on an accelerator: for more triplets at a time, and for those too that
do not count, since a GPU would be waited for to leave them out."""

SUMMED_BY_DEVICE = ("mean_field_contrastive", "mean_field_multi_similarity")
"""Those that add the same numbers in another order on an accelerator: the CPU lists the pairs that count."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_a_method_makes_the_host_wait_in_a_step(variant: str, data_folder: Path, run: Run) -> None:
    found = run(VARIANTS[variant])
    method = registry()[VARIANTS[variant]["method"]]
    clean = "meta_share" in method.Config.model_fields
    check_waits(WAITS.get(variant, 0), views=method.views, clean=clean)
    if variant in DRAWN_BY_DEVICE:
        return
    on_cpu = train(None, data_folder, VARIANTS[variant])
    if variant in SUMMED_BY_DEVICE:
        assert [list(validation) for validation in found] == [
            [pytest.approx(part, rel=1e-5) if isinstance(part, dict) else part for part in validation]
            for validation in on_cpu
        ]
    else:
        assert found == on_cpu


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"precision": "fp16", "freeze_batch_norm": True, "images_per_pass": 16},
        {"accumulate_batches": 2, "ema_decay": 0.9},
    ],
)
def test_no_setting_makes_the_host_wait(more: dict[str, Any], data_folder: Path, run: Run) -> None:
    settings = {"method": "multi_similarity", "precision": "float32", "channels_last": True, "pooling": "average+max"}
    settings |= {"clip_norm": 1.0, "clip_value": 0.5, "warmup_epochs": 1, "label_noise": 0.2}
    settings |= {"augmentation": "affine", "degradation": "low_resolution", "freeze_batch_norm": False} | more
    found = run(settings)
    # before a step of an optimiser that is not fused, as it is on CUDA, torch's scaler asks for infinite gradients
    check_waits(0, of_scaler=int(settings["precision"] == "fp16"))
    if settings["precision"] == "float32":  # the stand-in has no half precision
        assert found == train(None, data_folder, settings)


def check_validation() -> None:
    """Of the last run, of PFML: its first validation, on two batches of images."""
    step, _, _, _ = steps(Watched.waits)
    found = Watched.waits[3] - Watched.waits[2] - step
    assert {place: count for place, count in found.items() if "methods/" not in place} == {
        "copy out in training/embed.py": 1,  # the embeddings
        "copy out in training/window.py": 3,  # those of the training, their labels and their rows
        "newest event in training/window.py": 1,  # the loss terms of the last step
        "copy in in evaluation/neighbours.py": 5,
        "copy out in evaluation/neighbours.py": 3,
        "item in evaluation/neighbours.py": 1,
    }


def test_a_validation_copies_each_output_once_and_searches_on_the_device(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "EVALUATION_BATCH", 8)
    run({"method": "pfml"})
    check_validation()


def copies_each_batch(self: Learner, images: Tensor) -> Any:
    found = outputs_of(self, images)
    return found if self.training else {name: output.cpu() for name, output in found.items()}


def searches_on_the_host(*given: Any, device: Any = None, **more: Any) -> Any:
    return evaluate_queries(*given, device=standin.CPU, **more)


outputs_of = Learner.outputs


@pytest.mark.parametrize(
    "planted", [(Learner, "outputs", copies_each_batch), (embed, "evaluate_queries", searches_on_the_host)]
)
def test_planted_waits_of_a_validation_are_seen(planted: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "EVALUATION_BATCH", 8)
    monkeypatch.setattr(*planted)
    run({"method": "pfml"})
    with pytest.raises(AssertionError):
        check_validation()


def asks_at_each_step(self: window.Window, step: int, epoch: int, terms: dict[str, Tensor], *rest: Any) -> None:
    add(self, step, epoch, terms, *rest)
    if not all(torch.isfinite(term) for term in terms.values()):
        raise TrainingFailed("the loss is not finite")


def copies_outputs(
    self: window.Window, step: int, epoch: int, terms: dict[str, Tensor], seen: list[Any], batch: Any
) -> None:
    add(self, step, epoch, terms, [{name: output.cpu() for name, output in seen[0].items()}], batch)


add = window.Window.add
PLANTED: dict[str, tuple[Any, str, Any]] = {
    "the loop asks whether the loss is finite": (window.Window, "add", asks_at_each_step),
    "outputs are copied at each step": (window.Window, "add", copies_outputs),
    "terms are read at once": (window, "LAG", 0),
    "the host waits for each batch": (feed, "IN_FLIGHT", 0),
    "memory is not pinned": (feed, "pinned_copy", lambda tensor: tensor),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_waits_are_seen(planted: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[planted])
    run({"method": "proxy_anchor"})
    with pytest.raises(AssertionError):
        check_waits(0)


def test_planted_races_are_seen(run: Run, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch used before it is copied, its memory given away before it is used, terms read before they are copied."""
    settings = {"method": "multi_similarity"}
    right = train(None, data_folder, settings)
    assert run(settings) == right
    with monkeypatch.context() as patch:
        patch.setattr(standin.Stream, "wait_stream", lambda self, other: None)
        assert run(settings) != right
    with monkeypatch.context() as patch:
        patch.setattr(standin.OnDevice, "record_stream", lambda self, stream: None)
        with pytest.raises(RuntimeError, match="record_stream"):
            run(settings)
    with monkeypatch.context() as patch:
        patch.setattr(standin.Event, "synchronize", lambda self: None)
        assert run(settings) != right


class BrokenLater(Broken):
    """Its second term is no number from the fifth step on."""

    name = "broken_later"
    last: ClassVar[int] = 0

    def loss(self, outputs: dict[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        self.steps = getattr(self, "steps", 0) + 1
        BrokenLater.last = self.steps
        pull = outputs["embedding"].square().sum()
        return {"pull": pull, "push": pull * (float("nan") if self.steps >= 5 else 1.0)}


class Failing(BrokenLater):
    """And then it fails for it."""

    name = "failing"

    def loss(self, outputs: dict[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        terms = super().loss(outputs, labels)
        if self.steps == 6:
            standin.backend.computing.drain()  # the device has long computed it
            raise RuntimeError("probability tensor contains nan")
        return terms


@pytest.mark.parametrize(("method", "interval", "last"), [(BrokenLater, 9, 7), (BrokenLater, 3, 6), (Failing, 9, 6)])
def test_a_loss_that_is_not_finite_is_named_and_no_validation_follows(
    method: Any,
    interval: int,
    last: int,
    device: torch.device,
    data_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is seen two steps later on a GPU, at a validation at once."""
    monkeypatch.setitem(registry(), method.name, method)
    settings = {"method": method.name, "device": "auto", "validate_every": f"{interval} steps"}
    with pytest.raises(TrainingFailed, match=r"not finite at step 5, epoch 1 \(pull [\d.e+-]+, push nan\)"):
        train(tmp_path, data_folder, settings)
    assert BrokenLater.last == last
    if interval == 9:
        assert not (tmp_path / BEST).exists() and not (tmp_path / CHECKPOINT).exists()


def test_a_gpu_s_division_would_be_exact() -> None:
    """Of all bytes: by a tensor, as no device replaces it by a product; the product differs."""
    pixels = torch.arange(256, dtype=torch.uint8)
    exact = (np.arange(256, dtype=np.float64) / 255).astype(np.float32)
    assert np.array_equal(as_float(pixels).numpy(), exact)
    assert not np.array_equal(pixels.numpy() * np.float32(1 / 255), exact)
    assert as_float(pixels[None, None, :, None], torch.float64, torch.channels_last).dtype == torch.float64


@pytest.mark.parametrize("degraded", [False, True])
def test_photographs_travel_as_bytes_from_pinned_memory(
    degraded: bool, photographs: Store, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And train to the same numbers; degraded ones are floats already."""
    monkeypatch.setattr(loop, "Clock", Watched)
    for kept in (Watched.waits, Watched.copies, Watched.bytes):
        kept.clear()
    batches: list[Tensor] = []
    make = pipeline.Reader._batch

    def watched(self: pipeline.Reader, request: pipeline.Request) -> Tensor:
        batches.append(make(self, request))
        return batches[-1]

    monkeypatch.setattr(pipeline.Reader, "_batch", watched)
    settings = {"dataset": "photographs", "method": "multi_similarity", "augmentation": "random_crop_224"}
    settings |= {"classes_per_batch": 2, "validate_every": "6 steps", "epochs": 9, "loader_threads": 2}  # type: ignore[dict-item]
    settings |= {"degradation": "blur"} if degraded else {}
    split = class_split(photographs, validation_share=0.0, seed=0)
    results = []
    for name in ("auto", "cpu"):
        experiment = resolve_experiment(SETTINGS | settings | {"device": name}, "test")
        results.append([found.metrics for found in fit(experiment, photographs, split, stop_after=1)])
        if name == "auto":
            check_waits(0)
            assert all(standin.is_pinned(batch) for batch in batches)
            pixels = batches[0].numel() * (4 if degraded else 1)
            assert steps(Watched.bytes)[0]["in"] == pixels + 4 * (8 + 8)
    assert results[0] == results[1]


def test_a_test_searches_where_the_embeddings_are(
    device: torch.device, glyphs: Store, data_folder: Path, tmp_path: Path
) -> None:
    train(tmp_path, data_folder, {"method": "proxy_anchor"}, stop_after=1)
    rows = np.arange(0, len(glyphs), 9)
    on_cpu = evaluate_model(tmp_path / BEST, glyphs, rows, "cpu")
    traffic.clear()
    assert evaluate_model(tmp_path / BEST, glyphs, rows, "cuda") == on_cpu
    assert traffic.waits["copy in in evaluation/neighbours.py"]
    assert traffic.waits["copy out in training/embed.py"] == 1 and not traffic.waits["copy in in training/feed.py"]
