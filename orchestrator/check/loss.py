"""Checks of the loss of one batch."""

import copy
import math
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from orchestrator.check.subject import (
    CHECKS,
    CLASSES,
    IMAGES_PER_CLASS,
    MADE,
    SUPER_CLASSES,
    TRAIN_ROWS,
    TRAINING,
    CheckFailed,
    CheckSkipped,
    Run,
    Subject,
    Unexcused,
    check,
    require,
    require_close,
    require_finite,
    rows_of_step,
    state_of,
    terms_of,
    training_state,
)
from orchestrator.errors import TrainingFailed, place_of
from orchestrator.method import Batch, Outputs, total
from orchestrator.training.embed import others_of, retrieval_of
from orchestrator.training.learner import Learner, require_terms
from orchestrator.training.optimizer import build_optimizer


@check
def terms(subject: Subject) -> None:
    """The loss is named scalars, finite, in float32 or better, with a gradient."""
    terms_of_batch = terms_of(subject.learner(), subject.batch(rows_of_step(0)))
    for name, term in terms_of_batch.items():
        require(
            isinstance(name, str) and bool(re.fullmatch(r"[\w./-]+", name)), f"{name!r} is not a valid name for a term"
        )
        require(isinstance(term, Tensor), f"term '{name}' is a {type(term).__name__}, not a tensor")
        require(term.ndim == 0, f"term '{name}' has shape {tuple(term.shape)}, it should be a scalar")
        wide = term.is_floating_point() and term.dtype.itemsize >= 4
        require(wide, f"term '{name}' is {term.dtype}, it should be float32 or better")
        require(term.dtype == torch.float64, f"term '{name}' is {term.dtype} of embeddings in float64")
        require(bool(torch.isfinite(term)), f"term '{name}' is {float(term.detach())}")
    require(total(terms_of_batch).requires_grad, "the loss has no gradient")
    without = {name for name, term in terms_of_batch.items() if not term.requires_grad}
    other = terms_of(subject.learner(seed=1), subject.batch(rows_of_step(0))) if without else {}
    for name in without & other.keys():
        constant = torch.equal(terms_of_batch[name], other[name])
        require(constant, f"term '{name}' depends on the network, but is without a gradient: it is detached")


@check
def parameter_groups(subject: Subject) -> None:
    """Every parameter is in exactly one optimiser group, at a learning rate above zero."""
    for group in build_optimizer(subject.learner(), TRAINING).param_groups:
        rate = float(group["lr"])
        require(math.isfinite(rate) and rate > 0, f"a learning rate is {rate}")


@check
def gradients(subject: Subject) -> None:
    """Every parameter gets a finite gradient, and it is not zero of the embeddings, the heads or the method's own."""
    learner = subject.learner()
    moved: dict[str, bool] = {}
    noise = Generator().manual_seed(0)
    for step in range(4):  # a gradient may be zero by chance: if hinges cancel, or if a batch lacks a class
        learner.zero_grad(set_to_none=True)
        total(terms_of(learner, subject.batch(rows_of_step(step)))).backward()  # type: ignore[no-untyped-call]
        for name, parameter in learner.named_parameters():
            if not parameter.requires_grad or not parameter.numel():
                continue
            if parameter.grad is None:
                raise CheckFailed(f"{name} gets no gradient")
            require(bool(torch.isfinite(parameter.grad).all()), f"the gradient of {name} is not finite")
            moved[name] = moved.get(name, False) or bool(parameter.grad.any())
            if not moved[name]:
                with torch.no_grad():
                    parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=0.5)
        if all(moved.values()):
            break
    require(moved["network.head.weight"], "the loss does not move the embeddings")
    for name, anything in moved.items():
        require(anything or name.startswith("network.backbone."), f"the gradient of {name} is zero")


@check
def update(subject: Subject) -> None:
    """Training steps change parameters."""
    run = Run(subject)
    before = training_state(run)
    for _ in range(4):  # a method may gather the gradients of several batches
        run.step()
    after = training_state(run)
    changed = any(not torch.equal(value, after[name]) for name, value in before.items())
    require(changed, "update() changes no parameter: it should call engine.backward(loss), then engine.apply()")


@check
def without_positives(subject: Subject) -> None:
    """Finite on a batch in which no two samples share a class; without proxies, it does not pull them together."""
    batch = subject.batch(TRAIN_ROWS[::IMAGES_PER_CLASS][:6])
    require_finite(subject, batch)
    apart = torch.eye(len(batch.samples), TRAINING.embedding_dim, dtype=torch.float64)
    far, near = (_loss_of(subject, batch, embedding) for embedding in (apart, apart[:1].expand_as(apart)))
    if far is not None and near is not None:
        says = f"embeddings of classes that all coincide cost {near:g}, orthogonal ones {far:g}"
        require(near >= far - 1e-9 * max(1.0, abs(far)), f"{says}: negatives are pulled together")


def _loss_of(subject: Subject, batch: Batch, embedding: Tensor) -> float | None:
    """The loss if the network returns these embeddings for the batch; None for a method with parameters of its own,
    without classes, or that needs more than the batch."""
    learner = subject.learner()
    inputs: list[Tensor] = []

    def network(images: Tensor) -> Outputs:
        inputs.append(images)
        return learner.outputs(images) | {"embedding": embedding.clone()}

    if learner.method.sampler == "uniform" or any(parameter.numel() for parameter in learner.method.parameters()):
        return None
    loss = total(learner.method.step(batch, network, Generator().manual_seed(0)))
    return float(loss.detach()) if len(inputs) == 1 and torch.equal(inputs[0], batch.images) else None


@check
def without_negatives(subject: Subject) -> None:
    """Finite on a batch of one class among several."""
    rows = rows_of_step(0)
    require_finite(subject, subject.batch(rows, labels=torch.full((len(rows),), 3)))


@check
def one_class(subject: Subject) -> None:
    """Finite where the training has one class only."""
    rows = rows_of_step(0)
    require_finite(subject, subject.batch(rows, labels=torch.zeros(len(rows), dtype=torch.long)), num_classes=1)


@check
def coinciding_points(subject: Subject) -> None:
    """Finite where all embeddings of a batch coincide, its gradient too."""
    batch = subject.batch(rows_of_step(0))
    same = [view[:1].expand_as(view).clone() for view in batch.views]
    require_finite(subject, replace(batch, images=same[0], more_views=tuple(same[1:])))


@check
def zero_embedding(subject: Subject) -> None:
    """Finite in fp16 where the network's vector of an image is exactly zero, the gradient on it too."""
    learner = subject.learner(dtype=torch.float32)
    leaves: list[Tensor] = []

    def with_a_zero(network: nn.Module, images: Any, outputs: Outputs) -> Outputs:
        vectors = outputs["embedding"].detach().half()
        vectors[0] = 0
        leaves.append(vectors.requires_grad_())
        return outputs | {"embedding": vectors}

    learner.network.register_forward_hook(with_a_zero)
    for name, term in terms_of(learner, subject.batch(rows_of_step(0), dtype=torch.float32)).items():
        require(bool(torch.isfinite(term)), f"term '{name}' is {float(term.detach())}")
        for slope in torch.autograd.grad(term, leaves, retain_graph=True, allow_unused=True) if term.grad_fn else ():
            finite = slope is None or bool(torch.isfinite(slope).all())
            require(finite, f"the gradient of term '{name}' on a vector that is zero is not finite in fp16")


@check
def permutation(subject: Subject) -> None:
    """The order of the batch changes nothing: neither the terms nor any gradient.

    An expected failure is excused only where one process still equals two.
    """
    rows = rows_of_step(0)
    order = np.random.default_rng(0).permutation(len(rows))
    results = []
    for order_of_rows in (rows, rows[order]):
        learner = subject.learner()
        values = terms_of(learner, subject.batch(order_of_rows))
        total(values).backward()  # type: ignore[no-untyped-call]
        moved = {f"the gradient of {n}": p.grad for n, p in learner.named_parameters() if p.grad is not None}
        results.append({f"term '{name}'": term for name, term in values.items()} | moved)
    try:
        require_close(results[0], results[1], 1e-9, "with the batch in another order")
    except CheckFailed as failed:
        try:
            CHECKS["two_processes"](subject)
        except CheckSkipped:
            raise failed from None
        except Exception as error:
            raise Unexcused(f"{failed}; two_processes fails too ({error})") from None
        raise


@check
def renaming(subject: Subject) -> None:
    """The numbers of the classes change nothing, if what the method keeps of each class is renamed along.

    A method without numbers of its own is held to it exactly. Of one that has any, each parameter and buffer of
    floating point with a row per class (or M rows per class, class by class), or with a column per class, is put in
    the new order first; whatever has no dimension of that size must not matter.
    """
    renamed = torch.tensor([3, 0, 6, 1, 5, 2, 4])  # class c becomes renamed[c]
    old = torch.argsort(renamed)
    rows = rows_of_step(0)
    plain = subject.learner()
    other = subject.learner(super_classes=tuple(SUPER_CLASSES[label] for label in old.tolist()))
    state = [*other.method.parameters(), *other.method.buffers()]
    state += [*other.network.heads.parameters(), *other.network.heads.buffers()]
    with torch.no_grad():
        for tensor in state:
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            for dim, size in enumerate(tensor.shape):
                if size == CLASSES:
                    tensor.copy_(tensor.index_select(dim, old))
                elif dim == 0 and size % CLASSES == 0:
                    tensor.copy_(tensor.view(CLASSES, -1)[old].view_as(tensor))
    labels = torch.from_numpy(MADE.labels[rows].astype(np.int64))
    first = terms_of(plain, subject.batch(rows))
    second = terms_of(other, subject.batch(rows, labels=renamed[labels]))
    require_close(first, second, 1e-9, "with the classes numbered differently")


@check
def caching(subject: Subject) -> None:
    """A batch may pass the network a few images at a time: terms and state after two steps are those without that."""
    results = []
    for size in (None, 5):
        run = Run(subject, begun=True, images_per_pass=size)  # proxies that are embeddings have distances of rounding
        try:
            values = [run.step() for _ in range(2)]
        except TrainingFailed as error:
            raise CheckFailed(f"{error}{place_of(error)}") from error
        by_name = {
            f"term '{name}' of step {i + 1}": term for i, terms in enumerate(values) for name, term in terms.items()
        }
        results.append(by_name | state_of(run.learner))
    require_close(results[0], results[1], 1e-9, "with all images passing the network at once, then five")


@check
def inputs(subject: Subject) -> None:
    """It does not write into the batch, nor into what the network says of it."""
    learner = subject.learner()
    batch = subject.batch(rows_of_step(0))
    before = copy.deepcopy((*batch.views, batch.labels, batch.samples))
    pairs: list[tuple[Outputs, Outputs]] = []

    def network(images: Tensor) -> Outputs:
        outputs = learner.outputs(images)
        pairs.append((outputs, {name: output.detach().clone() for name, output in outputs.items()}))
        return dict(outputs)

    learner.method.step(batch, network, Generator().manual_seed(0))
    names = *["images"] * len(batch.views), "labels", "samples"
    for name, saved, now in zip(names, before, (*batch.views, batch.labels, batch.samples), strict=True):
        require(torch.equal(now, saved), f"it changes the batch's {name} in place")
    for outputs, kept_outputs in pairs:
        for name, output in outputs.items():
            require(torch.equal(output.detach(), kept_outputs[name]), f"it changes the network's '{name}' in place")


@check
def normalize(subject: Subject) -> None:
    """An embedding is normalised by itself, in training as in evaluation, and stays finite."""
    method = subject.learner().method.eval()
    points = torch.randn(5, TRAINING.embedding_dim, dtype=torch.float64, generator=Generator().manual_seed(0))
    points[4] = 0
    together = method.normalize(points.clone())
    alone = torch.cat([method.normalize(point[None].clone()) for point in points])
    require(together.shape == points.shape, f"(B, D) = {tuple(points.shape)} became {tuple(together.shape)}")
    require(bool(torch.isfinite(together).all()), "a normalised embedding is not finite")
    require_close({"an embedding": together}, {"an embedding": alone}, 1e-12, "normalised in a batch, then alone")
    training = method.train().normalize(points.clone())
    require_close(
        {"an embedding": together}, {"an embedding": training}, 1e-12, "normalised in evaluation, then in training"
    )


@check
def retrieval(subject: Subject) -> None:
    """What an image is ranked by, and its other embeddings, are finite rows that depend on this image alone."""
    learner = subject.learner().eval()
    outputs = {name: output.detach() for name, output in learner.outputs(subject.batch(rows_of_step(0)).images).items()}
    results = []
    for start, stop in [(0, len(outputs["embedding"])), *((i, i + 1) for i in range(len(outputs["embedding"])))]:
        try:
            block = {name: output[start:stop] for name, output in outputs.items()}
            rows = [*(retrieval_of(learner.method, block) or ()), *others_of(learner.method, block).values()]
        except TrainingFailed as error:
            raise CheckFailed(f"{error}{place_of(error)}") from error
        if not rows:  # the embedding alone, which `normalize` is checked for
            return
        results.append(torch.cat(rows, dim=1))
    together, alone = ({"the rows of an image": rows} for rows in (results[0], torch.cat(results[1:])))
    require_close(together, alone, 1e-12, "of a batch, then of each image alone")


@check
def repeatable(subject: Subject) -> None:
    """The same state, batch and random generator give the same bits."""
    batch = subject.batch(rows_of_step(0))
    first, second = (terms_of(subject.learner(), batch) for _ in range(2))
    require_close(first, second, 0.0, "computed once, then again")


@check
def global_rng(subject: Subject) -> None:
    """It draws from the generator that it is given, never from the global ones of torch, numpy or Python."""
    run = Run(subject, begun=True)
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()  # noqa: NPY002
    run.begin()
    run.step()
    run.validate()
    after = torch.get_rng_state(), str(np.random.get_state()), random.getstate()  # noqa: NPY002
    require(torch.equal(before[0], after[0]), "it draws from torch's global generator: draw from rng")
    require(before[1] == after[1], "it draws from numpy's global generator: draw from rng")
    require(before[2] == after[2], "it draws from Python's global generator: draw from rng")


@check
def float32(subject: Subject) -> None:
    """In float32 its terms and gradients are those of float64, to 1e-3 and 1e-2."""
    _require_alike(subject, {"float32": (torch.float32, None), "float64": (torch.float64, None)}, 1e-3, 1e-2)


@check
def bf16(subject: Subject) -> None:
    """Under bf16 autocast its terms are float32, to 1e-4 those without it of the same outputs; gradients to 1e-3."""
    _require_alike(
        subject, {"bf16 autocast": (torch.float32, torch.bfloat16), "float32": (torch.float32, None)}, 1e-4, 1e-3
    )


@check
def fp16(subject: Subject) -> None:
    """Under fp16 autocast its terms are float32, to 1e-4 those without it of the same outputs; gradients to 1e-3."""
    _require_alike(
        subject, {"fp16 autocast": (torch.float32, torch.float16), "float32": (torch.float32, None)}, 1e-4, 1e-3
    )


def _require_alike(
    subject: Subject, kinds: dict[str, tuple[torch.dtype, torch.dtype | None]], of_terms: float, of_gradients: float
) -> None:
    """Both get the same network outputs in float32, so that the method's own arithmetic is compared: its type, and that
    of autocast."""
    rows, said = rows_of_step(0), list[Outputs]()
    results: list[tuple[dict[str, Tensor], list[Tensor]]] = []
    for kind, (dtype, half) in kinds.items():
        learner, leaves = subject.learner(dtype=dtype), list[Outputs]()

        def network(
            images: Tensor, learner: Learner = learner, leaves: list[Outputs] = leaves, dtype: torch.dtype = dtype
        ) -> Outputs:
            if len(said) == len(leaves):
                with torch.autocast("cpu", enabled=False):
                    said.append({name: output.detach() for name, output in learner.outputs(images).items()})
            given = said[len(leaves)]
            leaves.append({name: output.to(dtype, copy=True).requires_grad_() for name, output in given.items()})
            return dict(leaves[-1])

        with torch.autocast("cpu", dtype=half or torch.bfloat16, enabled=half is not None):
            said_of = learner.method.step(subject.batch(rows, dtype=dtype), network, Generator().manual_seed(0))
        found = require_terms(learner.method, said_of, "loss() or step()")
        for name, term in found.items():
            wide = term.dtype.itemsize >= 4
            require(wide, f"in {kind} term '{name}' is {term.dtype}, it should be float32 or better")
        points = [output for outputs in leaves for output in outputs.values()]
        moved = torch.autograd.grad(total(found), points, allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(points, moved, strict=True)]
        results.append(({name: term.detach().double() for name, term in found.items()}, filled))
    (rough, rough_gradients), (exact, exact_gradients) = results
    first, second = kinds
    require_close(rough, exact, of_terms, f"in {first}, then in {second}", least=1e-2)
    size = math.sqrt(sum(float(g.square().sum()) for g in exact_gradients))
    pairs = zip(rough_gradients, exact_gradients, strict=True)
    gap = math.sqrt(sum(float((g.double() - e).square().sum()) for g, e in pairs))
    require(
        gap <= of_gradients * size + 1e-9,
        f"in {first} the gradient on the embeddings is off by {gap:.2g} of {size:.2g}",
    )
