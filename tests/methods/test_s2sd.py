"""S2SD against slow versions of its terms."""

from typing import Any, cast

import pytest
import torch
from pydantic import ValidationError
from torch import Generator, Tensor

from methods.objectives import cosine_similarity, multi_similarity, normalized_softmax, pair_masks
from methods.s2sd import S2SD, similarity_divergence, widths
from orchestrator.check.subject import CPU, MADE, TRAIN_ROWS, Subject, terms_of
from orchestrator.data.store import Store
from orchestrator.method import Task
from orchestrator.training.embed import run_network

ROWS = TRAIN_ROWS[:24:2]


def unit(rows: Tensor) -> Tensor:
    return torch.stack([row / row.norm() for row in rows])


def slow(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The divergence, one pair of images at a time."""
    count, sums = len(student), []
    for i in range(count):
        p, q = (
            torch.stack([(rows[i] @ rows[j] / temperature).exp() for j in range(count)]) for rows in (teacher, student)
        )
        p, q = p / sum(p), q / sum(q)
        sums += [p[j] * (p[j] / q[j]).log() for j in range(count)]
    return temperature**2 * torch.stack(sums).sum() / count


def released(rows: Tensor, labels: list[int], beta: float = 40.0) -> Tensor:
    """The released multi-similarity, an image at a time: those for which mining keeps no pairs are left out."""
    losses = []
    for i, label in enumerate(labels):
        own = [rows[i] @ rows[j] for j in range(len(rows)) if labels[j] == label and j != i]
        other = [rows[i] @ rows[j] for j in range(len(rows)) if labels[j] != label]
        kept = [s for s in own if s - 0.1 < max(other)], [s for s in other if s + 0.1 > min(own)]
        if kept[0] and kept[1]:
            pull, push = (
                sum(((a * (s - 0.5)).exp() for s in part), torch.tensor(1.0))
                for a, part in zip((-2.0, beta), kept, strict=True)
            )
            losses.append(pull.log() / 2 + push.log() / beta)
    return torch.stack(losses).mean() if losses else rows.sum() * 0


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
def test_the_divergence_is_of_each_row_and_teaches_the_student_alone(temperature: float) -> None:
    generator = Generator().manual_seed(0)
    made = (torch.randn(5, size, dtype=torch.float64, generator=generator) for size in (3, 7))
    student, teacher = (unit(rows).requires_grad_() for rows in made)
    found, wanted = similarity_divergence(student, teacher, temperature), slow(student, teacher, temperature)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(value, student)[0] for value in (found, wanted)))
    assert torch.autograd.grad(similarity_divergence(student, teacher), teacher, allow_unused=True)[0] is None
    assert similarity_divergence(student, student, temperature) == 0
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        similarity_divergence(student, teacher, 0.0)


@pytest.mark.parametrize("objective", ["multi_similarity", "normalized_softmax"])
def test_the_terms_are_those_of_the_embedding_and_of_each_wider_one(objective: str) -> None:
    settings: dict[str, Any] = {"widths": "9, 12", "distillation_weight": 3.0, "distillation_temperature": 0.5}
    settings |= {"features_weight": 2.0, "features_start": 4, "objective": objective}
    subject = Subject(S2SD, settings)
    learner, late = subject.learner(), subject.batch(ROWS, step=4)
    method, network = learner.method, learner.network
    assert isinstance(method, S2SD) and "features" not in terms_of(learner, subject.batch(ROWS, step=3))
    found = terms_of(learner, late)

    outputs, heads = network(late.images), network.heads
    features = outputs["features"]
    layers: Any = [heads["wide_0"], heads["wide_1"]]
    wide = [unit((features @ a.weight.T + a.bias).clamp(min=0) @ b.weight.T + b.bias) for a, _, b in layers]
    assert [rows.shape[1] for rows in wide] == [9, 12]
    z, labels = unit(outputs["embedding"]), late.labels

    def of(rows: Tensor, number: int) -> Tensor:
        if objective == "multi_similarity":
            return released(rows, labels[:, 0].tolist())
        proxies: Any = method.bases[number].proxies
        return normalized_softmax(
            cosine_similarity(rows, proxies()), *pair_masks(labels, proxies.labels, same=False), temperature=0.05
        )

    wanted = {
        "loss": of(z, 0) / 2,
        "auxiliary": (of(wide[0], 1) + of(wide[1], 2)) / 4,
        "distillation": 3 * (slow(z, wide[0], 0.5) + slow(z, wide[1], 0.5)) / 2,
        "features": 2 * slow(z, unit(features), 0.5),
    }
    assert found.keys() == wanted.keys()
    for name, term in wanted.items():
        torch.testing.assert_close(found[name], term)
    trained = {id(parameter) for group in method.parameter_groups(1.0) for parameter in group["params"]}
    assert trained == {id(parameter) for parameter in method.parameters()}


def test_the_released_objective_is_the_mean_over_the_images_that_keep_pairs() -> None:
    """Where most are told apart it is many times that of the equation, whose sharpness is another too."""
    centres = torch.eye(10, dtype=torch.float64).repeat_interleave(2, 0)
    noise = torch.randn(20, 10, dtype=torch.float64, generator=Generator().manual_seed(0))
    far, labels = unit(centres + 0.05 * noise), torch.arange(10).repeat_interleave(2)[:, None]
    far = torch.cat([far[:-1], unit(centres[:1] + centres[-1:])]).requires_grad_()  # one image between two classes
    losses = {}
    printed: dict[str, Any] = {"formula": "printed"}
    for form, settings in (("as before", printed), ("printed", printed | {"beta": 40.0}), ("released", {})):
        method = S2SD(S2SD.Config(widths="9", **settings), Task(10, 10, 4))
        base: Any = method.bases[0]
        losses[form] = method._objective(base, {"embedding": far}, labels, Generator())
    wanted = released(far, labels[:, 0].tolist())
    torch.testing.assert_close(losses["released"], wanted)
    torch.testing.assert_close(
        *(torch.autograd.grad(v, far, retain_graph=True)[0] for v in (losses["released"], wanted))
    )
    assert (losses["released"] / losses["printed"]).item() == pytest.approx(20)
    masks = pair_masks(labels, labels, same=True)
    torch.testing.assert_close(losses["as before"], multi_similarity(cosine_similarity(far, far), *masks))
    assert S2SD.Config(objective="contrastive", formula="printed").idle()["formula"] == ("objective",)
    none = method._objective(base, {"embedding": centres.requires_grad_()}, labels, Generator())
    assert none == 0 and none.requires_grad


def test_the_heads_learn_from_their_objective_alone_and_the_network_from_all() -> None:
    learner, batch = (subject := Subject(S2SD, {"widths": "9"})).learner(), subject.batch(ROWS)
    terms = terms_of(learner, batch)
    head = learner.network.heads["wide_0"][0].weight  # type: ignore[index]
    assert torch.autograd.grad(terms["distillation"], head, retain_graph=True, allow_unused=True)[0] is None
    assert torch.autograd.grad(terms["auxiliary"], head)[0].any()


def test_an_evaluation_computes_the_embedding_alone() -> None:
    learner = Subject(S2SD, {"features_weight": 1.0}).learner()
    found = run_network(learner, cast(Store, MADE), TRAIN_ROWS, CPU)
    assert {name: rows.shape[1] for name, rows in found.items() if rows.shape[1]} == {"embedding": 8}
    assert learner.training and learner.outputs(torch.zeros(2, 1, 12, 12).double())["wide_3"].shape == (2, 128)


@pytest.mark.parametrize(("dim", "expected"), [(8, [32, 64, 96, 128]), (512, [2048]), (4096, [4096])])
def test_the_default_widths_follow_the_embedding(dim: int, expected: list[int]) -> None:
    assert widths(S2SD.Config(), Task(3, dim, 1)) == expected


def test_the_widths_of_the_paper_stand_beside_its_embedding() -> None:
    assert widths(S2SD.Config(), Task(3, 128, 1)) == [512, 1024, 1536, 2048]


@pytest.mark.parametrize("given", ["512;1024", "0", "-3", "1.5", "9999999"])
def test_widths_that_cannot_be_read_are_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="should be whole numbers from 1 to 100000, separated by commas"):
        S2SD.Config(widths=given)
