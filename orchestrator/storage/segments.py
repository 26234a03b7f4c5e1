"""A journal in an object store: one object per record, also collected into bundles."""

import contextlib
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Self

from orchestrator.errors import InputError
from orchestrator.storage.buckets import find_bucket
from orchestrator.storage.object_store import THREADS, Bucket
from orchestrator.storage.records import Position, decode, how_to_repair

BUNDLE = 500


class Segments:
    """The records of a search, each a separate object: `journal/00000042.jsonl` holds the line with `seq` 42.

    For readers without a local copy, records are also written in bundles, because each object costs a request.
    """

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self.bucket, self.prefix = bucket, prefix
        self.tail: list[bytes] = []
        """The records since the last bundle."""

    @classmethod
    def of(cls, journal: Path) -> Self | None:
        """The segments of the journal with this path; None if it is on a disk."""
        place = find_bucket(journal.with_suffix(""))
        return None if place is None else cls(place[0], f"{place[1]}/")

    def __str__(self) -> str:
        return self.bucket.address(self.prefix)

    @property
    def search(self) -> str:
        """The name of the search."""
        return self.prefix.split("/")[-3]

    def key(self, number: int) -> str:
        """The key of one record."""
        return f"{self.prefix}{number:08d}.jsonl"

    def bundle(self, first: int) -> str:
        """The key of a bundle, a copy of consecutive records."""
        return f"{self.prefix}by-{BUNDLE}/{first:08d}.jsonl"

    def publish(self, number: int, line: bytes) -> bool:
        """Publish a record; False if another process wrote one with this number."""
        if not self.bucket.create(self.key(number), line):
            return False
        self.tail.append(line)
        if len(self.tail) == BUNDLE:
            with contextlib.suppress(OSError):  # readers can work without it
                self.bucket.put(self.bundle(number + 1 - BUNDLE), b"".join(self.tail), patient=False)
            self.tail = []
        return True

    def extend(self, file: BinaryIO) -> None:
        """Update the local copy, open for reading and writing, to all complete records.

        InputError if one is missing or damaged; OSError if the store does not answer."""
        lines, end = self._check_kept(file)
        if lines and self.bucket.get(self.key(0), patient=False) != lines[0]:
            lines, end = [], Position()  # a copy of another search that had this name
        keys = self._keys(len(lines) - 1)
        if lines and self.key(len(lines) - 1) not in keys:
            lines, end, keys = [], Position(), self._keys(0)
        file.seek(end.offset)
        file.truncate()
        with ThreadPoolExecutor(THREADS, "journal") as pool:
            keys_to_read, missing = self._keys_to_read(len(lines), keys)
            for key, data in zip(keys_to_read, pool.map(self.bucket.get, keys_to_read), strict=True):
                for line in (data or b"?").splitlines(keepends=True):
                    try:
                        _, end = decode(line, end)
                    except ValueError as error:
                        what = f"{self.bucket.address(key)}: damaged: not the journal's record {end.number}: {error}"
                        if f"/by-{BUNDLE}/" in key:
                            how = ": it is a copy of single records: delete it, and those are read"
                        else:
                            how = how_to_repair(self.search, end.number)
                        file.flush()
                        raise InputError(what + how) from None
                    lines.append(line)
                    file.write(line)
        file.flush()
        if missing:
            raise InputError(missing + how_to_repair(self.search, end.number))
        self.tail = lines[len(lines) - len(lines) % BUNDLE :]

    def cut(self, first: int, aside: str) -> None:
        """Remove the records from this number on: they are moved to a folder beside the journal's."""
        prefix_aside = f"{self.prefix.removesuffix('journal/')}{aside}/journal/"
        for key in self._keys(0):
            if (numbered := key in self._numbered_keys([key])) and key < self.key(first):
                continue
            if numbered and (data := self.bucket.get(key)) is not None:
                self.bucket.put(prefix_aside + key.removeprefix(self.prefix), data)
            self.bucket.remove([key])  # bundles are only copies

    def _keys(self, first: int) -> dict[str, None]:
        """The keys of all records from this number on, and of all bundles, in order."""
        after = self.key(first - 1) if first > 0 else ""
        return dict.fromkeys(self.bucket.keys(self.prefix, after, patient=False))

    def _keys_to_read(self, number: int, keys: Mapping[str, None]) -> tuple[list[str], str | None]:
        """The keys to fetch for all records from this number on, as bundles if possible, and what is missing."""
        keys_to_read = []
        while (key := self.key(number)) in keys:
            bundled = self.bundle(number) in keys and self.key(number + BUNDLE - 1) in keys
            keys_to_read.append(self.bundle(number) if bundled else key)
            number += BUNDLE if bundled else 1
        ends = [key for key in self._numbered_keys(keys) if key > self.key(number)]
        missing = f"{self}: record {number} is missing, the next is {ends[0].rpartition('/')[2]}" if ends else None
        return keys_to_read, missing

    def _numbered_keys(self, keys: Iterable[str]) -> list[str]:
        """The keys of single records."""
        return [key for key in keys if re.fullmatch(r"\d{8,}\.jsonl", key.removeprefix(self.prefix))]

    def _check_kept(self, file: BinaryIO) -> tuple[list[bytes], Position]:
        """The complete records of the local copy, and the place after them."""
        file.seek(0)
        lines, end = [], Position()
        for line in file.read().splitlines(keepends=True):
            try:
                _, end = decode(line, end)
            except ValueError:
                break
            lines.append(line)
        return lines, end
