"""How many planted mistakes the tests find: a seeded sample of small changes (mutants) of the code, one at a time.

    python benchmarks/mutants.py --number 80 --seed 0

A mutant changes one operator, comparison, constant or choice of one module. The quick tests of that module run on it
in a process of their own; it is killed if one of them fails, or if they do not end. What survives is either not
tested or means the same: read each. The sample depends on the code and the seed; `--known FILE` repeats the mutants of
an earlier record that are still in the code, by their function and text.
"""

import argparse
import ast
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent
GROUPS: dict[str, dict[str, str]] = {
    "search": {
        "orchestrator/search/study.py": "test_study",
        "orchestrator/config/algorithms/tpe.py": "test_study",
        "orchestrator/config/algorithms/grid.py": "test_study",
        "orchestrator/config/algorithms/nsga2.py": "test_study",
        "orchestrator/config/schedulers/asha.py": "test_study",
        "orchestrator/config/schedulers/hyperband.py": "test_study",
        "orchestrator/config/schedulers/median.py": "test_study",
        "orchestrator/search/conductor.py": "test_study test_lost test_control",
        "orchestrator/storage/ledger.py": "test_journal test_study test_points",
        "orchestrator/config/space.py": "test_search_files test_study",
    },
    "statistics": {
        "orchestrator/evaluation/intervals.py": "test_intervals",
        "orchestrator/report/significance.py": "test_significance test_standing test_points",
        "orchestrator/report/standing.py": "test_standing test_significance test_importance",
        "orchestrator/report/settings.py": "test_importance test_standing test_search_page",
        "orchestrator/report/importance.py": "test_importance",
    },
    "loop": {
        "orchestrator/training/loop.py": "test_loop",
        "orchestrator/training/optimizer.py": "test_weight_decay test_loop",
        "orchestrator/training/folds.py": "test_folds",
        "orchestrator/data/samplers.py": "test_batches",
        "orchestrator/data/splits.py": "test_data test_protocols test_pipeline",
    },
    "evaluation": {
        "orchestrator/evaluation/metrics.py": "test_evaluation",
        "orchestrator/evaluation/measures/clusters.py": "test_evaluation",
        "orchestrator/evaluation/measures/precision.py": "test_evaluation test_yardstick",
        "orchestrator/evaluation/measures/recall.py": "test_evaluation",
        "orchestrator/evaluation/neighbours.py": "test_evaluation test_retrieval",
        "orchestrator/evaluation/clustering.py": "test_evaluation",
        "orchestrator/evaluation/chance.py": "test_yardstick test_evaluation",
        "orchestrator/evaluation/insight.py": "test_insight",
    },
    "methods": {
        "methods/distances.py": "test_objectives test_second_derivatives",
        "methods/reductions.py": "test_objectives",
        "methods/potentials.py": "test_pfml",
        "methods/pfml.py": "test_pfml",
        "methods/idml.py": "test_idml",
        "methods/ccp.py": "test_ccp",
        "methods/anti_collapse.py": "test_anti_collapse test_method",
        "methods/baselines.py": "test_baselines test_kernels",
        "methods/memory.py": "test_baselines",
        "methods/proxies.py": "test_objectives test_pfml test_baselines",
    },
}
"""The modules of each group, and the tests that hold each."""
WIDER = {
    "search": "test_goldens test_standing test_lost test_control test_search_page test_journal test_faults "
    "test_benchmark",
    "statistics": "test_goldens test_search_page test_evaluation",
    "loop": "test_goldens test_protocols test_loop test_yardstick test_check",
    "evaluation": "test_insight test_goldens test_loop test_yardstick",
    "methods": "test_goldens test_check test_loop",
}
"""The further tests of each group, for what the module's own let through."""
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin"}
PATIENCE = 600
"""Seconds that the tests of a mutant may take."""


@dataclass(frozen=True)
class Mutant:
    """One change: the occurrence-th one that turns `before` into `after` in a function or class of a module."""

    group: str
    module: str
    where: str
    before: str
    after: str
    occurrence: int

    @property
    def tests(self) -> list[str]:
        """The module's own, and then the group's."""
        own = GROUPS[self.group][self.module].split()
        return [
            str(next((ROOT / "tests").rglob(f"{name}.py")).relative_to(ROOT))
            for name in dict.fromkeys([*own, *WIDER[self.group].split()])
        ]


class _Mutator(ast.NodeTransformer):
    """Lists the possible changes of a module, and makes the `chosen` one."""

    def __init__(self, chosen: tuple[str, str, str, int] | None = None) -> None:
        self.chosen = chosen
        self.found: list[tuple[str, str, str, int]] = []
        self.scope: list[str] = []

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            self.scope.append(node.name)
            for part in node.body:
                self.visit(part)
            self.scope.pop()
            return node
        if isinstance(node, ast.AnnAssign):
            node.value = None if node.value is None else self._expression(node.value)
            return node
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.Assert):
            return node
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return node  # a docstring
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, name, [self._expression(v) if isinstance(v, ast.AST) else v for v in value])
            elif isinstance(value, ast.AST):
                setattr(node, name, self._expression(value))
        return node

    def _expression(self, node: Any) -> Any:
        if isinstance(node, ast.JoinedStr):
            return node
        before = ast.unparse(node) if isinstance(node, ast.expr) else ""
        for mutated in _changes(node):
            key = (".".join(self.scope), before, ast.unparse(ast.fix_missing_locations(mutated)))
            entry = (*key, sum(found[:3] == key for found in self.found))
            self.found.append(entry)
            if entry == self.chosen:
                return mutated
        return self.visit(node)


def _changes(node: ast.AST) -> Iterator[Any]:
    """What a node could be by mistake."""
    match node:
        case ast.Compare(left, [operator], comparators) if type(operator) in COMPARISONS:
            yield ast.Compare(left, [COMPARISONS[type(operator)]()], comparators)
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            if not isinstance(left, ast.JoinedStr) and not isinstance(right, ast.JoinedStr):
                yield ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.UnaryOp(ast.USub(), operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Call(ast.Name(name), arguments, keywords) if name in NAMES:
            yield ast.Call(ast.Name(NAMES[name], ast.Load()), arguments, keywords)
        case ast.Call(ast.Attribute(value, name), arguments, keywords) if name in NAMES:
            yield ast.Call(ast.Attribute(value, NAMES[name], ast.Load()), arguments, keywords)
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)


def mutants() -> dict[str, list[Mutant]]:
    """All mutants of each group."""
    found: dict[str, list[Mutant]] = {}
    for group, modules in GROUPS.items():
        for module in modules:
            mutator = _Mutator()
            mutator.visit(ast.parse((ROOT / module).read_text(encoding="utf-8")))
            found.setdefault(group, []).extend(Mutant(group, module, *entry) for entry in mutator.found)
    return found


class _Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the mutated module in place of the one on the disk."""

    def __init__(self, mutant: Mutant) -> None:
        self.path = ROOT / mutant.module
        self.name = mutant.module.removesuffix(".py").replace("/", ".")
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        _Mutator((mutant.where, mutant.before, mutant.after, mutant.occurrence)).visit(tree)
        self.tree = ast.fix_missing_locations(tree)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(self.path))

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)


def judged(mutant: Mutant | None, tests: str) -> tuple[str, str]:
    """What becomes of a mutant in a file of tests: killed, timeout or survived, and the first test that failed; None is
    the code as it is."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.setsid()
        _run_tests(mutant, tests, write)
    os.close(write)
    begun, state = time.monotonic(), "survived"
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() - begun > PATIENCE:
            state = "timeout"
            break
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):  # with whatever it started
        os.killpg(child, signal.SIGKILL)
    if state == "timeout":
        os.waitpid(child, 0)
    os.set_blocking(read, False)
    try:
        told = os.read(read, 10_000).decode()
    except BlockingIOError:
        told = ""
    os.close(read)
    if state != "timeout" and told != "0":
        state = "killed"
    return state, told.partition(" ")[2]


def _run_tests(mutant: Mutant | None, tests: str, write: int) -> None:
    import pytest

    first: list[str] = []

    class Watch:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                first.append(report.nodeid)

    if mutant is not None:
        sys.meta_path.insert(0, _Planted(mutant))
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"]
        code = pytest.main([*options, tests], plugins=[Watch()])
    os.write(write, f"{int(code)} {first[0] if first else ''}".strip().encode()[:9_000])
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--group", choices=GROUPS, action="append", help="only this one")
    parser.add_argument("--known", type=Path, help="a record of mutants to repeat, instead of a sample")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"), help="the record; an unfinished one goes on")
    given = parser.parse_args()
    os.chdir(ROOT)
    everyone = mutants()
    if given.known:
        keys = [tuple(entry[key] for key in Mutant.__annotations__) for entry in json.loads(given.known.read_text())]
        chosen = [mutant for group in everyone.values() for mutant in group if tuple(asdict(mutant).values()) in keys]
        print(f"{len(chosen)} of {len(keys)} known mutants are still in the code")
    else:
        rng = random.Random(given.seed)
        share = -(-given.number // len(GROUPS))
        chosen = [mutant for group in everyone.values() for mutant in rng.sample(group, share)]
    chosen = [mutant for mutant in chosen if not given.group or mutant.group in given.group]
    record: list[dict[str, Any]] = json.loads(given.out.read_text()) if given.out.exists() else []
    done = {tuple(entry[key] for key in Mutant.__annotations__) for entry in record}
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(ROOT / "tests"))
    _import_libraries()
    sound: set[str] = set()
    for mutant in chosen:
        if tuple(asdict(mutant).values()) in done:
            continue
        begun, state, test = time.monotonic(), "survived", ""
        for tests in mutant.tests:
            if tests not in sound and judged(None, tests)[0] != "survived":
                raise SystemExit(f"{tests}: fails on the code as it is")
            sound.add(tests)
            state, test = judged(mutant, tests)
            if state != "survived":
                break
        record.append({**asdict(mutant), "state": state, "test": test, "seconds": round(time.monotonic() - begun, 1)})
        given.out.write_text(json.dumps(record, indent=1))
        print(f"{state:9}{mutant.module} {mutant.where}: {mutant.before}  ->  {mutant.after}", flush=True)
    for group in GROUPS:
        of = [entry for entry in record if entry["group"] == group]
        print(f"{group}: {sum(entry['state'] != 'survived' for entry in of)} of {len(of)} killed")


def _import_libraries() -> None:
    """What every test imports, once; nothing of the code that is mutated."""
    import hypothesis  # noqa: F401
    import optuna  # noqa: F401
    import pyarrow  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import torch._dynamo  # noqa: F401
    import torchvision  # noqa: F401

    loaded = [name for name in sys.modules if name.partition(".")[0] in ("orchestrator", "methods")]
    if loaded:
        raise SystemExit(f"{loaded[0]} is imported already: a mutant of it would not be seen")


if __name__ == "__main__":
    main()
