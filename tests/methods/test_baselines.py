"""The baselines: each is its objective over its references, and what composed methods take of them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import Field, ValidationError
from support import references as slow
from torch import Generator, Tensor

from methods import baselines
from methods.baselines import Baseline, Contrastive, MultiSimilarity
from methods.bases import OverConfig
from methods.fast_ap import FastAP
from methods.memory import Memory
from orchestrator.method import Batch, Task

D, C = 6, 4
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 2, 3])
BASELINES = {
    found.name: found
    for found in (*vars(baselines).values(), FastAP)
    if isinstance(found, type) and issubclass(found, Baseline) and found is not Baseline
}
EXTRA: dict[str, dict[str, Any]] = {"margin": {"learn_beta": "no"}}


def build(name: str, **settings: Any) -> Baseline:
    torch.manual_seed(0)
    baseline = BASELINES[name]
    return baseline(baseline.Config(**EXTRA.get(name, {}) | settings), Task(C, D, D)).double()


def batch(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(len(LABELS), D, dtype=torch.float64, generator=generator), dim=1)


def terms(method: Baseline, z: Tensor, labels: Tensor = LABELS, samples: Tensor | None = None) -> dict[str, Tensor]:
    samples = torch.arange(len(z)) if samples is None else samples
    given = Batch(torch.empty(0), labels[:, None], samples)
    return method.step(given, lambda images: {"embedding": z}, Generator().manual_seed(5))


def expected(name: str, matrix: Tensor, positive: Tensor, negative: Tensor, method: Baseline) -> Tensor:
    """By the slow references, with the paper's settings written out."""
    by_hand: dict[str, Any] = {
        "contrastive": lambda: slow.contrastive(matrix, positive, negative, 0.0, 0.5, "nonzero"),
        "triplet": lambda: slow.triplet(matrix, positive, negative, 0.1, "semihard"),
        "multi_similarity": lambda: slow.multi_similarity(matrix, positive, negative, 2.0, 50.0, 0.5, 0.1),
        "fast_ap": lambda: slow.fast_ap(matrix, positive, negative, 10),
        "proxy_nca": lambda: slow.proxy_nca(matrix, positive, negative, 1.0, False),
        "proxy_nca_plus_plus": lambda: slow.proxy_nca(matrix, positive, negative, 10.0, True),
        "proxy_anchor": lambda: slow.proxy_anchor(matrix, positive, negative, 32.0, 0.1),
        "normalized_softmax": lambda: slow.normalized_softmax(matrix, positive, negative, 0.05),
        "soft_triple": lambda: (
            slow.soft_triple(matrix, positive, negative, 10, 20.0, 0.1, 0.01)
            + 0.2 * slow.centre_merging(method.proxies(), 10)
        ),
    }
    return by_hand[name]()  # type: ignore[no-any-return]


MATRIX = {
    "contrastive": slow.distances,
    "triplet": slow.distances,
    "fast_ap": slow.distances,
    "multi_similarity": lambda z, r: z @ r.T,
    "proxy_nca": lambda z, r: slow.distances(z, r) ** 2,
    "proxy_nca_plus_plus": lambda z, r: -(z @ r.T),
    "proxy_anchor": lambda z, r: z @ r.T,
    "normalized_softmax": lambda z, r: z @ r.T,
    "soft_triple": lambda z, r: z @ r.T,
}


@pytest.mark.parametrize("name", sorted(MATRIX))
def test_a_baseline_is_its_objective_over_its_references(name: str) -> None:
    method, z = build(name), batch().requires_grad_()
    sets = [{int(label)} for label in LABELS]
    if method.config.references == "proxies":
        rows, theirs, same = method.proxies(), [{int(label)} for label in method.proxies.labels], False
    else:
        rows, theirs, same = z, sets, True
    positive, negative = slow.masks(sets, theirs, same)
    value = expected(name, MATRIX[name](z, rows), positive, negative, method)
    (found,) = terms(method, z).values()
    assert found.item() == pytest.approx(value.item(), rel=1e-10)
    (gradient,) = torch.autograd.grad(found, z)
    (slowly,) = torch.autograd.grad(value, z)
    assert torch.allclose(gradient, slowly, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("learned", ["no", "one", "per_class"])
def test_margin_draws_by_the_generator_and_learns_its_boundary(learned: str) -> None:
    z = batch()
    first, again = (terms(build("margin", learn_beta=learned), z)["loss"] for _ in range(2))
    assert torch.equal(first, again) and first > 0
    method = build("margin", learn_beta=learned, beta=1.1)
    assert sum(p.numel() for p in method.parameters()) == {"no": 0, "one": 1, "per_class": C}[learned]
    if learned != "no":
        terms(method, z)["loss"].backward()
        beta = method.beta
        assert isinstance(beta, Tensor) and beta.grad is not None and beta.grad.abs().sum() > 0
        (group,) = method.parameter_groups(0.01)
        assert group["lr"] == pytest.approx(1.0)


@pytest.mark.parametrize("name", sorted(BASELINES))
@pytest.mark.parametrize("metric", ["euclidean", "squared_euclidean", "cosine"])
@pytest.mark.parametrize("source", ["batch", "proxies", "memory", "batch+memory"])
def test_every_choice_trains_or_is_refused(name: str, metric: str, source: str) -> None:
    settings: dict[str, Any] = {"metric": metric, "references": source}
    settings |= {"memory_start": 0, "memory_size": 20} if "memory" in source else {}
    if (name in ("margin", "fast_ap") and metric != "euclidean") or (name == "soft_triple" and source != "proxies"):
        with pytest.raises(ValidationError):
            build(name, **settings)
        return
    method = build(name, **settings)
    for seed in range(2):
        z = batch(seed).requires_grad_()
        found = terms(method, z, samples=torch.arange(8) + 8 * seed)
        assert set(found) == {"batch": {"loss"}, "proxies": {"loss"}, "memory": {"memory"}}.get(
            source, {"loss", "memory"}
        )
        total = torch.stack(list(found.values())).sum()
        assert torch.isfinite(total)
    total.backward()
    assert z.grad is not None and torch.isfinite(z.grad).all()


# Memory ----------------------------------------------------------------------------------------------------


def test_the_memory_is_a_queue_that_never_pairs_a_sample_with_its_own_copy() -> None:
    memory = Memory(5, 0, 2)
    positive, negative = memory.pair_masks(torch.tensor([0]), torch.tensor([0]))
    assert not positive.any() and not negative.any(), "an empty memory holds no pairs"
    memory.push(torch.ones(3, 2), torch.tensor([0, 0, 1]), torch.tensor([10, 11, 12]))
    memory.push(2 * torch.ones(3, 2), torch.tensor([1, 0, 2]), torch.tensor([13, 14, 15]))
    assert memory.samples.tolist() == [15, 11, 12, 13, 14]
    assert memory.embeddings[:, 0].tolist() == [2, 1, 1, 2, 2]
    positive, negative = memory.pair_masks(torch.tensor([0, 2]), torch.tensor([11, 99]))
    assert positive.tolist() == [[False, False, False, False, True], [True, False, False, False, False]]
    assert negative.tolist() == [[True, False, True, True, False], [False, True, True, True, True]]
    memory.push(3 * torch.ones(7, 2), torch.arange(7), torch.arange(7))
    assert sorted(memory.samples.tolist()) == [2, 3, 4, 5, 6], "the end of a batch larger than the queue"


def test_xbm_starts_after_its_plain_steps_and_compares_with_what_it_kept() -> None:
    method = build("contrastive", references="batch+memory", memory_start=1, memory_size=16, average="all")
    plain = build("contrastive", average="all")
    z = [batch(seed) for seed in range(3)]
    samples = [torch.arange(8) + 8 * step for step in range(3)]
    assert set(terms(method, z[0], samples=samples[0])) == {"loss"}
    assert (method.memory.labels == -1).all()
    first = terms(method, z[1], samples=samples[1])
    assert first["memory"] == 0, "nothing was kept yet"
    second = terms(method, z[2], samples=samples[2])
    assert second["loss"] == terms(plain, z[2])["loss"]
    sets = [{int(label)} for label in LABELS]
    positive, negative = slow.masks(sets, sets, same=False)
    value = slow.contrastive(slow.distances(z[2], z[1]), positive, negative, average="all")
    assert second["memory"].item() == pytest.approx(value.item(), rel=1e-6)  # the memory is float32 until .double()


def test_the_memory_may_be_read_after_the_next_batch_was_taken_up() -> None:
    method = build("contrastive", references="memory", memory_start=0, memory_size=8)
    terms(method, batch(0), samples=torch.arange(8))
    z = batch(1).requires_grad_()
    terms(method, z, samples=torch.arange(8) + 8)["memory"].backward()
    assert z.grad is not None and z.grad.abs().sum() > 0
    assert not method.memory.embeddings.requires_grad


# As the base of other methods ------------------------------------------------------------------------------


class Composed(OverConfig, over={Contrastive: {"references": "proxies"}, MultiSimilarity: {"epsilon": None}}):
    tau: float = Field(5.0, gt=0)


def test_a_composed_config_holds_the_hyperparameters_of_its_base() -> None:
    config = Composed.model_validate({"objective": "multi_similarity", "alpha": 3.0, "tau": 1.0})
    held = config.model_dump()
    assert [held[key] for key in ("tau", "alpha", "beta", "epsilon")] == [1.0, 3.0, 50.0, None]
    assert held["neg_margin"] is None, "of another base"
    base = config.base_config()
    assert base == MultiSimilarity.Config.model_validate({"alpha": 3.0, "epsilon": None})
    assert Composed(**config.model_dump()) == config
    assert Composed().base_config() == Contrastive.Config(references="proxies")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"alpha": 3.0}, "alpha: contrastive has no such hyperparameter; it has .*neg_margin"),
        (
            {"objective": "multi_similarity", "alpha": -1.0},
            "alpha: -1.0: should be .*, with multi_similarity",
        ),
        ({"objective": "triplet"}, "'contrastive' or 'multi_similarity'"),
        ({"tau": 0.0}, "greater than 0"),
        ({"taw": 1.0}, "Extra inputs"),
    ],
)
def test_a_composed_config_refuses_what_its_base_would(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Composed(**given)
