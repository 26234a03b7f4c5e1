"""What CI's run of the lowest declared versions says, and when it fails (benchmarks/versions.py)."""

import time
from pathlib import Path
from typing import Any

import pytest
import versions
from versions import Bench, Environment


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the script over one environment whose search, and whose uv, are these shell scripts; gives its exit."""

    def run(search: str = "exit 0", uv: str = "exit 0", minutes: str = "1") -> str | int | None:
        binaries = tmp_path / "one" / "venv" / "bin"
        binaries.mkdir(parents=True, exist_ok=True)
        for path, text in ((binaries / "orchestrator", search), (tmp_path / "uv", uv)):
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)

        def measure(environment: Environment, bench: Bench) -> list[str]:
            bench.uv("pip", "install", environment.name)
            return [environment.name, str(bench.run("orchestrator", "search")), str(bench.run("orchestrator"))]

        monkeypatch.setattr(versions, "ENVIRONMENTS", [Environment("one")])
        monkeypatch.setattr(versions, "measure", measure)
        monkeypatch.setattr(versions, "uv", lambda: str(tmp_path / "uv"))
        arguments = ["versions.py", "--only", "one", "--scratch", str(tmp_path), "--minutes", minutes]
        monkeypatch.setattr("sys.argv", arguments)
        try:
            versions.main()
        except SystemExit as end:
            return end.code
        return 0

    return run


def test_a_row_that_fails_fails_ci(matrix: Any, capsys: Any) -> None:
    page = versions.PAGE.read_text(encoding="utf-8")
    assert matrix() == 0 and capsys.readouterr().out.count("yes, 0 s") == 4  # as they come, and in the row
    assert matrix("echo no such module; exit 1") == "does not work with: one"
    assert "**no**: no such module" in capsys.readouterr().out
    assert matrix(uv="echo No solution found >&2; exit 1") == "does not work with: one"
    assert versions.PAGE.read_text(encoding="utf-8") == page


def test_no_index_and_no_time_leave_a_row_out(matrix: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert matrix(uv="echo Failed to fetch http://index >&2; exit 2") == 0
    assert "left out: one: no index: Failed to fetch http://index" in capsys.readouterr().out
    assert matrix(minutes="-3") == 0 and "left out: one: installation: no time" in capsys.readouterr().out
    monkeypatch.setattr(versions, "MIN_SECONDS", 0)
    began = time.monotonic()
    assert matrix("exec sleep 60", minutes="0.005") == 0 and time.monotonic() - began < 20
    assert "left out: one: orchestrator search: no time" in capsys.readouterr().out
    assert matrix('test "$1" && exit 1; exec sleep 60', minutes="0.005") == "does not work with: one", (
        "what failed before counts"
    )
    monkeypatch.setattr(versions, "HANGS", 0.1)
    assert matrix("exec sleep 60", minutes="0.005") == "does not work with: one", "it had its time, and hung"
