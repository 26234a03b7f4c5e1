"""Somebody who does what a page of the documentation says: saves its files and types its lines, in its order."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEP = re.compile(r'```(bash|python)(?: title="([^"]+)")?\n(.*?)```', re.DOTALL)


def page_steps(name: str) -> list[tuple[str, str, str]]:
    """The blocks of a page of docs/: language, the file that a block is for, text."""
    return STEP.findall((ROOT / "docs" / name).read_text(encoding="utf-8"))


def page_lines(name: str) -> list[str]:
    """The lines to type, without their remarks."""
    blocks = [text for language, _, text in page_steps(name) if language == "bash"]
    return [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]


@dataclass
class Reader:
    """Types in a folder, with a home of its own."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    """Words that every line begins with."""

    def __post_init__(self) -> None:
        left_out = ("ORCHESTRATOR_", "RAY_ADDRESS", "RAY_AUTH", "MLFLOW_", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
        programs = (str(Path(sys.executable).parent), os.environ["PATH"], str(ROOT / ".uv" / "bin"))
        home = {"PATH": os.pathsep.join(programs), "HOME": str(self.folder / "home")}
        (self.folder / "home").mkdir(exist_ok=True)
        self.environment = kept | home | self.environment

    def run(self, line: str) -> str:
        """What a line prints; it must end well. An `export` holds for the lines after it."""
        if line.startswith("export "):
            key, _, value = line.removeprefix("export ").partition("=")
            self.environment[key] = value
            return ""
        done = subprocess.run(
            [*self.before, "bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def follow(self, name: str, instead: dict[str, str]) -> None:
        """Do all that a page says; `instead`: what is typed in place of a line, nothing for "". Each must be there."""
        assert instead.keys() <= {*page_lines(name)}, "lines that the page has not"
        for language, file, text in page_steps(name):
            if language == "python":
                (self.folder / file).write_text(text, encoding="utf-8")
                continue
            for line in text.splitlines():
                typed = line.split(" #")[0].strip()
                if instead.get(typed, typed):
                    self.run(instead.get(typed, typed))
