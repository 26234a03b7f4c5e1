"""torchvision's augmentations by name: its own results, from random numbers that belong to each sample."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from support.augmentation_settings import GIVEN
from support.image_pipelines import photographs as photographs
from torchvision.transforms import v2

from orchestrator.data.augmentations.extra import EXTRAS, change_of, parse_augmentations, text_of
from orchestrator.data.pipeline import EVALUATION, Reader, Request
from orchestrator.data.store import Store


def image(size: int = 24) -> torch.Tensor:
    return torch.randint(0, 200, (3, size, size + 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", EXTRAS)
def test_the_result_is_torchvision_s_of_the_same_seed(name: str) -> None:
    given, found = GIVEN.get(name, {}), set()
    change, transform = change_of(text_of([(name, given)])), getattr(v2, EXTRAS[name].torchvision)(**given)
    for seed in (0, 5, 2**53 - 1, 77, 1234, 8, 9, 10, 11, 12):
        torch.manual_seed(seed)
        expected = transform(image())
        torch.manual_seed(3)
        before = torch.get_rng_state()
        assert torch.equal(change(image(), seed), expected) and expected.dtype == torch.uint8
        assert torch.equal(torch.get_rng_state(), before), "it drew from the global generator"
        found.add(expected.numpy().tobytes())
    assert len(found) > 1 or name == "random_autocontrast"


def test_a_probability_is_for_those_without_one_too() -> None:
    change = change_of("random_rotation(degrees=90, p=0.25), random_invert(p=1)")
    inverted = 255 - image()
    kept = sum(torch.equal(change(image(), seed), inverted) for seed in range(200))
    assert kept == pytest.approx(150, abs=20)


@pytest.mark.parametrize("kind", ["photographs", "glyphs"])
def test_a_sample_is_the_same_in_every_batch_and_with_any_threads(kind: str, photographs: Store, glyphs: Store) -> None:
    store = photographs if kind == "photographs" else glyphs
    recipe = "random_resized_crop_224" if kind == "photographs" else "none"
    rows = np.random.default_rng(0).permutation(len(store))[:12]

    def read(rows: Any, epoch: int = 1, view: int = 0, **how: Any) -> torch.Tensor:
        extra = "color_jitter(brightness=0.5), random_erasing(p=0.5), random_horizontal_flip"
        given: dict[str, Any] = {"augmentation": recipe, "image_size": 32, "extra_augmentations": extra, "seed": 4}
        with Reader(store, **(given | how)) as reader:
            ((_, images),) = reader.read([Request(np.asarray(rows), epoch, view=view)])
        return images

    together = read(rows)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for threads in (0, 3):
        for part in ([*range(12)], [0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11], [*range(11, -1, -1)]):
            assert torch.equal(read(rows[part], threads=threads), together[part])
    assert torch.equal(torch.get_rng_state(), before)
    for other in (read(rows, epoch=2), read(rows, view=1), read(rows, seed=5), read(rows, extra_augmentations=None)):
        assert not torch.equal(other, together)
    assert torch.equal(read(rows, EVALUATION), read(rows, EVALUATION, extra_augmentations=None))


def test_threads_keep_their_random_numbers_apart() -> None:
    """Those of each sample, and the global ones of a thread that trains meanwhile."""
    change = change_of("color_jitter(brightness=0.5, hue=0.2), random_affine(degrees=30), random_erasing(p=0.5)")
    alone = [change(image(), seed) for seed in range(64)]
    torch.manual_seed(0)
    expected = [torch.rand(3) for _ in range(300)]
    torch.manual_seed(0)
    with ThreadPoolExecutor(3) as pool:
        changed = pool.map(change, [image()] * 64, range(64))
        drawn = [torch.rand(3) for _ in range(300)]
        assert all(map(torch.equal, changed, alone))
    assert all(map(torch.equal, drawn, expected))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "should read like 'color_jitter"),
        ("color_jitter, random erasing", "should read like 'color_jitter"),
        ("3", "should read like 'color_jitter"),
        ("colour_jitter", "colour_jitter: there is no such augmentation .did you mean 'color_jitter'"),
        ("color_jitter(0.4)", "color_jitter: give its parameters by name: brightness, contrast, saturation, hue, p"),
        ("color_jitter(brightnes=1)", "brightnes: no such parameter .did you mean 'brightness'"),
        ("color_jitter(hue=0.6)", "color_jitter: hue: 0.6 should be a number from 0 to 0.5"),
        ("color_jitter(brightness=open('x'))", r"brightness: open\('x'\) should be a number or a range"),
        ("random_erasing(p=True)", "random_erasing: p: True should be a number from 0 to 1"),
        ("random_erasing(scale=[0.3, 0.1])", "should be a range .low, high. from 0 to 1"),
        ("gaussian_blur(kernel_size=4)", "kernel_size: 4 should be an odd number from 1 to 999"),
        ("gaussian_blur", "gaussian_blur: kernel_size is missing: an odd number"),
        ("rand_augment(num_ops=1.5)", "num_ops: 1.5 should be a whole number from 1 to 20"),
        ("random_affine(degrees=3, translate=0.1)", "translate: 0.1 should be two numbers"),
    ],
)
def test_what_is_wrong_is_told_before_anything_starts(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_augmentations(text)


def test_a_setting_is_written_in_one_way() -> None:
    text = "random_affine( degrees = 3,translate=(0.2, 0.1) ),trivial_augment_wide()"
    assert text_of(parse_augmentations(text)) == "random_affine(degrees=3, translate=[0.2, 0.1]), trivial_augment_wide"
    assert parse_augmentations(text_of(parse_augmentations(text))) == parse_augmentations(text)
