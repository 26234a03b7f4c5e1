"""Commands in this process: what they print and their exit code."""

import shlex
from dataclasses import dataclass

import pytest

from orchestrator.cli.main import main

TINY = "--set embedding_dim=8 --set classes_per_batch=8 --set images_per_class=2 --set validate_every='20 steps'"


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], command: str) -> Ran:
    """A command in this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        main(shlex.split(command))
    printed = capsys.readouterr()
    return Ran(int(leaving.value.code or 0), printed.out, printed.err)
