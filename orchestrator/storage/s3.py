"""Buckets of an object store: the only client for S3, of storages and of data sets.

A storage at `s3://bucket/prefix` is behind a local folder that represents it.

    working copy                                       object store, below the prefix
    searches/NAME/journal.jsonl                        searches/NAME/journal/00000042.jsonl, one record each
    searches/NAME/{driver,request}.json                the same, only there
    searches/NAME/{leaderboard.csv,report/...}         the same
    searches/NAME/trials/0003/*.pt, diagnostics/...    searches/NAME/trials/0003/FILE.WRITER.NUMBER, and manifest.json

A path in a working copy names its object; every other path is a file on a disk, and this module does not touch it.
An object store cannot append or rename, and has no locks. So each record is a separate object, created only if its
number is not used yet: of two drivers that both believe to be alone, one is refused. A trial's files are objects that
never change, and the manifest, written last, lists the valid ones: an incomplete upload is never visible. A working
copy can be lost: another machine, or this one without it, begins with an empty one.

Endpoint, region and credentials come from AWS's own environment variables and files. A request that the store refuses
temporarily is retried for a minute; then it is an OSError known to `storage_fault`, and the search stops cleanly.
"""

import errno
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.errors import InputError
from orchestrator.storage.files import sha256
from orchestrator.storage.opening import open_file
from orchestrator.storage.paths import endpoint_host, endpoint_url, split_path

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""How long a temporarily refused request is retried."""
IMPATIENCE_SECONDS = 5.0
"""The same for the first request of a command, and for periodic requests: those that are not `patient`."""
LONGEST_PAUSE_SECONDS = 5.0
CONNECT_SECONDS = 5.0
SILENT_SECONDS = 30.0
THREADS = 16
"""How many records are read in parallel."""
TRANSIENT = {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling", "ThrottlingException"}
TRANSIENT |= {"ConditionalRequestConflict", "OperationAborted", "RequestTimeTooSkewed"}
DENIED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "Forbidden"}
KEY_ID = re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}\b")
"""The form of AWS's own key ids."""
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")


class Bucket:
    """A bucket's objects, by key. Failures are OSErrors of one line with the address as file name."""

    def __init__(self, name: str, host: str, anonymous: bool = False) -> None:
        """`anonymous`: without any credentials the requests are not signed, which is enough for a public bucket."""
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        self.name, self.host = name, host
        endpoint = endpoint_url()
        try:
            session = boto3.session.Session()
            credentials = session.get_credentials()
            unsigned = anonymous and credentials is None
            self.client = session.client(
                "s3",
                endpoint_url=endpoint,
                region_name=os.environ.get("AWS_REGION") or None,  # boto3 itself reads AWS_DEFAULT_REGION only
                config=Config(
                    signature_version=UNSIGNED if unsigned else None,
                    connect_timeout=CONNECT_SECONDS,
                    read_timeout=SILENT_SECONDS,
                    max_pool_connections=THREADS,
                    retries={"mode": "standard", "total_max_attempts": 2},
                    s3={"addressing_style": "path" if endpoint else "auto"},
                    request_checksum_calculation="when_required",  # not every store supports the newer ones
                    response_checksum_validation="when_required",
                ),
            )
        except BotoCoreError as error:
            raise InputError(f"s3://{name}: {_without_secrets(error)}; look at the AWS_* variables and files") from None
        except ValueError:  # its text may contain a password
            raise InputError("AWS_ENDPOINT_URL: should be an address such as https://host:port") from None
        self.credentials = credentials
        self.conditional = True
        """Whether the store can create an object only if there is none (If-None-Match)."""
        self.random = random.Random()

    @classmethod
    def of(cls, path: Path) -> tuple["Bucket", str] | None:
        """The bucket and the key of a path in a working copy; None for a path on a disk."""
        parts = split_path(path)
        if parts is None:
            return None
        bucket, _, prefix = parts[0].partition("/")
        return cls.open(bucket), "/".join(filter(None, (prefix, parts[1])))

    @classmethod
    def open(cls, name: str, *, anonymous: bool = False) -> "Bucket":
        """The bucket of this name at the endpoint of the environment."""
        return _bucket(name, endpoint_host(), anonymous)

    def get(self, key: str, *, patient: bool = True) -> bytes | None:
        """An object, None if there is none."""

        def ask() -> bytes:
            data: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
            return data

        return self._ask(ask, key, patient, missing=True)

    def part(self, key: str, offset: int, length: int) -> bytes:
        """These bytes of an object."""

        def ask() -> bytes:
            span = f"bytes={offset}-{offset + length - 1}"
            data: bytes = self.client.get_object(Bucket=self.name, Key=key, Range=span)["Body"].read()
            return data

        return self._ask(ask, key) or b""

    def size(self, key: str, *, patient: bool = True) -> int | None:
        """The size of an object in bytes; None if there is none."""
        head = self._ask(lambda: self.client.head_object(Bucket=self.name, Key=key), key, patient=patient, missing=True)
        return None if head is None else int(head["ContentLength"])

    def put(self, key: str, data: bytes, *, patient: bool = True) -> None:
        """Write or replace an object."""
        self._ask(lambda: self.client.put_object(Bucket=self.name, Key=key, Body=data), key, patient)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that must not exist; False if another one does. An earlier attempt whose response was lost
        is recognised."""
        if not self.conditional and (there := self.get(key)) is not None:
            return there == data
        condition = {"IfNoneMatch": "*"} if self.conditional else {}

        def ask() -> bool:
            try:
                self.client.put_object(Bucket=self.name, Key=key, Body=data, **condition)
            except Exception as error:
                if _code(error) not in ("PreconditionFailed", "412"):
                    raise
                return False
            return True

        return bool(self._ask(ask, key)) or self.get(key) == data

    def remove(self, keys: Iterable[str], *, patient: bool = True) -> None:
        """Delete objects; missing ones are ignored."""
        for key in keys:
            self._ask(lambda key=key: self.client.delete_object(Bucket=self.name, Key=key), key, patient)  # type: ignore[misc]

    def copy(self, key: str, new: str) -> None:
        """Copy an object within the bucket."""
        source = {"Bucket": self.name, "Key": key}
        self._ask(lambda: self.client.copy(source, self.name, new), key)

    def keys(self, prefix: str, after: str = "", *, patient: bool = True) -> list[str]:
        """The keys with this prefix that come after `after`, in order."""
        return self._list(prefix, "Contents", "Key", patient, StartAfter=after)

    def folders(self, prefix: str, *, patient: bool = True) -> list[str]:
        """The prefixes one level below this one; all end in a slash."""
        return self._list(prefix, "CommonPrefixes", "Prefix", patient, Delimiter="/")

    def _list(self, prefix: str, kind: str, name: str, patient: bool, **more: str) -> list[str]:
        def ask() -> list[str]:
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix, **more)
            return [entry[name] for page in pages for entry in page.get(kind, [])]

        return self._ask(ask, prefix, patient) or []

    def upload(self, path: Path, key: str) -> None:
        """Upload a file, in parts if it is large; the object exists only once it is complete."""

        def ask() -> None:
            with open_file(path) as file:
                self.client.upload_fileobj(file, self.name, key)

        self._ask(ask, key)

    def download(self, key: str, path: Path) -> str | None:
        """Download an object to a file, whole or not at all, and return its SHA-256; None if there is no object."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent, delete=False) as file:

            def ask() -> bool:
                file.seek(0)
                file.truncate()
                self.client.download_fileobj(self.name, key, file)
                return True

            try:
                if not self._ask(ask, key, missing=True):
                    return None
                file.flush()
                digest = sha256(Path(file.name))
                os.replace(file.name, path)
                return digest
            finally:
                Path(file.name).unlink(missing_ok=True)

    def _ask(self, ask: Callable[[], T], key: str, patient: bool = True, *, missing: bool = False) -> T | None:
        """The response, after as many attempts as patience allows; with `missing`, None for a missing object."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        patience = PATIENCE_SECONDS if patient else IMPATIENCE_SECONDS
        start, pause = time.monotonic(), 0.1
        while True:
            try:
                return ask()
            except (Boto3Error, BotoCoreError, ClientError) as error:
                if missing and _code(error) in ("NoSuchKey", "404"):
                    return None
                waited = time.monotonic() - start
                if not _transient(error) or waited + pause > patience:
                    raise OSError(errno.EIO, self._reason(error, waited), f"s3://{self.name}/{key}") from None
            time.sleep(pause * self.random.uniform(0.5, 1))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _reason(self, error: Exception, waited: float) -> str:
        from botocore.exceptions import ConnectionError, HTTPClientError, NoCredentialsError, PartialCredentialsError

        code, look = _code(error), "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        text = self._without_keys(_without_secrets(error))
        if code == "NoSuchBucket":
            return f"no bucket '{self.name}' at {self.host}"
        if code in DENIED or code in ("403", "401"):
            return f"access denied by {self.host}; {look}"
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return f"no credentials for {self.host}; {look}"
        if code in ("PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"):
            return f"the bucket is in another region; set AWS_REGION ({text})"
        if _status(error) in range(300, 400):
            return f"{self.host} redirects to another address; set AWS_ENDPOINT_URL to that of the store ({code})"
        if isinstance(error, HTTPClientError | ConnectionError):
            what = f"{type(error).__name__.removesuffix('Error')}, for {waited:.0f} s"
            return f"no connection to {self.host} ({what}); check AWS_ENDPOINT_URL and the network"
        return f"{self.host} answers {code or type(error).__name__}, for {waited:.0f} s ({text[:200]})"

    def _without_keys(self, text: str) -> str:
        """A text of the store without the credentials in use, wherever they come from."""
        if (credentials := self.credentials) is not None:
            for secret in filter(None, (credentials.access_key, credentials.secret_key, credentials.token)):
                text = text.replace(secret, "***")
        return KEY_ID.sub("***", text)


@cache
def _bucket(name: str, host: str, anonymous: bool) -> Bucket:
    return Bucket(name, host, anonymous)


def _without_secrets(error: Exception) -> str:
    """An error's text as one line."""
    text = " ".join(str(error).split())
    for secret in filter(None, map(os.environ.get, SECRETS)):
        text = text.replace(secret, "***")
    return text


def _code(error: Exception) -> str:
    """S3's name of an error, or its status code."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def _response(error: Exception) -> dict[str, Any]:
    return getattr(error, "response", None) or {}


def _transient(error: Exception) -> bool:
    from botocore.exceptions import ConnectionError, HTTPClientError, IncompleteReadError

    if isinstance(error, HTTPClientError | ConnectionError | IncompleteReadError):
        return True
    if _code(error) == "NotImplemented":
        return False
    return _code(error) in TRANSIENT or _status(error) in (408, 429) or _status(error) >= 500


def _status(error: Exception) -> int:
    return int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
