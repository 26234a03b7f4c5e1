"""Everything that needs a GPU, in parts: the figures that matter, then tests and the rest. Nine minutes on one GPU.

    make gpu                                    all parts
    make gpu PART=5                             one of them; PART=5- from it on
    make gpu WHEELS=folder                      with the packages in this folder (`make gpu-wheels` fills it)
    python benchmarks/gpu.py --device cpu       what a CPU can do, in small, to try the script

It takes the Python that it runs in, with the torch that is there; nothing is fetched. A part whose packages are not
there is left out, and they are named. Figures are printed as they come, and kept by part in benchmarks/gpu/results.json
(without a GPU in a folder of temporary files), those of a part that is stopped too; results.md is written from them. A
part's result replaces its former one only: what was cut off goes on with the next part. Only a part whose every test
ran and passed, or that measured all its figures, is said to have passed; any other says what is missing.
"""

import argparse
import contextlib
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from gpu_parts import PARTS, Part
from gpu_results import (
    FAILED,
    INCOMPLETE,
    NOT_RUN,
    PASSED,
    TRIED,
    Result,
    figures_in,
    kept,
    of_script,
    of_tests,
    save,
    shown,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "gpu"
NEEDED = ("torch", "numpy")
DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow", "faiss": "faiss-gpu"}
TOO_LITTLE = 15.0
"""Seconds left in which no further part is begun."""

TO_END = 10.0
"""Seconds that a part which is stopped gets to end what it started."""
TOGETHER = 4
"""Processes that share the GPU in a part of many variants, on a machine of twice as many cores."""


# Running ---------------------------------------------------------------------------------------------------------


def run(
    part: Part,
    device: str,
    environment: dict[str, str],
    seconds: float,
    came: Callable[[str], None] = lambda line: None,
) -> Result:
    """Run one part in a process of its own; `came` gets each of its lines when it is there."""
    if absent := [name for name in part.needs if not there(name, environment)]:
        return Result(part.name, NOT_RUN, f"not installed: {', '.join(absent)}")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        if part.tests:
            names = [f"tests/training/test_gpu.py::{name}" for name in part.tests]
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *names]
            if not there("pytest_timeout", environment):  # whose setting would be an unknown one
                command += ["-o", "addopts=-ra --strict-markers"]
            if len(part.tests) == 1 and (os.cpu_count() or 1) >= 2 * TOGETHER and there("xdist", environment):
                command += ["--numprocesses", str(TOGETHER)]  # variants of one test
        else:
            words = [*part.script[1:], "--device", device, *(part.on_cpu if device == "cpu" else ())]
            command = [sys.executable, str(ROOT / "benchmarks" / part.script[0]), *words]
        began = time.monotonic()
        code, output = ended(command, environment, seconds, came)
        if code is None:
            cut, figures = seconds < part.seconds, figures_in(output)
            why = f"stopped after {seconds:.0f} s, {'as the time for all parts was over' if cut else 'its limit'}"
            result = Result(part.name, INCOMPLETE if cut or figures else FAILED, why, {}, figures)
        else:
            result = of_tests(part, code, report) if part.tests else of_script(part, code, output)
    if device == "cpu" and result.outcome == PASSED:
        result = replace(result, outcome=TRIED)
    return replace(result, seconds=round(time.monotonic() - began, 1))


def ended(
    command: list[str], environment: dict[str, str], seconds: float, came: Callable[[str], None] = lambda line: None
) -> tuple[int | None, str]:
    """Exit status and output of a command, line by line to `came` too; the status is None if it was stopped."""
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                came(line)

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        stopped = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            stopped = True
        except BaseException:
            stop(process)
            raise
        if stopped:
            stop(process)
        reading.join(TO_END)
    output = "".join(lines)
    if stopped or process.returncode:
        print("".join(line for line in lines if not figures_in(line))[-4000:])
    return None if stopped else process.returncode, output


def stop(process: subprocess.Popen[str]) -> None:
    """It and what it started."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TO_END)


def there(package: str, environment: dict[str, str]) -> bool:
    """Whether a package can be found, the carried wheels included."""
    for folder in environment.get("PYTHONPATH", "").split(os.pathsep):
        if folder and (Path(folder) / package.replace(".", "/")).exists():
            return True
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def unpack(wheels: Path, into: str) -> None:
    """Install the wheels of a folder, nothing else, into another one: by pip or uv, which refuse those of another
    Python, or where neither is there as the archives that they are."""
    files = sorted(wheels.glob("*.whl"))
    if not files:
        sys.exit(f"--wheels: no wheel in {wheels}: `make gpu-wheels` fetches them, on a machine with a network")
    installers = ([sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else None), shutil.which("uv")
    pip = installers[0] or ([installers[1], "pip"] if installers[1] else None)
    try:
        if pip:
            words = ["install", "--quiet", "--no-index", "--no-deps", "--target", into]
            subprocess.run([*pip, *words, *map(str, files)], check=True)
        else:
            for file in files:
                with zipfile.ZipFile(file) as archive:
                    archive.extractall(into)
    except (OSError, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
        sys.exit(f"--wheels: the wheels of {wheels} could not be installed: {error}")


def surroundings(device: str) -> dict[str, Any]:
    """Machine, versions and commit; the GPU's own are in the part `environment`."""
    versions = {}
    for name in sorted({*NEEDED, "faiss", "timm", *(name for part in PARTS for name in part.needs)}):
        try:
            versions[name] = metadata.version(DISTRIBUTIONS.get(name, name))
        except metadata.PackageNotFoundError:
            continue
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "device": device,
        "machine": gpu_name() if device == "cuda" else f"no GPU, {platform.machine()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "commit": (commit.stdout.strip() or "unknown") + (" with changes" if changed.stdout.strip() else ""),
        "versions": versions,
    }


def gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name()


def chosen(text: str | None) -> list[Part]:
    """`5`, `5-` or nothing: the parts that are asked for."""
    if text is None:
        return list(PARTS)
    number, dash, rest = text.partition("-")
    if not number.isdigit() or not 1 <= int(number) <= len(PARTS) or rest:
        sys.exit(f"--part: {text!r}: give a number from 1 to {len(PARTS)}, or one with a dash for it and all after it")
    return list(PARTS[int(number) - 1 :]) if dash else [PARTS[int(number) - 1]]


def keeper(part: Part, output: Path, results: dict[str, Result], where: dict[str, Any]) -> Callable[[str], None]:
    """Shows each figure of a part's lines and keeps it: whatever ends this process, what was measured is there."""
    so_far: dict[str, Any] = {}

    def came(line: str) -> None:
        if figures := figures_in(line):
            for name, value in figures.items():
                print(f"   {name}: {shown(value)}", flush=True)
            so_far.update(figures)
            begun = Result(part.name, INCOMPLETE, "it was ended from outside", {}, dict(so_far), where=where)
            save(output, results | {part.name: begun})

    return came


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", help=f"a number from 1 to {len(PARTS)}; with a dash, from it on")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to use beside the installed packages")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try this script itself")
    parser.add_argument("--output", type=Path, help="the folder of the results")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the part is stopped too
    output = arguments.output or (
        RESULTS if arguments.device == "cuda" else Path(tempfile.gettempdir()) / "orchestrator-gpu-on-cpu"
    )
    began, parts, results = time.monotonic(), chosen(arguments.part), kept(output / "results.json")
    with tempfile.TemporaryDirectory() as site:
        if arguments.wheels:
            unpack(arguments.wheels, site)
        paths = [site, str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
        if absent := [name for name in NEEDED if not there(name, environment)]:
            sys.exit(f"not installed: {', '.join(absent)}: nothing was run; carry them as wheels with --wheels FOLDER")
        import torch

        if arguments.device == "cuda" and not torch.cuda.is_available():
            sys.exit("torch finds no GPU here: nothing was run; --device cpu tries the script on a CPU")
        where, outcomes = surroundings(arguments.device), []
        for part in parts:
            number = PARTS.index(part) + 1
            left = 60 * arguments.minutes - (time.monotonic() - began)
            if left < TOO_LITTLE:
                known = results.get(part.name)
                if known is None or known.outcome != PASSED:
                    why = f"the {arguments.minutes:g} minutes were over; go on with PART={number}-"
                    results[part.name] = Result(part.name, NOT_RUN, why)
                outcomes.append(NOT_RUN)
                print(f"{number:2} {part.name}: not run now: the {arguments.minutes:g} minutes are over", flush=True)
                continue
            print(f"{number:2} {part.name}: {part.what}", flush=True)
            came = keeper(part, output, results, where)
            found = run(part, arguments.device, environment, min(part.seconds, left), came)
            results[part.name] = replace(found, where=where)
            outcomes.append(found.outcome)
            tests = " ".join(f"{count} {kind}" for kind, count in found.tests.items())
            print(f"{number:2} {part.name}: {found.outcome} {found.why} {tests} {found.seconds:g} s", flush=True)
            save(output, results)
    save(output, results)
    print(f"{output / 'results.md'}")
    sys.exit(0 if set(outcomes) == {PASSED} else 1)


if __name__ == "__main__":
    main()
