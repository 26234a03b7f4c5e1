"""`orchestrator doctor`: each fault that it is for, planted."""

import fcntl
import json
import os
import resource
import shutil
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.serving import serving
from typer.testing import CliRunner

from orchestrator.cli.main import program
from orchestrator.errors import InputError
from orchestrator.evaluation import neighbours
from orchestrator.execution import ray_private
from orchestrator.search import doctor
from orchestrator.search.doctor import CHECKS, Diagnosis, Site, diagnose, nvidia_driver, unusable_gpu


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "runs")


def diagnosis(site: Site, check: str, about: str | None = None) -> Diagnosis:
    """Of one check, the one about something."""
    return next(found for found in CHECKS[check](site) if found.about == (about or check))


def test_this_machine_is_fit(tmp_path: Path) -> None:
    """Without what the tests' own environment may have."""
    result = CliRunner().invoke(program(), ["doctor", "--storage", str(tmp_path / "runs"), "--json"])
    said = json.loads(result.stdout.splitlines()[-1])
    assert result.exit_code == 0 and said["fit"] is True
    assert {"python", "packages", "storage", "gpu", "faiss", "mlflow", "ray"} <= {
        one["about"] for one in said["diagnoses"]
    }
    lines = CliRunner().invoke(program(), ["doctor", "--storage", str(tmp_path / "runs")]).stdout
    assert "ok       mlflow: a database in the storage" in lines


class Packages:
    """A distribution that declares these."""

    version = "1.0"

    def __init__(self, python: str, *requires: str) -> None:
        self.metadata, self.requires = {"Requires-Python": python}, requires


def test_python_and_packages_out_of_their_ranges(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = "numpy>=1000", "pillow>=1", "no-such-package>=2; python_version > '3'", "absent; extra == 'more'"
    monkeypatch.setattr(doctor, "_distribution", lambda: Packages(">=4", *needed))
    assert (one := diagnosis(site, "python")).state == "problem" and one.remedy == "install a Python >=4"
    found = {one.about: one for one in CHECKS["packages"](site)}
    assert found["numpy"].state == "problem" and found["numpy"].remedy == "uv pip install 'numpy>=1000'"
    assert found["no-such-package"].fact == "is not installed" and "absent" not in found
    assert found["packages"].fact.startswith("1 are in the ranges")


def test_a_source_that_is_not_installed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    (one,) = (found for found in diagnose(site) if found.about == "packages")
    assert one.state == "problem" and "uv pip install -e ." in one.fact


def test_a_folder_that_hides_a_package(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert diagnosis(site, "working directory").fact.endswith("hides no package")
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "__init__.py").touch()
    assert (one := diagnosis(site, "working directory")).state == "ok" and "left alone" in one.fact
    (tmp_path / "orchestrator.py").touch()
    assert (one := diagnosis(site, "working directory")).state == "warning" and "orchestrator.py" in one.fact
    assert one.remedy == "type orchestrator, or python -P -m orchestrator"


def test_no_bytecode_few_files_little_shared_memory(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    usage = SimpleNamespace(total=64 << 20, free=1 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert diagnosis(site, "bytecode").remedy == "unset PYTHONDONTWRITEBYTECODE"
    assert diagnosis(site, "open files").remedy == "ulimit -n 65536"
    assert diagnosis(site, "open files", "shared memory").state == "warning"
    assert (one := diagnosis(site, "storage")).state == "warning" and "1.0 GiB free" in one.fact
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE")
    assert list(CHECKS["bytecode"](site)) == []


def test_a_storage_without_locks_or_without_a_folder(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(37, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        one = next(iter(CHECKS["storage"](site)))
    assert one.state == "warning" and "no file locks (No locks available)" in one.fact
    (tmp_path / "file").touch()
    (one,) = (found for found in diagnose(Site(tmp_path / "file")) if found.about == "storage")
    assert one.state == "problem" and "is a file: name a folder" in one.fact
    assert not list((tmp_path / "runs").iterdir()), "nothing is left"


@pytest.mark.parametrize(
    ("driver", "build", "visible", "fact", "remedy"),
    [
        ("535.104", None, None, "it is built without CUDA", "whl/cu126"),
        ("535.104", "13.2", None, "CUDA 13.2 needs driver 580", "to 580 or later, or install a torch for cu12x"),
        ("580.1", "13.2", "", "CUDA_VISIBLE_DEVICES=''", "unset it"),
        ("580.1", "13.2", None, "sees no GPU", "nvidia-smi"),
    ],
)
def test_a_gpu_that_torch_does_not_see(
    driver: str, build: str | None, visible: str | None, fact: str, remedy: str
) -> None:
    one = unusable_gpu(driver, build, "2.15.0", visible)
    assert one.state in ("problem", "warning") and fact in one.fact and remedy in one.remedy


def test_a_driver_is_asked_for(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 470.82.01\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    assert nvidia_driver() == "470.82.01"
    if not torch.cuda.is_available():
        assert diagnosis(site, "gpu").state == "problem"


def test_no_faiss(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "faiss", None)
    monkeypatch.setattr(neighbours, "faiss_fault", "is not installed")
    one = diagnosis(site, "faiss")
    assert one.state == "warning" and one.fact.startswith("is not installed: torch searches instead")


def test_faiss_that_sees_no_gpu_where_torch_does(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(neighbours, "faiss", SimpleNamespace(__version__="1.15.1"))
    one = diagnosis(site, "faiss")
    assert one.state == "warning" and one.fact == "1.15.1 sees no GPU: it searches on the CPU"
    assert one.remedy == "uv pip install faiss-gpu, without faiss-cpu"
    both = SimpleNamespace(__version__="1.15.1", StandardGpuResources=object, get_num_gpus=lambda: 1)
    monkeypatch.setattr(neighbours, "faiss", both)
    assert (one := diagnosis(site, "faiss")).state == "ok" and one.fact == "1.15.1, on GPUs"


def test_a_home_and_a_storage_that_cannot_be_written(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(CHECKS["home"](site)) == []
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    assert (one := diagnosis(site, "home")).state == "warning" and one.remedy.startswith("set HOME")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr(doctor, "CHECKS", {"storage": CHECKS["storage"]})
    (one,) = diagnose(site)
    assert one.state == "problem" and one.fact.endswith("cannot be written (Read-only file system)")
    assert one.remedy.startswith("name another folder by --storage")


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_servers_that_do_not_answer(tmp_path: Path) -> None:
    there = f"127.0.0.1:{closed_port()}"
    words = [
        "doctor",
        "--storage",
        str(tmp_path),
        "--address",
        there,
        "--tracking-uri",
        f"http://me:pw@{there}",
        "--json",
    ]
    result = CliRunner().invoke(program(), words)
    found = {one["about"]: one for one in json.loads(result.stdout.splitlines()[-1])["diagnoses"]}
    assert result.exit_code == 1 and "pw@" not in result.stdout
    assert f"no Ray cluster answers at {there}" in found["ray"]["fact"]
    assert "no MLflow server answers" in found["mlflow"]["fact"] and found["mlflow"]["remedy"]


def test_an_mlflow_that_does_not_let_one_in(site: Site) -> None:
    """And one that does: its version is named."""
    status = 403

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(200 if self.path == "/version" else status)
            self.end_headers()
            self.wfile.write(b"2.22.5" if self.path == "/version" else b"{}" if status == 200 else b"Permission denied")

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        there = Site(site.storage, tracking_uri=f"http://me:pw@127.0.0.1:{server.server_port}")
        one = diagnosis(there, "mlflow")
        assert one.state == "problem" and "403" in one.fact and "Permission denied" in one.fact and "pw" not in one.fact
        assert "MLFLOW_TRACKING_USERNAME" in one.remedy
        status = 200
        one = diagnosis(there, "mlflow")
        assert one.state == "ok" and one.fact.endswith(" answers, version 2.22.5") and "pw" not in one.fact


def test_a_ray_with_other_inner_parts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = ray_private.PARAMETERS, ray_private.CONTROLLER
    get = ray_private.RayPart.get
    monkeypatch.setattr(ray_private.RayPart, "get", lambda part: None if part in gone else get(part))
    warning, fine = CHECKS["ray"](site)
    assert (warning.state, fine.state) == ("warning", "ok") and "docs/versions.md" in warning.remedy
    assert warning.fact.endswith(
        "a search runs, but its start takes longer, for two more servers; trials with several workers start later"
    )


def test_a_cluster_of_another_version(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from orchestrator.execution import ray_address

    def differs(**_: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.40.0\n    Python: 3.9.1")

    monkeypatch.setattr(ray_address, "reachable_address", lambda address: address)
    monkeypatch.setattr(ray, "init", differs)
    (one,) = (found for found in diagnose(Site(site.storage, "head:6379")) if found.about == "ray")
    assert one.state == "problem" and "Ray: 2.40.0 Python: 3.9.1: install the cluster's versions" in one.fact


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("x"),
        InputError("here: x: do y"),
        ModuleNotFoundError(name="torch"),
        ModuleNotFoundError(name="x"),
    ],
)
def test_a_check_that_fails_is_a_diagnosis(site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """And the others go on."""

    def fail(_: Site) -> Any:
        raise error

    whole: dict[str, Callable[[Site], Any]] = {"first": fail, "second": lambda _: [Diagnosis("second", "ok", "x")]}
    monkeypatch.setattr(doctor, "CHECKS", whole)
    first, second = diagnose(site)
    assert first.about == "first" and first.state != "ok" and second.state == "ok"
