"""A problem as a type, and how the interfaces put it into words."""

import pickle
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from orchestrator.config.files import read_yaml
from orchestrator.config.resolve import resolve_search
from orchestrator.errors import InputError, Problems
from orchestrator.problems import (
    SET,
    Bare,
    File,
    Inner,
    Operand,
    Option,
    Problem,
    complaints,
    option_in_python,
    suggestion,
    unknown,
)

LOW = (File("demo.yaml"), "space", 0, Inner("delta"), "low")


def test_a_problem_is_told_with_its_parts() -> None:
    problem = Problem(
        LOW, 0.9, "should be below high", suggestion("hihg", ["high", "log"]), line=7, advice=": swap them"
    )
    assert str(problem) == (
        "demo.yaml, line 7: space[0].delta: low: 0.9: should be below high (did you mean 'high'?): swap them"
    )
    assert str(Problem((SET, Operand("lr=")), rule="no value after '='")) == "--set lr=: no value after '='"
    assert str(Problem((), [3], "should be a word", begins_rule=True)) == "[3] should be a word"
    assert str(Problem(("name",), Bare("x" * 80), "is long")) == f"name: {'x' * 80}: is long"
    assert "(80 characters)" not in str(problem) and "(82 characters)" in str(Problem((), "x" * 80, "is long"))
    assert str(Problem(rule="wrong").under("b").under((File("a.yaml"),))) == "a.yaml: b: wrong"


def test_options_are_arguments_in_python() -> None:
    budget, storage = Option("num_trials"), Option("storage", "ORCHESTRATOR_STORAGE")
    problem = Problem((budget,), 3, ("give ", SET, ", or see orchestrator search --help"), advice=(" or ", storage))
    assert str(problem) == (
        "--num-trials: 3: give --set, or see orchestrator search --help or --storage (or ORCHESTRATOR_STORAGE)"
    )
    assert problem.text(option_in_python) == (
        "num_trials: 3: give settings, or see orchestrator search --help or storage (or ORCHESTRATOR_STORAGE)"
    )
    error = InputError(problem, "a text stays, --set too")
    error.render(option_in_python)
    assert error.problems == (problem.text(option_in_python), "a text stays, --set too")
    assert str(error) == "; ".join(error.problems) and error.details[0] == problem


def test_an_error_goes_to_another_process_whole() -> None:
    error = InputError(Problem(LOW, 0.9, "wrong", line=7), "second")
    again = pickle.loads(pickle.dumps(error))
    assert (again.details, again.problems, str(again)) == (error.details, error.problems, str(error))


def test_a_suggestion_says_which_names() -> None:
    many = [f"setting_{number}" for number in range(30)]
    assert suggestion("batch_size", ["classes_per_batch", "images_per_class"]).names == (
        "classes_per_batch",
        "images_per_class",
    )
    assert (suggestion("zzz", many).names, suggestion("zzz", many).name) == ((), None)
    assert str(suggestion("zzz", many, "orchestrator settings")) == " (see orchestrator settings)"
    assert str(suggestion("x" * 1000, many)) == ""
    assert str(unknown("gpu", ["cpu", "cuda", "auto"])) == "'gpu' is unknown (known: auto, cpu, cuda)"


def test_problems_are_told_once_each() -> None:
    problems = Problems()
    for value in ([1], [1], [2]):  # lists have no hash
        with problems.collect():
            raise InputError(Problem(("a",), value, "wrong"))
    with pytest.raises(InputError) as refused:
        problems.tell()
    assert refused.value.problems == ("a: [1]: wrong", "a: [2]: wrong")


class Inside(BaseModel):
    model_config = ConfigDict(extra="forbid")
    count: Annotated[int, Field(ge=1, le=9)] = 1


class Fields(BaseModel):
    """A field of each kind that settings have."""

    model_config = ConfigDict(extra="forbid")
    whole: Annotated[int, Field(ge=1, le=9)] = 1
    share: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.5
    rate: Annotated[float, Field(ge=1e-5, le=1e6)] = 0.5
    either: int | str | None = None
    flag: bool = False
    word: str = "a"
    kind: Literal["red", "green", "blue", "white"] = "red"
    names: list[str] = []
    table: dict[str, int] = {}
    inside: Inside = Inside()
    digest: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")] = "0" * 64
    checked: str = ""
    stated: str = ""

    @field_validator("checked", "stated")
    @classmethod
    def _own(cls, value: str) -> str:
        if value == "typed":
            raise InputError(Problem(rule="Unknown", suggestion=suggestion("rde", ["red", "green"])))
        if value:
            raise ValueError(f"Should not be {value!r}" if value == "twice" else "Should be empty")
        return value

    @model_validator(mode="after")
    def _of_all(self) -> "Fields":
        if self.word == "plugin":
            raise ValueError("word: 'plugin': is not for whole: 1")
        if self.word == "typed":
            raise InputError(Problem(("word",), "typed", "is typed"))
        return self


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"whole": 0}, "whole: 0: should be at least 1"),
        ({"whole": 10}, "whole: 10: should be at most 9"),
        ({"whole": 1.5}, "whole: 1.5: should be a whole number, got a number with a fractional part"),
        ({"whole": "x"}, "whole: 'x': should be a whole number"),
        ({"whole": None}, "whole: null: should be a whole number"),
        ({"share": 0.0}, "share: 0.0: should be above 0"),
        ({"share": 1}, "share: 1: should be below 1"),
        ({"rate": 0}, "rate: 0: should be at least 0.00001"),
        ({"rate": 2e6}, "rate: 2000000.0: should be at most 1000000"),
        ({"share": "x"}, "share: 'x': should be a number"),
        ({"share": float("nan")}, "share: nan: should be a finite number"),
        ({"either": [1]}, "either: [1]: should be a whole number"),
        ({"flag": "x"}, "flag: 'x': should be true or false, unable to interpret input"),
        ({"word": 3}, "word: 3: should be text"),
        ({"kind": "rde"}, "kind: 'rde' is unknown (did you mean 'red'?)"),
        ({"names": "x"}, "names: 'x': should be a list"),
        ({"table": 3}, "table: 3: should be a mapping"),
        ({"inside": 3}, "inside: 3: should be a mapping"),
        ({"inside": {"count": 0}}, "inside.count: 0: should be at least 1"),
        ({"inside": {"size": 0}}, "inside.size: no such key"),
        ({"digest": "x"}, "digest: 'x': should be 64 hexadecimal digits"),
        ({"word": "s3://me:secret@host/x", "flag": 5}, "flag: 5: should be true or false, unable to interpret input"),
        ({"checked": "s3://me:secret@host/x"}, "checked: 's3://***@host/x': should be empty"),
        ({"checked": "typed"}, "checked: 'typed': Unknown (did you mean 'red'?)"),
        ({"stated": "twice"}, "stated: should not be 'twice'"),
        ({"word": "plugin"}, "word: 'plugin': is not for whole: 1"),
        ({"word": "typed"}, "word: 'typed': is typed"),
        ({"sise": 3}, "sise: no such key"),
    ],
)
def test_pydantics_errors_are_problems(values: dict[str, object], line: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Fields(**values)
    problems = complaints(refused.value)
    assert [str(problem) for problem in problems] == [line]
    assert problems[0].path[0] == next(reversed(values)) and "Input" not in line


def test_the_line_of_a_problem_is_that_of_its_key(tmp_path: Path) -> None:
    """Whatever its words are: a value that reads like another key misleads nobody."""
    file = tmp_path / "own.yaml"
    file.write_text(
        "method: idml\nnum_trials: 4\nsettings:\n  dataset: glyphs-small\n  lr: 'epochs: 3'\n"
        "space:\n  objective:\n    choices:\n      margin:\n        beta: [1.2, -1]\n  delta: {low: 1, hihg: 2}\n"
    )
    with pytest.raises(InputError) as refused:
        resolve_search(read_yaml(file), name="x", source="own.yaml")
    lines = {problem.path[-1]: problem.line for problem in refused.value.details}
    assert lines["lr"] == 5 and lines["hihg"] == 11, refused.value.problems
    assert list(lines.values()) == sorted(filter(None, lines.values())), "in the order of the file"
    with pytest.raises(InputError) as refused:
        resolve_search(read_yaml(file), name="x", source="own.yaml", num_trials=-1)
    by_option = [problem for problem in refused.value.details if problem.path[0] == Option("num_trials")]
    assert [(problem.line, problem.value) for problem in by_option] == [(None, -1)]
