"""Copies among the images of a data set: exact ones (the same pixels), and near ones (the same look, by pHash).

A picture that is in the query and in the gallery, in training and in testing, or in two classes makes a number too high
(or a class wrong): recall@1 is 1 on noise. Within a class a query finds its own copy.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.storage.atomic import write_whole

FILE = "duplicates.csv"
"""The list of all pairs, in the store's folder, or called after it where it was refused."""
NEAR = 4
"""Bits of 64 by which the perceptual hashes of near copies differ at most. Of 300 made photographs all that were
re-encoded at quality 50 and 298 that were halved in size were within it; of the 44,850 pairs of different ones none."""
BANDS = NEAR + 1
"""Parts of a hash: two that differ in NEAR bits agree in one of them at least."""
LISTED = 10_000
"""Near pairs that are kept at most."""
COUNTED = 100_000
"""Near pairs that are counted at most: in drawings of one kind nearly all look alike."""
SHOWN = 10
TOLERATED = 0.05
"""The share of images that may be copies within their class."""
KINDS = ("query and gallery", "training and test", "two classes", "one class")
REFUSED = KINDS[:3]
APART = KINDS[:2]
"""Where a near copy of an image makes a number too high, too."""


class Duplicate(NamedTuple):
    """Two rows, the lower first; one of KINDS; in how many bits their hashes differ, None for equal pixels."""

    one: int
    other: int
    kind: str
    bits: int | None = None


@dataclass(frozen=True)
class Duplicates:
    """The copies, each paired with the first image of its pixels; the near copies, and how many there are in all."""

    copies: list[Duplicate]
    near: list[Duplicate]
    near_counts: Counter[str]

    @property
    def counts(self) -> dict[str, Any]:
        """For the manifest."""
        return {"copies": dict(Counter(pair.kind for pair in self.copies)), "near": dict(self.near_counts)}

    def problem(self, names: Sequence[str]) -> str | None:
        """Why a measurement on these images would not mean what it says; None if it would."""
        serious = [pair for pair in self.copies if pair.kind in REFUSED]
        if not serious and len(self.copies) <= TOLERATED * len(names):
            return None
        examples = serious or self.copies
        first = "; ".join(f"{names[pair.one]} = {names[pair.other]} ({pair.kind})" for pair in examples[:SHOWN])
        more = f"; and {len(examples) - SHOWN:,} more" if len(examples) > SHOWN else ""
        return f"{copies_text(self.counts)}: {first}{more}"


def copies_text(counts: dict[str, Any]) -> str:
    """`12 exact copies (10 of query and gallery, 2 of one class)`"""
    total = sum(counts["copies"].values())
    parts = ", ".join(f"{counts['copies'][kind]:,} in {kind}" for kind in KINDS if kind in counts["copies"])
    return f"{total:,} exact {'copy' if total == 1 else 'copies'} ({parts})"


def near_text(counts: dict[str, Any], kinds: Sequence[str] = KINDS) -> str:
    """`2 pairs of images look alike (1 in training and test, 1 in one class)`; empty if none of these kinds do."""
    near = {kind: counts["near"][kind] for kind in kinds if kind in counts.get("near", {})}
    if not near:
        return ""
    total, parts = sum(near.values()), ", ".join(f"{count:,} in {kind}" for kind, count in near.items())
    most = "at least " if sum(counts["near"].values()) >= COUNTED else ""
    return f"{most}{total:,} {'pair of images looks' if total == 1 else 'pairs of images look'} alike ({parts})"


def find_duplicates(
    pixels: Sequence[str],
    looks: Sequence[str],
    labels: NDArray[np.int64],
    splits: NDArray[np.str_],
    testing: NDArray[np.bool_],
) -> Duplicates:
    """The copies among N images, from digests of their pixels, and from their perceptual hashes in hexadecimal ("" for
    none). `testing`: the images of test classes."""

    def kind(one: int, other: int) -> str:
        if {"query", "gallery"} == {splits[one], splits[other]}:
            return KINDS[0]
        if testing[one] != testing[other] or (splits[one] == "train") != (splits[other] == "train"):
            return KINDS[1]
        return KINDS[2] if labels[one] != labels[other] else KINDS[3]

    firsts: dict[str, int] = {}
    copies: list[Duplicate] = []
    for row, key in enumerate(pixels):
        if (first := firsts.setdefault(key, row)) != row:
            copies.append(Duplicate(first, row, kind(first, row)))
    copied = {pair.other for pair in copies}
    near: list[Duplicate] = []
    near_counts: Counter[str] = Counter()
    rows_with = np.array([row for row, look in enumerate(looks) if look and row not in copied], np.int64)
    hashes = np.array([int(looks[row], 16) for row in rows_with], np.uint64)
    for one, other, bits in near_pairs(hashes):
        pair = Duplicate(int(rows_with[one]), int(rows_with[other]), "", bits)
        pair = pair._replace(kind=kind(pair.one, pair.other))
        near_counts[pair.kind] += 1
        if len(near) < LISTED:
            near.append(pair)
        if near_counts.total() == COUNTED:
            break
    order = {name: place for place, name in enumerate(KINDS)}
    copies.sort(key=lambda pair: (order[pair.kind], pair.one, pair.other))
    near.sort(key=lambda pair: (order[pair.kind], pair.bits, pair.one, pair.other))
    return Duplicates(copies, near, near_counts)


def near_pairs(hashes: NDArray[np.uint64]) -> Iterator[tuple[int, int, int]]:
    """All pairs (i < j) of hashes that differ in at most NEAR bits, and in how many. Only those that agree in one of
    BANDS parts are compared: others differ in a bit of each part."""
    edges = np.linspace(0, 64, BANDS + 1).astype(int)
    masks = [np.uint64((1 << int(high)) - (1 << int(low))) for low, high in pairwise(edges)]
    for band, mask in enumerate(masks):
        parts = hashes & mask
        order = np.argsort(parts, kind="stable")
        parts = parts[order]
        firsts = np.arange(len(order))
        for offset in count(1):  # each with the one so many places later, as long as their parts agree
            firsts = firsts[: np.searchsorted(firsts, len(order) - offset)]
            firsts = firsts[parts[firsts] == parts[firsts + offset]]
            if not len(firsts):
                break
            differ = hashes[order[firsts]] ^ hashes[order[firsts + offset]]
            bits = np.bitwise_count(differ)
            near = bits <= NEAR
            for earlier in masks[:band]:  # those that agree there have been given
                near &= (differ & earlier) != 0
            places = firsts[near]
            for one, other, different in zip(order[places], order[places + offset], bits[near], strict=True):
                yield int(one), int(other), int(different)


def write_duplicates(
    path: Path, found: Duplicates, names: Sequence[str], classes: Sequence[str], splits: Sequence[str]
) -> None:
    """All copies and the near copies that are kept, as CSV: kind, where, bits; name, class, split of both."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["copy", "in", "bits", "image", "class", "split", "other image", "other class", "other split"])
    for pair in (*found.copies, *found.near):
        sides = [value[row] for row in (pair.one, pair.other) for value in (names, classes, splits)]
        exact = pair.bits is None
        writer.writerow(["exact" if exact else "near", pair.kind, "" if exact else pair.bits, *sides])
    write_whole(path, text.getvalue().encode("utf-8", "replace"))
