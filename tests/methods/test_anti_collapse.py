"""Anti-Collapse's pure functions and its losses against slow float64 versions, written from the formulas."""

import copy
import csv
import math
import sys

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from support import references as slow

from methods import anti_collapse
from methods.anti_collapse import (
    AntiCollapse,
    batch_proxy_coding_rate,
    coding_rate,
    density,
    encode_texts,
    euclidean_density,
    language_guidance,
    mean_coding_rate,
    read_texts,
    similarity_histograms,
)
from orchestrator.config.training import Training, resolve_experiment
from orchestrator.data.samplers import ClassBalancedSampler, UniformSampler
from orchestrator.data.splits import class_split, train_labels
from orchestrator.errors import InputError
from orchestrator.method import Batch, Embedded, Task
from orchestrator.storage.trial_folder import BEST, CHECKPOINT, DIAGNOSTICS
from orchestrator.training.checkpoint import load_checkpoint
from orchestrator.training.embed import evaluate_model
from orchestrator.training.loop import fit
from orchestrator.training.splits import build_sampler


def reference_coding_rate(x: np.ndarray, epsilon: float) -> float:
    """From the eigenvalues of the (D, D) matrix."""
    n, dim = x.shape
    eigenvalues = np.linalg.eigvalsh(np.eye(dim) + dim / (n * epsilon**2) * x.T @ x)
    return 0.5 * float(np.log(eigenvalues).sum())


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(rows, dim=1)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2])
@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (4, 7), (7, 4), (6, 6)])
def test_coding_rate_and_its_gradient(shape, epsilon):
    x = unit(*shape).requires_grad_()
    rate = coding_rate(x, epsilon)
    array = x.detach().numpy()
    assert rate.item() == pytest.approx(reference_coding_rate(array, epsilon), rel=1e-12)
    (gradient,) = torch.autograd.grad(rate, x)
    n, dim = shape
    factor = dim / (n * epsilon**2)
    expected = factor * array @ np.linalg.inv(np.eye(dim) + factor * array.T @ array)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_coding_rate_is_largest_for_orthogonal_rows_and_smallest_for_equal_ones():
    orthogonal, equal = torch.eye(8), unit(1, 8).float().expand(8, 8)
    assert coding_rate(orthogonal).item() == pytest.approx(4 * math.log(1 + 8 / (8 * 0.25)))
    assert coding_rate(equal).item() == pytest.approx(0.5 * math.log(1 + 8 / 0.25))
    assert coding_rate(equal) < coding_rate(unit(8, 8)) < coding_rate(orthogonal)


@pytest.mark.parametrize("shape", [(90, 512), (2000, 128)])
def test_coding_rate_in_float32_under_autocast_with_fast_products(shape):
    x = unit(*shape)
    expected = reference_coding_rate(x.float().double().numpy(), 0.5)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rate = coding_rate(x.float())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert rate.dtype == torch.float32
    assert rate.item() == pytest.approx(expected, rel=1e-5)
    collapsed = x[:1].float().repeat(shape[0], 1).requires_grad_()
    coding_rate(collapsed).backward()
    assert collapsed.grad is not None and torch.isfinite(collapsed.grad).all()


def test_coding_rate_refuses_what_it_cannot_read():
    with pytest.raises(ValueError, match=r"n >= 1, got \(0, 4\)"):
        coding_rate(torch.zeros(0, 4))
    with pytest.raises(ValueError, match="epsilon must be a positive number, got 0"):
        coding_rate(torch.ones(2, 4), 0)


def test_mean_coding_rate_averages_classes():
    x, labels = unit(11, 4), torch.arange(11) % 3
    expected = np.mean([reference_coding_rate(x[labels == c].numpy(), 0.5) for c in range(3)])
    assert mean_coding_rate(x, labels).item() == pytest.approx(expected)
    with pytest.raises(ValueError, match="at least one row"):
        mean_coding_rate(x[:0], labels[:0])


@pytest.mark.parametrize("block", [1, 30, 2**22])
def test_the_euclidean_density_counts_every_pair(monkeypatch, block):
    monkeypatch.setattr(anti_collapse, "BLOCK", block)
    x, labels = unit(11, 4), torch.arange(11) % 3
    pairs = [(i, j) for i in range(11) for j in range(i)]
    within = [math.dist(x[i], x[j]) for i, j in pairs if labels[i] == labels[j]]
    across = [math.dist(x[i], x[j]) for i, j in pairs if labels[i] != labels[j]]
    assert euclidean_density(x, labels) == pytest.approx(np.mean(within) / np.mean(across))


def test_density_is_of_cosine_distances_averaged_over_classes():
    x, labels = unit(12, 4), torch.tensor([7, 7, 7, 7, 7, 7, 2, 2, 5, 5, 5, 9])
    within, across = [], []
    for one in (7, 2, 5, 9):
        own = [i for i in range(12) if labels[i] == one]
        within.append([1 - float(x[i] @ x[j]) for i in own for j in own if i != j])
        across.append([1 - float(x[i] @ x[j]) for i in own for j in range(12) if labels[j] != one])
    expected = np.mean([np.mean(pairs) for pairs in within if pairs]) / np.mean([np.mean(pairs) for pairs in across])
    assert density(x, labels) == pytest.approx(expected, rel=1e-12)
    by_pair = np.mean(np.concatenate(within)) / np.mean(np.concatenate(across))
    assert density(x, labels) != pytest.approx(by_pair, rel=1e-3)


def test_the_proxies_coding_rate_is_the_paper_s():
    """Figure 3's mean is 60.74 on CUB: 100 classes, 512 dimensions, a batch of 90 as 45 drawn classes of 2 images."""
    proxies, known = unit(100, 512), torch.arange(100)
    drawn = torch.randint(100, (200, 45), generator=torch.Generator().manual_seed(0)).repeat_interleave(2, dim=1)
    found = batch_proxy_coding_rate(proxies, known, drawn.flatten(), 90)
    assert found == pytest.approx(60.74, abs=0.5)
    first = proxies[drawn[0].unique()]
    gram = torch.eye(512, dtype=torch.float64) + 512 / (len(first) * 0.5) * first.T @ first
    assert batch_proxy_coding_rate(proxies, known, drawn[0], 90) == pytest.approx(0.5 * torch.logdet(gram).item())
    assert coding_rate(first).item() > 67  # Eq. 1's factor, D / (n epsilon^2)


@pytest.mark.parametrize("function", [density, euclidean_density])
@pytest.mark.parametrize("labels", [torch.zeros(4), torch.arange(4)])
def test_density_needs_both_kinds_of_pairs(labels, function):
    with pytest.raises(ValueError, match="pairs within a class and pairs across classes"):
        function(unit(4, 3), labels)
    with pytest.raises(ValueError, match="coincide"):
        function(unit(1, 3).expand(4, 3), torch.tensor([0, 0, 1, 1]))


def test_density_of_close_embeddings_is_as_exact_as_by_differences():
    x, labels = unit(1, 64) + 1e-5 * unit(12, 64, seed=1), torch.arange(12) % 4
    distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    same = (labels[:, None] == labels).numpy()
    within, across = distance[np.triu(same, 1)].mean(), distance[np.triu(~same, 1)].mean()
    assert euclidean_density(x, labels) == pytest.approx(within / across, rel=1e-4)
    with pytest.raises(ValueError, match="coincide"):
        euclidean_density(unit(1, 64).expand(12, 64) * (1 + 1e-15 * torch.arange(12)[:, None]), labels)


@pytest.mark.parametrize("block", [1, 30, 2**22])
def test_similarity_histograms_count_every_pair_once(monkeypatch, block):
    monkeypatch.setattr(anti_collapse, "BLOCK", block)
    x, labels = unit(23, 3), torch.arange(23) % 4
    x[5], x[6] = x[4], -x[4]  # similarities of 1 and -1, on the outer edges
    pairs = [(i, j) for i in range(23) for j in range(i)]
    edges = np.linspace(-1, 1, 11)
    similarity = np.clip([float(x[i] @ x[j]) for i, j in pairs], -1, 1)
    same = np.array([bool(labels[i] == labels[j]) for i, j in pairs])
    positive, negative = similarity_histograms(x, labels, bins=10)
    assert positive.tolist() == np.histogram(similarity[same], edges)[0].tolist()
    assert negative.tolist() == np.histogram(similarity[~same], edges)[0].tolist()


def test_language_guidance_is_the_divergence_of_visual_from_language_rows():
    visual, language = unit(5, 4).requires_grad_(), unit(5, 7, seed=1).requires_grad_()
    loss = language_guidance(visual, language, temperature=0.2)
    expected = 0.0
    v, w = visual.detach().numpy(), language.detach().numpy()
    for i in range(5):
        others = [j for j in range(5) if j != i]
        p = np.exp([w[i] @ w[j] / 0.2 for j in others])
        q = np.exp([v[i] @ v[j] / 0.2 for j in others])
        p, q = p / p.sum(), q / q.sum()
        expected += float((p * np.log(p / q)).sum()) / 5
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert visual.grad is not None and visual.grad.abs().max() > 0
    assert language.grad is None
    assert language_guidance(visual, visual.detach()).item() == pytest.approx(0, abs=1e-12)
    alone = language_guidance(visual[:1], language[:1])
    assert alone == 0
    assert alone.requires_grad
    with pytest.raises(ValueError, match="a row per embedding, 5, got 4"):
        language_guidance(visual, language[:4])
    with pytest.raises(ValueError, match="temperature must be a positive number, got 0"):
        language_guidance(visual, language, temperature=0)


# As a method -----------------------------------------------------------------------------------------------

D, C = 6, 4
LABELS = torch.tensor([0, 0, 1, 1, 1, 3, 3])  # class 2 is not in the batch
NAMES = ("hen", "owl, barn", "tit", "jay")
TRAINING = {"dataset": "glyphs-small", "embedding_dim": 8, "classes_per_batch": 6, "images_per_class": 2}
TRAINING |= {"validate_every": "3 steps", "epochs": 1, "device": "cpu", "method": "anti_collapse"}
LABEL_FREE = {"form": "pair", "proxy_loss": False}


def build(class_names=NAMES, **settings):
    torch.manual_seed(0)
    return AntiCollapse(AntiCollapse.Config(**settings), Task(C, D, D, class_names)).double()


def terms(method, z, labels=LABELS):
    batch = Batch(torch.empty(0), labels[:, None], torch.arange(len(z)))
    return method.step(batch, lambda images: {"embedding": z}, torch.Generator())


def write_texts(path, names, width=5, seed=0):
    numbers = np.random.default_rng(seed).normal(size=(len(names), width))
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([name, *row] for name, row in zip(names, numbers, strict=True))
    return torch.from_numpy(numbers)


def rate(x, epsilon=0.5):
    """By the determinant of the (D, D) matrix."""
    n, dim = x.shape
    return torch.linalg.slogdet(torch.eye(dim).double() + dim / (n * epsilon**2) * x.T @ x).logabsdet / 2


def test_without_a_coding_rate_the_proxy_loss_and_the_guidance_are_left(tmp_path):
    write_texts(tmp_path / "t.csv", NAMES)
    guided = {"guidance_weight": 0.7, "text_embeddings": str(tmp_path / "t.csv"), "nu": 1.0}
    found, whole = (terms(build(form=form, **guided), unit(7, D)) for form in ("none", "mini_batch"))
    assert found.keys() == {"proxy", "guidance"} == whole.keys() - {"coding_rate"}
    assert all(found[name] == whole[name] for name in found)
    assert AntiCollapse.Config(form="none").idle()["epsilon"] == ("form",)


@pytest.mark.parametrize("objective", ["proxy_anchor", "proxy_nca"])
@pytest.mark.parametrize("proxies_per_class", [1, 2])
@pytest.mark.parametrize("form", ["mini_batch", "all_class", "pair"])
def test_the_loss_and_its_gradients_are_those_of_the_formula(form, proxies_per_class, objective):
    method = build(form=form, objective=objective, proxies_per_class=proxies_per_class, nu=0.02, epsilon=0.4)
    weight, z = method.base.proxies.weight, unit(7, D).requires_grad_()
    proxies = weight / weight.square().sum(1, keepdim=True).sqrt()
    labels = [label for label in range(C) for _ in range(proxies_per_class)]
    rows = {
        "mini_batch": torch.stack([p for p, label in zip(proxies, labels, strict=True) if label != 2]),
        "all_class": proxies,
        "pair": z,
    }[form]
    positive, negative = slow.masks([{int(y)} for y in LABELS], [{label} for label in labels], same=False)
    similarity = z @ proxies.T
    loss = {
        "proxy_anchor": lambda: slow.proxy_anchor(similarity, positive, negative, 32.0, 0.1),
        "proxy_nca": lambda: slow.proxy_nca(-similarity, positive, negative, 1.0, False),
    }[objective]()
    expected = {"coding_rate": -rate(rows, 0.4), "proxy": 0.02 * loss}
    found = terms(method, z)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value.item(), rel=1e-10)
    for leaf in (z, weight):
        (fast,) = torch.autograd.grad(sum(found.values()), leaf, retain_graph=True)
        (slowly,) = torch.autograd.grad(sum(expected.values()), leaf, retain_graph=True)
        assert slowly.abs().max() > 0
        torch.testing.assert_close(fast, slowly, rtol=1e-8, atol=1e-12)
    (group,) = method.parameter_groups(1e-4)
    assert group["params"] == [weight] and group["lr"] == pytest.approx(1e-3)


def test_proxies_may_have_a_weight_decay_of_their_own():
    assert [group["weight_decay"] for group in build(proxy_weight_decay=0.0).parameter_groups(1e-4)] == [0.0]
    assert all("weight_decay" not in group for group in build().parameter_groups(1e-4))


@pytest.mark.parametrize("form", ["mini_batch", "all_class", "pair"])
def test_the_released_form_of_the_rate(form):
    """e^(-1/2 log det(I + n / (D epsilon) P P^T)) of n proxies; of a batch D / (n epsilon), as antico.py has them."""
    method, z = build(form=form, rate="exp", epsilon=0.4), unit(7, D).requires_grad_()
    proxies = method.base.proxies()
    rows = {"mini_batch": proxies[[y for y in range(C) if y in LABELS]], "all_class": proxies, "pair": z}[form]
    n = len(rows)
    factor = D / (n * 0.4) if form == "pair" else n / (D * 0.4)
    expected = torch.exp(-torch.logdet(torch.eye(n, dtype=z.dtype) + factor * rows @ rows.T) / 2)
    found = terms(method, z)["coding_rate"]
    assert found.item() == pytest.approx(expected.item(), rel=1e-12) and 0 < found.item() < 1
    leaf = z if form == "pair" else method.base.proxies.weight
    fast, slowly = (torch.autograd.grad(value, leaf)[0] for value in (found, expected))
    torch.testing.assert_close(fast, slowly, rtol=1e-8, atol=1e-14)


def test_without_labels_there_is_the_coding_rate_of_the_batch_and_nothing_else():
    method, z = build(**LABEL_FREE), unit(7, D).requires_grad_()
    found = terms(method, z)
    assert set(found) == {"coding_rate"}
    assert found["coding_rate"].item() == pytest.approx(-rate(z).item(), rel=1e-12)
    assert not list(method.parameters()) and not method.parameter_groups(1e-3)
    assert torch.equal(terms(method, z, torch.full((7,), -1))["coding_rate"], found["coding_rate"])


def train(store, split, folder=None, stop_after=2, **settings):
    experiment = resolve_experiment(TRAINING | settings, "test")
    validations = list(fit(experiment, store, split, folder=folder, stop_after=stop_after))
    return [v.metrics for v in validations]


def small_split(store):
    split = class_split(store, validation_share=0.3, seed=0)
    return type(split)(**{**vars(split), "validation": split.validation[:48]})


def test_training_without_labels_ignores_them(glyphs, tmp_path):
    split, shuffled = small_split(glyphs), copy.copy(glyphs)
    shuffled.labels = glyphs.labels.copy()
    shuffled.labels[split.train] = np.random.default_rng(0).permutation(glyphs.labels[split.train])
    found = {}
    for name, store in (("true", glyphs), ("shuffled", shuffled)):
        metrics = train(store, split, tmp_path / name, **LABEL_FREE)
        found[name] = metrics, load_checkpoint(tmp_path / name / CHECKPOINT)["model"]["learner"]
    assert found["true"][0] == found["shuffled"][0]
    for name, value in found["true"][1].items():
        assert torch.equal(value, found["shuffled"][1][name]), name
    assert train(glyphs, split, stop_after=1) != train(shuffled, split, stop_after=1), "with labels they matter"
    labels, training = train_labels(glyphs, split.train), Training(classes_per_batch=6, images_per_class=2)
    assert isinstance(build_sampler(build(**LABEL_FREE), labels, training), UniformSampler)
    assert isinstance(build_sampler(build(form="pair"), labels, training), ClassBalancedSampler)
    misspelt = build()
    misspelt.sampler = "unifrom"
    with pytest.raises(InputError, match="sampler 'unifrom'"):
        build_sampler(misspelt, labels, training)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"proxy_loss": False}, "proxy_loss: false is for form pair, the proxies of form mini_batch need their loss"),
        ({"proxy_loss": False, "form": "all_class"}, "proxy_loss: false is for form pair"),
        (LABEL_FREE | {"guidance_weight": 1.0, "text_embeddings": "a.csv"}, "guidance_weight: needs the classes"),
        ({"guidance_weight": 1.0}, "guidance_weight: needs text_embeddings"),
        ({"nu": 0.0}, "greater than 0"),
        ({"form": "batch"}, "'mini_batch', 'all_class', 'pair' or 'none'"),
        ({"objective": "contrastive"}, "'proxy_anchor' or 'proxy_nca'"),
        ({"scale": 2.0}, "proxy_anchor has no such hyperparameter"),
        ({"references": "batch"}, "Extra inputs"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(settings, says):
    with pytest.raises(ValidationError, match=says):
        AntiCollapse.Config(**settings)


# Language guidance -----------------------------------------------------------------------------------------


def test_guidance_compares_images_with_the_texts_of_their_classes(tmp_path):
    numbers = write_texts(tmp_path / "t.csv", ("egret", *reversed(NAMES)))  # any order, and one class too many
    by_name = dict(zip(("egret", *reversed(NAMES)), numbers, strict=True))
    settings = {"guidance_weight": 0.7, "guidance_temperature": 0.3, "text_embeddings": str(tmp_path / "t.csv")}
    method, z = build(**settings), unit(7, D).requires_grad_()
    texts = torch.stack([by_name[NAMES[label]] for label in LABELS])
    texts = texts / texts.square().sum(1, keepdim=True).sqrt()
    expected = torch.zeros(())
    for i in range(7):
        others = [j for j in range(7) if j != i]
        p = torch.stack([texts[i] @ texts[j] for j in others]).div(0.3).softmax(0)
        q = torch.stack([z[i] @ z[j] for j in others]).div(0.3).softmax(0)
        expected = expected + 0.7 / 7 * (p * (p / q).log()).sum()
    found = terms(method, z)
    assert set(found) == {"coding_rate", "proxy", "guidance"}
    assert found["guidance"].item() == pytest.approx(expected.item(), rel=1e-5)  # the texts are read as float32
    (fast,), (slowly,) = (torch.autograd.grad(value, z) for value in (found["guidance"], expected))
    torch.testing.assert_close(fast, slowly, rtol=1e-4, atol=1e-6)


def test_a_guided_model_keeps_its_texts_and_needs_neither_names_nor_file_to_be_loaded(glyphs, tmp_path):
    split, path = small_split(glyphs), tmp_path / "texts.csv"
    numbers = write_texts(path, glyphs.class_names)
    settings = {"guidance_weight": 1.0, "text_embeddings": str(path)}
    metrics = train(glyphs, split, tmp_path / "run", stop_after=1, **settings)
    assert metrics[0]["train/guidance"] > 0
    kept = load_checkpoint(tmp_path / "run" / BEST)["learner"]["method.texts"]
    expected = torch.nn.functional.normalize(numbers[torch.from_numpy(split.train_classes)], dim=1)
    torch.testing.assert_close(kept.double(), expected, rtol=0, atol=1e-6)
    path.unlink()
    tested = evaluate_model(tmp_path / "run" / BEST, glyphs, split.validation)
    assert tested["map_at_r"] == pytest.approx(metrics[0]["val/map_at_r"], abs=1e-6)
    with pytest.raises(InputError, match="texts.csv cannot be read"):
        train(glyphs, split, tmp_path / "run", stop_after=2, **settings)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("hen,1,2\n", r"t.csv has no line for the class 'owl' \(1 of 2 are missing\)"),
        ("hen,1,2\nowl,1,x\n", "t.csv, line 2: could not convert string to float: 'x'"),
        ("hen,1,2\nowl,1\n", "a line has 1 numbers, another 2"),
        ("hen\nowl\n", "a line has 0 numbers"),
        ("hen,1,2\nowl,1,nan\n", "not finite"),
        ("hen,1,2\nowl,0,0\n", "an embedding of zeros"),
    ],
)
def test_a_bad_file_of_texts_is_one_line(tmp_path, content, says):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(InputError, match=says) as caught:
        read_texts(tmp_path / "t.csv", ["hen", "owl"])
    assert "\n" not in str(caught.value)


def test_a_text_encoder_that_is_not_there_is_said_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(InputError, match=r"uv pip install open-clip-torch, or give a .csv file"):
        build(guidance_weight=1.0, text_embeddings="ViT-B-32-quickgelu/openai")
    with pytest.raises(InputError, match="'clip' should be a .csv file, or MODEL/WEIGHTS"):
        encode_texts("clip", NAMES)


# Diagnostics -----------------------------------------------------------------------------------------------


def test_diagnostics_are_of_all_held_out_embeddings_and_of_the_proxies():
    method = build(epsilon=0.3)
    z, labels = unit(23, D), torch.arange(23) % 4 + 50
    told = method.diagnostics(None, Embedded({"embedding": z}, labels, torch.arange(23)))
    proxies = method.base.proxies().detach()
    within = [rate(z[labels == label], 0.3).item() for label in range(50, 54)]
    assert told.scalars == pytest.approx(
        {
            "coding_rate": rate(z, 0.3).item(),
            "class_coding_rate": np.mean(within),
            "all_proxies_coding_rate": rate(proxies, 0.3).item(),
            "density": density(z, labels),
            "euclidean_density": euclidean_density(z, labels),
        }
    )
    np.testing.assert_allclose(told.arrays["proxy_similarity"], proxies @ proxies.T)
    table = told.tables["similarities"]
    assert table["low"][0] == -1 and table["high"][-1] == 1 and table["low"][1:] == table["high"][:-1]
    assert sum(table["positive_pairs"]) == 3 * 15 + 10 and sum(table["negative_pairs"]) == 23 * 22 / 2 - 55
    collapsed = Embedded({"embedding": unit(1, D).expand(23, D)}, labels, torch.arange(23))
    assert "density" not in method.diagnostics(None, collapsed).scalars
    assert set(method.diagnostics(None, None).scalars) == {"all_proxies_coding_rate"}
    trained = Embedded({"embedding": z[:7]}, torch.tensor([1, 1, 2, 0, 0, 1, 1]), torch.arange(7))
    assert method.diagnostics(trained, None).scalars["proxy_coding_rate"] == pytest.approx(
        rate(proxies[:3], 0.3**0.5).item()
    )
    unlabelled = build(**LABEL_FREE).diagnostics(None, Embedded({"embedding": z}, labels, torch.arange(23)))
    named = {"coding_rate", "class_coding_rate", "density", "euclidean_density"}
    assert set(unlabelled.scalars) == named and not unlabelled.arrays


def test_diagnostics_become_files_of_the_best_validation(glyphs, tmp_path):
    metrics = train(glyphs, small_split(glyphs), tmp_path, stop_after=1)[0]
    assert metrics["diagnostics/density"] > 0
    classes = len(class_split(glyphs, validation_share=0.3, seed=0).train_classes)
    assert np.load(tmp_path / DIAGNOSTICS / "proxy_similarity.npy").shape == (classes, classes)
    with (tmp_path / DIAGNOSTICS / "similarities.csv").open() as file:
        head, *rows = list(csv.reader(file))
    assert head == ["low", "high", "positive_pairs", "negative_pairs"] and len(rows) == 100
    assert sum(int(row[2]) + int(row[3]) for row in rows) == 48 * 47 / 2
