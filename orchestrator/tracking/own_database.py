"""The SQLite file of a storage: made whole or not at all, and its records of artifacts follow where it is."""

import contextlib
import fcntl
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LOCATIONS = {
    "experiments": ["artifact_location"],
    "runs": ["artifact_uri"],
    "logged_models": ["artifact_location"],
    "model_versions": ["source", "storage_location"],
}
"""The columns in which MLflow keeps the absolute addresses of artifacts, by table."""
UNFINISHED = ".unfinished"
"""The ending of a database that was set aside."""


def open_database(database: Path, open_: Callable[[Path], Any]) -> Any:
    """What `open_` returns for a database, which it creates if there is none; one process at a time.

    A new one is made beside it and then renamed, so that a kill leaves nothing half made; a half-made one, which holds
    no experiment yet, is set aside.
    """
    database.parent.mkdir(parents=True, exist_ok=True)
    with _lock(database):
        if not _is_finished(database):
            part = database.with_name(f"{database.name}.{uuid.uuid4().hex}.part")
            for leftover in database.parent.glob(f"{database.name}.*.part"):
                leftover.unlink(missing_ok=True)
            open_(part)
            if database.exists() and database.stat().st_size > 0:
                os.replace(database, database.with_name(database.name + UNFINISHED))
            os.replace(part, database)
        return open_(database)


@contextlib.contextmanager
def _lock(database: Path) -> Iterator[None]:
    """Several processes migrating one new file would break it."""
    with open(database.with_name(f"{database.name}.lock"), "wb") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield


def _is_finished(database: Path) -> bool:
    """Whether it has an experiment, which MLflow creates after all tables; also if it cannot be read."""
    if not database.exists():
        return False
    with contextlib.closing(sqlite3.connect(database)) as connection:
        try:
            table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'experiments'"
            if connection.execute(table).fetchone() is None:
                return False
            return connection.execute("SELECT 1 FROM experiments LIMIT 1").fetchone() is not None
        except sqlite3.Error:
            return True


def follow(database: Path, root: Path) -> None:
    """Have a storage's own database, which was moved or copied with its folder, name the artifacts that lie beside it.

    MLflow records absolute addresses. New artifacts go to `root` from now on; recorded ones are looked up there too if
    they were brought along, or are no longer where they were. Does nothing for a database that is not beside `root`.
    """
    root = root.resolve()
    if database.parent != root.parent or not database.exists():
        return
    with contextlib.closing(sqlite3.connect(database)) as connection, contextlib.suppress(sqlite3.OperationalError):
        locations = [row[0] for row in connection.execute("SELECT artifact_location FROM experiments")]
        for old in {_folder(location, root.name) for location in locations if location} - {None, root.as_uri()}:
            brought = root.is_dir() or not Path(unquote(urlsplit(str(old)).path)).exists()
            for table in LOCATIONS if brought else ["experiments"]:
                for column in LOCATIONS[table]:
                    _replace(connection, table, column, f"{old}/", f"{root.as_uri()}/")
        connection.commit()


def _folder(location: str, name: str) -> str | None:
    """The address of the folder called `name` that an address is in."""
    head, separator, _ = location.partition(f"/{name}/")
    return f"{head}/{name}" if separator and head.startswith("file:") else None


def _replace(connection: sqlite3.Connection, table: str, column: str, old: str, new: str) -> None:
    with contextlib.suppress(sqlite3.OperationalError):  # another version of MLflow has no such column
        connection.execute(
            f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
            (new, len(old) + 1, len(old), old),
        )
