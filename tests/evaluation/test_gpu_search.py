"""faiss's search on GPUs, behind a stand-in for the one function that needs them: it gives what a GPU may give."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.evaluation import neighbours
from orchestrator.evaluation.gpu import RowsOnGPUs
from orchestrator.evaluation.metrics import evaluate_embeddings
from orchestrator.evaluation.neighbours import NeighbourSearch, nearest_neighbours
from orchestrator.evaluation.ties import NO_TIES

pytestmark = pytest.mark.skipif(neighbours.faiss is None, reason="no faiss")
CAP = 48
"""For faiss's 2,048."""


def on_gpu(
    _: Any, queries: torch.Tensor, rows: torch.Tensor, count: int, by_product: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest rows with errors of float32's size, ties in any order; like faiss it refuses more than its cap."""
    if not 0 < count <= min(CAP, len(rows)):
        raise RuntimeError(f"k = {count} of {len(rows)} rows: beyond what faiss finds on a GPU")
    assert queries.dtype == rows.dtype == torch.float32 and rows.is_contiguous()
    norms = queries.norm(dim=1, keepdim=True) + rows.norm(dim=1)
    squared = queries.square().sum(1, keepdim=True) + rows.square().sum(1) - 2 * queries @ rows.T
    if by_product:
        norms = (queries.norm(dim=1, keepdim=True) * rows.norm(dim=1)).sqrt()
        squared = -queries @ rows.T
    random = torch.Generator().manual_seed(0)
    error = (torch.rand(squared.shape, generator=random) - 0.5) / 4  # several times the usual rounding
    squared = squared + error * norms.square() * float(np.finfo(np.float32).eps) * rows.shape[1] ** 0.5
    ordered = squared.sort(dim=1)
    return ordered.values[:, :count] * (-1 if by_product else 1), ordered.indices[:, :count]


Stood = Callable[[int], None]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Stood:
    """Searches find as many GPUs, all of them this machine's memory."""

    def stand_in(count: int) -> None:
        monkeypatch.setattr(neighbours, "MAX_ON_GPU", CAP)
        monkeypatch.setattr(neighbours, "SLACK", 8)
        monkeypatch.setattr(neighbours, "faiss_resources", lambda: None)
        monkeypatch.setattr(neighbours, "faiss_on_gpu", on_gpu)
        monkeypatch.setattr(neighbours, "gpus_of_faiss", lambda device: [torch.device("cpu")] * count)

    return stand_in


def rows_of(kind: str) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(5)
    rows = {
        "spread": rng.standard_normal((301, 24)),
        "integers": rng.integers(-2, 3, (301, 6)),
        "copies": rng.standard_normal((60, 24))[rng.integers(60, size=301)],
        "nearly equal": rng.standard_normal(24) + 1e-6 * rng.standard_normal((301, 24)),
        "far from zero": 1000 + rng.standard_normal((301, 24)),
        "few": rng.standard_normal((3, 24)),
    }[kind]
    return rows.astype(np.float32)


KINDS = "spread", "integers", "copies", "nearly equal", "far from zero", "few"


def differences(gpus: Stood, count: int, kinds: tuple[str, ...] = KINDS, *, by_product: bool = False) -> list[str]:
    """What differs from the search on the CPU."""
    cases = [(kind, own, k) for kind in kinds for own in (False, True) for k in (1, 20, CAP)]
    asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (
            (rows if own else rows[::3] + rows[:1] / 1024, rows[::-1].copy() if by_product else rows, k),
            {"exclude_self": own, "chunk": 50, "by_product": by_product},
        )
        for kind, own, k in cases
        for rows in [rows_of(kind)]
    ]
    on_cpu = [nearest_neighbours(*given, **named) for given, named in asked]
    gpus(count)
    found = [nearest_neighbours(*given, **named) for given, named in asked]
    return [
        f"{case}: {name}"
        for case, ours, theirs in zip(cases, found, on_cpu, strict=True)
        for name, mine, its in zip(("distance", "index"), ours, theirs, strict=True)
        if not np.array_equal(mine, its)
    ]


@pytest.mark.parametrize(("count", "by_product"), [(1, False), (2, False), (5, False), (2, True)])
def test_neighbours_equal_the_cpu_s(count: int, by_product: bool, gpus: Stood) -> None:
    assert differences(gpus, count, by_product=by_product) == []


def test_metrics_equal_the_cpu_s(gpus: Stood) -> None:
    rows, labels = rows_of("integers"), np.arange(301) % 30
    on_cpu = evaluate_embeddings(rows, labels, clustering=False)
    gpus(3)
    assert evaluate_embeddings(rows, labels, clustering=False) == on_cpu


def test_the_search_asks_the_gpus_and_torch_only_beyond_their_cap(gpus: Stood, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(2)
    rows = rows_of("spread")
    calls: list[int | str] = []
    full = NeighbourSearch._nearest_in_full_rows

    def counted(*given: Any) -> Any:
        calls.append(given[3])
        return on_gpu(*given)

    def by_torch(*given: Any) -> Any:
        calls.append("torch")
        return full(*given)

    monkeypatch.setattr(neighbours, "faiss_on_gpu", counted)
    monkeypatch.setattr(NeighbourSearch, "_nearest_in_full_rows", by_torch)
    nearest_neighbours(rows, rows, CAP - 9, exclude_self=True)
    assert calls == [CAP, CAP]
    calls.clear()
    nearest_neighbours(rows, rows, CAP - 8, exclude_self=True)
    assert calls == ["torch"]


ALLOC_FAIL = (
    "Error in virtual void* faiss::gpu::StandardGpuResourcesImpl::allocMemory(const AllocRequest&): Error: 'err == "
    "cudaSuccess' failed: StandardGpuResources: alloc fail type TemporaryMemoryOverflow dev 0 space Device stream 0x5 "
    "size 1073741824 bytes (cudaMalloc error out of memory [2])"
)


@pytest.mark.parametrize("succeeding", [0, 3])
def test_where_faiss_gets_no_memory_torch_finds_the_same(
    succeeding: int, gpus: Stood, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(2)
    calls = list[int]()

    def full(*given: Any) -> Any:
        calls.append(given[3])
        if len(calls) > succeeding:
            raise RuntimeError(ALLOC_FAIL)
        return on_gpu(*given)

    monkeypatch.setattr(neighbours, "faiss_on_gpu", full)
    rows = rows_of("spread")
    with pytest.warns(UserWarning, match="faiss does not find enough free memory on the GPU for 301 rows"):
        found = nearest_neighbours(rows, rows, 20, exclude_self=True, chunk=50)
    assert len(calls) <= succeeding + 2, "it is not asked again"
    monkeypatch.undo()
    on_cpu = nearest_neighbours(rows, rows, 20, exclude_self=True, chunk=50)
    assert all(np.array_equal(mine, its) for mine, its in zip(found, on_cpu, strict=True))


def test_another_error_of_faiss_is_not_hidden(gpus: Stood, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> Any:
        raise RuntimeError("k = 0 is not allowed")

    gpus(2)
    monkeypatch.setattr(neighbours, "faiss_on_gpu", wrong)
    with pytest.raises(RuntimeError, match="k = 0"):
        nearest_neighbours(rows_of("spread"), rows_of("spread"), 5)


def test_gpus_search_at_the_same_time(gpus: Stood, monkeypatch: pytest.MonkeyPatch) -> None:
    """faiss waits for its GPU where it frees memory; the others must not wait for that."""
    gpus(3)
    together = threading.Barrier(3, timeout=30)

    def waiting(*given: Any) -> Any:
        together.wait()  # broken unless all three are in it
        return on_gpu(*given)

    monkeypatch.setattr(neighbours, "faiss_on_gpu", waiting)
    made = iter(range(9))
    monkeypatch.setattr(neighbours, "faiss_resources", lambda: next(made))
    nearest_neighbours(rows_of("spread"), rows_of("spread"), 5)
    assert next(made) == 3, "faiss's memory is for one thread"


def unrefined(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NeighbourSearch, "_order_near_ties", lambda *_: NO_TIES)


def without_ties_across_the_last_place(patch: pytest.MonkeyPatch) -> None:
    def first_row(self: Any, rows: Any, k: int, _: Any) -> Any:
        return np.zeros((len(rows), k), int), NO_TIES

    patch.setattr(NeighbourSearch, "_nearest_in_full_rows", first_row)


def too_few_candidates(patch: pytest.MonkeyPatch) -> None:
    def half(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        squared, index = on_gpu(*given)
        kept = torch.arange(squared.shape[1]) // 2  # every other one is found twice instead
        return squared[:, kept], index[:, kept]

    patch.setattr(neighbours, "faiss_on_gpu", half)


def shards_with_a_wrong_offset(patch: pytest.MonkeyPatch) -> None:
    search = RowsOnGPUs.search

    def shifted(self: RowsOnGPUs, *given: Any) -> Any:
        self.starts = range(0, 2 * len(self.shards), 2)
        return search(self, *given)

    patch.setattr(RowsOnGPUs, "search", shifted)


def only_the_first_shard(patch: pytest.MonkeyPatch) -> None:
    search = RowsOnGPUs.search

    def first(self: RowsOnGPUs, *given: Any) -> Any:
        self.shards = self.shards[:1]
        self.starts = self.starts[:1]
        return search(self, *given)

    patch.setattr(RowsOnGPUs, "search", first)


def no_cap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(neighbours, "MAX_ON_GPU", 2048)


BUGS = (
    unrefined,
    without_ties_across_the_last_place,
    too_few_candidates,
    shards_with_a_wrong_offset,
    only_the_first_shard,
    no_cap,
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_seen(bug: Callable[[pytest.MonkeyPatch], None], gpus: Stood) -> None:
    with pytest.MonkeyPatch.context() as patch:

        def with_bug(count: int) -> None:
            gpus(count)
            bug(patch)

        if bug is no_cap:
            with pytest.raises(RuntimeError, match="beyond what faiss finds"):
                differences(with_bug, 2)
        else:
            assert differences(with_bug, 2, ("spread", "integers", "nearly equal"))


def test_where_faiss_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    found = neighbours.gpus_of_faiss
    one, unnumbered = torch.device("cuda", 1), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(neighbours, "faiss", SimpleNamespace(StandardGpuResources=None, get_num_gpus=lambda: 2))
    assert found(one) == [one]
    assert found(unnumbered) == [torch.device("cuda", 0), one]
    assert found(torch.device("cpu")) == []
    monkeypatch.setattr(neighbours, "faiss", SimpleNamespace(StandardGpuResources=None, get_num_gpus=lambda: 0))
    assert found(one) == []  # no driver
    monkeypatch.setattr(neighbours, "faiss", SimpleNamespace(get_num_gpus=lambda: 2))
    assert found(one) == []  # built without GPUs
    monkeypatch.setattr(neighbours, "faiss", None)
    assert found(one) == []
