"""The check that a method works with every value of its choices and switches, not only with its defaults."""

import contextlib
from collections.abc import Iterator
from copy import deepcopy
from functools import cached_property
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
from pydantic import ValidationError
from torch import nn

from orchestrator.check.subject import (
    CHECKS,
    SIZE,
    CheckFailed,
    Subject,
    Unexcused,
    check,
    require,
    require_close,
    rows_of_step,
    terms_of,
)
from orchestrator.errors import InputError
from orchestrator.training.learner import Learner

CHEAP = ("terms", "parameter_groups", "gradients", "without_positives", "coinciding_points")


@check
def options(subject: Subject) -> None:
    """By each value of each choice and switch of its Config: the loss, its gradients, the parameter groups hold."""
    for changed in _variants(subject):
        other = _OneLearner(subject.method, subject.hyperparameters | changed)
        assignments = ", ".join(f"{name}={value}" for name, value in changed.items())
        for name in CHEAP:
            if name in subject.method.expected_failures:
                continue
            try:
                CHECKS[name](other)
            except InputError:  # the method says that these are incompatible
                break
            except (CheckFailed, Unexcused) as failed:
                raise type(failed)(f"with {assignments}: {name}: {failed}") from None
            except Exception as error:
                raise CheckFailed(f"with {assignments}: {name}: {type(error).__name__}: {error}") from error


@check
def schedulable(subject: Subject) -> None:
    """Of a hyperparameter named as schedulable, another value in `self.config` is the same as one from the start."""
    config = subject.config()
    for key in sorted(config.schedulable):
        require(key in type(config).model_fields, f"schedulable names {key}, which its Config does not have")
        other = next(_other_values(subject, key), None)
        if other is None:
            raise CheckFailed(f"schedulable names {key}: {getattr(config, key)!r}, which should be a number")
        running, fresh = subject.learner(), Subject(subject.method, subject.hyperparameters | {key: other}).learner()
        running.method.config = config.model_copy(update={key: other})
        state, results = deepcopy(running.state_dict()), []
        for learner in (running, fresh):
            batch = subject.batch(rows_of_step(0))
            rates = {f"learning rate {i}": g["lr"] for i, g in enumerate(learner.method.parameter_groups(1.0))}
            learner.load_state_dict(state)
            results.append({f"term '{name}'": term for name, term in terms_of(learner, batch).items()} | rates)
        require_close(results[1], results[0], 0.0, f"with {key}={other} from the start, then as a change to it")


def _other_values(subject: Subject, key: str) -> Iterator[float]:
    """Another number near to a hyperparameter's, that its Config accepts."""
    value = getattr(subject.config(), key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    for other in (value * 0.75, value * 1.25, value + 0.1, value + 1):
        other = type(value)(other)
        with contextlib.suppress(ValidationError):
            if other != value and subject.method.Config(**subject.hyperparameters | {key: other}):
                yield other


class _OneLearner(Subject):
    """Returns the same learner each time, in the state in which it was made, with one layer as its backbone: only the
    method is checked."""

    @cached_property
    def _learner(self) -> Learner:
        learner = super().learner()
        layer: Any = nn.Conv2d(1, learner.network.head.in_features, SIZE, dtype=torch.float64)
        learner.network.backbone = layer
        return learner

    @cached_property
    def _as_made(self) -> dict[str, Any]:
        return deepcopy(self._learner.state_dict())

    def learner(self, **_: Any) -> Learner:
        self._learner.load_state_dict(self._as_made)
        return self._learner


def _variants(subject: Subject) -> Iterator[dict[str, Any]]:
    """The settings for each value that is not the given one: itself, or itself and one more choice that allows it."""
    kind, config = subject.method.Config, subject.config()
    choices = {name: _values(info.annotation) for name, info in kind.model_fields.items()}
    for name, values in choices.items():
        for value in values:
            if value == getattr(config, name):
                continue
            further = ({other: v} for other, others in choices.items() if other != name for v in others)
            for more in ({}, *further):
                try:
                    kind(**subject.hyperparameters | {name: value} | more)
                except ValidationError:
                    continue
                yield {name: value} | more
                break


def _values(annotation: Any) -> list[Any]:
    """All values of a Literal or bool, alone or as a part of a union."""
    if annotation is bool:
        return [False, True]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return list(dict.fromkeys(value for part in get_args(annotation) for value in _values(part)))
    return []
