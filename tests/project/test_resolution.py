"""What uv resolves for the builds of torch that docs/versions.md names. The index is asked: without one, skipped."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from orchestrator.errors import EXTRA_PACKAGES

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")
PAGE = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
WHEEL = "dist/dml_orchestrator-0.3.0-py3-none-any.whl"


def resolve(folder: Path, *options: str, constraint: str = "") -> dict[str, str]:
    """The versions for Linux on x86-64, as a new installation gets them."""
    (folder / "constraints.txt").write_text(constraint)
    words = [UV, "pip", "compile", "--quiet", "--python-platform", "x86_64-unknown-linux-gnu", "--no-header"]
    words += ["--only-binary", ":all:", "--constraints", str(folder / "constraints.txt"), *options]
    done = subprocess.run([*words, str(ROOT / "pyproject.toml")], capture_output=True, text=True, timeout=300)
    if done.returncode and re.search("dns|connect|timed out|offline", done.stderr, re.IGNORECASE):
        pytest.skip(f"no index answers: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.MULTILINE))


def cuda_of(packages: dict[str, str]) -> set[str]:
    """The major versions of CUDA that torch's own libraries are for: those of NCCL, which faiss does not need."""
    return {name.rpartition("-cu")[2] for name in packages if name.startswith("nvidia-nccl-cu")}


@pytest.mark.slow
def test_torch_of_cuda_13_is_the_default_with_faiss_for_gpus(tmp_path: Path) -> None:
    packages = resolve(tmp_path)
    assert cuda_of(packages) == {"13"} and "faiss-gpu" in packages and "faiss-cpu" not in packages


@pytest.mark.slow
def test_an_older_torch_is_of_cuda_12(tmp_path: Path) -> None:
    assert f"uv pip install 'torch<2.11' {WHEEL}" in PAGE
    packages = resolve(tmp_path, constraint="torch<2.11")
    assert cuda_of(packages) == {"12"} and packages["torch"].startswith("2.10.") and "faiss-gpu" in packages


@pytest.mark.slow
def test_without_faiss_for_gpus_and_its_libraries(tmp_path: Path) -> None:
    assert f"uv pip install --override deploy/cpu.txt {WHEEL}" in PAGE
    packages = resolve(tmp_path, "--override", str(ROOT / "deploy" / "cpu.txt"))
    assert "faiss-cpu" in packages and "faiss-gpu" not in packages
    assert not [name for name in packages if name.startswith("nvidia-") and name.endswith("-cu12")]


@pytest.mark.slow
@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_every_python_has_wheels(tmp_path: Path, python: str, resolution: str) -> None:
    packages = resolve(tmp_path, "--python-version", python, "--resolution", resolution)
    assert {"ray", "torch", "optuna", "mlflow", "faiss-gpu"} <= packages.keys()
    if resolution == "lowest-direct" and python == "3.11":
        assert packages["ray"].startswith("2.52.") and packages["torch"].startswith("2.8.")


def test_messages_name_the_packages_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in EXTRA_PACKAGES.items():
        names = {name.partition(">")[0] for name in extras[extra]}
        assert names == set(shlex.split(packages))
