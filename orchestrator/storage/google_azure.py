"""Buckets of Google Cloud Storage and containers of Azure Blob Storage, over obstore (an extra, `stores`)."""

import os
import re
from typing import IO, TYPE_CHECKING, Any

from orchestrator.errors import InputError
from orchestrator.storage.address import PROVIDERS, endpoint_url
from orchestrator.storage.object_store import CONNECT_SECONDS, SILENT_SECONDS, THREADS, Bucket

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PIECE = 8 * 2**20
"""How many bytes are sent, or written to a file, at a time."""
REQUEST_SECONDS = 600.0
"""How long one request may take in all, with its body."""
NO_CONTAINER = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "AccountNotFound"}
SIGNATURES = re.compile(r"(?i)\b(sig|se|skoid|sktid|x-goog-(?:credential|signature))=[^&\s\"]+")
"""The parts of an address that grant access."""


class _ConflictError(Exception):
    """Another request for the same object was under way."""


class _ObstoreBucket(Bucket):
    """A bucket over obstore. Its own retries are off: those of `Bucket` hold for every kind of store."""

    secrets: tuple[str, ...]
    """The variables with credentials, which no message repeats."""

    def __init__(self, name: str, host: str, anonymous: bool = False) -> None:
        super().__init__(name, host)
        try:
            import obstore
            from obstore import exceptions
        except ImportError:
            raise InputError(
                f"{self.scheme}://{name}: {PROVIDERS[self.scheme].name} needs the package obstore: install the extra "
                "`stores`, or obstore itself"
            ) from None
        self.library = obstore
        self.failures = (exceptions.BaseError, FileNotFoundError, _ConflictError)
        endpoint = endpoint_url(self.scheme)
        options: dict[str, Any] = {
            "client_options": {
                "allow_http": (endpoint or "").startswith("http://"),
                "connect_timeout": f"{CONNECT_SECONDS}s",
                "read_timeout": f"{SILENT_SECONDS}s",
                "timeout": f"{REQUEST_SECONDS}s",
                "pool_max_idle_per_host": str(THREADS),
            },
            "retry_config": {"max_retries": 0},
        }
        try:
            self.store = self._open(name, endpoint, options)
        except (*self.failures, ValueError) as error:
            look = f"look at the {PROVIDERS[self.scheme].variables} variables"
            raise InputError(f"{self.scheme}://{name}: {self._clean(error)}; {look}") from None

    def _open(self, name: str, endpoint: str | None, options: dict[str, Any]) -> "ObjectStore":
        raise NotImplementedError

    def _get(self, key: str) -> bytes:
        return bytes(self.library.get(self.store, key).bytes())

    def _part(self, key: str, offset: int, length: int) -> bytes:
        return bytes(self.library.get_range(self.store, key, start=offset, length=length))

    def _size(self, key: str) -> int:
        return int(self.library.head(self.store, key)["size"])

    def _put(self, key: str, data: bytes) -> None:
        self.library.put(self.store, key, data, use_multipart=False)

    def _create(self, key: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            self.library.put(self.store, key, data, mode="create")
        except (AlreadyExistsError, PreconditionError):
            try:
                self.library.head(self.store, key)
            except FileNotFoundError:  # a conflict with another request, and not with an object: ask again
                raise _ConflictError("a conflicting request") from None
            return False
        return True

    def _remove(self, key: str) -> None:
        self.library.delete(self.store, key)

    def _copy(self, key: str, new: str) -> None:
        self.library.copy(self.store, key, new)

    def _keys(self, prefix: str, after: str) -> list[str]:
        pages = self.library.list(self.store, prefix, offset=after or None)
        keys = (str(entry["path"]) for page in pages for entry in page)
        return sorted(key for key in keys if key > after)  # not every store honours the offset

    def _folders(self, prefix: str) -> list[str]:
        return sorted(
            f"{folder}/" for folder in self.library.list_with_delimiter(self.store, prefix)["common_prefixes"]
        )

    def _upload(self, file: IO[bytes], key: str) -> None:
        self.library.put(self.store, key, file, chunk_size=PIECE)

    def _download(self, key: str, file: IO[bytes]) -> None:
        for piece in self.library.get(self.store, key).stream(min_chunk_size=PIECE):
            file.write(piece)

    def _is_missing(self, error: Exception) -> bool:
        return isinstance(error, FileNotFoundError) and _code(error) not in NO_CONTAINER

    def _is_transient(self, error: Exception) -> bool:
        from obstore.exceptions import AlreadyExistsError, GenericError

        status = _status(error)
        if isinstance(error, GenericError) and status:
            return status >= 500 or status in (408, 429)
        return isinstance(error, GenericError | AlreadyExistsError | _ConflictError)

    def _reason(self, error: Exception, waited: float) -> str:
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        provider, code, status, text = PROVIDERS[self.scheme], _code(error), _status(error), self._clean(error)
        if code in NO_CONTAINER:
            return f"no {provider.bucket} '{self.name}' at {self.host}"
        if "token request" in text:
            return f"no credentials for {self.host}; check the {provider.variables} variables ({text[:200]})"
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
            return f"access denied by {self.host}; check the {provider.variables} variables"
        if status in range(300, 400) or "redirect" in text:
            return f"{self.host} redirects to another address; set {provider.endpoints[0]} to that of the store"
        if status or code:
            return f"{self.host} answers {code or status}, for {waited:.0f} s ({text[:200]})"
        look = f"check the {provider.variables} variables and the network"
        return f"no connection to {self.host} ({text[:200]}), for {waited:.0f} s; {look}"

    def _clean(self, error: Exception) -> str:
        """An error's text as one line, without the source that obstore prints below it, and without secrets."""
        text = " ".join(str(error).partition("Debug source:")[0].split())
        for secret in filter(None, map(os.environ.get, self.secrets)):
            text = text.replace(secret, "***")
        return SIGNATURES.sub(r"\1=***", text)


class GoogleBucket(_ObstoreBucket):
    """A bucket of Google Cloud Storage."""

    scheme = "gs"
    secrets = ("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN")

    def _open(self, name: str, endpoint: str | None, options: dict[str, Any]) -> "ObjectStore":
        from obstore.store import GCSStore

        return GCSStore(name, **({"base_url": endpoint} if endpoint else {}), **options)


class AzureBucket(_ObstoreBucket):
    """A container of Azure Blob Storage."""

    scheme = "az"
    secrets = (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_CLIENT_SECRET",
        "AZURE_STORAGE_TOKEN",
    )

    def _open(self, name: str, endpoint: str | None, options: dict[str, Any]) -> "ObjectStore":
        from obstore.store import AzureStore

        return AzureStore(name, **({"endpoint": endpoint} if endpoint else {}), **options)


def _code(error: Exception) -> str:
    """The store's name of an error."""
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    return code[1] if code else ""


def _status(error: Exception) -> int:
    """The status of the response; 0 if there was none."""
    status = re.search(r"status code: (\d{3})", str(error))
    return int(status[1]) if status else 0
