"""The kinds of object stores, and the bucket of an address or of a path in a working copy."""

from functools import cache
from pathlib import Path

from orchestrator.storage.address import endpoint_host, split_scheme
from orchestrator.storage.google_azure import AzureBucket, GoogleBucket
from orchestrator.storage.object_store import Bucket
from orchestrator.storage.paths import split_path
from orchestrator.storage.s3 import S3Bucket

KINDS: dict[str, type[S3Bucket] | type[GoogleBucket] | type[AzureBucket]] = {
    kind.scheme: kind for kind in (S3Bucket, GoogleBucket, AzureBucket)
}
"""By the scheme of their addresses."""


def open_bucket(scheme: str, name: str, *, anonymous: bool = False) -> Bucket:
    """The bucket of this name at the endpoint of the environment. `anonymous`: where there are no credentials, requests
    are not signed, which is enough for a public bucket.

    InputError for a wrong endpoint, or if the library of this kind of store is not installed."""
    return _bucket(scheme, name, endpoint_host(scheme), anonymous)


def find_bucket(path: Path) -> tuple[Bucket, str] | None:
    """The bucket and the key of a path in a working copy; None for a path on a disk."""
    parts = split_path(path)
    if parts is None:
        return None
    scheme, rest = split_scheme(parts[0])
    bucket, _, prefix = rest.partition("/")
    return open_bucket(scheme, bucket), "/".join(filter(None, (prefix, parts[1])))


@cache
def _bucket(scheme: str, name: str, host: str, anonymous: bool) -> Bucket:
    return KINDS[scheme](name, host, anonymous)
