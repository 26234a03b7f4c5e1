"""Addresses in object stores, `s3://bucket/prefix` and the like, parsed and checked."""

import os
import re
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote, urlsplit

from orchestrator.errors import DataError
from orchestrator.problems import Problem


class Provider(NamedTuple):
    """A kind of object store."""

    name: str
    bucket: str
    """What a bucket is called there."""
    variables: str
    """The variables with the settings of its connection."""
    endpoints: tuple[str, ...]
    """Those that name another address of the store than the provider's own, the first that is set."""
    account: str | None = None
    """The variable that says whose buckets are meant, where their names are not unique."""


PROVIDERS = {
    "s3": Provider("S3", "bucket", "AWS_*", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")),
    "gs": Provider("Google Cloud Storage", "bucket", "GOOGLE_*", ("GOOGLE_BASE_URL",)),
    "az": Provider(
        "Azure Blob Storage",
        "container",
        "AZURE_*",
        ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        "AZURE_STORAGE_ACCOUNT_NAME",
    ),
}
"""By the scheme of their addresses."""
FORM = (
    "an address should be s3://bucket/prefix, gs://bucket/prefix or az://container/prefix; the settings of the "
    "connection come from AWS_*, GOOGLE_* or AZURE_* variables"
)
BUCKET = "the bucket's name should be 3 to 63 small letters, digits, dots, hyphens"


class Address(NamedTuple):
    """Where a store is: `s3://bucket/prefix`."""

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises DataError for an invalid address or one with credentials, which the message does not repeat."""
        scheme, rest = split_scheme(text)
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.removesuffix("/")
        whole = scheme in PROVIDERS and "@" not in bucket
        if not whole or not re.fullmatch(r"[^@?#\s]+", prefix) or {"", ".", ".."} & set(prefix.split("/")):
            raise DataError(Problem(value=re.sub("//.*@", "//***@", text), rule=FORM))
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", bucket):
            raise DataError(Problem(value=text, rule=BUCKET, advice=f", not '{bucket}'"))
        return cls(scheme, bucket, prefix)

    def place(self, root: Path) -> Path:
        """Its location in a folder of data sets."""
        return root / self.scheme / quote(f"{self.bucket}/{self.prefix}", safe="")


def split_scheme(text: str) -> tuple[str, str]:
    """The scheme of an address, empty if it has none, and the rest."""
    scheme, separator, rest = text.partition("://")
    return (scheme, rest) if separator else ("", text)


def is_address(name: str) -> bool:
    """Whether a data set's name is meant as an address."""
    return "://" in name


def endpoint_url(scheme: str) -> str | None:
    """The address of the store, if a variable names one; it may contain a password."""
    return next(filter(None, map(os.environ.get, PROVIDERS[scheme].endpoints)), None)


def endpoint_host(scheme: str) -> str:
    """The store's host and port, or what stands for the provider's own."""
    provider, endpoint = PROVIDERS[scheme], endpoint_url(scheme)
    if endpoint is not None:
        return urlsplit(endpoint).netloc.rpartition("@")[2] or provider.endpoints[-1]
    return (provider.account and os.environ.get(provider.account)) or provider.name.replace("S3", "AWS")
