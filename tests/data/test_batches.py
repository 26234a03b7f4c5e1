"""Samplers and augmentation."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from orchestrator.config.training import Training
from orchestrator.data.augmentations import DEGRADATIONS, RECIPES, Degradation, recipe_of
from orchestrator.data.augmentations.crops import DRAWS
from orchestrator.data.batches import BATCHES
from orchestrator.data.batches.base import Source
from orchestrator.data.samplers import ClassBalancedSampler, UniformSampler, rank_block, sizes_of_shares
from orchestrator.data.transforms import augment, uniforms
from orchestrator.errors import DataError, InputError
from orchestrator.method import Task, registry
from orchestrator.training.splits import build_sampler

# --- samplers


def uneven_labels() -> NDArray[np.int64]:
    """11 classes of 1 to 21 images, ids with gaps, shuffled."""
    labels = np.repeat(np.arange(11) * 7 + 3, np.arange(11) * 2 + 1)
    return np.random.default_rng(0).permutation(labels)


@pytest.mark.parametrize(("classes", "images"), [(4, 4), (11, 2), (3, 1), (7, 5)])
def test_class_balanced_batches(classes: int, images: int) -> None:
    labels = uneven_labels()
    sampler = ClassBalancedSampler(labels, classes_per_batch=classes, images_per_class=images, seed=5)
    assert sampler.steps_per_epoch == max(1, 121 // (classes * images))
    visits = dict.fromkeys(np.unique(labels).tolist(), 0)
    batches = sampler.batches(0)
    assert batches.shape == (sampler.steps_per_epoch, classes * images)
    for batch in batches:
        for block in batch.reshape(classes, images):
            label = int(labels[block[0]])
            assert (labels[block] == label).all()
            assert len(set(block.tolist())) == min(images, int((labels == label).sum()))
            visits[label] += 1
        assert len(np.unique(labels[batch])) == classes
    assert max(visits.values()) - min(visits.values()) <= 1


def test_images_of_a_class_are_used_equally_often() -> None:
    labels = np.repeat([0, 1], [5, 400])
    batches = ClassBalancedSampler(labels, classes_per_batch=2, images_per_class=3, seed=0).batches(0)
    counts = np.bincount(batches.ravel(), minlength=405)
    assert counts[:5].max() - counts[:5].min() <= 1
    assert counts[5:].max() <= 1


def test_batches_depend_on_seed_and_epoch_only() -> None:
    labels = uneven_labels()
    one, same, other = (
        ClassBalancedSampler(labels, classes_per_batch=4, images_per_class=3, seed=seed) for seed in (1, 1, 2)
    )
    later = one.batches(3)
    np.testing.assert_array_equal(one.batches(0), same.batches(0))
    np.testing.assert_array_equal(later, same.batches(3))
    assert not np.array_equal(one.batches(0), later)
    assert not np.array_equal(one.batches(0), other.batches(0))


def test_an_epoch_has_at_least_one_batch() -> None:
    sampler = ClassBalancedSampler([0, 1, 1], classes_per_batch=2, images_per_class=4, seed=0)
    batch = sampler.batches(0)
    assert batch.shape == (1, 8)
    assert np.bincount(batch[0], minlength=3).tolist() == [4, 2, 2]


def test_too_few_classes() -> None:
    with pytest.raises(DataError, match="classes_per_batch is 5, but there are only 3 training classes"):
        ClassBalancedSampler([4, 4, 8, 9], classes_per_batch=5, images_per_class=1, seed=0)
    with pytest.raises(DataError, match="images_per_class is 0; it should be at least 1"):
        ClassBalancedSampler([0, 1], classes_per_batch=2, images_per_class=0, seed=0)


@pytest.mark.parametrize(("n", "batch_size", "shape"), [(10, 3, (3, 3)), (9, 3, (3, 3)), (5, 8, (1, 5))])
def test_uniform_batches(n: int, batch_size: int, shape: tuple[int, int]) -> None:
    sampler = UniformSampler(n, batch_size, seed=0)
    batches = sampler.batches(0)
    assert batches.shape == shape == (sampler.steps_per_epoch, shape[1])
    assert len(set(batches.ravel().tolist())) == batches.size
    assert batches.max() < n
    np.testing.assert_array_equal(batches, UniformSampler(n, batch_size, seed=0).batches(0))
    assert not np.array_equal(batches, sampler.batches(1))


def shares(batches: NDArray[np.int64], kinds: NDArray[np.int64], labels: NDArray[np.int64]) -> list[list[int]]:
    """How many classes of a batch are of each super-class, the most first."""
    found = [np.bincount(kinds[np.unique(labels[batch])]) for batch in batches]
    return [sorted(counts[counts > 0].tolist(), reverse=True) for counts in found]


def test_hierarchical_batches_have_classes_of_few_super_classes() -> None:
    kinds = np.repeat([5, 2, 9, 7], [12, 8, 8, 3])  # as numbered in a data set
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(31), 8))
    source = Source(labels, tuple(kinds.tolist()))
    for count, split in ((1, {(6,), (3, 3)}), (2, {(3, 3)}), (3, {(2, 2, 2)}), (4, {(2, 2, 1, 1)})):
        settings = Training(
            classes_per_batch=6, images_per_class=2, super_classes_per_batch=count, batches="hierarchical"
        )
        sampler = BATCHES["hierarchical"].build(source, settings)
        batches = np.concatenate([sampler.batches(epoch) for epoch in range(8)])
        assert batches.shape == (8 * sampler.steps_per_epoch, 12) and sampler.steps_per_epoch == 248 // 12
        assert {tuple(found) for found in shares(batches, kinds, labels)} == split
        for batch in batches:
            assert np.bincount(labels[batch]).max() == 2 and len(set(batch.tolist())) == 12
        visits = np.bincount(labels[sampler.batches(3)[:, ::2].ravel()], minlength=31)
        for kind in np.unique(kinds):  # the classes of a super-class equally often, to within one
            assert np.ptp(visits[kinds == kind]) <= 1
        np.testing.assert_array_equal(sampler.batches(2), BATCHES["hierarchical"].build(source, settings).batches(2))
        assert not np.array_equal(sampler.batches(2), sampler.batches(3))


def test_hard_classes_are_near_to_each_other() -> None:
    """Beside the plain definition: the next class is the nearest to any of those chosen, as in single linkage."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(11, 5))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    labels = np.repeat(np.arange(11), 10)
    sampler = BATCHES["hard_classes"].build(Source(labels), Training(classes_per_batch=4, images_per_class=2))
    batches = sampler.batches(1, centres)
    classes = labels[batches[:, ::2]]
    assert batches.shape == (13, 8) and np.array_equal(classes, labels[batches[:, 1::2]])
    for chosen in classes.tolist():
        for size in range(1, 4):
            rest = [label for label in range(11) if label not in chosen[:size]]
            nearest = max(rest, key=lambda label: max(centres[label] @ centres[own] for own in chosen[:size]))
            assert chosen[size] == nearest
    assert np.ptp(np.bincount(classes[:, 0], minlength=11)) <= 1
    assert not np.array_equal(batches, sampler.batches(1, -centres[::-1]))


LABELS = np.repeat(np.arange(6), 5)
KINDS = (0, 0, 0, 1, 1, 1)


@pytest.mark.parametrize(
    ("method", "settings", "super_classes", "said"),
    [
        (
            "vicreg",
            {"batches": "class_balanced"},
            KINDS,
            "batches: class_balanced: method 'vicreg' trains without labels.*take shuffled",
        ),
        ("vicreg", {"batches": "hard_classes"}, KINDS, "batches: hard_classes: method 'vicreg' trains without labels"),
        ("triplet", {"batches": "hierarchical"}, (), "batches: hierarchical: the data set has no super-classes"),
        (
            "triplet",
            {"batches": "hierarchical", "super_classes_per_batch": 3},
            KINDS,
            "are of 2 super-classes: give at most 2",
        ),
        (
            "triplet",
            {"batches": "hierarchical", "classes_per_batch": 1},
            KINDS,
            "a batch has 1 class: give at most that",
        ),
        ("triplet", {"batches": "hard_classes", "classes_per_batch": 7}, KINDS, "there are only 6 training classes"),
        (
            "triplet",
            {"batches": "shuffled", "images_per_class": 6, "classes_per_batch": 6},
            KINDS,
            "a batch has 36 images.*only 30",
        ),
    ],
)
def test_batches_that_cannot_be_are_refused(
    method: str, settings: dict[str, Any], super_classes: tuple[int, ...], said: str
) -> None:
    made = registry()[method]
    task = Task(6, 8, 8, super_classes=super_classes)
    training = Training(**{"classes_per_batch": 4, "images_per_class": 2} | settings)
    with pytest.raises((DataError, InputError), match=said):
        build_sampler(made(made.Config(), task), LABELS, training)
    assert build_sampler(made(made.Config(), task), LABELS, Training(classes_per_batch=3)).batches(0).shape == (2, 12)


def test_labelled_methods_get_plain_batches_and_own_ones_no_others() -> None:
    training = Training(classes_per_batch=2, images_per_class=5, batches="shuffled")
    for name in ("triplet", "vicreg"):
        method = registry()[name]
        sampler = build_sampler(method(method.Config(), Task(6, 8, 8)), LABELS, training)
        batches = sampler.batches(0)
        np.testing.assert_array_equal(np.sort(batches.ravel()), np.arange(30))
        np.testing.assert_array_equal(batches, UniformSampler(30, 10, seed=0).batches(0))
    triplet = registry()["triplet"]

    class Own(triplet):  # type: ignore[valid-type, misc]
        name = "own"

        def batches(self, epoch: int, labels: Any, samples: Any, rng: Any) -> Any: ...

    with pytest.raises(InputError, match="batches: shuffled: method 'own' makes its own batches: leave it out"):
        build_sampler(Own(triplet.Config(), Task(6, 8, 8)), LABELS, training)


def test_uniform_needs_images() -> None:
    with pytest.raises(DataError, match="n is 0"):
        UniformSampler(0, 4, seed=0)


def test_rank_blocks_make_the_batch() -> None:
    batch = np.arange(12) * 3
    blocks = [rank_block(batch, rank, 4) for rank in range(4)]
    assert [len(block) for block in blocks] == [3, 3, 3, 3]
    np.testing.assert_array_equal(np.concatenate(blocks), batch)
    blocks = [rank_block(batch, rank, 5) for rank in range(5)]
    assert [len(block) for block in blocks] == [3, 3, 2, 2, 2]
    np.testing.assert_array_equal(np.concatenate(blocks), batch)
    assert [sizes_of_shares(12, workers, parts=4) for workers in (1, 2, 3, 4)] == [
        [12],
        [6, 6],
        [6, 3, 3],
        [3, 3, 3, 3],
    ]
    with pytest.raises(DataError, match="a batch of 12 images cannot be shared by 13 workers"):
        rank_block(batch, 0, 13)
    with pytest.raises(DataError, match="a batch of 4 undivided parts cannot be shared by 5 workers"):
        sizes_of_shares(12, 5, parts=4)
    with pytest.raises(DataError, match="a batch of 12 images cannot be cut into 5 equal parts"):
        sizes_of_shares(12, 2, parts=5)
    with pytest.raises(DataError, match="rank is 4, not between 0 and 3"):
        rank_block(batch, 4, 4)


# --- augmentation


def random_images(n: int, channels: int = 3, height: int = 29, width: int = 31) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, channels, height, width), dtype=torch.uint8, generator=generator)


def test_none_is_division_alone() -> None:
    images = random_images(4)
    result = augment(images, [3, 1, 2, 0], recipe="none", seed=0, epoch=0)
    assert result.dtype == torch.float32
    assert torch.equal(result, images.float() / 255)


@pytest.mark.parametrize("recipe", sorted(RECIPES))
@pytest.mark.parametrize("shape", [(3, 29, 31), (1, 32, 32), (3, 7, 5)])
def test_a_sample_is_the_same_in_every_batch_bit_for_bit(recipe: str, shape: tuple[int, int, int]) -> None:
    images, indices = random_images(64, *shape), np.random.default_rng(0).permutation(1000)[:64]
    together = augment(images, indices, recipe=recipe, seed=3, epoch=2)
    assert together.min() >= 0 and together.max() <= 1
    for rows in (np.array([17]), np.arange(7), np.random.default_rng(1).permutation(64), np.array([5, 5])):
        part = augment(images[rows], indices[rows], recipe=recipe, seed=3, epoch=2)
        assert torch.equal(part, together[rows])


def test_a_sample_is_the_same_whatever_the_number_of_threads() -> None:
    images, indices = random_images(64, 1, 32, 32), np.arange(64)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(augment(images, indices, recipe="affine", seed=0, epoch=0))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_affine_differs_by_seed_epoch_and_sample() -> None:
    images = random_images(1).expand(2, -1, -1, -1)
    first = augment(images, [4, 5], recipe="affine", seed=0, epoch=0)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, augment(images, [4, 5], recipe="affine", seed=1, epoch=0))
    assert not torch.equal(first, augment(images, [4, 5], recipe="affine", seed=0, epoch=1))


def test_affine_in_the_middle_of_its_range_changes_nothing() -> None:
    images = random_images(3).float() / 255
    torch.testing.assert_close(recipe_of("affine")(images, np.full((3, DRAWS), 0.5)), images, atol=1e-5, rtol=0)


def test_affine_shifts_by_pixels_and_continues_the_border() -> None:
    images = random_images(1, 1, 50, 50).float() / 255
    draws = np.full((1, DRAWS), 0.5)
    draws[:, 4] += 1 / (2 * 0.06 * 50)  # one pixel: each comes from its right neighbour
    shifted = recipe_of("affine")(images, draws)
    torch.testing.assert_close(shifted[..., :-1], images[..., 1:], atol=1e-5, rtol=0)
    torch.testing.assert_close(shifted[..., -1], images[..., -1], atol=1e-5, rtol=0)


def test_affine_rotates_in_square_pixels() -> None:
    """A straight line through the middle of a wide image stays as long as it was: no stretching by the aspect."""
    height, width = 41, 81
    images = torch.zeros(1, 1, height, width)
    images[..., height // 2, 20:61] = 1
    draws = np.full((1, DRAWS), 0.5)
    draws[:, 0] = 1.0  # 10 degrees
    rows, columns = torch.nonzero(recipe_of("affine")(images, draws)[0, 0] > 0.2, as_tuple=True)
    slope = np.polyfit(columns.numpy(), rows.numpy(), 1)[0]
    assert abs(slope) == pytest.approx(np.tan(np.radians(10)), rel=0.05)
    length = np.hypot(float(columns.max() - columns.min()), float(rows.max() - rows.min()))
    assert length == pytest.approx(40, abs=1.5)


def test_uniforms_are_uniform_and_unrelated() -> None:
    values = uniforms(np.arange(20_000), seed=0, epoch=0)
    assert values.shape == (20_000, DRAWS)
    assert values.min() >= 0 and values.max() < 1
    np.testing.assert_allclose(values.mean(0), 0.5, atol=0.01)
    np.testing.assert_allclose(values.std(0), 12**-0.5, atol=0.01)
    others = [uniforms(np.arange(20_000), seed=1, epoch=0), uniforms(np.arange(20_000), seed=0, epoch=1)]
    columns = np.concatenate([values, np.roll(values[:, :1], 1), *(other[:, :1] for other in others)], axis=1)
    correlation = np.corrcoef(columns, rowvar=False) - np.eye(columns.shape[1])
    assert np.abs(correlation).max() < 0.04
    # seed and epoch do not stand for one another
    assert not np.array_equal(others[0], others[1])


def degraded(images: torch.Tensor, kind: Any, probability: float = 1.0, extent: float | None = None) -> torch.Tensor:
    degradation = Degradation(kind, probability, extent)
    return augment(images, np.arange(len(images)), recipe="none", seed=1, epoch=0, degradation=degradation)


@pytest.mark.parametrize("kind", sorted(DEGRADATIONS))
@pytest.mark.parametrize("shape", [(3, 29, 31), (1, 32, 32), (3, 224, 224)])
def test_a_degraded_sample_is_the_same_in_every_batch_bit_for_bit(kind: Any, shape: tuple[int, int, int]) -> None:
    images, indices = random_images(24, *shape), np.random.default_rng(0).permutation(1000)[:24]
    how: dict[str, Any] = {"recipe": "none", "seed": 3, "epoch": 2, "degradation": Degradation(kind, 0.5, None)}
    together = augment(images, indices, **how)
    assert together.min() >= 0 and together.max() <= 1
    for rows in (np.arange(12), np.arange(12, 24), np.array([5]), np.random.default_rng(1).permutation(24)):
        assert torch.equal(augment(images[rows], indices[rows], **how), together[rows])


@pytest.mark.parametrize("kind", sorted(DEGRADATIONS))
def test_images_are_degraded_with_the_probability_and_else_untouched(kind: str) -> None:
    images = random_images(400, 1, 9, 8)
    plain = images.float() / 255
    for probability in (0.0, 0.25, 1.0):
        changed = (degraded(images, kind, probability) != plain).flatten(1).any(1)
        assert changed.double().mean().item() == pytest.approx(probability, abs=0.06)


def test_low_resolution_is_the_mean_of_what_a_pixel_covers() -> None:
    images = random_images(1, 1, 8, 12)
    flat = torch.full_like(images, 77)
    torch.testing.assert_close(degraded(flat, "low_resolution"), flat.float() / 255)
    one = degraded(images, "low_resolution", extent=1e-6)
    torch.testing.assert_close(one, one[..., :1, :1].expand_as(one))
    assert torch.equal(degraded(images, "low_resolution", extent=1.0), images.float() / 255)
    coarse = degraded(images, "low_resolution", extent=0.5)
    assert coarse.var() < (images.float() / 255).var() / 2


def test_blur_is_a_gaussian_of_the_given_width() -> None:
    point = torch.zeros(1, 1, 61, 101, dtype=torch.uint8)
    point[..., 30, 50] = 255
    found = degraded(point, "blur", extent=0.03)[0, 0].double()
    assert found.sum().item() == pytest.approx(1, abs=1e-5)
    for dim, side in ((0, 61), (1, 101)):
        offsets = torch.arange(side) - side // 2
        deviation = (found.sum(1 - dim) * offsets**2).sum().sqrt().item()
        assert deviation == pytest.approx(0.03 * side, rel=0.02)
    flat = torch.full((1, 1, 20, 20), 200, dtype=torch.uint8)
    torch.testing.assert_close(degraded(flat, "blur"), flat.float() / 255)


def test_occlusion_hides_one_rectangle_anywhere_inside() -> None:
    images = torch.zeros(300, 3, 10, 20, dtype=torch.uint8)
    hidden = degraded(images, "occlusion", extent=0.4) == 0.5
    assert (hidden.sum((1, 2, 3)) == 3 * 4 * 8).all()
    assert (hidden.any(3).sum(2) == 4).all() and (hidden.any(2).sum(2) == 8).all()
    firsts = {tuple(torch.nonzero(image[0])[0].tolist()) for image in hidden}
    assert {row for row, _ in firsts} == set(range(7))
    assert {column for _, column in firsts} == set(range(13))
    assert (degraded(images, "occlusion", extent=1.0) == 0.5).all()


def test_unknown_recipe_and_wrong_indices() -> None:
    with pytest.raises(DataError, match=r"unknown augmentation 'afine'.*did you mean 'affine'"):
        augment(random_images(1), [0], recipe="afine", seed=0, epoch=0)
    with pytest.raises(DataError, match="indices have shape"):
        augment(random_images(2), [0], recipe="none", seed=0, epoch=0)
