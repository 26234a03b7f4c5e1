"""The address of the tracker: the default, checks, and which of those that a storage names are used.

A journal or a cursor may be a stranger's. An address that only they name is not used: credentials would go there.
"""

import contextlib
import difflib
import re
import shlex
import sys
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from orchestrator.errors import InputError, redact
from orchestrator.problems import Option, Problem
from orchestrator.storage import paths
from orchestrator.storage.events import last_start
from orchestrator.storage.files import read_small, what_is
from orchestrator.storage.places import Places, writable
from orchestrator.storage.reading import read_journal
from orchestrator.tracking.store import TrackingError

TRACKING_URI = Option("tracking_uri")


def tracking_address(given: str | None, places: Places, journal: Path | None = None) -> str:
    """The tracker to use: the one given, which is remembered; else the one that the search ran with last, if this user
    has given it before; else the default.

    InputError for an address that only the journal names, and for one that was recorded without its secret parts.
    """
    if given:
        uri = check_tracking_uri(given)
        if uri.startswith(SQLITE):
            writable(database_path(uri).parent, Option("tracking_uri", "MLFLOW_TRACKING_URI"))
        _remember(redact(uri))
        return uri
    before = None
    if journal is not None:
        before = last_start(read_journal(journal)[0]).tracking_uri
    if before and "***" in before:
        rule = f"the search was tracked at {before}, whose secret parts are not recorded: give the address"
        raise InputError(Problem((TRACKING_URI,), rule=rule))
    default = default_tracking_uri(places.storage)
    if before and before != default and not is_trusted(before):
        rule = f"the search was tracked at {before}, which only its journal names"
        trusted, other = f" {shlex.quote(before)}; else ", f" {shlex.quote(default)}"
        advice = (": if you trust it, give ", TRACKING_URI, trusted, TRACKING_URI, other)
        raise InputError(Problem((TRACKING_URI,), rule=rule, advice=advice))
    return before or default


def is_trusted(recorded: str) -> bool:
    """Whether this user has given the address on this machine: what a storage names may be a stranger's."""
    try:
        return recorded in read_small(_given_addresses()).decode().splitlines()
    except (OSError, ValueError):
        return False


def _remember(address: str) -> None:
    """Add an address to those that the user has given; if that cannot be written, it will be asked for again."""
    if not is_trusted(address):
        with contextlib.suppress(OSError):
            _given_addresses().parent.mkdir(parents=True, exist_ok=True)
            with _given_addresses().open("a") as file:
                file.write(f"{address}\n")


def _given_addresses() -> Path:
    return paths.cache_folder() / "trackers.txt"


def recorded_address(uri: str, places: Places) -> str | None:
    """The tracker's address as recorded in the journal: no password, and None for the storage's own database, which
    may move with the storage."""
    return None if uri == default_tracking_uri(places.storage) else redact(uri)


def note_tracking(uri: str, places: Places) -> None:
    """Print where MLflow's database is, if a user could expect it in the storage."""
    if paths.address_of(places.storage) is not None and uri == default_tracking_uri(places.storage):
        where = database_path(uri)
        print(f"note: MLflow's database is on this machine: {where}; --tracking-uri names a server", file=sys.stderr)


SERVER_SCHEMES = ("http", "https")
DATABASE_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql")
SQLITE = "sqlite:///"
EXAMPLE = "sqlite:////absolute/path/mlflow.db"


def error_line(error: BaseException) -> str:
    text = redact(" ".join(str(error).split()))
    return text[:300] or type(error).__name__


def default_tracking_uri(storage: Path) -> str:
    """The sqlite file `mlflow.db` in `storage`, as an absolute address."""
    return database_uri(storage.resolve() / "mlflow.db")


def database_uri(path: Path) -> str:
    """The address of a SQLite file, in which `%`, `?` and `#` of its path are escaped."""
    return SQLITE + re.sub("[%?#]", lambda sign: quote(sign[0]), str(path.absolute()))


def database_path(uri: str) -> Path:
    """The file of SQLite at an address."""
    return Path(unquote(uri.removeprefix(SQLITE)))


def check_tracking_uri(uri: str) -> str:
    """`uri` if events can be sent there, with a relative sqlite path made absolute and no closing slash.

    Raises:
        TrackingError: a `file:` store, a bare path, an unknown scheme, an http address without a host.
    """
    redacted, example = redact(uri), f"{EXAMPLE} or http://host:5000"
    if not uri.startswith(SQLITE) and "***@" not in redacted:
        # a password must not be shown with a misspelt or missing scheme either
        redacted = re.sub(r"\S*@", "***@", redacted)
    scheme, separator, rest = uri.strip().partition("://")
    dialect = scheme.partition("+")[0]
    if uri.startswith("file:") or not separator:
        raise TrackingError(f"tracking URI {redacted!r}: MLflow keeps no runs in plain folders; give {example}")
    schemes = (*SERVER_SCHEMES, *DATABASE_SCHEMES)
    if dialect not in schemes:
        close = difflib.get_close_matches(dialect, schemes, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"give {example}"
        raise TrackingError(f"tracking URI {redacted!r}: unknown scheme {scheme!r}; {hint}")
    if dialect == "sqlite":
        path = rest.removeprefix("/")
        if scheme != "sqlite" or not rest.startswith("/") or not path.strip("/") or "?" in path:
            escaped = "; a ? of its path is %3F, a % is %25" if "?" in path else ""
            raise TrackingError(f"tracking URI {redacted!r}: needs a file; give {EXAMPLE}{escaped}")
        if problem := _no_database(database_path(uri.strip())):
            raise TrackingError(f"tracking URI {redacted!r}: {problem}; give {EXAMPLE}")
        return database_uri(database_path(uri.strip()))
    try:
        parts = urlsplit(uri.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise TrackingError(f"tracking URI {redacted!r}: {error}") from None
    if dialect in SERVER_SCHEMES and not host:
        raise TrackingError(f"tracking URI {redacted!r}: names no host; give http://host:5000")
    if dialect in DATABASE_SCHEMES and not parts.path.strip("/"):
        raise TrackingError(f"tracking URI {redacted!r}: names no database; give {dialect}://user@host/database")
    return uri.strip().rstrip("/")


def _no_database(path: Path) -> str | None:
    """Why this path is not a SQLite database; None if it is one, or does not exist."""
    if path.name == ":memory:":
        return "is gone when the search ends"
    try:
        if (what := what_is(path)) is not None:
            return f"is {what}"
        with open(path, "rb") as file:
            begins = file.read(16)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror)
    return None if begins in (b"", b"SQLite format 3\0") else "is a file, but not a SQLite database"


def web_address(tracking_uri: str, port: int) -> str:
    """The address of MLflow's pages, without a closing slash."""
    parts = urlsplit(tracking_uri)
    if parts.scheme in SERVER_SCHEMES:
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
    return f"http://127.0.0.1:{port}"


def ui_command(tracking_uri: str, artifact_root: Path, port: int) -> list[str]:
    """The command of a lightweight, local-only MLflow server; run it with `ui_environment`.

    Raises:
        TrackingError: the address is already a server.
    """
    uri = check_tracking_uri(tracking_uri)
    if urlsplit(uri).scheme in SERVER_SCHEMES:
        raise TrackingError(f"tracking URI {redact(uri)!r} is a server already: open it in a browser")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--default-artifact-root", artifact_root.resolve().as_uri()]
    # Every user of the machine can see a command line; pass credentials in the environment only.
    return command if redact(uri) != uri else [*command, "--backend-store-uri", uri]


def ui_environment(tracking_uri: str) -> dict[str, str]:
    """Variables to add to the environment of `ui_command`."""
    return {
        "MLFLOW_BACKEND_STORE_URI": check_tracking_uri(tracking_uri),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
