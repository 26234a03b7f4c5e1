"""The address of the tracker: defaults, checks, removal of credentials."""

import difflib
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from orchestrator.errors import InputError
from orchestrator.storage import paths
from orchestrator.storage.files import what_is
from orchestrator.storage.places import Places, writable
from orchestrator.storage.reading import read_journal
from orchestrator.tracking.store import TrackingError


def tracking_address(given: str | None, places: Places, journal: Path | None = None) -> str:
    """The tracker to use: the one given, else the one that the search ran with last, else the default."""
    if given:
        uri = check_tracking_uri(given)
        if uri.startswith("sqlite:"):
            writable(Path(uri.removeprefix("sqlite:///")).parent, "--tracking-uri (or MLFLOW_TRACKING_URI)")
        return uri
    before = None
    if journal is not None:
        begun = [event for event in read_journal(journal)[0] if event["event"] in ("search_started", "search_resumed")]
        before = begun[-1].get("tracking_uri") if begun else None
    if before and "***" in before:
        raise InputError(
            f"--tracking-uri: the search was tracked at {before}, whose password is not recorded: give the address"
        )
    return before or default_tracking_uri(places.storage)


def recorded_address(uri: str, places: Places) -> str | None:
    """The tracker's address as recorded in the journal: no password, and None for the storage's own database, which
    may move with the storage."""
    return None if uri == default_tracking_uri(places.storage) else redact(uri)


def note_tracking(uri: str, places: Places) -> None:
    """Print where MLflow's database is, if a user could expect it in the storage."""
    if paths.address_of(places.storage) is not None and uri == default_tracking_uri(places.storage):
        where = uri.removeprefix("sqlite:///")
        print(f"note: MLflow's database is on this machine: {where}; --tracking-uri names a server", file=sys.stderr)


SERVER_SCHEMES = ("http", "https")
DATABASE_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql")


def one_line(error: BaseException) -> str:
    text = redact(" ".join(str(error).split()))
    return text[:300] or type(error).__name__


def default_tracking_uri(storage: Path) -> str:
    """The sqlite file `mlflow.db` in `storage`, as an absolute address."""
    return f"sqlite:///{storage.resolve() / 'mlflow.db'}"


def check_tracking_uri(uri: str) -> str:
    """`uri` if events can be sent there, with a relative sqlite path made absolute and no closing slash.

    Raises:
        TrackingError: a `file:` store, a bare path, an unknown scheme, an http address without a host.
    """
    shown, example = redact(uri), "sqlite:////absolute/path/mlflow.db or http://host:5000"
    if not uri.startswith("sqlite:///") and "***@" not in shown:
        shown = re.sub(r"\S*@", "***@", shown)  # a password must not be shown with a misspelt or missing scheme either
    scheme, found, rest = uri.strip().partition("://")
    dialect = scheme.partition("+")[0]
    if uri.startswith("file:") or not found:
        raise TrackingError(f"tracking URI {shown!r}: MLflow keeps no runs in plain folders; give {example}")
    known = (*SERVER_SCHEMES, *DATABASE_SCHEMES)
    if dialect not in known:
        close = difflib.get_close_matches(dialect, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"give {example}"
        raise TrackingError(f"tracking URI {shown!r}: unknown scheme {scheme!r}; {hint}")
    if dialect == "sqlite":
        path = rest.removeprefix("/")
        if scheme != "sqlite" or not rest.startswith("/") or not path.strip("/") or "?" in path:
            raise TrackingError(f"tracking URI {shown!r}: needs a file; give sqlite:////absolute/path/mlflow.db")
        if problem := _no_database(Path(path)):
            raise TrackingError(f"tracking URI {shown!r}: {problem}; give sqlite:////absolute/path/mlflow.db")
        return f"sqlite:///{Path(path).absolute()}"
    try:
        parts = urlsplit(uri.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise TrackingError(f"tracking URI {shown!r}: {error}") from None
    if dialect in SERVER_SCHEMES and not host:
        raise TrackingError(f"tracking URI {shown!r}: names no host; give http://host:5000")
    if dialect in DATABASE_SCHEMES and not parts.path.strip("/"):
        raise TrackingError(f"tracking URI {shown!r}: names no database; give {dialect}://user@host/database")
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


def redact(uri: str) -> str:
    """`uri`, or any text with addresses in it, without user names, passwords and secret query values."""
    # Up to the last @ of the word: unquoted passwords may contain @ and /.
    text = re.sub(r"\b(?!sqlite:)([a-zA-Z][\w+.-]*://)[^\s'\"]*@", r"\1***@", uri)
    return re.sub(r"(?i)([?&][^=&\s]*(?:password|passwd|pwd|token|secret)[^=&\s]*=)[^&\s'\"]*", r"\1***", text)


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
