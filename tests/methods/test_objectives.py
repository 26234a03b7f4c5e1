import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import references
from support.objective_cases import (
    CASES,
    EVERY,
    EVERY_IDS,
    IDS,
    MARGIN,
    assert_agrees,
    assert_close,
    batch_case,
    matrix_of,
    objective,
    proxy_case,
    unit,
    value_and_gradient,
)

from methods import distances, objectives, reductions
from methods.arc_face import arc_face
from methods.circle import circle
from methods.lifted_structure import lifted_structure
from methods.objectives import cosine_similarity, euclidean_distance, pair_masks
from methods.recall_at_k import recall_at_k_surrogate
from methods.roadmap import sup_ap
from methods.smooth_ap import smooth_ap


@pytest.mark.parametrize(("name", "kind", "hyper"), CASES, ids=IDS)
@pytest.mark.parametrize("seed", [0, 1])
class TestAgainstReferences:
    def check(self, name, hyper, matrix, positive, negative):
        functions = objective(name), getattr(references, name)
        assert_agrees(*functions, matrix, positive, negative, **hyper)

    def test_batch_against_itself(self, name, kind, hyper, seed):
        case = batch_case(kind, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], seed)
        if name == "soft_triple" and 12 % hyper["centres_per_class"]:
            pytest.skip("columns are not whole classes")
        self.check(name, hyper, *case)

    def test_batch_against_proxies(self, name, kind, hyper, seed):
        self.check(name, hyper, *proxy_case(kind, [4, 0, 0, 2, 1, 2], 5, hyper.get("centres_per_class", 2), seed))

    def test_label_sets(self, name, kind, hyper, seed):
        labels = [[0, -1], [0, 1], [1, 2], [3, -1], [2, 0], [-1, -1]]
        self.check(name, hyper, *proxy_case(kind, labels, 4, hyper.get("centres_per_class", 2), seed))

    def test_arbitrary_masks(self, name, kind, hyper, seed):
        """Rows and columns that lack positives, negatives or both, and classes left out altogether."""
        matrix, positive, negative = proxy_case(kind, [0, 1, 2, 3, 1, 2, 0], 4, hyper.get("centres_per_class", 3), seed)
        positive[0] = negative[1] = False
        positive[2] = negative[2] = False
        negative[3:, :3] = False
        positive[:, -3:] = negative[:, -3:] = False
        self.check(name, hyper, matrix, positive, negative)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
@pytest.mark.parametrize(("name", "kind", "hyper"), CASES, ids=IDS)
def test_any_batch(name, kind, hyper, data):
    """Small random batches: every mixture of singletons, empty rows and coinciding points."""
    per_class = hyper.get("centres_per_class", 1)
    size = per_class * data.draw(st.integers(1, 5))
    entries = st.floats(0, 2) if kind in ("d", "1 - s") else st.floats(-1, 1)
    matrix = torch.tensor(data.draw(st.lists(entries, min_size=3 * size, max_size=3 * size)), dtype=torch.float64)
    kinds = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=3 * size, max_size=3 * size)))
    positive, negative = (kinds.view(3, size) == 1), (kinds.view(3, size) == 2)
    value, gradient = value_and_gradient(objective(name), matrix.view(3, size), positive, negative, **hyper)
    wanted = getattr(references, name)(matrix.view(3, size), positive, negative, **hyper)
    assert_close(value, wanted, rtol=1e-9, atol=1e-11)
    assert gradient.isfinite().all()
    assert (gradient[kinds.view(3, size) == 0] == 0).all()


# ---------------------------------------------------------------- rules that hold for every objective


@pytest.mark.parametrize(("function", "kind", "hyper"), EVERY, ids=EVERY_IDS)
class TestEveryObjective:
    def case(self, kind, hyper, **options):
        return proxy_case(kind, [0, 1, 2, 2, 0], 4, hyper.get("centres_per_class", 2), **options)

    @pytest.mark.parametrize("junk", [math.inf, -math.inf, math.nan, 1e30])
    def test_entries_that_are_neither_add_nothing(self, function, kind, hyper, junk):
        matrix, positive, negative = self.case(kind, hyper)
        neither = torch.zeros_like(positive)
        neither[1:3, ::2] = neither[3] = neither[:, -1] = True
        positive, negative = positive & ~neither, negative & ~neither
        torch.manual_seed(0)
        clean = value_and_gradient(function, matrix, positive, negative, **hyper)
        torch.manual_seed(0)
        value, gradient = value_and_gradient(function, matrix.masked_fill(neither, junk), positive, negative, **hyper)
        assert torch.equal(value, clean[0])
        assert torch.equal(gradient, clean[1])
        assert (gradient[neither] == 0).all()
        assert gradient.count_nonzero() > 0

    @pytest.mark.parametrize("left", ["neither", "no rows", "no columns"])
    def test_nothing_left_is_an_attached_zero(self, function, kind, hyper, left):
        columns = 4 * hyper.get("centres_per_class", 1)
        shape = {"neither": (3, columns), "no rows": (0, columns), "no columns": (3, 0)}[left]
        matrix, empty = torch.full(shape, math.inf), torch.zeros(shape, dtype=torch.bool)
        value, gradient = value_and_gradient(function, matrix, empty, empty, **hyper)
        assert value.item() == 0
        assert torch.equal(gradient, torch.zeros(shape))

    @pytest.mark.parametrize("labels", [[0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4]])
    def test_one_class_and_singletons_are_finite(self, function, kind, hyper, labels):
        value, gradient = value_and_gradient(function, *batch_case(kind, labels, dtype=torch.float32), **hyper)
        assert value.isfinite()
        assert gradient.isfinite().all()

    def test_coinciding_embeddings_have_finite_gradients(self, function, kind, hyper):
        labels = torch.tensor([0, 0, 0, 1, 1, 1])
        embeddings = unit(2, 8, 0, torch.float32)[[0, 0, 1, 0, 1, 1]].requires_grad_()
        value = function(matrix_of(kind, embeddings, embeddings), *pair_masks(labels, labels, same=True), **hyper)
        value.backward()
        assert value.isfinite()
        assert embeddings.grad.isfinite().all()

    def test_half_precision_is_promoted(self, function, kind, hyper):
        matrix, positive, negative = self.case(kind, hyper)
        for dtype in (torch.bfloat16, torch.float16):
            torch.manual_seed(0)
            exact = function(matrix.to(dtype).float(), positive, negative, **hyper)
            torch.manual_seed(0)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                value, gradient = value_and_gradient(function, matrix.to(dtype), positive, negative, **hyper)
            assert value.dtype == torch.float32
            assert torch.equal(value, exact)
            assert gradient.isfinite().all()
        assert function(matrix, positive, negative, **hyper).dtype == torch.float64

    def test_autocast_changes_nothing_from_the_embeddings_on(self, function, kind, hyper):
        labels = torch.tensor([0, 0, 0, 1, 1, 1])
        embeddings, masks = unit(6, 8, 3, torch.float32), pair_masks(labels, labels, same=True)
        torch.manual_seed(0)
        exact = function(matrix_of(kind, embeddings, embeddings), *masks, **hyper)
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = function(matrix_of(kind, embeddings, embeddings), *masks, **hyper)
        assert torch.equal(value, exact)

    def test_masks_of_another_shape_or_type_are_refused(self, function, kind, hyper):
        matrix, positive, negative = self.case(kind, hyper)
        with pytest.raises(ValueError, match="positive must be a boolean mask"):
            function(matrix, positive.double(), negative, **hyper)
        with pytest.raises(ValueError, match="negative must be a boolean mask"):
            function(matrix, positive, negative[:, :1], **hyper)

    def test_order_of_the_batch_does_not_matter(self, function, kind, hyper):
        if function is MARGIN:
            pytest.skip("draws follow the order")
        matrix, positive, negative = self.case(kind, hyper)
        order = torch.tensor([3, 1, 4, 0, 2])
        shuffled = function(matrix[order], positive[order], negative[order], **hyper)
        assert_close(shuffled, function(matrix, positive, negative, **hyper))


@pytest.mark.parametrize("numbers", [1, 25])
@pytest.mark.parametrize(("name", "kind", "hyper"), CASES, ids=IDS)
def test_value_and_gradient_do_not_depend_on_the_blocks(monkeypatch, name, kind, hyper, numbers):
    per_class = hyper.get("centres_per_class", 2)
    matrix, positive, negative = proxy_case(kind, [4, 0, 0, 2, 1, 2, 3, 1, 4], 5, per_class)
    neither = torch.zeros_like(positive)
    neither[1:3, ::2] = neither[3] = neither[:, -per_class:] = True
    masks = positive & ~neither, negative & ~neither
    whole = value_and_gradient(objective(name), matrix, *masks, **hyper)
    monkeypatch.setattr(reductions, "BLOCK", numbers)
    for module in (reductions, objectives):
        monkeypatch.setattr(module, "CACHED", numbers)
    for junk in (math.nan, -math.inf):
        parts = value_and_gradient(objective(name), matrix.masked_fill(neither, junk), *masks, **hyper)
        for found, wanted in zip(parts, whole, strict=True):
            assert_close(found, wanted, rtol=1e-12, atol=1e-14)


EXTREME = [
    ("multi_similarity", 1.0, {"alpha": 75.0, "beta": 75.0, "epsilon": None}),
    ("multi_similarity", 1.0, {"alpha": 75.0, "beta": 75.0}),
    ("proxy_anchor", 1.0, {"alpha": 75.0}),
    ("proxy_nca", 3.0, {"scale": 100.0}),
    ("proxy_nca", -3.0, {"scale": 100.0, "include_positive": True}),
    ("normalized_softmax", 1.0, {"temperature": 0.01}),
    ("cos_face", 1.0, {"scale": 100.0}),
    ("arc_face", 1.0, {"scale": 100.0}),
    ("n_pair", 1.0, {"scale": 100.0}),
    ("lifted_structure", 120.0, {}),
    ("sup_con", 1.0, {"temperature": 0.01}),
    ("sigmoid_pairs", 1.0, {"scale": 100.0}),
    ("soft_triple", 1.0, {"centres_per_class": 2, "la": 100.0, "gamma": 0.01}),
    ("circle", 1.0, {}),
    ("smooth_ap", 1.0, {"temperature": 0.004}),
    ("sup_ap", 1.0, {"tau": 0.004}),
    ("recall_at_k_surrogate", 1.0, {"rank_temperature": 0.004}),
]


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize(("name", "size", "hyper"), EXTREME)
def test_large_scales_do_not_overflow_in_float32(name, size, hyper, right):
    """Every pair as right or as wrong as it can be: beyond float32's e^88, within float64's e^709."""
    _, positive, negative = proxy_case("s", [0, 1, 2, 2], 4, 2)
    extreme = torch.where(positive == right, size, -size).float()
    value, gradient = value_and_gradient(objective(name), extreme, positive, negative, **hyper)
    wanted = getattr(references, name)(extreme.double(), positive, negative, **hyper)
    assert_close(value.double(), wanted, rtol=1e-5, atol=1e-5)
    assert gradient.isfinite().all()


# ---------------------------------------------------------------- single objectives


def row(entries):
    """One query: {"p": [...], "n": [...]} as matrix and masks."""
    values = torch.tensor([[*entries["p"], *entries["n"]]], dtype=torch.float64)
    positive = torch.zeros(values.shape, dtype=torch.bool)
    positive[:, : len(entries["p"])] = True
    return values, positive, ~positive


def test_contrastive_by_hand():
    case = row({"p": [0.2, 0.0], "n": [0.1, 0.7]})
    assert objectives.contrastive(*case).item() == pytest.approx(0.2 + 0.4)
    assert objectives.contrastive(*case, average="all").item() == pytest.approx(0.1 + 0.2)
    assert objectives.contrastive(*case, average="query").item() == pytest.approx(0.6)


def test_triplet_by_hand():
    # d_ap 0.5: closest farther negative 0.55 (term 0.05); d_ap 0.9: none farther, so the pair is dropped.
    case = row({"p": [0.5, 0.9], "n": [0.1, 0.55, 0.7]})
    assert objectives.triplet(*case).item() == pytest.approx(0.05)
    assert objectives.triplet(*case, mining="all").item() == pytest.approx((0.5 + 0.05 + 0.9 + 0.45 + 0.3) / 5)


def test_triplet_at_equal_distances_takes_the_next_negative():
    assert objectives.triplet(*row({"p": [0.5], "n": [0.5, 0.58]})).item() == pytest.approx(0.02)
    assert objectives.triplet(*row({"p": [0.5], "n": [0.5]})).item() == 0


def test_multi_similarity_counts_incomplete_rows_in_the_mean():
    matrix, positive, negative = row({"p": [0.2], "n": [0.6]})
    alone = objectives.multi_similarity(matrix, positive, negative)
    twice = objectives.multi_similarity(
        matrix.repeat(2, 1),
        torch.cat([positive, torch.zeros_like(positive)]),
        torch.cat([negative, torch.ones_like(negative)]),
        epsilon=None,
    )
    assert alone > 0
    assert twice.item() == pytest.approx(alone.item() / 2)


def test_proxy_nca_may_be_negative_and_leaves_out_rows_without_negatives():
    assert objectives.proxy_nca(*row({"p": [0.1], "n": [0.7]})).item() == pytest.approx(-0.6)
    matrix, positive, _ = row({"p": [0.1, 0.3], "n": []})
    neither = torch.zeros_like(positive)
    assert objectives.proxy_nca(matrix, positive, neither).item() == 0
    positive[0, 1], neither[0, 1] = False, True
    with_positives = objectives.proxy_nca(matrix, positive, neither, include_positive=True)
    assert with_positives.item() == pytest.approx(math.log(1 + math.exp(-0.2)))


def test_fast_ap_is_zero_for_a_perfect_and_high_for_a_reversed_ranking():
    assert objectives.fast_ap(*row({"p": [0.0, 0.0], "n": [2.0, 2.0]})).item() == pytest.approx(0)
    assert objectives.fast_ap(*row({"p": [2.0], "n": [0.0, 0.0, 0.0]})).item() == pytest.approx(0.75)


@pytest.mark.parametrize(("classes", "per_class"), [(1, 2), (3, 4), (2, 5)])
def test_centre_merging_agrees_with_the_reference(classes, per_class):
    # The centres of a class are about 0.1 apart.
    spread = unit(classes, 6, 5).repeat_interleave(per_class, dim=0) + 0.1 * unit(classes * per_class, 6, 6)
    centres = torch.nn.functional.normalize(spread, dim=1)
    value, gradient = value_and_gradient(objectives.centre_merging, centres, per_class)
    wanted, wanted_gradient = value_and_gradient(references.centre_merging, centres, per_class)
    assert_close(value, wanted)
    assert_close(gradient, wanted_gradient)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_centre_merging_of_coinciding_centres_is_zero_with_zero_gradient(dtype):
    centres = unit(2, 64, 5).to(dtype).repeat_interleave(3, dim=0)
    value, gradient = value_and_gradient(objectives.centre_merging, centres, 3)
    assert value.item() == 0
    assert (gradient == 0).all()


def test_centre_merging_of_one_centre_per_class_is_an_attached_zero():
    value, gradient = value_and_gradient(objectives.centre_merging, unit(4, 8, 0), 1)
    assert value.item() == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda case: objectives.contrastive(*case, average="mean"), "got 'mean'"),  # type: ignore[arg-type]
        (lambda case: objectives.triplet(*case, mining="semi-hard"), "got 'semi-hard'"),  # type: ignore[arg-type]
        (lambda case: objectives.margin(*case, dim=8, phi=0), "phi must be above 0, got 0"),
        (lambda case: objectives.fast_ap(*case, num_bins=0), "num_bins must be at least 1, got 0"),
        (lambda case: lifted_structure(*case, form="rows"), "got 'rows'"),  # type: ignore[arg-type]
        (lambda case: arc_face(*case, margin=2.0), r"from 0 to pi / 2, got 2\.0"),
        (lambda case: objectives.soft_triple(*case, centres_per_class=2), "centres_per_class=2, got 3"),
        (lambda case: objectives.centre_merging(unit(4, 8, 0), 3), "centres_per_class=3, got 4"),
        (lambda case: circle(*case, gamma=0.0), "gamma must be above 0, got 0"),
        (lambda case: smooth_ap(*case, temperature=0.0), "temperature must be above 0, got 0"),
        (lambda case: sup_ap(*case, delta=-0.1), r"rho and delta at least 0, got 0\.01, 100\.0, -0\.1"),
        (lambda case: recall_at_k_surrogate(*case, ks=(2, 0)), r"each k must be at least 1, got \[2, 0\]"),
        (lambda case: recall_at_k_surrogate(*case, k_temperature=0.0), "k_temperature must be above 0, got 0"),
    ],
)
def test_bad_hyperparameters_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(row({"p": [0.1], "n": [0.2, 0.3]}))


# ---------------------------------------------------------------- margin and its draws


def draws(matrix, positive, negative, *, dim, phi=math.inf, phi_form="relative", seed=0):
    """How often each negative is drawn, read off the gradient: with a huge beta only drawn negatives are terms."""
    generator = torch.Generator().manual_seed(seed)
    hyper = {"dim": dim, "phi": phi, "phi_form": phi_form, "beta": 50.0, "alpha": 0.0, "generator": generator}
    _, gradient = value_and_gradient(objectives.margin, matrix, positive, negative, **hyper)
    terms = positive[negative.any(1)].sum()
    return (-gradient * terms).round().long()


@pytest.mark.parametrize("beta", [1.2, 0.7, "scalar", "rows", "column"])
@pytest.mark.parametrize("alpha", [0.2, 0.4])
def test_margin_agrees_with_the_reference_given_its_draws(beta, alpha):
    labels = [0, 0, 0, 1, 1, 1, 2, 2, 3]
    matrix, positive, negative = batch_case("d", labels, seed=4)
    drawn = draws(matrix, positive, negative, dim=8)
    per_row = torch.linspace(0.6, 1.4, len(labels), dtype=torch.float64)
    given_beta = {"scalar": torch.tensor(1.1), "rows": per_row, "column": per_row[:, None]}.get(beta, beta)
    reference_beta = {"scalar": 1.1, "rows": per_row.tolist(), "column": per_row.tolist()}.get(beta, beta)
    value, gradient = value_and_gradient(
        objectives.margin,
        matrix,
        positive,
        negative,
        dim=8,
        beta=given_beta,
        alpha=alpha,
        generator=torch.Generator().manual_seed(0),
    )
    wanted, wanted_gradient = value_and_gradient(
        references.margin, matrix, positive, drawn, beta=reference_beta, alpha=alpha
    )
    assert_close(value, wanted, rtol=1e-6, atol=1e-7)
    assert_close(gradient, wanted_gradient)


def test_margin_draws_one_negative_per_positive_pair():
    labels = [0, 0, 0, 0, 1, 1, 2, 3, 3, 3]
    matrix, positive, negative = batch_case("d", labels)
    drawn = draws(matrix, positive, negative, dim=8)
    assert torch.equal(drawn.sum(1), positive.sum(1))
    assert (drawn[~negative] == 0).all()


def test_margin_learns_its_beta():
    case = batch_case("d", [0, 0, 1, 1])
    betas = torch.tensor([1.2, 1.2], requires_grad=True)
    objectives.margin(*case, dim=8, beta=betas[torch.tensor([0, 0, 1, 1])]).backward()
    assert betas.grad is not None
    assert betas.grad.isfinite().all()
    assert betas.grad.count_nonzero() == 2


def test_margin_repeats_with_its_generator_and_leaves_the_global_one_alone():
    case = batch_case("d", [0] * 6 + [1] * 6)
    state = torch.get_rng_state()
    first, again, other = (draws(*case, dim=8, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_margin_keeps_the_positives_of_rows_without_negatives():
    matrix, positive, negative = batch_case("d", [0, 0, 0])
    value = objectives.margin(matrix, positive, negative, dim=8, beta=0.5)
    hinges = (matrix[positive] - 0.3).relu()
    assert_close(value, hinges.sum() / (hinges > 0).sum())


@pytest.mark.parametrize(
    ("negatives", "dim", "phi", "phi_form"),
    [
        ([0.7, 0.9, 1.2, 1.39, 1.99], 8, 1.5, "printed"),
        ([0.5, 0.7, 0.9, 1.2], 16, 40.0, "printed"),
        ([0.5, 0.7, 0.9, 1.2], 16, 1e-3, "printed"),
        ([0.3, 0.5, 0.9, 1.2, 1.39, 1.41], 4, math.inf, "relative"),
        ([0.7, 0.9, 1.2, 1.39, 1.99], 8, math.inf, "relative"),
        ([0.7, 0.9, 1.2, 1.39, 1.99], 8, 0.05, "relative"),
        ([1.0, 1.1, 1.3], 3, 0.9, "relative"),
        ([1.3, 1.35, 1.4, 1.5], 512, math.inf, "relative"),
        ([1.5, 1.7, 2.0], 64, math.inf, "relative"),
        ([0.01, 0.2, 0.5, 0.8], 128, 1e-12, "relative"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_margin_draws_by_the_stated_weights(negatives, dim, phi, phi_form, dtype):
    pairs = 20_000
    matrix, positive, negative = row({"p": [0.5] * pairs, "n": negatives})
    drawn = draws(matrix.to(dtype), positive, negative, dim=dim, phi=phi, phi_form=phi_form)[0, pairs:]
    chances = references.margin_probabilities(matrix[0], range(pairs, pairs + len(negatives)), dim, phi, phi_form)
    expected = torch.tensor(list(chances.values()))
    assert drawn.sum() == pairs
    assert (drawn[expected == 0] == 0).all()
    # Five standard deviations of a binomial count.
    assert ((drawn - pairs * expected).abs() <= 5 * (pairs * expected * (1 - expected)).sqrt() + 1).all()


def test_margin_weights_are_relative_to_their_own_row():
    """In 512 dimensions weights of 0.5 and 1.3 differ by e^450; a row of far negatives keeps its preference."""
    pairs = 1000
    near, positive, negative = row({"p": [0.5] * pairs, "n": [0.5, 0.6]})
    far, _, _ = row({"p": [0.5] * pairs, "n": [1.30, 1.301]})
    matrix = torch.cat([near, far]).float()
    drawn = draws(matrix, positive.repeat(2, 1), negative.repeat(2, 1), dim=512)[1, pairs:]
    chances = references.margin_probabilities(far[0], [pairs, pairs + 1], 512)
    expected = pairs * chances[pairs]
    assert 0.5 * pairs < expected < pairs
    assert abs(drawn[0] - expected) < 5 * math.sqrt(expected * (1 - expected / pairs))


# ---------------------------------------------------------------- matrices and masks


def test_euclidean_distance_agrees_with_the_reference():
    queries, others = unit(5, 7, 0), unit(6, 7, 1)
    weight = torch.rand(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gradients = []
    for function in (euclidean_distance, references.distances):
        q, r = queries.clone().requires_grad_(), others.clone().requires_grad_()
        distance = function(q, r)
        (distance * weight).sum().backward()
        gradients.append((distance.detach(), q.grad, r.grad))
    for mine, wanted in zip(*gradients, strict=True):
        assert_close(mine, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_close_pairs_keep_their_distance_and_direction(gap, dtype):
    """One component near zero moves by `gap`, which both types hold exactly; a Gram matrix would lose it."""
    query = torch.tensor([[0.6, 0.8, 0.0]], dtype=dtype, requires_grad=True)
    other = torch.tensor([[0.6, 0.8, gap]], dtype=dtype, requires_grad=True)
    distance = euclidean_distance(query, other)
    distance.backward()
    assert distance.item() == pytest.approx(gap, rel=1e-6)
    assert_close(query.grad, torch.tensor([[0.0, 0.0, -1.0]]), rtol=1e-6)
    assert_close(other.grad, torch.tensor([[0.0, 0.0, 1.0]]), rtol=1e-6)


def test_coinciding_points_are_at_zero_with_zero_gradient():
    points = unit(1, 64, 0, torch.float32).repeat(4, 1).requires_grad_()
    distance = euclidean_distance(points, points)
    distance.sum().backward()
    assert (distance == 0).all()
    assert (points.grad == 0).all()


@pytest.mark.parametrize(
    ("pairs", "near", "tile"),
    [(1, 0.1, (64, 64)), (40, 0.1, (3, 4)), (2**20, 10.0, (1, 100)), (2**20, 0.0, (100, 1)), (40, 10.0, (4, 3))],
)
def test_distance_and_gradient_do_not_depend_on_how_they_are_summed(monkeypatch, pairs, near, tile):
    points = torch.cat([unit(5, 6, 0), unit(5, 6, 0) + 0.02 * unit(5, 6, 1)])
    weight = torch.rand(10, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value, wanted = value_and_gradient(lambda z: (references.distances(z, z) * weight).sum(), points)
    monkeypatch.setattr(distances._EuclideanDistance, "PAIRS", pairs)
    monkeypatch.setattr(distances._EuclideanDistance, "NEAR", {torch.float64: near})
    monkeypatch.setattr(distances._EuclideanDistance, "TILE", tile)
    found, gradient = value_and_gradient(lambda z: (euclidean_distance(z, z) * weight).sum(), points)
    # rounding of the diagonal's Gram entries, where nothing is near
    assert_close(found, value, rtol=1e-10, atol=1e-10 if near else 1e-6)
    assert_close(gradient, wanted, rtol=1e-10, atol=1e-10 if near else 1e-6)


@pytest.mark.parametrize("detached", [False, True])
def test_distance_and_gradient_in_float32_are_those_of_float64(detached):
    """Class mates at distances from 1e-5 to 1, as a training batch has them."""

    def to_mates(points):
        return euclidean_distance(points, points.detach() if detached else points).diagonal(6).sum()

    centres, gaps = unit(6, 64, 0), torch.logspace(-5, 0, 6, dtype=torch.float64)[:, None]
    points = torch.cat([centres, centres + gaps * unit(6, 64, 1)]).float()
    value, gradient = value_and_gradient(to_mates, points)
    wanted, wanted_gradient = value_and_gradient(to_mates, points.double())
    assert_close(value, wanted, rtol=1e-6)
    assert_close(gradient, wanted_gradient, atol=5e-6)


def test_matrices_stay_in_float32_under_autocast_and_mixed_types():
    queries, others = unit(4, 16, 0, torch.float32), unit(5, 16, 1, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for function in (euclidean_distance, cosine_similarity):
            mixed = function(queries.bfloat16(), others)
            assert mixed.dtype == torch.float32
            assert torch.equal(mixed, function(queries.bfloat16().float(), others))
    assert_close(cosine_similarity(queries, others), queries @ others.T, atol=1e-6)
    assert cosine_similarity(queries.double(), others).dtype == torch.float64


def test_cosine_similarity_turns_reduced_products_off_and_back_on(monkeypatch):
    """By the switch of each library, or by torch 2.8's one for all."""
    backend, seen = torch.backends.cuda.matmul, []
    name: str = "fp32_precision"
    on: object = "tf32"
    off: object = "ieee"
    if not hasattr(backend, name):
        name, on, off = "allow_tf32", True, False

    def product(left, right):
        seen.append(getattr(backend, name))
        return left.mm(right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", product)
    before = getattr(backend, name)
    try:
        setattr(backend, name, on)
        cosine_similarity(unit(2, 4, 0), unit(2, 4, 1))
        assert seen == [off]
        assert getattr(backend, name) == on
    finally:
        setattr(backend, name, before)


@pytest.mark.parametrize("same", [True, False])
def test_pair_masks_agree_with_the_reference(same):
    sets = [{0}, {0, 1}, {1, 2}, {3}, set(), {2, 0}, {3}, set()]
    padded = torch.tensor([sorted(s) + [-1] * (2 - len(s)) for s in sets])
    for mine, wanted in zip(pair_masks(padded, padded, same), references.masks(sets, sets, same), strict=True):
        assert torch.equal(mine, wanted)


def test_pair_masks_accept_plain_labels_and_sets_of_different_sizes():
    plain, pairs = torch.tensor([0, 1, -1]), torch.tensor([[1, 2], [0, -1], [-1, -1], [3, 0]])
    positive, negative = pair_masks(plain, pairs, same=False)
    assert positive.tolist() == [[False, True, False, True], [True, False, False, False], [False] * 4]
    assert torch.equal(negative, ~positive)
    positive, negative = pair_masks(plain[:0], pairs, same=False)
    assert positive.shape == negative.shape == (0, 4)


def test_pair_masks_refuse_two_batches_called_the_same():
    with pytest.raises(ValueError, match="got 2 queries and 3 references"):
        pair_masks(torch.tensor([0, 1]), torch.tensor([0, 1, 2]), same=True)
