"""Whether this machine, its packages and the servers that a search will use are fit for it, and what to do if not.

Each check is a function of a `Site`, in CHECKS. A check that itself fails is a problem with its error, and the others
go on. Nothing is started or changed; a cluster and a tracker are asked, a file is written to the storage and removed.
"""

import fcntl
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from orchestrator.errors import FULL, HEAVY, REVIEW, InputError, one_line, redact
from orchestrator.storage.outputs import Output
from orchestrator.storage.places import Places, writable

State = Literal["ok", "warning", "problem"]

MIN_FILES = 4096
"""Open files that a process may have; each of Ray's workers and connections takes some."""
MIN_SHARED = 1 << 30
"""Bytes of shared memory below which Ray keeps objects in files, which is slower. A container has 64 MiB by default."""
MIN_FREE = 5 << 30
"""Free bytes of the storage's disk: models and checkpoints of a search with photographs."""
DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver on Linux for each major version of CUDA (NVIDIA, CUDA Compatibility, minor versions)."""


@dataclass(frozen=True)
class Diagnosis:
    """One fact about the machine, and what to do if it is a warning or a problem."""

    about: str
    state: State
    fact: str
    remedy: str = ""


class Fitness(Output):
    """`fit` unless there is a problem."""

    fit: bool
    diagnoses: list[Diagnosis]


@dataclass(frozen=True)
class Site:
    """What is checked: this machine, with a storage, and maybe a cluster and a tracker."""

    storage: Path
    address: str | None = None
    tracking_uri: str | None = None


Check = Callable[[Site], Iterator[Diagnosis]]


def diagnose(site: Site) -> Iterator[Diagnosis]:
    """The diagnoses of all checks, as they come."""
    for about, check in CHECKS.items():
        try:
            yield from check(site)
        except InputError as error:
            yield Diagnosis(about, "problem", str(error))
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and error.name in HEAVY:
                yield Diagnosis(
                    about,
                    "warning",
                    f"not checked: {error.name} is not installed",
                    f"install {FULL} from its wheel or checkout",
                )
            else:
                yield Diagnosis(about, "problem", f"{type(error).__name__}: {one_line(str(error))[:300]}")


def check_python(site: Site) -> Iterator[Diagnosis]:
    """This Python, among those that the package declares."""
    from packaging.specifiers import SpecifierSet

    version = ".".join(map(str, sys.version_info[:3]))
    supported = _distribution().metadata["Requires-Python"]
    if SpecifierSet(supported).contains(version):
        yield Diagnosis("python", "ok", f"{version} at {sys.executable}")
    else:
        yield Diagnosis("python", "problem", f"{version} is not {supported}", f"install a Python {supported}")


def check_packages(site: Site) -> Iterator[Diagnosis]:
    """Every package that this one declares: there, and in its range."""
    from packaging.requirements import Requirement

    right = 0
    for text in _distribution().requires or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        install = f"uv pip install '{requirement.name}{requirement.specifier}'"
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield Diagnosis(requirement.name, "problem", "is not installed", install)
            continue
        if requirement.specifier.contains(version, prereleases=True):
            right += 1
        else:
            yield Diagnosis(requirement.name, "problem", f"{version} is not {requirement.specifier}", install)
    yield Diagnosis("packages", "ok", f"{right} are in the ranges that {FULL} {_distribution().version} supports")


def _distribution() -> metadata.Distribution:
    for name in (FULL, REVIEW):
        try:
            return metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
    raise InputError(f"{FULL} is not installed, this is its source: uv sync, or uv pip install -e .")


def check_gpu(site: Site) -> Iterator[Diagnosis]:
    """The GPUs that torch sees; where it sees none, whether there are some, and why."""
    import torch

    driver, build = nvidia_driver(), torch.version.cuda
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        listed = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        yield Diagnosis("gpu", "ok", f"{listed}; driver {driver or 'unknown'}, torch {torch.__version__}")
    elif driver is None:
        yield Diagnosis("gpu", "ok", f"none: trainings run on the CPU (torch {torch.__version__})")
    else:
        yield unusable_gpu(driver, build, str(torch.__version__), os.environ.get("CUDA_VISIBLE_DEVICES"))


def unusable_gpu(driver: str, build: str | None, torch_version: str, visible: str | None) -> Diagnosis:
    """Why torch sees no GPU although there is a driver."""
    fact = f"driver {driver} is there, and torch {torch_version} sees no GPU"
    if build is None:
        remedy = "install a torch with CUDA: uv pip install torch --index-url https://download.pytorch.org/whl/cu126"
        return Diagnosis("gpu", "problem", f"{fact}: it is built without CUDA", remedy)
    oldest = DRIVERS.get(int(build.partition(".")[0]), 0)
    if int(driver.partition(".")[0]) < oldest:
        older = [f"cu{major}x" for major, least in DRIVERS.items() if least <= int(driver.partition(".")[0])]
        remedy = f"update the driver to {oldest} or later" + (f", or install a torch for {older[-1]}" if older else "")
        return Diagnosis("gpu", "problem", f"{fact}: CUDA {build} needs driver {oldest}", remedy)
    if visible is not None:
        return Diagnosis("gpu", "warning", f"{fact}: CUDA_VISIBLE_DEVICES={visible!r}", "unset it, if GPUs are meant")
    return Diagnosis("gpu", "problem", fact, "look at nvidia-smi; in a container start it with --gpus all")


def nvidia_driver() -> str | None:
    """The version of NVIDIA's driver; None without one."""
    if (tool := shutil.which("nvidia-smi")) is not None:
        words = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            answer = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout
            if versions := re.findall(r"^\d+[\d.]*$", answer, re.MULTILINE):
                return str(versions[0])
        except (OSError, subprocess.SubprocessError):
            pass
    try:
        match = re.search(r"\s(\d{3}\.[\d.]+)\s", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return None
    return match[1] if match else None


def check_faiss(site: Site) -> Iterator[Diagnosis]:
    """faiss, and whether it uses the GPUs that torch sees."""
    import torch

    from orchestrator.evaluation.neighbours import faiss, faiss_fault

    if faiss is None:
        remedy = "uv pip install faiss-cpu (faiss-gpu where there is a GPU)"
        yield Diagnosis("faiss", "warning", f"{faiss_fault}: torch searches instead, with the same results", remedy)
        return
    on_gpu = hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0
    if torch.cuda.is_available() and not on_gpu:
        remedy = "uv pip install faiss-gpu, without faiss-cpu"
        yield Diagnosis("faiss", "warning", f"{faiss.__version__} sees no GPU: it searches on the CPU", remedy)
    else:
        yield Diagnosis("faiss", "ok", f"{faiss.__version__}, on {'GPUs' if on_gpu else 'the CPU'}")


def check_storage(site: Site) -> Iterator[Diagnosis]:
    """The storage: written to, locks, room."""
    from orchestrator.storage.paths import address_of, display_path

    try:
        folder = writable(site.storage)
    except InputError as error:
        facts = InputError(*(replace(problem, advice="") for problem in error.details))
        yield Diagnosis("storage", "problem", str(facts), "name another folder by --storage, or make this one writable")
        return
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            remedy = "mount it with locks, or start no search twice"
            yield Diagnosis(
                "storage", "warning", f"{display_path(folder)} has no file locks ({error.strerror})", remedy
            )
    free = shutil.disk_usage(folder).free
    state: State = "ok" if free >= MIN_FREE else "warning"
    where = "its working copy on " if address_of(folder) is not None else ""
    fact = f"{display_path(folder)} can be written; {where}this disk has {free / 2**30:.1f} GiB free"
    yield Diagnosis("storage", state, fact, "" if state == "ok" else "make room, or name another --storage")


def check_lab(site: Site) -> Iterator[Diagnosis]:
    """The file with the defaults that are in force."""
    from orchestrator.search.lab_file import read_lab
    from orchestrator.storage.paths import LAB_FILE, lab_file, lab_folders

    if (path := lab_file()) is None:
        places = " or ".join(f"{folder}/{LAB_FILE}" for folder in lab_folders())
        yield Diagnosis("configuration", "ok", f"no defaults in {places}")
    else:
        values = ", ".join(f"{key}={value}" for key, value in read_lab(path).model_dump(exclude_none=True).items())
        yield Diagnosis("configuration", "ok", redact(f"{path}: {values}"))


def check_tracker(site: Site) -> Iterator[Diagnosis]:
    """MLflow at the address that a search would use: it answers, and may be read."""
    from orchestrator.tracking.address import default_tracking_uri, tracking_address
    from orchestrator.tracking.mlflow_store import MLflowStore, server_version
    from orchestrator.tracking.store import TrackingError

    places = Places(site.storage.expanduser().resolve())
    uri = tracking_address(site.tracking_uri, places)
    if uri == default_tracking_uri(places.storage):
        yield Diagnosis("mlflow", "ok", "a database in the storage: orchestrator ui shows it")
        return
    store = MLflowStore(uri, places.artifacts)
    try:
        store.connect()
        store.check_access()
    except TrackingError as error:
        remedy = "start it, or set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; a search goes on without it"
        yield Diagnosis("mlflow", "problem", one_line(str(error)), remedy)
    else:
        yield Diagnosis("mlflow", "ok", f"{redact(uri)} answers, version {server_version(uri)}")


def check_cluster(site: Site) -> Iterator[Diagnosis]:
    """The Ray cluster at the address: it answers, with this Ray and Python, and what it has."""
    from orchestrator.execution.protocol import THROUGH_STORAGE
    from orchestrator.execution.ray_private import missing_parts

    version = metadata.version("ray")
    if lacks := missing_parts():
        fact = f"Ray {version} is another inside than those that were tried: a search runs, but {'; '.join(lacks)}"
        yield Diagnosis("ray", "warning", fact, "install a Ray of the page Versions (docs/versions.md)")
    if site.address in (None, "local"):
        yield Diagnosis("ray", "ok", f"{version}: a search starts its own cluster here")
        return
    if site.address == THROUGH_STORAGE:
        yield Diagnosis("ray", "ok", f"{version}: not needed, as processes that join train (orchestrator work)")
        return
    from orchestrator.execution.ray_address import reachable_address
    from orchestrator.execution.ray_start import describe_cluster

    address = reachable_address(site.address)
    yield Diagnosis("ray", "ok", f"{address}: {describe_cluster(str(address))}")


def check_limits(site: Site) -> Iterator[Diagnosis]:
    """Open files and shared memory."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    enough = files == resource.RLIM_INFINITY or files >= MIN_FILES
    remedy = "" if enough else "ulimit -n 65536"
    yield Diagnosis("open files", "ok" if enough else "warning", f"{files} at a time", remedy)
    shared = Path("/dev/shm")
    if shared.is_dir():
        total = shutil.disk_usage(shared).total
        state: State = "ok" if total >= MIN_SHARED else "warning"
        remedy = "" if state == "ok" else "docker run --shm-size=8g: Ray keeps objects in slower files"
        yield Diagnosis("shared memory", state, f"{total / 2**30:.2f} GiB", remedy)


def check_bytecode(site: Site) -> Iterator[Diagnosis]:
    """Whether Python keeps compiled modules."""
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        fact = "PYTHONDONTWRITEBYTECODE is set: every process compiles thousands of modules anew"
        yield Diagnosis(
            "bytecode", "warning", f"{fact}; on a busy machine Ray may not start", "unset PYTHONDONTWRITEBYTECODE"
        )


def check_shadows(site: Site) -> Iterator[Diagnosis]:
    """Folders here that are called like this tool's packages."""
    from orchestrator.contract import shadows

    modules = shadows(Path.cwd())
    names = " and ".join(str(path) for path in modules)
    if any("orchestrator" in (path.stem, path.parent.name) for path in modules):
        fact = f"{names}: python -m orchestrator, started here, is not this tool"
        yield Diagnosis("working directory", "warning", fact, "type orchestrator, or python -P -m orchestrator")
    elif modules:
        yield Diagnosis("working directory", "ok", f"{names}: not this tool's, and left alone")
    else:
        yield Diagnosis("working directory", "ok", f"{Path.cwd()} hides no package")


def check_home(site: Site) -> Iterator[Diagnosis]:
    """Whether the home folder can be written."""
    home = Path.home()
    if not os.access(home, os.W_OK):
        remedy = "set HOME to a folder that can be written, if weights are to be kept"
        yield Diagnosis("home", "warning", f"{home} cannot be written: weights and Ray's token are not kept", remedy)


CHECKS: dict[str, Check] = {
    "python": check_python,
    "packages": check_packages,
    "working directory": check_shadows,
    "bytecode": check_bytecode,
    "home": check_home,
    "configuration": check_lab,
    "open files": check_limits,
    "storage": check_storage,
    "gpu": check_gpu,
    "faiss": check_faiss,
    "mlflow": check_tracker,
    "ray": check_cluster,
}
"""In the order in which they are printed: what is quick comes first."""
