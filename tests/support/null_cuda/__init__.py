"""The host code of CUDA programs on a machine without a GPU: a null device, on which kernels are counted and not run.

What is real: torch's allocator, streams, events, pinned memory, autocast, the assertions of CUDA's operators,
`set_sync_debug_mode`, alerts of deterministic algorithms, out of memory, Triton's compiler, faiss's allocation. What is
not: numbers (results are zero), cuDNN (off), NCCL, speed. So a test here says that a path runs on CUDA, not that it is
right.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest
from support.null_cuda import stubs

HERE = Path(__file__).parent
SOURCES = [HERE / "runtime.c", HERE / "cuda12.c", HERE / "driver.c", HERE / "properties.h", HERE / "stubs.py"]
BUILDS = Path(__file__).parents[3] / "build" / "null_cuda"
FLAGS = ["-O1", "-w", "-shared", "-fPIC"]
DEVICE_ASSERT = 710
"""cudaErrorAssert: the device is of no use to its process from then on."""


FIELDS = [
    *("launches", "products", "waits_for_streams", "waits_for_devices", "waits_for_events"),
    *("to_device", "to_host", "on_device", "to_device_waiting", "to_host_waiting"),
    *("allocations", "frees", "pinned", "bytes", "peak_bytes"),
]
"""In the order of runtime.c."""


class Counts(ctypes.Structure):
    """What the device was asked for since `clear`, as runtime.c counts it."""

    _fields_: ClassVar = [(name, ctypes.c_long) for name in FIELDS]
    launches: int
    products: int
    waits_for_streams: int
    waits_for_devices: int
    waits_for_events: int
    to_device: int
    to_host: int
    bytes: int
    peak_bytes: int

    @property
    def waits(self) -> int:
        """How often the host waited for the device: for a stream (as after a copy), an event, or all of it."""
        return self.waits_for_streams + self.waits_for_devices + self.waits_for_events


def counts() -> Counts:
    """This process's counts, which go on counting; it must run on the null device."""
    return Counts.in_dll(ctypes.CDLL(None), "null_counts")


def clear() -> None:
    """Begin to count anew, kernels too."""
    ctypes.CDLL(None).null_clear()


def launches_by_kernel() -> dict[str, int]:
    """How often each kernel was launched since `clear`, by its mangled name."""
    with tempfile.NamedTemporaryFile("r") as file:
        ctypes.CDLL(None).null_write_kernels(file.name.encode())
        rows = [line.split(" ", 1) for line in file.read().splitlines()]
    return {name: int(count) for count, name in rows}


def break_device(code: int = DEVICE_ASSERT) -> None:
    """Every later call of this process fails, as after an assertion on the device; 0 mends it."""
    ctypes.CDLL(None).null_break(code)


def missing() -> str | None:
    """Why the null device cannot be built here, if so."""
    if sys.platform != "linux":
        return "the null CUDA device needs Linux"
    for tool in ("gcc", "nm"):
        if not shutil.which(tool):
            return f"the null CUDA device needs {tool}"
    packages = Path(sysconfig.get_path("purelib"))
    for header in ("nvidia/cu13/include/cuda_runtime_api.h", "triton/backends/nvidia/include/cuda.h"):
        if not (packages / header).exists():
            return f"the null CUDA device needs {header} of the wheels"
    return None


@functools.cache
def build() -> Path:
    """A folder with the libraries, built once for these sources and these packages (3 s)."""
    packages = Path(sysconfig.get_path("purelib"))
    libraries = sorted([*packages.glob("torch/lib/*.so"), *packages.glob("faiss/*.so")])
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES))
    for library in libraries:
        digest.update(f"{library} {library.stat().st_size}".encode())
    folder = BUILDS / digest.hexdigest()[:16]
    if folder.exists():
        return folder
    BUILDS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILDS) as name:
        making = Path(name) / "null_cuda"
        making.mkdir()
        _compile(packages, libraries, making)
        try:
            making.rename(folder)
        except OSError:  # another process of tests was faster
            if not folder.exists():
                raise
    return folder


def _compile(packages: Path, libraries: list[Path], folder: Path) -> None:
    """libnullcuda.so, to be preloaded, and libcuda.so.1, to be opened by its name."""
    triton = packages / "triton/backends/nvidia/include"
    cuda13 = packages / "nvidia/cu13/include"
    cuda12 = packages / "nvidia/cuda_runtime/include"
    source = (HERE / "runtime.c").read_text() + (HERE / "cuda12.c").read_text()
    headers = [cuda13 / "cusolverDn.h", cuda13 / "cusparse.h"]
    runtime_stubs, driver_stubs = folder / "runtime_stubs.c", folder / "driver_stubs.c"
    runtime_stubs.write_text(stubs.runtime_stubs(source, libraries, headers))
    driver_stubs.write_text(stubs.driver_stubs((HERE / "driver.c").read_text(), triton / "cuda.h"))

    def gcc(*arguments: object) -> None:
        subprocess.run(["gcc", *map(str, arguments)], check=True)

    driver = "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", HERE / "driver.c", driver_stubs, "-ldl"
    gcc(*FLAGS, *driver)
    objects = [runtime_stubs]
    if cuda12.exists():
        objects.append(folder / "cuda12.o")
        gcc("-O1", "-w", "-fPIC", "-c", f"-I{cuda12}", f"-I{triton}", HERE / "cuda12.c", "-o", objects[-1])
    runtime = HERE / "runtime.c", *objects, "-lpthread"
    gcc(*FLAGS, f"-I{cuda13}", f"-I{triton}", "-o", folder / "libnullcuda.so", *runtime)


def environment(devices: int = 1, gigabytes: float = 8, *, caching: bool = True) -> dict[str, str]:
    """The environment in which a process, and what it starts, sees so many null devices; skips where none can be built.

    With `caching` torch's allocator hands out freed memory again, as on a GPU, with what was in it: where a kernel
    should leave a count (nonzero, unique), any number is read. Without it memory is zero, and so is each count.
    """
    if reason := missing():
        pytest.skip(reason)
    folder = build()
    paths = [str(HERE / "startup"), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | {
        "LD_PRELOAD": str(folder / "libnullcuda.so"),
        "LD_LIBRARY_PATH": os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(os.pathsep),
        "TRITON_LIBCUDA_PATH": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "NULL_CUDA_DEVICES": str(devices),
        "NULL_CUDA_GB": str(gigabytes),
        **({} if caching else {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
    }


def run_on_null_device(
    code: str, *, devices: int = 1, gigabytes: float = 8, caching: bool = True, timeout: float = 500
) -> str:
    """What Python code prints, in a process of its own that sees null devices; fails with its errors if it fails."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(devices, gigabytes, caching=caching),
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=HERE.parents[2],
    )
    if run.returncode:
        pytest.fail(f"on the null device, exit {run.returncode}:\n{run.stdout[-4000:]}\n{run.stderr[-8000:]}")
    return run.stdout
