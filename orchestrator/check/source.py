"""Checks of what a method says of itself: its name, its documentation, its Config, its code."""

import ast
import importlib
import importlib.util
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.check.subject import (
    CHECKS,
    CheckFailed,
    CheckSkipped,
    Subject,
    check,
    require,
)
from orchestrator.config.training import Training
from orchestrator.contract import family_of
from orchestrator.method import Method, MethodConfig
from orchestrator.problems import suggestion

ACCELERATORS = ("cuda", "mps", "xpu")


@check
def declaration(subject: Subject) -> None:
    """Its name is in snake_case, after the prefix of its family if it is of one, and each failure that it expects is a
    check's, with a reason."""
    method = subject.method
    usual = re.fullmatch(r"[a-z][a-z0-9_]*", method.name) or family_of(method.name)
    require(bool(usual), f"name '{method.name}' should be in snake_case, as pfml")
    for name, reason in method.expected_failures.items():
        require(name in CHECKS, f"expected_failures: '{name}' is no check{suggestion(name, CHECKS)}")
        require(bool(str(reason).strip()), f"expected_failures: '{name}' has no reason")


@check
def documentation(subject: Subject) -> None:
    """Its docstring has its formula, and `paper` names its source with a year, or says that it is unpublished."""
    method = subject.method
    require(bool((method.__doc__ or "").strip()), "it has no docstring")
    require(bool(re.search(r"\S+ = \S", method.__doc__ or "")), "its docstring has no formula, such as L = ...")
    sourced = bool(re.search(r"\b(19|20)\d\d\b|unpublished", method.paper))
    require(sourced, f"paper '{method.paper}' should be authors, title, venue and year, or 'unpublished'")


@check
def configuration(subject: Subject) -> None:
    """Its defaults are in their bounds, each hyperparameter is described and bounded, none is every training's."""
    kind = subject.method.Config
    for name, info in kind.model_fields.items():
        require(name not in Training.model_fields, f"{name} is already a setting of every training")
        require(not info.is_required(), f"{name} has no default")
        require(bool((info.description or "").strip()), f"{name} has no description")
        unbounded = all(_accepts(kind, subject.hyperparameters | {name: end}) for end in (-(10**30), 10**30))
        require(not unbounded, f"{name} takes any number: give it bounds, such as gt=0 or le=1")
    if "meta_share" in kind.model_fields:
        for end in (-0.01, 1, 1.0, 2):
            accepted = _accepts(kind, subject.hyperparameters | {"meta_share": end})
            require(not accepted, f"meta_share takes {end}: it is a share of each class's images, ge=0 and lt=1")
    config = subject.config()
    sources = [("idle", config.idle()), ("idle_within", config.idle_within(1))]
    where_named = {
        name: where for where, reasons in sources for key, because in reasons.items() for name in (key, *because)
    }
    for name in where_named.keys() - kind.model_fields.keys():
        raise CheckFailed(f"{where_named[name]}: {name} is no hyperparameter{suggestion(name, kind.model_fields)}")
    values = config.model_dump()
    try:
        kind(**values)
    except ValueError as error:
        raise CheckFailed(f"a default is refused by its own bounds: {error}") from None
    # searches, journals and checkpoints store hyperparameters as plain values
    try:
        again = kind(**json.loads(json.dumps(values)))
    except (TypeError, ValueError) as error:
        raise CheckFailed(f"the hyperparameters cannot be kept as JSON: {error}") from None
    require(again == config, "hyperparameters change when they are saved as JSON and read again")


def _accepts(kind: type[MethodConfig], values: dict[str, Any]) -> bool:
    try:
        kind(**values)
    except ValueError:
        return False
    return True


@check
def device(subject: Subject) -> None:
    """Its code names no accelerator: no `.cuda()`, no "cuda" but to compare with."""
    for where, node in _code(subject.method):
        for part in _of_accelerators(node):
            says = f"{where}:{part.lineno}: {ast.unparse(part)}"
            raise CheckFailed(f"{says}: take the device of a tensor that is given")


@cache
def _of_accelerators(node: ast.AST) -> list[ast.expr]:
    """The calls and constants in a statement that choose an accelerator."""
    called = [part for part in _parts(node) if isinstance(part, ast.Call) and _is_of_accelerator(part.func)]
    constants = [part for part in _parts(node) if isinstance(part, ast.Constant) and _is_accelerator(part.value)]
    if constants:  # asking which device a tensor is on does not choose one
        questions = [part for part in _parts(node) if isinstance(part, ast.Compare)]
        in_questions = {id(part) for question in questions for part in ast.walk(question)}
        constants = [part for part in constants if id(part) not in in_questions]
    return [*called, *constants]


def _is_of_accelerator(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr in ACCELERATORS


def _is_accelerator(value: object) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(rf"({'|'.join(ACCELERATORS)})(:\d+)?", value))


@check
def distributed(subject: Subject) -> None:
    """Its code does not use torch.distributed: a method sees the whole global batch."""
    for where, node in _code(subject.method):
        for line, name in _of_distribution(node):
            raise CheckFailed(f"{where}:{line}: {name}: every rank sees the whole batch already")


@cache
def _of_distribution(node: ast.AST) -> list[tuple[int, str]]:
    """(line, name) of what a statement takes of torch.distributed and its like."""
    doors = re.compile(r"(torch\.(distributed|nn\.parallel)|orchestrator\.training\.distributed)\b")
    uses: list[tuple[int, str]] = []
    for part in _parts(node):
        names: list[str] = []
        if isinstance(part, ast.Import):
            names = [alias.name for alias in part.names]
        elif isinstance(part, ast.ImportFrom):
            names = [f"{part.module}.{alias.name}" for alias in part.names]
        elif isinstance(part, ast.Attribute):
            names = [ast.unparse(part)]
        uses += [(getattr(part, "lineno", 0), name) for name in names if doors.match(name)]
    return uses


def _code(method: type[Method]) -> Iterator[tuple[str, ast.AST]]:
    """(file, statement) of the classes of a method, and of all that they name in the modules of the same package."""
    packages = {method.__module__.split(".")[0], "methods"}
    queue = [(cls.__module__, cls.__name__) for cls in method.__mro__]
    visited: set[tuple[str, str]] = set()
    while queue:
        module_name, name = place = queue.pop()
        if place in visited or module_name.split(".")[0] not in packages:
            continue
        visited.add(place)
        module = importlib.import_module(module_name)
        where, statements = _statements(module_name)
        for node in statements.get(name, ()):
            yield where, node
            if isinstance(node, ast.ImportFrom):
                parent = module_name if hasattr(module, "__path__") else module_name.rpartition(".")[0]
                source = "." * node.level + (node.module or "")
                source = importlib.util.resolve_name(source, parent) if node.level else source
                queue += [(source, alias.name) for alias in node.names if name in (alias.asname, alias.name)]
                continue
            for part in _parts(node):
                if isinstance(part, ast.Name):
                    queue.append((module_name, part.id))
                elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                    owner = vars(module).get(part.value.id)
                    if inspect.ismodule(owner):
                        queue.append((owner.__name__, part.attr))


@cache
def _parts(node: ast.AST) -> tuple[ast.AST, ...]:
    """A statement and all that is in it; many methods name the same."""
    return tuple(ast.walk(node))


@cache
def _statements(module_name: str) -> tuple[str, dict[str, list[ast.AST]]]:
    """The file of a module, and its statements by the names that they define; nested classes too."""
    module = importlib.import_module(module_name)
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        raise CheckSkipped(f"the source of {module_name} cannot be read") from None
    by_name: dict[str, list[ast.AST]] = {}
    top = list(tree.body)
    for node in [*top, *(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n not in top)]:
        names: list[str] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        for name in names:
            by_name.setdefault(name, []).append(node)
    return Path(module.__file__ or module_name).name, by_name
