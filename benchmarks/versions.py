"""Which versions work: virtual environments made by uv, in each a search, a resume, a cluster of its own, and tests.

    python benchmarks/versions.py                          # all environments, then docs/versions.md
    python benchmarks/versions.py --only lowest --scratch /tmp/versions
    python benchmarks/versions.py --only "mlflow 2.22"     # a tracking server
    python benchmarks/versions.py --only "lowest declared" --minutes 12    # what CI does: the page stays as it is

An environment takes up to 8 GB; uv links what it has already. Rows of environments that are not run stay as they are.
uv fetches the versions of Python that are missing; it sees those of pyenv by PYENV_VERSION=3.11.7:3.12.1:3.13.0.
"""

import argparse
import contextlib
import datetime
import json
import math
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "versions.md"
SHOWN = ("ray", "torch", "optuna", "mlflow", "numpy")
"""The packages whose versions are columns."""
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "moto[s3]", "flask-wtf", "imagehash", "jsonschema")
TESTS = ("ray_private", "backends", "tracking", "study", "scheduling", "precision", "eager", "doctor")
"""The test files that are run, without their slow tests."""
SEARCH = (
    "search",
    "pfml",
    "--dataset",
    "glyphs-small",
    "--num-trials",
    "2",
    "--set",
    "epochs=2",
    "--scheduler",
    "none",
)
SECONDS = 900
"""How long a step may take."""
MIN_SECONDS = 30
"""A step that has less time left is not begun."""
HANGS = 360
"""A step that had so many seconds and is not done fails, also where it is the time that is over."""
UNREACHABLE = re.compile(r"Failed to (fetch|download)|error sending request|network was disabled")
"""What uv says where no index answers."""


@dataclass(frozen=True)
class Environment:
    """Versions of packages: how uv resolves them."""

    name: str
    options: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    python: str = "3.11"
    locked: bool = False
    """As `uv.lock` has them."""


ENVIRONMENTS = (
    Environment("lowest declared", ("--resolution", "lowest-direct")),
    Environment("Ray 2.55, CUDA 12", constraints=("ray==2.55.1", "torch<2.11", "optuna<5")),
    Environment("newest", ("--upgrade",)),
    Environment("locked, Python 3.12", python="3.12", locked=True),
    Environment("newest, Python 3.13", ("--upgrade",), python="3.13"),
)
SERVERS = ("2.22", "3.5", "3.12", "3.17")
"""Versions of MLflow's server that a search is sent to, from this environment."""


class LeftOut(Exception):
    """What could not be tried, and why: that is no fault of the versions."""


@dataclass
class Outcome:
    """What a step gave: how long it took, and why it failed if it did."""

    seconds: float
    fault: str | None = None
    remark: str = ""

    def __str__(self) -> str:
        if self.fault is not None:
            return f"**no**: {self.fault}"
        return f"yes, {self.seconds:.0f} s" + (f" ({self.remark})" if self.remark else "")


@dataclass
class Bench:
    """One virtual environment, and a folder for its storages."""

    folder: Path
    end: float = math.inf
    """When the time is over, by `time.monotonic`."""
    storage: Path = field(init=False)
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.storage = self.folder / "runs"

    def limit(self, step: str) -> float:
        """The seconds that a step may take; LeftOut if it cannot begin."""
        left = self.end - time.monotonic()
        if left < MIN_SECONDS:
            raise LeftOut(f"{step}: no time")
        return min(left, SECONDS)

    def uv(self, *words: str) -> None:
        """uv, which installs; LeftOut if no index answers, RuntimeError if it fails for another reason."""
        call = [uv(), "--quiet", *words]
        try:
            done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=self.limit("installation"))
        except subprocess.TimeoutExpired:
            raise LeftOut("installation: no time") from None
        if done.returncode:
            error = " ".join(done.stderr.split())
            raise LeftOut(f"no index: {error}") if UNREACHABLE.search(error) else RuntimeError(error)

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    def run(self, *words: str, fault: Callable[[str], str | None] = lambda output: None) -> Outcome:
        """A program of the environment; `fault` judges its output where it ended well."""
        environment = os.environ | {"RAY_worker_niceness": "0", "PATH": f"{self.bin}:{os.environ['PATH']}"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        began, limit = time.monotonic(), self.limit(words[0])
        log = self.folder / "log.txt"
        with log.open("a") as file:
            file.write(f"\n$ {' '.join(words)}\n")
        try:
            done = subprocess.run(
                [str(self.bin / words[0]), *words[1:]],
                cwd=self.folder if words[0] != "pytest" else ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            if limit < HANGS:
                raise LeftOut(f"{' '.join(words[:2])}: no time") from None
            return self.add(Outcome(limit, f"not done after {limit:.0f} s"))
        seconds = time.monotonic() - began
        with log.open("a") as file:
            file.write(done.stdout)
        last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")
        failure = last[:200] or f"exit code {done.returncode}"
        return self.add(Outcome(seconds, failure if done.returncode else fault(done.stdout), _tests(last)))

    def add(self, outcome: Outcome) -> Outcome:
        """Keep and say it."""
        print(f"   {outcome}", flush=True)
        self.outcomes.append(outcome)
        return outcome

    def ended(self, name: str, count: int) -> Callable[[str], str | None]:
        """A fault unless a search has so many trials, all done."""

        def fault(_: str) -> str | None:
            journal = self.storage / "searches" / name / "journal.jsonl"
            events = [json.loads(line) for line in journal.read_text().splitlines()]
            states = [event["state"] for event in events if event["event"] == "trial_ended"]
            return None if states.count("done") >= count else f"trials ended {states}"

        return fault


def _tests(line: str) -> str:
    """`1,388 passed, 4 skipped` of pytest's last line."""
    return ", ".join(re.findall(r"\d+ (?:passed|skipped)", line))


def uv() -> str:
    """uv on this machine, or the one that `make setup` fetched."""
    return shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")


def install(environment: Environment, bench: Bench) -> None:
    """Make the environment; what is there of it already is used."""
    bench.folder.mkdir(parents=True, exist_ok=True)
    constraints, locked = bench.folder / "constraints.txt", bench.folder / "requirements.txt"
    constraints.write_text("\n".join(environment.constraints))
    venv = bench.folder / "venv"
    if not venv.exists():
        bench.uv("venv", "--python", environment.python, str(venv))
    output = ("--output-file", str(locked))
    if environment.locked:
        bench.uv("export", "--frozen", "--no-dev", "--no-emit-project", "--no-hashes", *output)
    else:
        resolve = ("pip", "compile", str(ROOT / "pyproject.toml"), "--python", environment.python, *output)
        bench.uv(*resolve, "--constraints", str(constraints), *environment.options)
    target = ("--python", str(venv / "bin" / "python"))
    bench.uv("pip", "install", *target, "--requirement", str(locked))
    bench.uv("pip", "install", *target, "--no-deps", "--editable", str(ROOT))
    bench.uv("pip", "install", *target, "--constraints", str(locked), *TOOLS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def group(words: list[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    """A program in a process group of its own, which is ended with all that it started."""
    with log.open("a") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env=environment, process_group=0, cwd=log.parent)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def cluster(bench: Bench) -> Iterator[str]:
    """A cluster started by the environment's `ray start`; gives its address. Its token is in the environment then."""
    port = free_port()
    words = [str(bench.bin / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}"]
    words += ["--num-cpus=2", "--include-dashboard=false", f"--dashboard-agent-listen-port={free_port()}"]
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = os.environ | {"RAY_worker_niceness": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,  # `auto` does not see it
        group([*words, f"--temp-dir={folder}"], bench.folder / "log.txt", environment),
    ):
        wait_for_port(port)
        yield f"127.0.0.1:{port}"
    del os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"]


def wait_for_port(port: int, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if time.monotonic() > end:
            raise TimeoutError(f"nothing answers at port {port}")
        time.sleep(0.5)


def measure(environment: Environment, bench: Bench) -> list[str]:
    """The row of an environment."""
    install(environment, bench)
    shutil.rmtree(bench.storage, ignore_errors=True)
    where = ("--storage", str(bench.storage))
    two = ("--workers", "2", "--final-workers", "2")
    steps = [bench.run("orchestrator", *SEARCH, *two, "--name", "own", *where, fault=bench.ended("own", 2))]
    steps.append(bench.run("orchestrator", "resume", "own", "--num-trials", "3", *where, fault=bench.ended("own", 3)))
    with cluster(bench) as address:
        words = ("--name", "joined", "--address", address)
        steps.append(bench.run("orchestrator", *SEARCH, *words, *where, fault=bench.ended("joined", 2)))
    files = [str(path) for name in TESTS if (path := next((ROOT / "tests").rglob(f"test_{name}.py"), None))]
    steps.append(bench.run("pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "-m", "not slow", *files))
    listed = subprocess.run(
        [uv(), "pip", "list", "--format", "json", "--python", str(bench.bin / "python")],
        capture_output=True,
        text=True,
        check=True,
    )
    versions = {one["name"]: one["version"] for one in json.loads(listed.stdout)}
    said = subprocess.run([str(bench.bin / "python"), "--version"], capture_output=True, text=True, check=True)
    here = [said.stdout.split()[1], *(versions[name] for name in SHOWN)]
    return [environment.name, *here, *map(str, steps), datetime.date.today().isoformat()]


def measure_server(version: str, bench: Bench) -> list[str]:
    """The row of a tracking server: a search, and those of a lab, are sent to it from this environment."""
    with tracking_server(version, bench) as uri:
        exact = str(urllib.request.urlopen(f"{uri}/version", timeout=60).read().decode())
        search, lacks = measure_arrival(uri, bench)
        lab = measure_lab(uri, bench)
    return [exact, str(search), str(lab), lacks, datetime.date.today().isoformat()]


@contextlib.contextmanager
def tracking_server(version: str, bench: Bench) -> Iterator[str]:
    """MLflow's server of a version, with a new database; gives its address."""
    bench.folder.mkdir(parents=True, exist_ok=True)
    venv = bench.folder / "venv"
    if not venv.exists():
        packages = [f"mlflow=={version}.*", *(["sqlalchemy<2.1"] if version < "3.12" else []), "setuptools<81"]
        bench.uv("venv", "--python", "3.11", str(venv))
        bench.uv("pip", "install", "--python", str(venv / "bin" / "python"), *packages)
    port = free_port()
    database = bench.folder / f"{time.time():.0f}.db"
    words = [str(venv / "bin" / "python"), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--workers", "1", "--backend-store-uri", f"sqlite:///{database}"]
    words += ["--artifacts-destination", str(bench.folder / "artifacts")]
    environment = os.environ | {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with group(words, bench.folder / "log.txt", environment):
        wait_for_port(port, 300)
        yield f"http://127.0.0.1:{port}"


def measure_arrival(uri: str, bench: Bench) -> tuple[Outcome, str]:
    """Whether a search arrives, and what the server lacks, as the search says."""
    search = [str(Path(sys.executable).parent / "orchestrator"), *SEARCH, "--name", "sent"]
    shutil.rmtree(bench.storage, ignore_errors=True)
    began = time.monotonic()
    words = [*search, "--storage", str(bench.storage), "--tracking-uri", uri]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, cwd=bench.folder)
    said = " ".join((done.stdout + done.stderr).split())
    outcome = bench.add(Outcome(time.monotonic() - began, said[-200:] if done.returncode else _unsent(uri)))
    lacks = [f"`{endpoint}`" for endpoint in re.findall(r"this server has no (/[\w./-]+)", said)]
    lacks += ["saved views"] if "no saved views" in said else []
    return outcome, ", ".join(lacks)


def measure_lab(uri: str, bench: Bench) -> Outcome:
    """Whether five searches are filtered by what they fix, by MLflow's client and in a browser."""
    import lab_tracker

    storage = lab_tracker.make_searches(bench.folder.parent)
    began = time.monotonic()
    faults = lab_tracker.lab_faults(uri, storage, bench.folder / "pictures")
    return bench.add(Outcome(time.monotonic() - began, "; ".join(faults) or None))


def _unsent(uri: str) -> str | None:
    """What of the search `sent` has not arrived at a server, asked by its public interface."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    runs = list(client.search_runs(experiments, max_results=100))
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    faults = [f"{run.info.run_name} is {run.info.status}" for run in runs if run.info.status != "FINISHED"]
    if len(runs) != 4 or len(parents) != 1:
        faults.append(f"{len(runs)} runs, {len(parents)} of a search")
    elif "mlflow.note.content" not in parents[0].data.tags:
        faults.append("no note")
    elif not any(one.path == "report" for one in client.list_artifacts(parents[0].info.run_id)):
        faults.append("no report")
    return "; ".join(faults) or None


HEADS = {
    "environments": [
        *("environment", "Python", "Ray", "torch", "Optuna", "MLflow", "NumPy"),
        *("search, 2 workers", "resume", "`--address`", "tests", "date"),
    ],
    "servers": ["MLflow server", "a search arrives", "five searches filtered", "what it lacks", "date"],
}


def write(table: str, rows: list[list[str]]) -> None:
    """Put rows into a table of the page, each in place of the one with its name."""
    page = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {table} -->\n", f"<!-- end of {table} -->"
    before, rest = page.split(begin)
    old, after = rest.split(end)
    kept = {line.split(" | ")[0].removeprefix("| "): line for line in old.strip().splitlines()[2:]}
    for row in rows:
        kept[row[0]] = f"| {' | '.join(cell.replace('|', '/') or '-' for cell in row)} |"
    head = HEADS[table]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |", *kept.values()]
    PAGE.write_text(before + begin + "\n".join(lines) + "\n" + end + after, encoding="utf-8")


def main() -> None:
    names = [*(one.name for one in ENVIRONMENTS), *(f"mlflow {version}" for version in SERVERS)]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=names, help="an environment or server; again for more")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build" / "versions", help="where they are made")
    parser.add_argument("--minutes", type=float, help="leave out what does not end in time; the page stays as it is")
    options, failed = parser.parse_args(), list[str]()
    end = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    for name in options.only or names:
        print(f"== {name}", flush=True)
        bench = Bench(options.scratch / re.sub(r"[^\w.]+", "-", name), end)
        try:
            if name.startswith("mlflow "):
                table, row = "servers", measure_server(name.partition(" ")[2], bench)
            else:
                environment = next(one for one in ENVIRONMENTS if one.name == name)
                table, row = "environments", measure(environment, bench)
        except LeftOut as reason:
            print(f"left out: {name}: {reason}", flush=True)
        except RuntimeError as error:
            print(f"{name}: {error}", flush=True)
            failed.append(name)
        else:
            print(" | ".join(row), flush=True)
            if options.minutes is None:
                write(table, [row])
        failed += [name] if any(outcome.fault is not None for outcome in bench.outcomes) else []
    if failed:
        sys.exit(f"does not work with: {', '.join(failed)}")


if __name__ == "__main__":
    main()
