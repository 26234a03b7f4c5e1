"""The order of imports and the doors to heavy libraries, as the folder listing promises them."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ORDER = [
    "__main__",
    "cli",
    "commands.datasets",
    "commands.methods",
    "commands.models",
    "commands.results",
    "commands.searches",
    "commands.trainings",
    "commands.output",
    "commands.options",
    "scaffold",
    "check.source",
    "check.loss",
    "check.state",
    "check.attributes",
    "check.options",
    "check.processes",
    "check.subject",
    "plan",
    "report",
    "display",
    "benchmark",
    "comparison_page",
    "comparison",
    "cluster",
    "salvage",
    "ray_start",
    "search",
    "export",
    "model_page",
    "page",
    "numbers_page",
    "elements",
    "findings",
    "importance",
    "searched",
    "effect",
    "power",
    "significance",
    "control",
    "trial",
    "lost",
    "conductor",
    "study",
    "untrained",
    "claims",
    "learning",
    "yardstick",
    "standing",
    "ledger",
    "events",
    "tracking",
    "views",
    "journal",
    "provenance",
    "defaults",
    "folds",
    "loop",
    "insight",
    "intervals",
    "evaluation",
    "checkpoint",
    "published",
    "presets",
    "spec",
    "limits",
    "yaml_file",
    "learner",
    "method",
    "backbones",
    "bn_inception",
    "data.pipeline",
    "data.samplers",
    "data.splits",
    "data.transforms",
    "data.importers",
    "data.catalog",
    "objects",
    "records",
    "data.remote",
    "data.archives",
    "data.glyphs",
    "data.store",
    "data.encoding",
    "distributed",
    "files",
    "endings",
    "terminal",
    "errors",
]
"""The package's modules from top to bottom: one imports only from those that stand behind it."""

DOORS = {
    "ray": {"cluster", "lost", "ray_start", "trial"},
    "ray.tune": {"cluster", "ray_start", "trial"},
    "ray.train": {"ray_start", "trial"},
    "optuna": {"study"},
    "mlflow": {"tracking"},
    "faiss": {"evaluation"},
    "torch.distributed": {"distributed"},
    "torch.nn.parallel": {"distributed"},
    "typer": {"cli", "terminal", *(name for name in ORDER if name.startswith("commands."))},
    "boto3": {"objects"},
    "botocore": {"objects"},
}
"""Who may import what, also inside functions; everybody else goes through these."""


def modules() -> dict[str, Path]:
    """Module name, without the package, -> file; the plugins of `methods/` by their full name."""
    package = {".".join(p.relative_to(ROOT / "orchestrator").with_suffix("").parts): p for p in files("orchestrator")}
    return package | {f"methods.{path.stem}": path for path in files("methods")}


def files(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if path.name != "__init__.py"]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, lazily or not; `from a import b` gives `a` and `a.b`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: a relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_has_its_place() -> None:
    here = {name for name in modules() if not name.startswith("methods.")}
    assert here <= set(ORDER), "new modules: give them a place in ORDER"
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("name", [name for name in modules() if not name.startswith("methods.")])
def test_modules_import_downwards_only(name: str) -> None:
    below = ORDER[ORDER.index(name) + 1 :]
    ours = {found.removeprefix("orchestrator.") for found in imports(modules()[name]) if found in own_modules()}
    assert ours <= set(below), f"{name} imports from above it"
    assert not any(found.split(".")[0] == "methods" for found in imports(modules()[name]))


def own_modules() -> set[str]:
    return {f"orchestrator.{name}" for name in modules() if not name.startswith("methods.")}


@pytest.mark.parametrize("name", [name for name in modules() if name.startswith("methods.")])
def test_methods_know_the_contract_only(name: str) -> None:
    ours = {found for found in imports(modules()[name]) if found in own_modules()}
    assert ours <= {"orchestrator.method"}


@pytest.mark.parametrize("library", DOORS)
def test_heavy_libraries_have_their_doors(library: str) -> None:
    users = {
        name
        for name, path in modules().items()
        if any(found == library or found.startswith(library + ".") for found in imports(path))
    }
    assert users <= DOORS[library]


@pytest.mark.parametrize(
    "imported, absent",
    [
        ("orchestrator.loop, orchestrator.evaluation", "ray mlflow optuna typer"),
        ("orchestrator.method; orchestrator.method.registry()", "ray mlflow optuna typer faiss"),
        ("orchestrator.conductor, orchestrator.search", "ray mlflow"),
        ("orchestrator.cli", "ray mlflow optuna torch"),
    ],
)
def test_what_an_import_loads(imported: str, absent: str) -> None:
    """Training runs wherever torch is, and the command line answers at once."""
    script = f"import {imported}\nimport sys\nprint(*[n for n in {absent.split()} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
