"""The page about installing: a wheel file is enough for a machine that is fit, and what each line installs."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.readers import ROOT, Reader, page_lines

LINES = page_lines("install.md")
WHEEL = "./dml_orchestrator-"
FAISS = {"cpu": "faiss-cpu", "gpu": "faiss-gpu"}


def of_wheels(line: str) -> bool:
    return "pip install" in line and ".whl" in line


def test_it_begins_with_a_checkout_and_then_needs_only_a_file() -> None:
    assert LINES[:3] == ["make setup", "source .venv/bin/activate", "orchestrator doctor"]
    assert sum(map(of_wheels, LINES)) == 4


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is resolved is for Linux")
def test_a_wheel_file_is_enough(tmp_path: Path) -> None:
    """All lines are resolved for an environment that is empty; one is installed, beside the packages of the tests."""
    reader = Reader(tmp_path)
    enclose = "from orchestrator.plugins import Path, enclose; enclose(Path('deploy/review/methods.json'))"
    subprocess.run([sys.executable, "-c", enclose], cwd=ROOT, check=True)
    for project in (ROOT, ROOT / "deploy" / "review"):
        built = subprocess.run(
            ["uv", "build", "--quiet", "--wheel", str(project), "--out-dir", str(tmp_path)],
            env=reader.environment,
            capture_output=True,
            text=True,
        )
        if "error sending request" in built.stderr:
            pytest.skip("no package index answers")
        assert built.returncode == 0, built.stderr
    shutil.copy(ROOT / "deploy" / "cpu.txt", tmp_path)
    reader.run("python -m venv .venv")
    for line in filter(of_wheels, LINES):
        # torch's own index is another
        words = line.removeprefix("uv ").replace("--torch-backend cpu ", "").removeprefix("pip install")
        done = subprocess.run(
            ["bash", "-c", f"uv pip install --python .venv/bin/python --dry-run {words} 2>&1"],
            cwd=tmp_path,
            env=reader.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        named = {row.split("==")[0].removeprefix(" + ") for row in done.stdout.splitlines() if row.startswith(" + ")}
        review = "review" in line
        assert ("torch" in named) is not review and ("ray" in named) is not review
        assert (FAISS["cpu"] in named) is ("cpu.txt" in line)
        assert ("nvidia-cublas-cu12" in named) is (not review and "cpu.txt" not in line), sorted(named)
        assert ("onnx" in named and "wandb" in named) is ("[export,wandb]" in line)
    (line,) = (line for line in LINES if line.startswith(f"pip install {WHEEL}"))
    reader.run(f"source .venv/bin/activate && uv {line} --quiet --no-deps")
    (packages,) = (tmp_path / ".venv").glob("lib/*/site-packages")
    (packages / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    said = reader.run("source .venv/bin/activate && python -c 'import orchestrator; print(orchestrator.__file__)'")
    assert said.strip().startswith(str(packages))
    assert "problem" not in reader.run("source .venv/bin/activate && orchestrator doctor")


def test_uv_is_found_where_the_environment_is_active(tmp_path: Path) -> None:
    """Pages type `uv pip install`, and a machine may have no uv but the one that `make setup` fetches."""
    for name in ("Makefile", "pyproject.toml", "uv.lock"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".uv" / "bin").mkdir(parents=True)
    fetched = tmp_path / ".uv" / "bin" / "uv"
    fetched.write_text('#!/bin/sh\nmkdir -p .venv/bin\necho "uv $*"\n')
    fetched.chmod(0o755)
    (tmp_path / "bin").mkdir()
    for tool in ("make", "bash", "sh", "mkdir", "touch", "ln"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or pytest.skip(f"no {tool}"))
    path = {"PATH": str(tmp_path / "bin")}
    subprocess.run(["make", "setup"], cwd=tmp_path, env=path, check=True, capture_output=True)
    said = subprocess.run([".venv/bin/uv", "pip"], cwd=tmp_path, env=path, check=True, capture_output=True, text=True)
    assert said.stdout == "uv pip\n"
