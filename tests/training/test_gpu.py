"""What needs CUDA: the same numbers as on the CPU, half precision, layouts, compilation, memory faults."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.training_loops import VARIANTS, train

from methods.hier import hierarchy_loss
from methods.pfml import potential_energy
from orchestrator import method
from orchestrator.config.training import Training
from orchestrator.data.pipeline import as_float
from orchestrator.errors import TrainingFailed
from orchestrator.evaluation import neighbours
from orchestrator.evaluation.metrics import evaluate_embeddings
from orchestrator.training import engine, loop
from orchestrator.training.device import memory_faults
from orchestrator.training.repeatable import fixed_operations

pytestmark = pytest.mark.gpu
NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="no triton")


DRAWS_FOR_ALL = "hier"
"""On a GPU for triplets that do not count too, as their number would be waited for."""


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant != DRAWS_FOR_ALL])
def test_float64_equals_the_cpu(variant: str, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the CPU's random numbers, as over unlike GPUs; torch's dropout has a generator of its own on each device."""
    monkeypatch.setattr(method, "generator_on", lambda rng, _: rng)
    settings = VARIANTS[variant] | ({"dropout": 0.0} if variant == "ibc" else {})
    on_cpu = train(None, data_folder, settings)
    on_gpu = train(None, data_folder, settings | {"device": "cuda"})
    for cpu, gpu in zip(on_cpu, on_gpu, strict=True):
        assert gpu[3] == pytest.approx(cpu[3], abs=1e-7)


def test_the_tree_of_hier_is_the_cpu_s() -> None:
    rng = torch.Generator().manual_seed(0)
    rows = 3 * torch.rand(60, 20, dtype=torch.float64, generator=rng)
    triplets = torch.randint(60, (60, 5, 3), generator=rng)
    found = []
    for device in ("cpu", "cuda"):
        distance = rows.to(device).requires_grad_()
        of: dict[str, Any] = {"margin": 0.1, "temperature": 0.2, "rng": torch.Generator().manual_seed(1)}
        loss = hierarchy_loss(distance, triplets.to(device), torch.ones(60, dtype=torch.bool, device=device), **of)
        torch.autograd.backward(loss)
        assert distance.grad is not None
        found.append((loss.detach().cpu(), distance.grad.cpu()))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert float(found[0][0]) > 0


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("extra", [{}, {"channels_last": True}, {"compile": True}])
def test_half_precision_layouts_and_compilation_train(
    precision: str, extra: dict[str, Any], data_folder: Path, tmp_path: Path
) -> None:
    settings = {"method": "pfml", "device": "cuda", "precision": precision} | extra
    full = train(None, data_folder, settings | {"precision": "float32"}, stop_after=1)
    half = train(tmp_path, data_folder, settings, stop_after=2)
    assert half[0][3]["train/loss"] == pytest.approx(full[0][3]["train/loss"], rel=0.2)
    assert len(half) == 2


def test_resuming_is_exact_on_the_gpu(data_folder: Path, tmp_path: Path) -> None:
    settings = {"method": "proxy_anchor", "device": "cuda", "precision": "bf16"}
    whole = train(tmp_path / "whole", data_folder, settings, stop_after=3)
    train(tmp_path / "broken", data_folder, settings, stop_after=3, take=1)
    resumed = train(tmp_path / "broken", data_folder, settings, stop_after=3)
    for ours, theirs in zip(whole, resumed, strict=True):
        assert ours[3] == pytest.approx(theirs[3], rel=1e-3)


@pytest.mark.parametrize(
    ("method", "extra"),
    [
        ("pfml", {}),
        ("idml", {}),
        ("proxy_anchor", {"precision": "bf16"}),
        ("anti_collapse", {"channels_last": True}),
        ("contrastive", {"compile": True}),
    ],
)
def test_the_same_seed_gives_the_same_bits_or_the_cause_is_named(
    method: str, extra: dict[str, Any], data_folder: Path, tmp_path: Path
) -> None:
    settings = {"method": method, "device": "cuda", "precision": "float32", **extra}
    with fixed_operations("cuda") as unordered:
        first = train(tmp_path / "first", data_folder, settings, stop_after=2)
        train(tmp_path / "again", data_folder, settings, stop_after=2, take=1)
        again = train(tmp_path / "again", data_folder, settings, stop_after=2)
    assert unordered or [one[3] for one in first] == [one[3] for one in again]


class Strict(loop.Clock):
    """Steps must not wait for the GPU, but the first; validations may."""

    def ticks(self, step: int) -> bool:
        found = super().ticks(step)
        torch.cuda.set_sync_debug_mode("default" if found else "error")
        return found


WITH_KERNELS = pytest.param({"method": "pfml", "kernels": "triton", "precision": "float32"}, marks=NEEDS_TRITON)


@pytest.mark.parametrize(
    "extra", [{}, {"precision": "bf16"}, {"precision": "fp16"}, {"channels_last": True}, WITH_KERNELS]
)
def test_a_step_does_not_wait(extra: dict[str, Any], data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "Clock", Strict)
    settings = {"method": "multi_similarity", "device": "cuda", "validate_every": "6 steps", "clip_norm": 1.0} | extra
    try:
        assert len(train(None, data_folder, settings, stop_after=1)) == 1
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_planted_wait_is_seen(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "Clock", Strict)
    monkeypatch.setattr(engine, "clip_gradients", lambda learner, training: next(learner.parameters()).sum().item())
    settings = {"method": "multi_similarity", "device": "cuda", "validate_every": "6 steps"}
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            train(None, data_folder, settings, stop_after=1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_bytes_become_the_cpu_s_floats(layout: torch.memory_format) -> None:
    pixels = torch.arange(256, dtype=torch.uint8).repeat(12).view(1, 3, 32, 32)
    assert torch.equal(as_float(pixels.cuda(), torch.float32, layout).cpu(), as_float(pixels))


def test_the_energy_is_the_cpu_s() -> None:
    torch.manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(3000, 64), dim=-1)
    labels = torch.arange(3000) % 50
    values, gradients = [], []
    for device in ("cpu", "cuda"):
        z = points.to(device, copy=True).requires_grad_()
        y = labels.to(device)
        energy = potential_energy(z[:100], y[:100], z[100:], y[100:], delta=0.9, alpha=4)
        torch.autograd.backward(energy)
        assert z.grad is not None
        values.append(float(energy))
        gradients.append(z.grad.cpu())
    assert values[1] == pytest.approx(values[0], rel=1e-6)
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-3, atol=1e-3 * float(gradients[0].abs().max()))


@NEEDS_TRITON
def test_kernels_are_right_to_float32() -> None:
    """The cases of the interpreter; the GPU's exponentials and logarithms are less exact."""
    from support import kernels

    from methods.kernels.tiles import TILE

    errors = {name: case(device="cuda", tile=TILE) for name, case in kernels.cases()}
    errors |= {name: kernels.method_error(name, "cuda") for name in kernels.METHODS}
    assert {name: error for name, error in errors.items() if not error <= 3} == {}


def by_kernels(count: int, dimensions: int, batch: int) -> tuple[list[torch.Tensor], list[float]]:
    """An energy in which all pairs interact and a loss on proxies, each with its gradients; the most bytes of each."""
    from methods.kernels.proxy_losses import normalized_softmax

    torch.manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(count, dimensions, device="cuda"), dim=-1).requires_grad_()
    labels = torch.arange(count, device="cuda") // 10
    found: list[torch.Tensor] = []
    most: list[float] = []
    losses: list[Callable[..., torch.Tensor]] = [
        lambda z, y, p, c: potential_energy(z, y, p, c, delta=0.2, delta_rep=1.6, alpha=4, kernels="triton"),
        lambda z, y, p, c: normalized_softmax(z, y[:, None], p, c, metric="cosine", temperature=0.05),
    ]
    for loss in losses:
        rows.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        value = loss(rows[:batch], labels[:batch], rows[batch:], labels[batch:])
        torch.autograd.backward(value)
        assert rows.grad is not None
        most.append(torch.cuda.max_memory_allocated() - before)
        found += [value.detach(), rows.grad]
    return found, most


@NEEDS_TRITON
def test_kernels_give_the_same_bits_twice() -> None:
    first, second = (by_kernels(20_001, 96, 300)[0] for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@NEEDS_TRITON
def test_memory_of_kernels_grows_with_the_points() -> None:
    """The matrices would have 40 GB and 1.6 GB."""
    _, most = by_kernels(100_000, 64, 4096)
    assert max(most) < 12 * 100_000 * 64 * 4


@NEEDS_TRITON
@pytest.mark.parametrize("method", ["pfml", "proxy_anchor"])
def test_a_training_by_kernels_is_that_by_torch(method: str, data_folder: Path) -> None:
    settings = {"method": method, "device": "cuda", "precision": "float32"}
    by_torch = train(None, data_folder, settings, stop_after=1)
    fused = train(None, data_folder, settings | {"kernels": "triton"}, stop_after=1)
    assert fused[0][3] == pytest.approx(by_torch[0][3], rel=0.02, abs=0.02)


def test_evaluation_is_the_cpu_s() -> None:
    torch.manual_seed(0)
    embeddings = torch.randint(-3, 4, (2000, 16)).float()  # many exact ties
    labels = torch.arange(2000) % 40
    on_cpu = evaluate_embeddings(embeddings, labels, clustering=False)
    assert evaluate_embeddings(embeddings.cuda(), labels.cuda(), clustering=False) == on_cpu


def test_evaluation_against_a_gallery_keeps_to_its_memory() -> None:
    """On the device: the gallery in float32, in float64 if ties ask for it, and some blocks of 64 MiB."""
    torch.manual_seed(0)
    embeddings, labels = torch.randn(12_000, 512), torch.arange(12_000) % 900
    gallery: dict[str, Any] = {"gallery": embeddings[2000:], "gallery_labels": labels[2000:]}
    on_cpu = evaluate_embeddings(embeddings[:2000], labels[:2000], **gallery, clustering=False)
    rows = embeddings.cuda()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    gallery = {"gallery": rows[2000:], "gallery_labels": labels[2000:]}
    assert evaluate_embeddings(rows[:2000], labels[:2000], **gallery, clustering=False) == on_cpu
    assert torch.cuda.max_memory_allocated() - before < 10_000 * 512 * 12 + 10 * 2**26


@pytest.mark.parametrize("by_product", [False, True])
def test_faiss_searches_as_on_the_cpu(by_product: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all GPUs, and with this one's memory twice: neighbours, in order, and their distances or products."""
    faiss = pytest.importorskip("faiss")
    if not hasattr(faiss, "StandardGpuResources"):
        pytest.skip("faiss is built without GPUs")
    torch.manual_seed(0)
    calls = []
    search = neighbours.faiss_on_gpu

    def counted(*given: Any) -> Any:
        calls.append(given[3])
        return search(*given)

    monkeypatch.setattr(neighbours, "faiss_on_gpu", counted)
    for rows in (torch.randn(3000, 512), torch.randint(-2, 3, (2000, 8)).float(), 100 + torch.randn(2000, 64)):
        asked: dict[str, Any] = {"exclude_self": True, "by_product": by_product}
        on_cpu = neighbours.nearest_neighbours(rows, rows, 300, **asked)
        here = torch.device("cuda", 0)
        for devices in (neighbours.gpus_of_faiss(torch.device("cuda")), [here, here]):
            with monkeypatch.context() as patch:
                patch.setattr(neighbours, "gpus_of_faiss", lambda _, devices=devices: devices)
                found = neighbours.nearest_neighbours(rows.cuda(), rows.cuda(), 300, **asked)
            assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, on_cpu, strict=True))
    assert set(calls) == {300 + neighbours.SLACK + 1}


def test_faiss_and_torch_share_the_process() -> None:
    faiss = pytest.importorskip("faiss")
    torch.zeros(8, device="cuda").sum().item()
    index = faiss.IndexFlatL2(8)
    index.add(torch.eye(8).numpy())
    assert index.search(torch.eye(8).numpy(), 1)[1].ravel().tolist() == list(range(8))


def test_out_of_memory_is_said_as_such() -> None:
    with pytest.raises(TrainingFailed, match="out of GPU memory with a batch of 64 images"), memory_faults(Training()):
        torch.empty(2**50, device="cuda")
