"""The servers that a search may be tracked by, started for real: PostgreSQL and MLflow over it."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PASSWORD = "a/secret@word"
"""Of the database; with the characters that people forget to quote."""


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait; a generous limit, for what hangs."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.05)


def answers(port: int) -> bool:
    """Whether something accepts connections at a port of the loopback."""
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


class Clock:
    """The time of day as Python processes see it (`time.time`, `time.time_ns`): it jumps, in all of them at once, while
    they run. The monotonic clock is the machine's own, as when a real clock is set. The number of processors is what
    CAMPAIGN_CPUS says, if it says one."""

    CODE = """
import os, time
if count := os.environ.get("CAMPAIGN_CPUS"):
    os.cpu_count = lambda: int(count)
real, nanoseconds, known = time.time, time.time_ns, [-1.0, 0]
def offset():
    if (now := time.monotonic()) > known[0] + 0.5:
        with open(os.path.join(os.path.dirname(__file__), "offset")) as file:
            known[:] = now, int(file.read())
    return known[1]
time.time = lambda: real() + offset()
time.time_ns = lambda: nanoseconds() + offset() * 1_000_000_000
"""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        self.folder, self.offset = folder, 0.0
        (folder / "sitecustomize.py").write_text(self.CODE)
        self.jump(0)

    def jump(self, seconds: float) -> None:
        """Set the clock forwards, or back."""
        self.offset += seconds
        part = self.folder / "offset.part"
        part.write_text(f"{self.offset:+.0f}\n")
        part.replace(self.folder / "offset")

    def environment(self) -> dict[str, str]:
        """Variables of the processes that shall see it."""
        return {"PYTHONPATH": os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))}


class FakeTime(Clock):
    """The same by libfaketime: for all code of the processes, Ray's own too.

    Two faults of libfaketime 0.9.10 (Debian 12): without faking the monotonic clock, `clock_nanosleep` fails, by which
    Python sleeps since 3.11, so here it sleeps by `select`; and of a process with several threads about one fork in
    some hundreds waits for ever for a lock of the library. So a campaign of many lives is not for it.
    """

    CODE = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds) and None\n"
    LIBRARY = "faketime/libfaketimeMT.so.1"

    @staticmethod
    def library() -> Path | None:
        """libfaketime of this machine."""
        found = (folder / FakeTime.LIBRARY for folder in [Path("/usr/lib"), *Path("/usr/lib").glob("*-linux-gnu")])
        return next((path for path in found if path.exists()), None)

    def environment(self) -> dict[str, str]:
        return super().environment() | {
            "LD_PRELOAD": str(self.library()),
            "FAKETIME_TIMESTAMP_FILE": str(self.folder / "offset"),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_CACHE_DURATION": "1",
        }


class Server:
    """A process with children that is started, killed without warning, and started again."""

    seconds = 300.0

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    @property
    def user(self) -> str | None:
        """Whose process it is; None for ours."""
        return None

    def begin(self) -> None:
        """Start it, without waiting until it answers."""
        with open(self.folder / "log.txt", "ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                env=os.environ | self.environment(),
                user=self.user,
                cwd=self.folder,
                start_new_session=True,
            )

    def ready(self) -> None:
        """Wait until it answers."""
        until(lambda: answers(self.port), self.seconds, f"{type(self).__name__}, see {self.folder / 'log.txt'}")

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.begin()
        self.ready()

    def kill(self) -> None:
        """`kill -9` of all its processes."""
        if self.process is None:
            return
        members = []
        with contextlib.suppress(ProcessLookupError):
            import psutil

            members = psutil.Process(self.process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.wait()
        self.process = None


class Postgres(Server):
    """PostgreSQL with a fresh database, on the loopback, with a password; as root, which it refuses, run by another."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder, port or free_port())
        folder.mkdir(parents=True)
        if os.geteuid() == 0:
            owner = pwd.getpwnam("nobody")
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        words = ["initdb", "-D", str(folder / "data"), "-U", "mlflow", "-A", "scram-sha-256", f"--pwfile={secret}"]
        subprocess.run(
            [*words, "-E", "UTF8", "--locale=C"], user=self.user, cwd=folder, check=True, capture_output=True
        )

    @staticmethod
    def installed() -> bool:
        """Whether it can be started here."""
        return shutil.which("postgres") is not None and shutil.which("initdb") is not None

    @property
    def user(self) -> str | None:
        return "nobody" if os.geteuid() == 0 else None

    @property
    def uri(self) -> str:
        """SQLAlchemy's address of the database, password and all."""
        from urllib.parse import quote

        return f"postgresql://mlflow:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/postgres"

    def command(self) -> list[str]:
        settings = {"unix_socket_directories": str(self.folder), "dynamic_shared_memory_type": "mmap"}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return ["postgres", "-D", str(self.folder / "data"), "-h", "127.0.0.1", "-p", str(self.port), *options]

    def start(self) -> None:
        self.begin()
        self.ready()
        until(self.accepts, self.seconds, "the database's recovery")

    def accepts(self) -> bool:
        """Whether it takes queries: after a kill it first reads its log."""
        import psycopg

        try:
            psycopg.connect(self.uri).close()
        except psycopg.OperationalError:
            if self.process is not None and self.process.poll() is not None:
                self.begin()  # what remains of the killed one was still there
            return False
        return True


class MLflowServer(Server):
    """MLflow's server over a database, artifacts through itself."""

    def __init__(self, folder: Path, database: str, port: int | None = None) -> None:
        super().__init__(folder, port or free_port())
        folder.mkdir(parents=True)
        self.database = database

    @property
    def uri(self) -> str:
        """Where searches send to."""
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        return [*command, "--workers", "1", "--artifacts-destination", str(self.folder / "artifacts")]

    def environment(self) -> dict[str, str]:
        from orchestrator.tracking.address import ui_environment

        return ui_environment(self.database)
