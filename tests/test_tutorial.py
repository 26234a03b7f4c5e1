"""The tutorial: its commands, in its order, on a machine that has nothing yet."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
STEPS = re.findall(r'```(bash|python)(?: title="([^"]+)")?\n(.*?)```', PAGE, re.DOTALL)
INSTALL = {
    "python -m venv .venv": "",
    "source .venv/bin/activate": "",
    "pip install dml_orchestrator-0.2.0-py3-none-any.whl": "",
    "pip install -e ./my_loss": "uv pip install --quiet --no-deps --no-build-isolation --target plugins ./my_loss",
}
"""What installs, and what is done here in its place: the environment of the tests is left as it is."""


def test_its_code_is_for_files_and_its_installation_is_known() -> None:
    lines = [line for language, _, text in STEPS if language == "bash" for line in text.splitlines()]
    assert {line for line in lines if not line.startswith(("orchestrator ", "python draw.py"))} == INSTALL.keys()
    assert [name for language, name, _ in STEPS if language == "python"] == ["draw.py", "my_loss/my_loss/__init__.py"]


@pytest.mark.slow
def test_it_ends_with_two_methods_compared(tmp_path: Path) -> None:
    programs = (str(Path(sys.executable).parent), os.environ["PATH"], str(ROOT / ".uv" / "bin"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ORCHESTRATOR_")}
    environment |= {"PATH": os.pathsep.join(programs), "HOME": str(tmp_path / "home")}
    environment |= {"PYTHONPATH": f"{tmp_path / 'my_loss'}:{tmp_path / 'plugins'}"}  # as `-e` does
    (tmp_path / "home").mkdir()

    def run(line: str) -> str:
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    for language, name, text in STEPS:
        if language == "python":
            (tmp_path / name).write_text(text, encoding="utf-8")
            continue
        for line in text.splitlines():
            if wanted := INSTALL.get(line, line):
                run(wanted)
    compared = json.loads(run("orchestrator compare mine --json"))
    tests = {member["label"]: member["test"]["seeds"] for member in compared["members"]}
    assert {label: len(seeds) for label, seeds in tests.items()} == {"my_loss": 3, "proxy_anchor": 3}
