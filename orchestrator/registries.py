"""Files of package registries, npm's and PyPI's, each pinned by its version and digest.

    a copy in the cache, with its digest ──> used
    otherwise: fetched into NAME.part, gone on with after an interruption ──> digest ──> renamed to NAME

No file is used whose digest is not the pinned one, wherever it lies. Pooch, which does the like, goes on with no
interrupted download, does not keep two processes from fetching the same, and knows no user's registry.
"""

import base64
import contextlib
import errno
import fcntl
import hashlib
import html
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from orchestrator.errors import DataError, redact
from orchestrator.storage.atomic import write_whole
from orchestrator.storage.paths import cache_folder

Say = Callable[[str], None]

ATTEMPTS = 4
WAIT = 0.5
"""Seconds before the second attempt; doubled for each further one."""
TIMEOUT = 20.0
"""Seconds without a byte until an attempt is given up."""
BLOCK = 1 << 20
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
NPM, PYPI = "https://registry.npmjs.org", "https://pypi.org/simple"


class _Again(Exception):
    """An attempt that failed for a reason that may pass."""


@dataclass(frozen=True)
class NpmTarball:
    """A version of a package of npm: `integrity` as npm prints it (`sha512-BASE64`), `size` in bytes."""

    package: str
    version: str
    size: int
    integrity: str

    @property
    def filename(self) -> str:
        """What `npm pack` calls it."""
        return f"{self.package.removeprefix('@').replace('/', '-')}-{self.version}.tgz"

    @property
    def filenames(self) -> tuple[str, str]:
        """That, and what a registry's address ends with."""
        return self.filename, f"{self.package.rpartition('/')[2]}-{self.version}.tgz"

    @cached_property
    def sha512(self) -> str:
        return base64.b64decode(self.integrity.removeprefix("sha512-")).hex()

    @property
    def digest(self) -> tuple[str, str]:
        """Algorithm and hexadecimal digest."""
        return "sha512", self.sha512

    @property
    def by_hand(self) -> str:
        """The command that fetches it."""
        return f"npm pack {self.package}@{self.version}"

    def server(self) -> str:
        return npm_registry(self.package)

    def address(self) -> str:
        return f"{self.server()}/{self.package}/-/{self.filenames[1]}"


@dataclass(frozen=True)
class Wheel:
    """A wheel of PyPI, `project`'s file `filename` of `size` bytes."""

    project: str
    filename: str
    size: int
    sha256: str

    @property
    def filenames(self) -> tuple[str, ...]:
        return (self.filename,)

    @property
    def digest(self) -> tuple[str, str]:
        """Algorithm and hexadecimal digest."""
        return "sha256", self.sha256

    @property
    def by_hand(self) -> str:
        """The command that installs what is in it; none of its dependencies is needed."""
        return f"uv pip install --no-deps {self.project}"

    def server(self) -> str:
        return python_index()

    def address(self) -> str:
        """Where the index's page of the project says that it is."""
        page = f"{self.server()}/{self.project.lower().replace('_', '-')}/"
        accept = {"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5"}
        with _open(page, accept) as answer:
            text, kind = answer.read().decode("utf-8", "replace"), answer.headers.get_content_type()
        if kind.endswith("json"):
            links: list[str] = [file["url"] for file in json.loads(text)["files"]]
        else:
            links = [html.unescape(link) for link in re.findall(r"""href=["']([^"']+)""", text)]
        for link in links:
            if unquote(urlsplit(link).path).endswith(f"/{self.filename}"):
                return urljoin(page, link)
        raise DataError(f"{redact(page)} does not list {self.filename}")


Package = NpmTarball | Wheel


def npm_registry(package: str = "") -> str:
    """The registry that npm would ask: that of the package's scope, npm_config_registry, `registry` of the user's
    `.npmrc`, npm's own."""
    own = _npmrc(Path.home() / ".npmrc")
    scope = package.partition("/")[0]
    variables = (os.environ.get(name) for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"))
    choices = (own.get(f"{scope}:registry") if scope.startswith("@") else None, *variables, own.get("registry"), NPM)
    return next(choice for choice in choices if choice).rstrip("/")


def python_index() -> str:
    """The index that uv or pip would ask, by their variables; PyPI's own without one."""
    variables = (os.environ.get(name) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"))
    return next((value for value in variables if value), PYPI).rstrip("/")


def _npmrc(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return {}
    pairs = (line.partition("=") for line in lines if not line.lstrip().startswith(("#", ";")))
    return {key.strip(): value.strip().strip("\"'") for key, equal, value in pairs if equal}


def packages_folder() -> Path:
    """Where fetched packages are kept."""
    return cache_folder() / "packages"


def fetch(*packages: Package, say: Say | None = None, remedy: str = "") -> Path:
    """Fetch the packages' files that are not in the cache yet; the folder that all are in then. `say` is told once, if
    something is fetched.

    An interrupted download goes on where it stopped, also in another process; of several processes one fetches, the
    others wait. DataError, with `remedy`, if the registry cannot be reached, has no such file, or has another one
    than was pinned; nothing is kept of a wrong file.
    """
    folder = packages_folder()
    missing = [package for package in packages if not is_whole(package, folder / package.filename)]
    if missing and say is not None:
        what = missing[0].filename if len(missing) == 1 else f"{len(missing)} packages"
        megabytes = max(1, round(sum(package.size for package in missing) / 1e6))
        say(f"fetching {what} from {redact(missing[0].server())} into {folder} ({megabytes:,} MB, once)")
    for package in missing:
        path = folder / package.filename
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _only_one(folder / "lock"):
                if not is_whole(package, path):  # another process may have been faster
                    path.unlink(missing_ok=True)
                    _download(package, path)
        except DataError as error:
            raise DataError(f"{error}{remedy}") from None
        except OSError as error:
            reason = _reason(error)
            raise DataError(
                f"{path}: cannot be written ({reason}): free some space, or set ORCHESTRATOR_CACHE"
            ) from None
    return folder


def file_in(package: Package, folder: Path) -> Path:
    """The package's file in a folder of the user's. DataError if it is not there, or another one."""
    path = next((folder / name for name in package.filenames if (folder / name).is_file()), None)
    if path is None:
        raise DataError(f"{folder}: no {package.filename}: {package.by_hand} fetches it")
    if not is_whole(package, path):
        raise DataError(f"{path}: {_difference(package, path)}: fetch it again ({package.by_hand})")
    return path


def is_whole(package: Package, path: Path) -> bool:
    """Whether there is a file, with the pinned digest."""
    return path.is_file() and path.stat().st_size == package.size and _digest(package, path) == package.digest[1]


def member_of(wheel: Wheel, inside: str) -> Path:
    """A file of a wheel, unpacked beside it; as `fetch`."""
    import zipfile
    import zlib

    folder = fetch(wheel)
    path = folder / inside.rpartition("/")[2]
    with zipfile.ZipFile(folder / wheel.filename) as opened:
        info = opened.getinfo(inside)
        if not path.is_file() or zlib.crc32(path.read_bytes()) != info.CRC:
            write_whole(path, opened.read(info))
    return path


def _download(package: Package, path: Path) -> None:
    """Fetch into `path`, whole or not at all."""
    from http.client import HTTPException

    part = path.with_name(f"{path.name}.part")
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(WAIT * 2 ** (attempt - 1))
        begun = part.stat().st_size if part.exists() else 0
        try:
            if begun < package.size:
                _append(package, package.address(), part)
        except DataError:
            raise
        except (_Again, OSError, HTTPException, ValueError) as error:  # ValueError: a page that is no JSON
            _refuse_final(package, error)
            if isinstance(error, HTTPError) and error.code == 416:  # what is there already is not its beginning
                part.unlink(missing_ok=True)
            failure = error
            continue
        if is_whole(package, part):
            part.replace(path)
            return
        difference = _difference(package, part)
        part.unlink()
        if not begun:  # of one answer, so what is there is another file
            raise DataError(f"{redact(package.server())}: {path.name}: {difference}; it was not kept")
        failure = _Again(difference)
    assert failure is not None
    raise DataError(
        f"{path.name} could not be fetched from {redact(package.server())} ({_reason(failure)}, {ATTEMPTS} attempts)"
    )


def _refuse_final(package: Package, error: Exception) -> None:
    """DataError for an answer that another attempt would not change, and for a disk that cannot be written."""
    if isinstance(error, HTTPError):
        if error.code < 500 and error.code not in (408, 416, 425, 429):
            raise DataError(
                f"{package.filename}: {redact(package.server())} answers {error.code} ({error.reason})"
            ) from None
    elif isinstance(error, OSError) and (error.filename is not None or error.errno in FULL_DISK):
        raise error


def _append(package: Package, address: str, part: Path) -> None:
    """Append what is missing; _Again if the answer ends before that."""
    begun = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={begun}-"} if begun else {}
    with _open(address, headers) as answer:
        goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {begun}-")
        size = begun if goes_on else 0
        with part.open("ab" if goes_on else "wb") as file:
            while size <= package.size and (block := answer.read(BLOCK)):  # one block more than it should be is enough
                file.write(block)
                size += len(block)
    if size < package.size:
        raise _Again(f"ended after {size:,} of {package.size:,} bytes")


def _open(address: str, headers: Mapping[str, str]) -> Any:
    """The answer to a GET; what an address says of user and password is sent to its own server alone."""
    from urllib.request import Request, urlopen  # a tenth of a command's start, and few commands fetch anything

    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        raise DataError(f"{redact(address)}: should begin with http:// or https://")
    user, at, host = parts.netloc.rpartition("@")
    request = Request(urlunsplit(parts._replace(netloc=host)), headers={"User-Agent": "dml-orchestrator", **headers})
    if at:
        secret = base64.b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {secret}")
    return urlopen(request, timeout=TIMEOUT)


def _digest(package: Package, path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, package.digest[0]).hexdigest()


def _difference(package: Package, path: Path) -> str:
    algorithm, digest = package.digest
    return f"has the {algorithm} {_digest(package, path)[:16]}..., not {digest[:16]}...: it is another file, or damaged"


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("ab") as lock:
        with contextlib.suppress(OSError):  # a file system without locks: a file is whole or absent all the same
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, URLError) and not isinstance(error, HTTPError) else error
    text = (isinstance(inner, OSError) and inner.strerror) or str(inner) or type(inner).__name__
    return redact(" ".join(text.split()))[:120]
