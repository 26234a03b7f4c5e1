"""Runs waiting.py in a process of its own: torch takes a new device only before its first backward pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_host_does_not_wait_for_the_device() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(Path(__file__).parents[1] / "support" / "waiting.py"),
    ]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " skipped" not in done.stdout, done.stdout[-6000:] + done.stderr[-2000:]
