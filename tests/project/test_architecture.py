"""What the folder listing promises: the order of packages, the doors to heavy libraries, files of a readable size."""

import ast
import functools
import itertools
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from pydantic import BaseModel

from orchestrator.cli.outputs import OUTPUTS

ROOT = Path(__file__).parents[2]

ORDER = [
    "__main__",
    "api",
    "cli",
    "claims",
    "benchmarking",
    "results",
    "search",
    "check",
    "execution",
    "training",
    "report",
    "config",
    "networks",
    "data",
    "evaluation",
    "tracking",
    "plugins",
    "registries",
    "storage",
    "loss",
    "method",
    "parts",
    "contract",
    "stdio",
    "text",
    "errors",
    "problems",
]
"""The packages, and the modules beside them, from top to bottom: one imports only from those that stand behind it."""

DOORS = {
    "ray": {"execution"},
    "ray.tune": {"execution.ray_tune"},
    "ray.train": {"execution.ray_train", "execution.ray_private"},
    "optuna": {"search.study", "search.thinning"},
    "optunahub": {"config.algorithms.hub"},
    "mlflow": {"tracking.mlflow_store", "tracking.models"},
    "faiss": {"evaluation.neighbours"},
    "torch.distributed": {"training.distributed"},
    "torch.nn.parallel": {"training.distributed"},
    "typer": {"cli"},
    "jinja2": {"report.html.rendering"},
    "boto3": {"storage.s3"},
    "pyarrow.fs": set(),
    "botocore": {"storage.s3"},
    "obstore": {"storage.google_azure"},
    "tensorboardX": {"tracking.loggers.tensorboard"},
    "wandb": {"tracking.loggers.wandb"},
    "triton": {f"methods.kernels.{name}" for name in ("energy", "log_sums", "tiles")},
}
"""Who may import what, also inside functions: modules, or all modules of a package; others go through these."""

LONGEST = 500
LONGER: dict[str, int] = {}
"""Files that are longer than LONGEST, and how long each may be: it may only shrink."""


@functools.cache
def modules() -> dict[str, Path]:
    """Module name, without the package, -> file; the plugins of `methods/` by their full name."""
    package = {".".join(p.relative_to(ROOT / "orchestrator").with_suffix("").parts): p for p in files("orchestrator")}
    return package | {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in files("methods")}


def files(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if path != ROOT / folder / "__init__.py"]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path) -> list[str]:
    """Every module that a file imports, lazily or not; `from a import b` gives `a` and `a.b`."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: a relative import"
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def package_of(module: str) -> str:
    """`search` of `search.driver` and of `orchestrator.search.driver`."""
    return module.removeprefix("orchestrator.").split(".")[0]


OURS = [name for name in modules() if not name.startswith("methods.")]


def test_every_package_has_its_place() -> None:
    assert {package_of(name) for name in OURS} == set(ORDER), "a new package: give it a place in ORDER"
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("name", OURS)
def test_packages_import_downwards_only(name: str) -> None:
    own = package_of(name)
    allowed = {own, *ORDER[ORDER.index(own) + 1 :]}
    found = {item for item in imports(modules()[name]) if item.startswith("orchestrator.")}
    upward = sorted(item for item in found if package_of(item) not in allowed)
    assert not upward, f"{name} imports from above it"
    assert not any(item.split(".")[0] == "methods" for item in imports(modules()[name]))


def test_no_module_imports_itself_in_a_circle() -> None:
    """Also within a package; imports inside of functions count too."""
    names = {f"orchestrator.{name.removesuffix('.__init__')}": name for name in OURS}
    graph = {name: {names[item] for item in imports(modules()[name]) if item in names} - {name} for name in OURS}
    graph = {name: {other for other in others if not other.endswith("__init__")} for name, others in graph.items()}
    while free := [name for name, others in graph.items() if not others & graph.keys()]:
        for name in free:
            del graph[name]
    assert not graph, "these import each other"


@pytest.mark.parametrize("name", [name for name in modules() if name.startswith("methods.")])
def test_methods_know_the_contract_only(name: str) -> None:
    ours = {found for found in imports(modules()[name]) if found.startswith("orchestrator.")}
    assert {found for found in ours if not found.startswith("orchestrator.method")} == set()


@pytest.mark.parametrize("library", DOORS)
def test_heavy_libraries_have_their_doors(library: str) -> None:
    users = {
        name
        for name, path in modules().items()
        if any(found == library or found.startswith(library + ".") for found in imports(path))
    }
    assert {name for name in users if name not in DOORS[library] and package_of(name) not in DOORS[library]} == set()
    assert all(any(name == door or package_of(name) == door for name in users) for door in DOORS[library]), (
        "a door unused"
    )


def test_private_names_stay_in_their_module() -> None:
    found = []
    for name, path in modules().items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("orchestrator", "methods"):
                found += [f"{name}: {node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_")]
    assert not found


INNER = {"ray": "execution.ray_private"}
"""The only module that may use the inner parts of each: those whose names begin with an underscore."""


def inner_parts(code: ast.Module) -> set[str]:
    """The libraries of INNER whose inner parts are named."""
    named = []
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            named += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            named.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and re.fullmatch(r"\w+(\.\w+)+", str(node.value)):  # a module by its name
            named.append(str(node.value))
    return {name.split(".")[0] for name in named if "._" in name.replace(".__", ".")} & INNER.keys()


def test_inner_parts_of_libraries_are_used_in_one_module_each() -> None:
    users = {name: inner_parts(parsed(path)) for name, path in modules().items()}
    assert {library: name for name, found in users.items() for library in found} == INNER
    for planted in (
        *("import ray._private.worker", "from ray.air import _internal", "ray._private.worker.stop()"),
        'import_module("ray._private.worker")',
    ):
        assert inner_parts(ast.parse(planted)) == {"ray"}
    assert inner_parts(ast.parse("import ray\nray.__version__\nself._ray")) == set()


OPENED = {
    "registries": "the cache of packages, which is no search's",
    "storage.opening": "the one opener of a search's files",
    "storage.atomic": "its own temporary file",
    "storage.folder": "a link in place of the folder of deleted ones",
    "storage.places": "a probe in the storage itself",
    "storage.object_store": "its own temporary file",
    "storage.scratch": "temporary folders",
    "training.features": "the cache of features, which is no search's",
    "training.checkpoint": "torch.load and ZipFile, of what `check_regular` and `open_file` passed",
    "training.hub_folder": "safetensors, of what `check_regular` passed",
    "report.model_view": "np.load of an open file",
    "report.method_costs": "a file of the package",
    "tracking.mlflow_store": "a file of its own; a folder that `check_tree` passed",
    "tracking.own_database": "a database of the storage, and its lock",
    "tracking.address": "a database that the user names",
    "tracking.tracker_process": "/dev/null",
    "execution.ray_start": "/dev/null",
    "execution.installed": "the package's own files, and plugins'",
    "stdio": "/dev/null",
    "search.doctor": "/proc, and a probe in the storage itself",
    "search.export": "an exported model, in the place that the user names",
    "search.hub": "the same",
    "config.algorithms.hub": "the code of a sampler, in OptunaHub's cache",
    "search.retrieval": "a table that the user names",
    "report.html.rendering": "the package's own files",
    "report.published": "the same",
    "networks.backbones.timm_models": "timm's own files",
    "networks.backbones.weights": "weights that the user names",
    "plugins": "the record of methods",
    "config.files": "search files",
    "config.presets": "the package's own files",
    "cli.scaffold": "a new method's files",
    "claims": "claims' files",
    "results.row": "the files of the record",
    "data": "data sets, and images that the user names",
}
"""The modules, or packages, that open, create or delete files themselves, and which: no search's, or checked ones."""
CALLS = re.compile(
    r"open|os\.open|(?!Store\.|webbrowser\.).*\.(open|read_text|read_bytes|write_text|write_bytes|unlink|touch)"
    r"|np\.load|torch(\.\w+)?\.load|(.*\.)?(load_file|ZipFile|copyfile|copytree|copy2)|parquet\.read_table"
)


def opened(code: ast.Module) -> set[str]:
    """The calls that open, create or delete a file by its path."""
    calls = {ast.unparse(node.func) for node in ast.walk(code) if isinstance(node, ast.Call)}
    return {call for call in calls if CALLS.fullmatch(call)}


def test_a_searchs_files_are_opened_in_one_module() -> None:
    """So that none follows a link that others planted (`storage.opening`)."""
    users = {name for name, path in modules().items() if name in OURS and opened(parsed(path))}
    assert {name for name in users if name not in OPENED and package_of(name) not in OPENED} == set()
    assert {door for door in OPENED if not any(door in (name, package_of(name)) for name in users)} == set()
    planted = "open(path)\npath.open('rb')\n(folder / name).read_bytes()\nnp.load(folder / 'a.npy')\npath.unlink()"
    assert len(opened(ast.parse(planted))) == 5
    assert opened(ast.parse("open_file(path)\nStore.open(path)\nremove_file(path)\nengine.load(state)")) == set()


def models_in(kind: object) -> set[type]:
    """The models and dataclasses that a type is made of, at any depth."""
    found: set[type] = set()
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        waiting += get_args(one)
        if isinstance(one, type) and one not in found and (issubclass(one, BaseModel) or is_dataclass(one)):
            found.add(one)
            waiting += get_type_hints(one, include_extras=True).values()
    return found


def constructed(code: ast.Module, module: str) -> set[str]:
    """The classes that a module constructs, each as the module that it is imported from, or its own, and the name."""
    origin = {node.name: f"{module}.{node.name}" for node in code.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom):
            origin |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    calls = {ast.unparse(node.func) for node in ast.walk(code) if isinstance(node, ast.Call)}
    inside = {
        f"{module}.{kind.name}"
        for kind in code.body
        if isinstance(kind, ast.ClassDef)
        and any(isinstance(node, ast.Call) and ast.unparse(node.func) == "cls" for node in ast.walk(kind))
    }
    return inside | {origin[name] for name in calls & origin.keys()}


def test_each_output_is_constructed() -> None:
    """What `schema --of outputs` publishes is what the code builds, and not a description beside it."""
    outputs = {f"{one.__module__}.{one.__name__}" for kind in OUTPUTS.values() for one in models_in(kind)}
    names = {f"orchestrator.{name.removesuffix('.__init__')}": path for name, path in modules().items() if name in OURS}
    built = {kind for name, path in names.items() for kind in constructed(parsed(path), name)}
    assert len(outputs) > 40
    assert outputs - built == set(), "nobody constructs these"
    twin = "class Twin(Output): ...\nclass Used(Output): ...\nUsed(used=1.0, of=None)"
    assert constructed(ast.parse(twin), "cli.planted") == {"cli.planted.Used"}


def test_files_are_short() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    long = {name: length for name, length in lengths.items() if length > LONGER.get(name, LONGEST)}
    assert not long, f"split these files, along what they do: {long}"
    assert not {name for name in LONGER if lengths.get(name, 0) <= LONGEST}, "no longer in need of LONGER"


def test_every_module_says_what_it_is() -> None:
    paths = {*modules().values(), ROOT / "orchestrator/__init__.py", ROOT / "methods/__init__.py"}
    silent = [path for path in paths if not ast.get_docstring(parsed(path))]
    assert not silent


HELPED = ("schedulers", "algorithms", "single_algorithms", "formats", "final_protocols")
"""The tables whose names `--help` shows."""


IMPORTED = {
    "orchestrator.method; orchestrator.method.registry()": "ray mlflow optuna typer faiss triton methods.kernels.tiles",
    "orchestrator.training.loop, orchestrator.evaluation.metrics": "ray mlflow optuna typer",
    "orchestrator.search.conductor, orchestrator.search.driver": "ray mlflow",
}
"""What is imported, one after the other in one process, and what is not loaded by then."""


def loaded_too(imported: Mapping[str, str]) -> list[list[str]]:
    """Of each import, what it should not load and loads."""
    lines = [f"HELPED = {HELPED}", "import sys"]
    for what, absent in imported.items():
        lines += [f"import {what}", f"print(*[name for name in {absent.split()} if name in sys.modules])"]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_what_an_import_loads() -> None:
    """Training runs wherever torch is, and the command line answers at once."""
    assert loaded_too(IMPORTED) == [[], [], []]
    assert loaded_too({"orchestrator.cli.main": "ray mlflow optuna torch jinja2"}) == [[]]
    assert loaded_too({"json, sqlite3": "ray sqlite3", "csv": "csv"}) == [["sqlite3"], ["csv"]]  # so it can be seen


# What docs/architecture.md says -----------------------------------------------------------------------------------

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def arrows() -> set[tuple[str, str]]:
    """The package that imports, and the one that is imported; those that follow from others are left out."""
    found = {
        (package_of(name), package_of(item))
        for name in OURS
        for item in imports(modules()[name])
        if item.startswith("orchestrator.") and package_of(item) in ORDER
    }
    found = {(above, below) for above, below in found if above not in (below, "__main__")}

    def reached(start: str, without: tuple[str, str]) -> set[str]:
        seen, waiting = set[str](), [start]
        while waiting:
            package = waiting.pop()
            new = {below for above, below in found - {without} if above == package} - seen
            seen |= new
            waiting += new
        return seen

    return {(above, below) for above, below in found if below not in reached(above, (above, below))}


def test_the_picture_of_the_packages_is_that_of_their_imports() -> None:
    drawn = {(above, below) for above, below in re.findall(r"^    (\w+) --> (\w+)$", ARCHITECTURE, re.MULTILINE)}
    assert drawn == arrows()


def test_the_files_that_the_page_names_are_there() -> None:
    named = set(re.findall(r"`([\w/]+\.py|\w+/[\w/]+)`", ARCHITECTURE))
    named |= {f"{name}/" for name in re.findall(r"^\| `(\w+)` \|", ARCHITECTURE, re.MULTILINE)}
    assert len(named) > 20
    assert not {name for name in named if not any((ROOT / part / name).exists() for part in ("orchestrator", ""))}
    assert {f"{name}/" for name in ORDER if (ROOT / "orchestrator" / name).is_dir()} <= named


STEP = re.compile(r"`([\w/]+\.py)`\s+\(`(\w+)`\)")


def unlinked_steps(page: str) -> list[str]:
    """Of the page's paths, the steps whose file does not define the name, and the neighbours without a link."""
    paths = re.findall(r"^- \*\*[^*]+:\*\*(.*?)(?=^- \*\*|^## )", page, re.MULTILINE | re.DOTALL)
    chains = [STEP.findall(chain) for path in paths if len(STEP.findall(path)) > 4 for chain in path.split(";")]
    assert sum(map(len, chains)) > 20
    lost = [f"{file}: {name}" for chain in chains for file, name in chain if name not in definitions(file)]
    return lost + [
        f"{one} - {other}"
        for chain in chains
        for (file, one), (beside, other) in itertools.pairwise(chain)
        if other not in names_reached(file, one) and one not in names_reached(beside, other)
    ]


@functools.cache
def definitions(file: str) -> Mapping[str, ast.AST]:
    path = ROOT / file if file.startswith("methods/") else ROOT / "orchestrator" / file
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def names_reached(file: str, name: str) -> set[str]:
    """The names that a function or class uses, itself or by others of its file."""
    seen, reached, waiting = set[str](), set[str](), [name]
    while waiting:
        node = definitions(file).get(waiting.pop())
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in seen:
            seen.add(node.name)
            names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            names |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
            reached |= names
            waiting += names
    return reached


def test_the_steps_of_the_paths_call_each_other() -> None:
    assert unlinked_steps(ARCHITECTURE) == []
    moved = ARCHITECTURE.replace("(`Reader`)", "(`Writer`)")
    assert unlinked_steps(moved) == ["data/pipeline.py: Writer", "Store - Writer", "Writer - Batches"]
    uncalled = ARCHITECTURE.replace("(`evaluate_queries`)", "(`evaluate_embeddings`)")  # which training does not call
    assert unlinked_steps(uncalled) == ["evaluate_embeddings - validate"]


def test_the_index_names_every_page() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert set(re.findall(r"\((\w+\.md)\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"))) == pages


def events_read_by_key(source: str) -> list[int]:
    """The lines where something called an event is read as a mapping."""
    reads = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript):
            whole, key = node.value, node.slice
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
        ):
            whole, key = node.func.value, node.args[0]
        else:
            continue
        is_event = isinstance(whole, ast.Name) and whole.id == "event"
        if is_event and isinstance(key, ast.Constant) and isinstance(key.value, str):
            reads.append(node.lineno)
    return reads


def test_events_are_types_to_the_end() -> None:
    assert events_read_by_key('event["seq"]\nevent.get("text")\nevent.text\nvalues["seq"]') == [1, 2]
    reads = {name: events_read_by_key(path.read_text()) for name, path in modules().items() if name in OURS}
    assert len(reads) > 100
    assert {name: lines for name, lines in reads.items() if lines} == {}


PARTICIPLES = {
    *("asked", "begun", "chosen", "counted", "drawn", "found", "given", "held", "its", "kept", "known", "left", "made"),
    *("meant", "mine", "named", "needed", "ours", "own", "placed", "said", "seen", "shown", "stored", "taken"),
    *("theirs", "told", "wanted", "written"),
}
"""They say when a value came, and not what it is."""


def bindings(source: str) -> list[str]:
    """The names of all variables and parameters, as often as they are bound in another function."""
    names = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            arguments = function.args
            names += [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            inside = (node for node in ast.walk(function) if isinstance(node, ast.Name))
            names += {node.id for node in inside if isinstance(node.ctx, ast.Store)}
    return names


def test_values_are_nouns() -> None:
    """At most one name in a hundred is a participle or a pronoun; of a box, `left` is the usual name."""
    assert sorted(bindings("def f(found, *, best):\n    known = found\n    known = best")) == ["best", "found", "known"]
    names = [name for path in modules().values() for name in bindings(path.read_text(encoding="utf-8"))]
    assert len(names) > 10_000
    assert sum(name in PARTICIPLES for name in names) < 0.01 * len(names)


def imported_test_modules(files: Mapping[str, str]) -> list[str]:
    """Which of these files import a test module: what tests share is in tests/support."""
    imports = [
        (name, module)
        for name, source in files.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    ]
    return [f"{name} imports {module}" for name, module in imports if module and module.startswith("test_")]


def test_what_tests_share_is_in_one_folder() -> None:
    tests = sorted((ROOT / "tests").rglob("*.py"))
    files = {path.relative_to(ROOT / "tests").as_posix(): path.read_text(encoding="utf-8") for path in tests}
    allowed = ["training/test_gpu_report.py imports test_gpu"]  # which it runs
    assert imported_test_modules(files) == allowed
    planted = {"a.py": "def test() -> None:\n    from test_loop import train\n", "b.py": "import test_loop\n"}
    assert imported_test_modules(planted) == ["a.py imports test_loop", "b.py imports test_loop"]


def test_the_folders_of_the_tests_are_the_packages() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if list(path.glob("test_*.py"))}
    packages = {path.parent.name for path in (ROOT / "orchestrator").glob("*/__init__.py")}
    assert folders == packages | {"methods", "project"}
    assert not list((ROOT / "tests").glob("test_*.py"))


MESSAGE = re.compile(
    r"(\w+_)?(message|msg|hint|reason|why|warning|problem|complaint|advice|remedy|rule|verdict|sentence|note|error"
    r"|exception|said|what|how|diverged)"
)
"""What a text for a person is called; a function's `..._text` gives one too."""
READS = {"startswith", "endswith", "removeprefix", "removesuffix", "replace", "partition", "rpartition", "split"}
PATTERNS = {"search", "match", "fullmatch", "findall", "finditer", "sub", "subn"}
BORDERS = {
    "config.files": "ruamel names a key that is there twice in its text alone",
    "errors": "Ray gives the text of another process's OSError",
    "evaluation.gpu": "torch and faiss say in words that memory is missing",
    "execution.ray_start": "Ray says in words that it has no such option",
    "execution.ray_train": "the last line of a remote traceback of Ray's",
    "execution.worker": "the first line of a CUDA error",
    "problems": "a plugin's own check raises `key: what is wrong`",
    "storage.google_azure": "obstore gives a response's status and the store's code in its text alone",
    "tracking.mlflow_store": "MLflow's client gives the endpoint that a server lacks in its text alone",
    "tracking.sender": "the Markdown of a note, of which the journal has no other form",
    "training.device": "torch says in words that the memory of this machine is missing",
    "training.model_schema": "torch's error of weights that do not fit",
    "training.repeatable": "torch's warnings of operations without a fixed order",
}
"""Where the text of somebody else is read, and made a type or a shorter text, and why."""


def messages_read(code: ast.Module) -> list[int]:
    """The lines where the content of a message decides or is rewritten."""
    caught = {node.name for node in ast.walk(code) if isinstance(node, ast.ExceptHandler) and node.name}

    def is_message(node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in caught or MESSAGE.fullmatch(node.id) is not None
        if isinstance(node, ast.Attribute):
            return MESSAGE.fullmatch(node.attr) is not None
        if isinstance(node, ast.Subscript):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return is_message(node.value) or (isinstance(key, str) and MESSAGE.fullmatch(key) is not None)
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr in {*READS, "lower", "strip", "rstrip"}:
            return is_message(node.func.value)
        name = ast.unparse(node.func).rpartition(".")[2]
        inner = name == "str" and bool(node.args) and is_message(node.args[0])
        is_text = name.endswith("_text") and name not in ("read_text", "checked_text", "_latex_text")
        return inner or is_text or name in ("suggestion", "describe", "format_message")

    lines = []
    for node in ast.walk(code):
        read: ast.expr | None = None
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            read = node.comparators[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr in READS:
                read = node.func.value if ast.unparse(node.func.value) != "re" else node.args[-1]
            elif node.func.attr in PATTERNS:
                read = node.args[-1]
        if read is not None and is_message(read):
            lines.append(read.lineno)
    return lines


def test_no_message_is_read_back() -> None:
    """A fact that a message tells is a type, so that another wording changes no behaviour."""
    read = {name: lines for name, path in modules().items() if (lines := messages_read(parsed(path)))}
    assert {name: lines for name, lines in read.items() if name not in BORDERS} == {}
    assert BORDERS.keys() == read.keys(), "a border where nothing is read"
    planted = [
        'if "still rose" in warning: pass',
        'if "did you mean" not in suggestion(key, names): pass',
        "if reason.startswith(ENDED): pass",
        'what.replace("ten times of it", "ten times as much")',
        "re.search(r\"did you mean '(.*)'\", hint)",
        "OPTION.sub(named, problem)",
        'problem.removeprefix(f"{source}: ")',
        'details["msg"].removeprefix("Value error, ")',
        'first_reason.split("; ")',
        'learning.best_of_text(ledger, winner).removeprefix("as the ")',
        'try: pass\nexcept OSError as fault:\n    if "no such table" in str(fault): pass',
        "try: pass\nexcept OSError as fault:\n    if BUCKET in str(fault): pass",
        'complaint.lower().endswith("required")',
        'if "KEY=VALUE" in error.format_message(): pass',
    ]
    assert [text for text in planted if len(messages_read(ast.parse(text))) != 1] == []
    harmless = 'key in known\nword.startswith("-")\n" ".join(str(error).split())\nwhy.reason in reasons'
    assert messages_read(ast.parse(harmless)) == []


OPTIONS_STAY = ("cli", "check", "data.prepare", "data.sources", "data.archives.own")
"""What only the command line calls: an option in its messages may be a text."""
OPTION = re.compile(r"(?<![\w-])--[a-z]")


def options_as_text(code: ast.Module) -> list[int]:
    """The lines where a problem's text holds an option, and not in a command: in Python it is an argument."""

    def text_of(node: ast.expr) -> str:
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)

    lines = []
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("InputError", "DataError", "Problem"):
            inside = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("rule", "advice"):
            inside = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        else:
            continue
        texts = [text_of(part) for part in inside if isinstance(part, ast.Constant | ast.JoinedStr)]
        lines += [node.lineno for text in texts if OPTION.search(re.sub(r"\b(orchestrator|uv pip) [^;)]*", "", text))]
    return sorted(lines)


def test_a_problem_names_options_as_types() -> None:
    named = {name: lines for name, path in modules().items() if (lines := options_as_text(parsed(path)))}
    kept = [name for name in named if any(name == one or name.startswith(f"{one}.") for one in OPTIONS_STAY)]
    assert {name: lines for name, lines in named.items() if name not in kept} == {}
    planted = 'InputError(f"--num-trials: {n}: too few")\nrule = ("give ", "--budget")\nProblem((), rule="or --name")'
    assert options_as_text(ast.parse(planted)) == [1, 2, 3]
    harmless = 'InputError("run orchestrator resume a --seeds 3")\nProblem((Option("num_trials"),), 0, "too few")'
    assert options_as_text(ast.parse(harmless)) == []
