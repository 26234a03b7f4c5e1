"""Named conformance checks: what every method must satisfy, so that a search and its numbers can be trusted.

Each check trains the method on a small network and synthetic images, in float64 on the CPU, with the same parts as
the training loop. For your own tests:

    @pytest.mark.parametrize("check", method_checks(MyMethod), ids=str)
    def test_conforms(check):
        check()

so that a failure reads `MyMethod-state_round_trip`. On the command line: `orchestrator check NAME`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

# they define the checks, which are run and listed in this order
from orchestrator.check import source, loss, state, attributes, options, processes  # isort: skip
from orchestrator.check.subject import CHECKS, CheckFailed, CheckSkipped, Subject, Unexcused, own_random_numbers
from orchestrator.errors import InputError, TrainingFailed, place_of
from orchestrator.method import Method, MethodConfig
from orchestrator.problems import describe, suggestion

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

__all__ = [
    "CHECKS",
    "Check",
    "CheckFailed",
    "CheckSkipped",
    "Subject",
    "Unexcused",
    "Verdict",
    "attributes",
    "check_method",
    "config_of",
    "loss",
    "method_checks",
    "options",
    "processes",
    "source",
    "state",
    "verdicts",
]

EXCUSED = (CheckFailed, InputError)
"""What a declared reason excuses: that a check does not hold, or that the method refuses; not any other exception."""


@dataclass(frozen=True)
class Check:
    """One named check of a method; call it to run it. It raises if the method fails."""

    method: type[Method]
    name: str
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def expected_failure(self) -> str | None:
        """The declared reason why the method cannot pass."""
        return self.method.expected_failures.get(self.name)

    def __call__(self) -> None:
        with own_random_numbers():
            CHECKS[self.name](Subject(self.method, dict(self.hyperparameters)))

    def __str__(self) -> str:
        return f"{self.method.__name__}-{self.name}"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check, and the reason in one line ("" if it passed)."""

    name: str
    state: Literal["passed", "failed", "expected failure", "unexpected pass", "skipped"]
    reason: str = ""


def check_method(method: type[Method], **hyperparameters: Any) -> Iterator[Check]:
    """The checks of a method, with its defaults except for the given `hyperparameters`."""
    for name in CHECKS:
        yield Check(method, name, hyperparameters)


def method_checks(*methods: type[Method]) -> "list[ParameterSet]":
    """All checks of these methods for `pytest.mark.parametrize`; a declared failure is an xfail with its reason."""
    import pytest

    def marks(check: Check) -> tuple[pytest.MarkDecorator, ...]:
        reason = check.expected_failure
        return () if reason is None else (pytest.mark.xfail(reason=reason, raises=EXCUSED),)

    checks = [check for method in methods for check in check_method(method)]
    return [pytest.param(check, marks=marks(check), id=str(check)) for check in checks]


def verdicts(method: type[Method], **hyperparameters: Any) -> Iterator[Verdict]:
    """Run the checks of a method one by one; nothing is raised."""
    for check in check_method(method, **hyperparameters):
        expected = check.expected_failure
        try:
            check()
        except CheckSkipped as skipped:
            yield Verdict(check.name, "skipped", str(skipped))
        except Exception as error:
            kind = "" if isinstance(error, CheckFailed | Unexcused | TrainingFailed) else f"{type(error).__name__}: "
            message = f"{kind}{error}{'' if isinstance(error, CheckFailed | Unexcused) else place_of(error)}"
            reason = " ".join(message.split())
            if expected is None:
                yield Verdict(check.name, "failed", reason)
            elif isinstance(error, EXCUSED):
                yield Verdict(check.name, "expected failure", expected)
            else:
                yield Verdict(check.name, "failed", f"{reason} (more than the expected failure: {expected})")
        else:
            yield (
                Verdict(check.name, "passed")
                if expected is None
                else Verdict(
                    check.name, "unexpected pass", f"declared as an expected failure ({expected}); remove that"
                )
            )


def config_of(method: type[Method], hyperparameters: Mapping[str, Any]) -> MethodConfig:
    """The method's configuration; InputError for hyperparameters that it refuses."""
    for name in hyperparameters:
        if name not in method.Config.model_fields:
            raise InputError(
                f"{name}: no such hyperparameter of '{method.name}'{suggestion(name, method.Config.model_fields)}"
            )
    try:
        return method.Config(**hyperparameters)
    except ValidationError as error:
        raise InputError(f"method '{method.name}': {describe(error)}") from None
