"""`s3://bucket/prefix`, parsed and checked."""

import re
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote

from orchestrator.errors import DataError
from orchestrator.problems import Problem

FOLDER = "s3"
"""The folder of the fetched stores, in the folder of data sets."""
FORM = "an address should be s3://bucket/prefix; the settings of the connection come from AWS_* variables"
BUCKET = "the bucket's name should be 3 to 63 small letters, digits, dots, hyphens"


class Address(NamedTuple):
    """Where a store is: `s3://bucket/prefix`."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises DataError for an invalid address or one with credentials, which the message does not repeat."""
        bucket, _, prefix = text.removeprefix("s3://").partition("/")
        prefix = prefix.removesuffix("/")
        whole = text.startswith("s3://") and "@" not in bucket
        if not whole or not re.fullmatch(r"[^@?#\s]+", prefix) or {"", ".", ".."} & set(prefix.split("/")):
            raise DataError(Problem(value=re.sub("//.*@", "//***@", text), rule=FORM))
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", bucket):
            raise DataError(Problem(value=text, rule=BUCKET, advice=f", not '{bucket}'"))
        return cls(bucket, prefix)

    def place(self, root: Path) -> Path:
        """Its location in a folder of data sets."""
        return root / FOLDER / quote(f"{self.bucket}/{self.prefix}", safe="")


def is_address(name: str) -> bool:
    """Whether a data set's name is meant as an address."""
    return "://" in name
