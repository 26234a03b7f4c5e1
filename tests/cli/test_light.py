"""Without torch, CUDA and Ray: the distribution that only looks at a storage has all that it needs, and no more.

Its dependencies stand in deploy/review/pyproject.toml. Each command runs where nothing but these, and what they
depend on, can be imported.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from support.made_pages import made, spread
from support.output_schemas import conforms

from orchestrator.errors import HEAVY
from orchestrator.plugins import ENCLOSED, enclose

ROOT = Path(__file__).parents[2]
BEGUN = ROOT / "tests" / "goldens" / "begun"
FULL: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LIGHT: dict[str, Any] = tomllib.loads((ROOT / "deploy" / "review" / "pyproject.toml").read_text(encoding="utf-8"))
RUN = """
import importlib.util, json, shlex, sys

asked = json.loads(sys.argv[1])

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in asked["absent"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in asked["absent"] else find(name, package)
sys.meta_path.insert(0, Absent())
from orchestrator import plugins
from orchestrator.cli.main import main
plugins.ENCLOSED = plugins.Path(asked["methods"])
try:
    for line in sys.argv[2:]:
        print("$", line, flush=True)
        try:
            main(shlex.split(line))
        except SystemExit as ended:
            if ended.code:
                raise
finally:
    with open(asked["loaded"], "w") as file:
        json.dump([name for name in sys.modules if "." not in name], file)
"""


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


@cache
def modules() -> dict[str, set[str]]:
    """The distributions that each importable name comes from."""
    return {module: {name_of(one) for one in names} for module, names in packages_distributions().items()}


def closure(names: set[str]) -> set[str]:
    """Distributions, and all that they require here without an extra."""
    found, open_ = set[str](), set(names)
    while open_:
        found.add(name := open_.pop())
        try:
            required = distribution(name).requires or ()
        except PackageNotFoundError:  # of another system
            continue
        open_ |= {name_of(one) for one in required if "extra ==" not in one} - found
    return found


def direct() -> set[str]:
    return {name_of(one) for one in LIGHT["project"]["dependencies"]}


def absent() -> list[str]:
    """What cannot be imported in a light installation, of all that can be here."""
    present = closure(direct())
    own = {"orchestrator", "methods", "search_spaces"}
    return sorted(name for name, owners in modules().items() if not owners & present and name not in own)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a storage: two short searches, and one with enough trials for every figure."""
    folder = tmp_path_factory.mktemp("light")
    searches = folder / "runs" / "searches"
    for name in ("golden", "other"):
        shutil.copytree(BEGUN, searches / name)
    (searches / "made").mkdir()
    enclose(folder / "methods.json")
    made(searches / "made", spread(40), finals={"0000": [0.5, 0.6, 0.55], "0001": [0.5, 0.5, 0.4]})
    return folder


def process(folder: Path, *lines: str) -> dict[str, Any]:
    """What runs commands one after the other in a light installation, each below a line that names it."""
    places = {"loaded": str(folder / "loaded.json"), "methods": str(folder / "methods.json")}
    asked = json.dumps({"absent": absent(), **places})
    environment = os.environ | {"ORCHESTRATOR_CACHE": str(folder / "cache")}
    words = [sys.executable, "-P", "-c", RUN, asked, *lines]
    return {"args": words, "cwd": folder, "env": environment, "text": True, "stdout": subprocess.PIPE}


LOOKS = {
    "list": "golden",
    "status golden": "golden",
    "report golden": "0000",
    "report made": "0.6",
    "report golden --json": '"golden"',
    "report golden --format markdown": "golden",
    "compare golden other": "golden",
    "methods pfml": "proxies_per_class",
    "report golden --html golden.html": "golden",
    "report made --html made.html": "share of the variance",
    "compare golden other --html compared.html": "golden",
}
"""Commands, and a text of what each shows."""
REFUSED = {
    "check pfml": "torch",
    "search demo --dry-run": "torch",
    "train --method triplet --dataset glyphs-small": "torch",
    "resume golden": "ray",
    "ui": "mlflow",
}
"""Commands, and the package that each needs."""


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that the commands of this file's tests loaded."""
    return set()


def test_a_light_installation_looks(folder: Path, loaded: set[str]) -> None:
    done = subprocess.run(**process(folder, *LOOKS), stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    printed = {part.partition("\n")[0]: part for part in f"\n{done.stdout}".split("\n$ ")[1:]}
    assert list(printed) == list(LOOKS)
    for line, text in LOOKS.items():
        _, page, name = line.partition(" --html ")
        assert text in ((folder / name).read_text(encoding="utf-8") if page else printed[line].removeprefix(line)), line
    loaded |= set(json.loads((folder / "loaded.json").read_text()))


@pytest.mark.parametrize(("line", "missing"), REFUSED.items())
def test_a_light_installation_says_what_is_missing(line: str, missing: str, folder: Path) -> None:
    done = subprocess.run(**process(folder, line), stderr=subprocess.PIPE)
    said = (
        f"this needs the package {missing}, which is not installed: install dml-orchestrator, of which this is a part"
    )
    lines = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]  # of a slow machine
    assert (done.returncode, done.stdout, len(lines)) == (2, f"$ {line}\n", 1) and said in lines[0]


def test_a_light_installation_serves_its_pages(folder: Path, loaded: set[str]) -> None:
    with subprocess.Popen(**process(folder, "watch --port 0 --no-browser --json")) as server:
        try:
            assert server.stdout and server.stdout.readline() == "$ watch --port 0 --no-browser --json\n"
            answer = json.loads(server.stdout.readline())
            conforms("watch", answer)
            address = answer["address"]
            for page in ("", "searches/golden/"):
                with urllib.request.urlopen(address + page) as answer:
                    assert "golden" in answer.read().decode()
        finally:
            server.terminate()
    assert server.returncode == 0
    loaded |= set(json.loads((folder / "loaded.json").read_text()))


def test_the_light_dependencies_are_what_is_loaded(loaded: set[str]) -> None:
    """After the tests above: nothing is listed that none of them loads, but what S3 needs."""
    if not loaded:
        pytest.skip("the tests before it have not run")
    used = {owner for name in loaded for owner in modules().get(name, ())}
    assert direct() - used == {"boto3"}


def test_the_light_distribution_is_a_part_of_the_full_one() -> None:
    full, light = FULL["project"], LIGHT["project"]
    assert set(light["dependencies"]) < set(full["dependencies"])
    for key in ("requires-python", "license", "scripts"):
        assert light[key] == full[key]
    included = LIGHT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    packages = FULL["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert list(included.values()) == [*packages, f"orchestrator/{ENCLOSED.name}"]
    version = re.search(LIGHT["tool"]["hatch"]["version"]["pattern"], (ROOT / "pyproject.toml").read_text("utf-8"))
    assert version and version["version"] == full["version"]


def test_what_only_the_full_distribution_has_is_known() -> None:
    """So that a command that needs it names it."""
    heavy = {name_of(one) for one in FULL["project"]["dependencies"]} - direct()
    owned = {name for name, owners in modules().items() if owners & heavy and not name.startswith("_")}
    assert {name for name in owned if name in HEAVY} == set(HEAVY)
    assert heavy - {owner for name in HEAVY for owner in modules()[name]} <= {"faiss-cpu", "faiss-gpu"}
