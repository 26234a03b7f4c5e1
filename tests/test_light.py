"""Without the heavy packages: a storage is listed, reported and compared, and a command that needs one names it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import HEAVY

BEGUN = Path(__file__).parent / "goldens" / "begun"
RUN = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in json.loads(sys.argv[1]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in json.loads(sys.argv[1]) else find(name, package)
sys.meta_path.insert(0, Absent())
from orchestrator.cli.main import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("list", None),
        ("status golden", None),
        ("report golden", None),
        ("report golden --json", None),
        ("report golden --format markdown", None),
        ("compare golden other", None),
        ("report golden --html page.html", "markupsafe"),
        ("methods", "torch"),
        ("search demo --dry-run", "torch"),
        ("train --method triplet --dataset glyphs-small", "torch"),
    ],
)
def test_a_light_installation(line: str, missing: str | None, tmp_path: Path) -> None:
    for name in ("golden", "other"):
        shutil.copytree(BEGUN, tmp_path / "runs" / "searches" / name)
    environment = os.environ | {"ORCHESTRATOR_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-P", "-c", RUN, json.dumps(HEAVY), *line.split()]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    if missing is None:
        assert done.returncode == 0, done.stderr
        assert "golden" in done.stdout or "0000" in done.stdout
    else:
        said = f"this needs the package {missing}, which is not installed: uv pip install 'dml-orchestrator'"
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.strip().endswith(said)
        assert not (tmp_path / "page.html").exists()
