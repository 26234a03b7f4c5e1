"""Everything that needs a GPU, in parts: the tests marked `gpu`, then measurements. At most nine minutes on one GPU.

    make gpu                                    all parts
    make gpu PART=5                             one of them; PART=5- from it on
    make gpu WHEELS=folder                      with the packages in this folder (Ray, say), if they are not installed
    python benchmarks/gpu.py --device cpu       what a CPU can do, in small, to try the script

It takes the Python that it runs in, with the torch that is there; nothing is fetched. Results are kept by part in
benchmarks/gpu/results.json (without a GPU in a folder of temporary files), and results.md is written from them: a
part's result replaces its former one only, so that what was cut off goes on with the next part. Only a part whose every
test ran and passed, or that measured its figures, is said to have passed; any other says what is missing.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "gpu"
NEEDED = ("torch", "torchvision", "numpy", "scipy", "sklearn", "pyarrow", "pydantic", "ruamel.yaml", "PIL", "pytest")
OPTIONAL = ("faiss", "ray", "optuna", "timm", "triton")
DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow", "faiss": "faiss-gpu"}
TOO_LITTLE = 15.0
"""Seconds left in which no further part is begun."""

TO_END = 10.0
"""Seconds that a part which is stopped gets to end what it started."""
TOGETHER = 4
"""Processes that share the GPU in a part of many variants, on a machine of twice as many cores."""

PASSED, TRIED, INCOMPLETE, FAILED, NOT_RUN = "passed", "tried on a CPU", "incomplete", "failed", "not run"


@dataclass(frozen=True)
class Part:
    """Tests of tests/test_gpu.py by name, or a script of this folder, with other arguments on a CPU; for how many
    seconds it may run, and what it needs beside NEEDED."""

    name: str
    what: str
    seconds: float
    tests: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    on_cpu: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """Of a part: its outcome, why it is no better, and what was found. `tests` counts them by outcome."""

    name: str
    outcome: str
    why: str = ""
    tests: dict[str, int] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    where: dict[str, Any] = field(default_factory=dict)


IMAGES = ("gpu_starvation.py", "--rounds", "2", "--images", "1024")
IMAGES_ON_CPU = ("--images", "32", "--steps", "2", "--windows", "1", "--rounds", "1", "--threads", "1")
PARTS = (
    Part(
        "environment", "torch finds the GPU and computes on it; packages", 60, script=("gpu_figures.py", "environment")
    ),
    Part("methods", "every method and variant in float64 equals the CPU", 150, tests=("test_float64_equals_the_cpu",)),
    Part(
        "precisions",
        "bf16, fp16, channels-last, compile",
        180,
        tests=("test_half_precision_layouts_and_compilation_train",),
    ),
    Part(
        "resuming",
        "an interrupted training goes on, to 0.1%; the same seed gives the same bits, or the cause is named",
        90,
        tests=(
            "test_resuming_is_exact_on_the_gpu",
            "test_the_same_seed_gives_the_same_bits_or_the_cause_is_named",
        ),
    ),
    Part(
        "waiting",
        "a step does not wait; bytes become the CPU's floats",
        40,
        tests=("test_a_step_does_not_wait", "test_a_planted_wait_is_seen", "test_bytes_become_the_cpu_s_floats"),
    ),
    Part(
        "evaluation",
        "the CPU's metrics and energy; memory of a search; faiss's neighbours; out of memory is said",
        90,
        tests=(
            "test_the_energy_is_the_cpu_s",
            "test_evaluation_is_the_cpu_s",
            "test_evaluation_against_a_gallery_keeps_to_its_memory",
            "test_faiss_searches_as_on_the_cpu",
            "test_faiss_and_torch_share_the_process",
            "test_out_of_memory_is_said_as_such",
        ),
    ),
    Part(
        "kernels",
        "Triton kernels: right to float32, the same bits twice, linear memory, trainings",
        150,
        tests=(
            "test_kernels_are_right_to_float32",
            "test_kernels_give_the_same_bits_twice",
            "test_memory_of_kernels_grows_with_the_points",
            "test_a_training_by_kernels_is_that_by_torch",
        ),
        needs=("triton",),
    ),
    Part(
        "fused",
        "Triton kernels: the energy of 1,000,000 points and a softmax over 1,000,000 classes, beside torch",
        180,
        script=("gpu_figures.py", "fused"),
        needs=("triton",),
    ),
    Part("energy", "PFML's energy, beside its two products", 60, script=("gpu_figures.py", "energy")),
    Part(
        "neighbours",
        "the metrics of 60,502 items, all among all, by faiss and by torch",
        90,
        script=("gpu_figures.py", "neighbours"),
    ),
    Part(
        "million",
        "20,000 queries among 1,000,000 items, by faiss and by torch",
        150,
        script=("gpu_figures.py", "million"),
    ),
    Part("images", "ResNet-50 from the store, and from memory", 75, script=IMAGES, on_cpu=IMAGES_ON_CPU),
    Part(
        "transformer",
        "the same with ViT-S",
        75,
        script=(*IMAGES, "--backbone", "vit_small"),
        on_cpu=IMAGES_ON_CPU,
        needs=("timm",),
    ),
    Part(
        "trials",
        "a search of 16 trials: one has the GPU, two and four share it",
        200,
        script=("gpu_figures.py", "trials"),
        needs=("ray", "optuna"),
    ),
    Part("workers", "a training over two GPUs (NCCL)", 120, script=("gpu_figures.py", "workers"), needs=("ray",)),
)


# What a part's processes left behind ---------------------------------------------------------------------------


def of_tests(part: Part, code: int, report: Path) -> Result:
    """From pytest's exit status and its JUnit report."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    reasons: dict[str, list[str]] = {}
    seen: set[str] = set()
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        cases = []
    for case in cases:
        bad, skipped = case.find("failure"), case.find("skipped")
        bad = case.find("error") if bad is None else bad
        kind = "failed" if bad is not None else "skipped" if skipped is not None else "passed"
        counts[kind] += 1
        seen.add(case.get("name", "").partition("[")[0])
        if (found := bad if bad is not None else skipped) is not None:
            message = " ".join((found.get("message") or "no reason given").split())[:200]
            reasons.setdefault(message, []).append(case.get("name", ""))
    if counts["failed"] or code not in (0, 5):
        return Result(part.name, FAILED, shortened(reasons) or f"pytest ended with status {code}", counts)
    if not counts["passed"]:
        return Result(part.name, NOT_RUN, shortened(reasons) or "no test was found", counts)
    if missing := [name for name in part.tests if name not in seen]:
        reasons["not found"] = missing
    if counts["skipped"] or missing:
        return Result(part.name, INCOMPLETE, shortened(reasons), counts)
    return Result(part.name, PASSED, "", counts)


def of_script(part: Part, code: int, output: str) -> Result:
    """From a script's exit status and its last line: JSON, of figures or of `not run`."""
    lines = output.strip().splitlines()
    last = lines[-1] if lines else ""
    if code:
        return Result(part.name, FAILED, last[:300] or f"it ended with status {code}")
    try:
        found = json.loads(last)
    except ValueError:
        return Result(part.name, FAILED, f"no figures in its last line: {last[:200]!r}")
    if not isinstance(found, dict) or not found:
        return Result(part.name, FAILED, f"no figures in its last line: {last[:200]!r}")
    if "not run" in found:
        return Result(part.name, NOT_RUN, str(found["not run"]))
    return Result(part.name, PASSED, "", {}, found)


def shortened(reasons: dict[str, list[str]], most: int = 3) -> str:
    """A few of the reasons, each with the first test that it is of, and how many more there are."""
    told = [
        f"{reason} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
        for reason, names in reasons.items()
    ]
    return "; ".join(told[:most]) + (f"; and {len(told) - most} more reasons" if len(told) > most else "")


# Running ---------------------------------------------------------------------------------------------------------


def run(part: Part, device: str, environment: dict[str, str], seconds: float) -> Result:
    """Run one part in a process of its own."""
    if absent := [name for name in part.needs if not there(name, environment)]:
        return Result(part.name, NOT_RUN, f"not installed: {', '.join(absent)}")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        if part.tests:
            names = [f"tests/test_gpu.py::{name}" for name in part.tests]
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *names]
            if not there("pytest_timeout", environment):  # whose setting would be an unknown one
                command += ["-o", "addopts=-ra --strict-markers"]
            if len(part.tests) == 1 and (os.cpu_count() or 1) >= 2 * TOGETHER and there("xdist", environment):
                command += ["--numprocesses", str(TOGETHER)]  # variants of one test
        else:
            words = [*part.script[1:], "--device", device, *(part.on_cpu if device == "cpu" else ())]
            command = [sys.executable, str(ROOT / "benchmarks" / part.script[0]), *words]
        began = time.monotonic()
        code, output = ended(command, environment, seconds)
        if code is None:
            cut = seconds < part.seconds
            why = f"stopped after {seconds:.0f} s, {'as the time for all parts was over' if cut else 'its limit'}"
            result = Result(part.name, INCOMPLETE if cut else FAILED, why)
        else:
            result = of_tests(part, code, report) if part.tests else of_script(part, code, output)
    if device == "cpu" and result.outcome == PASSED:
        result = replace(result, outcome=TRIED)
    return replace(result, seconds=round(time.monotonic() - began, 1))


def ended(command: list[str], environment: dict[str, str], seconds: float) -> tuple[int | None, str]:
    """Exit status and output of a command; None if it was stopped."""
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
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            for signal_number in (signal.SIGTERM, signal.SIGKILL):  # it and what it started
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal_number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(TO_END)
            output, _ = process.communicate()
            print(output[-2000:])
            return None, output
    if process.returncode:
        print(output[-4000:])
    return process.returncode, output


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
    """Install the wheels of a folder, nothing else, into another one."""
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        sys.exit(f"--wheels: no wheel in {wheels}")
    pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["uv", "pip"]
    command = [*pip, "install", "--quiet", "--no-index", "--no-deps", "--target", into, *files]
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"--wheels: the wheels of {wheels} could not be installed: {error}")


def surroundings(device: str) -> dict[str, Any]:
    """Machine, versions and commit; the GPU's own are in the part `environment`."""
    versions = {}
    for name in (*NEEDED, *OPTIONAL):
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


# The report --------------------------------------------------------------------------------------------------------


def kept(path: Path) -> dict[str, Result]:
    """The results of earlier runs by part; none if they cannot be read."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return {part["name"]: Result(**part) for part in saved["parts"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def save(folder: Path, results: dict[str, Result]) -> None:
    """Both files, parts in order."""
    folder.mkdir(parents=True, exist_ok=True)
    ordered = [results[part.name] for part in PARTS if part.name in results]
    content = {"parts": [asdict(result) for result in ordered]}
    (folder / "results.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(page(results), encoding="utf-8")


def page(results: dict[str, Result]) -> str:
    """All parts, those without a result too."""
    lines = ["# On a GPU", "", "Written by `make gpu` from results.json.", ""]
    if any(result.where.get("device") == "cpu" for result in results.values()):
        lines += [
            "**Parts of this report ran on a CPU, in small, to try the script: no figure of theirs is a GPU's.**",
            "",
        ]
    lines += ["| part | what | outcome | seconds | where |", "| --- | --- | --- | ---: | --- |"]
    details = []
    for number, part in enumerate(PARTS, 1):
        result = results.get(part.name, Result(part.name, NOT_RUN, "no run asked for it yet"))
        tests = ", ".join(f"{count} {kind}" for kind, count in result.tests.items() if count)
        outcome = result.outcome if result.outcome == PASSED else f"**{result.outcome}**: {result.why}".rstrip(": ")
        where = ", ".join(str(result.where[key]) for key in ("machine", "date", "commit") if key in result.where)
        outcome = f"{outcome} ({tests})" if tests else outcome
        outcome = outcome.replace("|", "\\|")
        lines.append(f"| {number} {part.name} | {part.what} | {outcome} | {result.seconds:g} | {where} |")
        if result.figures:
            details += ["", f"## {part.name}: {part.what}", ""]
            details += [f"- {name}: {shown(value)}" for name, value in result.figures.items()]
    wheres = [result.where for result in results.values() if result.where]
    if wheres:
        versions = ", ".join(f"{name} {version}" for name, version in wheres[-1]["versions"].items())
        details += ["", f"Last with Python {wheres[-1]['python']}, {wheres[-1]['cores']} cores; {versions}."]
    return "\n".join(lines + details) + "\n"


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def chosen(text: str | None) -> list[Part]:
    """`5`, `5-` or nothing: the parts that are asked for."""
    if text is None:
        return list(PARTS)
    number, dash, rest = text.partition("-")
    if not number.isdigit() or not 1 <= int(number) <= len(PARTS) or rest:
        sys.exit(f"--part: {text!r}: give a number from 1 to {len(PARTS)}, or one with a dash for it and all after it")
    return list(PARTS[int(number) - 1 :]) if dash else [PARTS[int(number) - 1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", help=f"a number from 1 to {len(PARTS)}; with a dash, from it on")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to use beside the installed packages")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try this script itself")
    parser.add_argument("--output", type=Path, help="the folder of the results")
    arguments = parser.parse_args()
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
            found = run(part, arguments.device, environment, min(part.seconds, left))
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
