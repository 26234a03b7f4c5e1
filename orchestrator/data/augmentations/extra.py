"""torchvision's augmentations by name, with their parameters: `color_jitter(brightness=0.4), random_erasing(p=0.25)`.

They run as torchvision wrote them. Only their random numbers are others: each sample's come from a generator of its
own, seeded by (seed, epoch, view, sample), never from torch's global one, which other threads draw from too.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.errors import InputError
from orchestrator.problems import Problem, suggestion

if TYPE_CHECKING:
    from torch import Tensor

    Change = Callable[[Tensor, int], Tensor]

DRAW = 32
"""The number among a sample's uniforms that its generator is seeded by: the first beyond those of its crop."""
EXAMPLE = "color_jitter(brightness=0.4), random_erasing(p=0.25)"


@dataclass(frozen=True)
class AllowedValues:
    """The values that a parameter may have: numbers in [least, most], or pairs of such.

    Attributes:
        whole: whole numbers only; `odd`: odd ones.
        pair: "may": a number or a range [low, high]; "must": a range; "two": two numbers in any order.
        required: there is no default.
    """

    least: float
    most: float
    whole: bool = False
    odd: bool = False
    pair: str = "not"
    required: bool = False

    @property
    def rule(self) -> str:
        """What is allowed, in a few words."""
        kind = "an odd number" if self.odd else "a whole number" if self.whole else "a number"
        ranges = {"may": f"{kind} or a range [low, high]", "must": "a range [low, high]", "two": "two numbers [x, y]"}
        return f"{ranges.get(self.pair, kind)} from {self.least:g} to {self.most:g}"

    def allows(self, value: Any) -> bool:
        """Whether the value is one of these."""
        if isinstance(value, list):
            numbers = self.pair != "not" and len(value) == 2 and all(map(self._allows_number, value))
            return numbers and (value[0] <= value[1] or self.pair == "two")
        return self.pair in ("not", "may") and self._allows_number(value)

    def _allows_number(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return self.least <= value <= self.most and not (self.odd and value % 2 == 0)


@dataclass(frozen=True)
class Extra:
    """An augmentation: the class of torchvision.transforms.v2, and its parameters.

    Those without a probability of their own get one, `p`, 1 by default.
    """

    torchvision: str
    parameters: Mapping[str, AllowedValues] = field(default_factory=dict)
    own_p: bool = False


P = AllowedValues(0, 1)
FACTOR = AllowedValues(0, 100, pair="may")
EXTRAS = {
    "color_jitter": Extra(
        "ColorJitter",
        {"brightness": FACTOR, "contrast": FACTOR, "saturation": FACTOR, "hue": AllowedValues(0, 0.5)},
    ),
    "gaussian_blur": Extra(
        "GaussianBlur",
        {
            "kernel_size": AllowedValues(1, 999, whole=True, odd=True, required=True),
            "sigma": AllowedValues(0.01, 100, pair="may"),
        },
    ),
    "random_adjust_sharpness": Extra(
        "RandomAdjustSharpness", {"sharpness_factor": AllowedValues(0, 100, required=True)}, own_p=True
    ),
    "random_affine": Extra(
        "RandomAffine",
        {
            "degrees": AllowedValues(0, 180, required=True),
            "translate": AllowedValues(0, 1, pair="two"),
            "scale": AllowedValues(0.01, 100, pair="must"),
            "shear": AllowedValues(0, 90),
        },
    ),
    "random_autocontrast": Extra("RandomAutocontrast", own_p=True),
    "random_equalize": Extra("RandomEqualize", own_p=True),
    "random_erasing": Extra(
        "RandomErasing",
        {
            "scale": AllowedValues(0, 1, pair="must"),
            "ratio": AllowedValues(0.01, 100, pair="must"),
            "value": AllowedValues(0, 255),
        },
        own_p=True,
    ),
    "random_grayscale": Extra("RandomGrayscale", own_p=True),
    "random_horizontal_flip": Extra("RandomHorizontalFlip", own_p=True),
    "random_invert": Extra("RandomInvert", own_p=True),
    "random_perspective": Extra("RandomPerspective", {"distortion_scale": P}, own_p=True),
    "random_posterize": Extra("RandomPosterize", {"bits": AllowedValues(0, 8, whole=True, required=True)}, own_p=True),
    "random_rotation": Extra("RandomRotation", {"degrees": AllowedValues(0, 180, required=True)}),
    "random_solarize": Extra("RandomSolarize", {"threshold": AllowedValues(0, 255, required=True)}, own_p=True),
    "random_vertical_flip": Extra("RandomVerticalFlip", own_p=True),
    "rand_augment": Extra(
        "RandAugment",
        {"num_ops": AllowedValues(1, 20, whole=True), "magnitude": AllowedValues(0, 30, whole=True)},
    ),
    "trivial_augment_wide": Extra("TrivialAugmentWide"),
    "auto_augment": Extra("AutoAugment"),
    "aug_mix": Extra(
        "AugMix",
        {"severity": AllowedValues(1, 10, whole=True), "mixture_width": AllowedValues(1, 20, whole=True)},
    ),
}
"""By their names in settings: torchvision's class in lower case."""

Chosen = tuple[str, dict[str, Any]]


def parse_augmentations(text: str) -> list[Chosen]:
    """The augmentations of a setting, in order, each with its parameters; ValueError says what is wrong."""
    try:
        (statement,) = ast.parse(f"[{text}]", mode="exec").body
        assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.List)
        changes = [_parse_node(node) for node in statement.value.elts]
    except (SyntaxError, AssertionError, MemoryError, RecursionError):
        changes = []
    if not changes:
        raise ValueError(f"should read like '{EXAMPLE}'")
    return changes


def text_of(chosen: list[Chosen]) -> str:
    """As in a setting: parsed again, it is the same."""
    parts = []
    for name, values in chosen:
        arguments = ", ".join(f"{key}={value}" for key, value in values.items())
        parts.append(f"{name}({arguments})" if arguments else name)
    return ", ".join(parts)


def change_of(text: str) -> "Change":
    """The augmentations of a setting as one function of an image, uint8 (C, H, W), and the sample's seed, from 0 to
    2**53 - 1."""
    from torch import Generator
    from torchvision.transforms import v2

    from orchestrator.data.augmentations.draws import Drawn

    changes: list[Any] = []
    for name, arguments in parse_augmentations(text):
        extra = EXTRAS[name]
        values = dict(arguments)
        probability = None if extra.own_p else values.pop("p", None)
        transform = getattr(v2, extra.torchvision)(**values)
        changes.append(transform if probability is None else v2.RandomApply([transform], p=probability))

    def change(image: "Tensor", seed: int) -> "Tensor":
        with Drawn(Generator().manual_seed(seed)):
            for transform in changes:
                image = transform(image)
        return image

    return change


def _parse_node(node: ast.expr) -> Chosen:
    called = node.func if isinstance(node, ast.Call) else node
    assert isinstance(called, ast.Name)
    name = called.id
    if name not in EXTRAS:
        raise InputError(Problem((name,), rule="there is no such augmentation", suggestion=suggestion(name, EXTRAS)))
    parameters = dict(EXTRAS[name].parameters) | {"p": P}
    values: dict[str, Any] = {}
    if isinstance(node, ast.Call):
        if node.args or any(keyword.arg is None for keyword in node.keywords):
            raise ValueError(f"{name}: give its parameters by name: {', '.join(parameters)}")
        for keyword in node.keywords:
            assert keyword.arg is not None
            values[keyword.arg] = _check_value(name, keyword.arg, keyword.value, parameters)
    for key, parameter in parameters.items():
        if parameter.required and key not in values:
            raise ValueError(f"{name}: {key} is missing: {parameter.rule}")
    return name, values


def _check_value(name: str, key: str, node: ast.expr, known: Mapping[str, AllowedValues]) -> Any:
    if key not in known:
        raise InputError(Problem((name, key), rule="no such parameter", suggestion=suggestion(key, known)))
    try:
        value = ast.literal_eval(node)
    except ValueError:
        value = None
    value = list(value) if isinstance(value, tuple) else value
    if not known[key].allows(value):
        raise ValueError(f"{name}: {key}: {ast.unparse(node)} should be {known[key].rule}")
    return value
