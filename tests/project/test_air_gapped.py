"""docs/air_gapped.md: a folder of wheels is all that an installation without an index needs; tried with the
smaller distribution. To fill the folder an index is asked: without one the test is skipped."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.plugins import enclose

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")
PAGE = (ROOT / "docs" / "air_gapped.md").read_text(encoding="utf-8")


def run(*words: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        list(words), cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=500
    )
    if done.returncode and re.search(r"dns error|client error \(Connect\)|NewConnectionError", done.stderr):
        pytest.skip("no index answers")
    assert done.returncode == 0, f"{words}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
    return done.stdout


def test_no_page_installs_an_unregistered_name_from_the_index() -> None:
    """Only from a folder or a file."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("deploy/*")]
    lines = [line for page in pages if page.is_file() for line in page.read_text(encoding="utf-8").splitlines()]
    assert any("dml_orchestrator-" in line for line in lines)
    assert [line for line in lines if from_index(line)] == []
    assert from_index("uv pip install --override x.txt 'dml-orchestrator[mcp]'"), "planted"


def from_index(line: str) -> bool:
    install = re.search(r"(pip install|uv add|uv tool install|uvx) .*\bdml-orchestrator", line.partition(" #")[0])
    return install is not None and "--no-index" not in line


@pytest.mark.slow
def test_the_small_distribution_is_installed_from_a_folder_of_wheels(tmp_path: Path) -> None:
    source, wheels = tmp_path / "source", tmp_path / "wheelhouse"
    python = ".".join(map(str, sys.version_info[:2]))
    for name in ("orchestrator", "methods", "search_spaces", "claims", "deploy"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source / name)
    enclose(source / "deploy" / "review" / "methods.json")
    run(UV, "build", "--quiet", "--wheel", "--out-dir", str(wheels), folder=source / "deploy" / "review")
    needs = run(UV, "pip", "compile", "--quiet", "--python", python, "deploy/review/pyproject.toml", folder=source)
    (wheels / "requirements.txt").write_text(needs)
    download = "python -m pip download --no-deps --only-binary :all:"
    download += " --dest wheelhouse --requirement wheelhouse/requirements.txt"
    assert download in PAGE
    run(UV, "run", "--no-project", "--python", python, "--with", "pip", *download.split(), folder=tmp_path)

    run(UV, "venv", "--quiet", "--python", python, folder=tmp_path)
    install = "uv pip install --no-index --find-links wheelhouse dml-orchestrator"
    assert install in PAGE
    nowhere = {"UV_CACHE_DIR": str(tmp_path / "cache"), "UV_INDEX_URL": "http://127.0.0.1:9/simple"}
    run(UV, *install.split()[1:-1], "dml-orchestrator-review", folder=tmp_path, **nowhere)
    own = {"HOME": str(tmp_path), "PYTHONPATH": "", "ORCHESTRATOR_CACHE": str(tmp_path / "kept")}
    assert "pfml" in run(str(tmp_path / ".venv/bin/orchestrator"), "methods", folder=tmp_path, **own)
