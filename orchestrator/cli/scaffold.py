"""A plugin project for a new method: a working loss, a search space, tests that run the checks."""

import importlib.util
import keyword
import re
import shutil
import tempfile
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.plugins import installed_methods
from orchestrator.problems import format_value

NAME = re.compile(r"[a-z][a-z0-9_]*")
LONGEST_NAME = 60


def new_method(name: str, folder: Path) -> Path:
    """Write the project of a method called `name` into a new or empty folder, completely or not at all.

    InputError if the name is not a Python name in snake_case or is taken, or if the folder is not empty.
    """
    check_method_name(name)
    folder = folder.expanduser().absolute()
    values = {"{name}": name, "{Name}": class_name(name)}
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} already exists and is not an empty folder: name another with --folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        there = folder.is_dir()  # then keep the same folder: it may be a shell's working directory
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder if there else folder.parent))
    except OSError as error:
        raise InputError(f"--folder: {folder} cannot be written ({error.strerror}): name another") from None
    try:
        beside.chmod(0o755)
        for place, text in FILES.items():
            for key, value in values.items():
                place, text = place.replace(key, value), text.replace(key, value)
            (beside / place).parent.mkdir(exist_ok=True)
            (beside / place).write_text(text, encoding="utf-8")
        if there:
            for item in list(beside.iterdir()):
                item.rename(folder / item.name)
            beside.rmdir()
        else:
            beside.rename(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return folder


def class_name(name: str) -> str:
    """`MyLoss` for `my_loss`; never a name imported by the generated files."""
    camel = "".join(part.capitalize() for part in name.split("_"))
    return (
        f"{camel}Loss"
        if re.search(rf"\b{camel}\b", FILES["{name}/__init__.py"] + FILES["tests/test_{name}.py"])
        else camel
    )


def check_method_name(name: str) -> None:
    """InputError for a name that a new method, and its package, cannot have."""
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InputError(f"NAME: {format_value(name)} should be a Python name in snake_case, such as my_loss")
    if len(name) > LONGEST_NAME:
        raise InputError(
            f"NAME: {format_value(name)} is too long: at most {LONGEST_NAME} characters, since it names files"
        )
    if name in installed_methods():
        raise InputError(f"NAME: a method '{name}' is installed already ({installed_methods()[name].module})")
    if name == "tests" or importlib.util.find_spec(name) is not None:
        raise InputError(f"NAME: a Python package '{name}' already exists: choose another name")


FILES = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
description = "A deep-metric-learning method for dml-orchestrator."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["dml-orchestrator"]

[project.optional-dependencies]
test = ["pytest>=8"]

[project.entry-points."orchestrator.methods"]
{name} = "{name}"

[tool.setuptools]
packages = ["{name}"]

[tool.setuptools.package-data]
{name} = ["py.typed"]

[tool.pytest.ini_options]
testpaths = ["tests"]

[tool.ruff]
line-length = 120
""",
    "{name}/__init__.py": '''\
"""A method for dml-orchestrator. Every Method class of this package is registered once it is installed."""

import torch.nn.functional as F
from methods.objectives import cosine_similarity, pair_masks
from orchestrator.method import Method, MethodConfig, Outputs
from pydantic import Field
from torch import Tensor


class {Name}(Method):
    """One sentence that says what it does: here, a smooth hinge on the cosine similarity of pairs.

    L = mean over positives of softplus(scale (base - s)) / scale
      + mean over negatives of softplus(scale (s - base)) / scale.
    """

    name = "{name}"
    paper = "unpublished"  # or: Authors, Title, Venue Year

    class Config(MethodConfig):
        scale: float = Field(10.0, gt=0, description="sharpness of the hinge")
        base: float = Field(0.5, ge=-1, le=1, description="similarity that separates positives from negatives")

    config: Config

    def loss(self, outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
        scale, base = self.config.scale, self.config.base
        similarity = cosine_similarity(outputs["embedding"], outputs["embedding"])
        positive, negative = pair_masks(labels, labels, same=True)
        pull = F.softplus(scale * (base - similarity)) / scale
        push = F.softplus(scale * (similarity - base)) / scale
        # a batch may lack either kind of pair: a sum over a count of at least one, not a mean
        return {
            "pull": (pull * positive).sum() / positive.sum().clamp(min=1),
            "push": (push * negative).sum() / negative.sum().clamp(min=1),
        }
''',
    "{name}/py.typed": "",
    "{name}.yaml": """\
description: {Name} over its own hyperparameters.
method: {name}
dataset: glyphs-small
settings:
  epochs: 10
space:
  scale: {low: 1, high: 50, log: true}
  base: {low: 0.0, high: 0.9}
algorithm: tpe
num_trials: 20
scheduler: {name: asha, grace_validations: 3, reduction_factor: 3}
objective: val/map_at_r
""",
    "tests/test_{name}.py": '''\
"""The method holds what every method must hold, and prefers the right order. Add numbers of your formula by hand."""

import pytest
import torch
from orchestrator.check import Check, method_checks
from orchestrator.method import Task

from {name} import {Name}


@pytest.mark.parametrize("check", method_checks({Name}), ids=str)
def test_conforms(check: Check) -> None:
    check()


def test_near_images_of_a_class_cost_less_than_near_images_of_two() -> None:
    method = {Name}({Name}.Config(), Task(num_classes=2, embedding_dim=2, feature_dim=2))
    labels = torch.tensor([[0], [0], [1]])
    right = method.loss({"embedding": torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])}, labels)
    wrong = method.loss({"embedding": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])}, labels)
    assert float(sum(right.values())) < float(sum(wrong.values()))
''',
    "README.md": """\
# {name}

A deep-metric-learning method for dml-orchestrator.

```bash
uv pip install -e .                          # with its environment active (.uv/bin/uv there, if make fetched uv)
orchestrator methods {name}                  # formula, hyperparameters
orchestrator check {name}                    # what every method must hold
orchestrator train --method {name} --dataset glyphs-small --epochs 5
orchestrator search {name}.yaml
```

The loss is in `{name}/__init__.py`; `pytest` runs the checks, and whether the right order costs less.
""",
}
"""The project's files; `{name}` is the method's name, `{Name}` its class's name."""
