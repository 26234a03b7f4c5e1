"""An archive or a user's own images -> a store.

    read the annotations -> check counts and files -> encode in parts, on several processes -> write the store

Parts lie beside the place of the store, in `.NAME.parts`, until it is written: an interrupted preparation resumes
where it was.
"""

import contextlib
import multiprocessing
import shutil
import signal
import stat
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from orchestrator.data.archives.catalog import ARCHIVES, OWN
from orchestrator.data.archives.listing import Listing, Picture, check_counts
from orchestrator.data.catalog import check_importer, check_source, datasets
from orchestrator.data.encoding import QUALITY, Content, Unreadable, begin, part_path, read_part, write_part
from orchestrator.data.store import LOCK, Row, Store, only_one, write_store, writing_problem
from orchestrator.errors import DataError

SIZE = 256
PART = 128  # images at most: a few seconds of work, so that an interruption loses little
PARTS = 32  # at least, for a small set
SAMPLE = 256  # images at most that the size of a store of decoded ones is judged by
NAMED = 3  # files that an error names before it only counts them

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Part:
    path: Path
    first: int  # index of its first image in the listing
    contents: Sequence[Content]


def prepare(
    importer: str,
    source: Path | str,
    root: Path | str,
    *,
    name: str | None = None,
    size: int | None = None,
    original: bool = False,
    decoded: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    expect: Callable[[str], None] | None = None,
) -> Store:
    """Create the store `root / name` from the archive or the images in `source`, or open the one that is there.

    `importer`: the name of an archive, `folder` or `csv`; `name` is the importer's by default. `size`: the shorter
    side of the images kept, 256 by default, never enlarged; `original` keeps the files' bytes; `decoded` keeps, as PPM,
    the pixels that the images have when they are decoded. The store is the same whatever the number of `workers`
    (processes; 1: this one). `progress` is called with the number of images done and the number of all images, `say`
    with a line about images that are left out, `expect` with the size of a store of decoded images, before anything is
    written.

    Raises DataError for anything wrong with the arguments, the source or the disk, and KeyboardInterrupt with the
    number of images that the next call need not encode again.
    """
    name = _checked_name(importer, name)
    settings = _settings(importer, size, original, decoded)
    path = Path(root).absolute() / name
    if path.exists():
        store = _there_already(path, importer, settings, source)
        if say is not None and (changed := _changed(store, importer, Path(source).expanduser().absolute(), name)):
            say(changed)
        return store
    listing = _read(importer, Path(source).expanduser().absolute(), name)
    if listing.beside and say is not None:
        say(f"{_some(len(listing.beside))} outside the class folders and ignored: {_named(listing.beside)}")
    if listing.loops and say is not None:
        say(f"links not followed, as their folder is above them or read already: {_named(listing.loops)}")
    folder = path.parent / f".{name}.parts"

    def busy() -> None:
        raise DataError(f"{path}: another process is preparing it; wait until it ends")

    try:
        with only_one(folder, busy):
            if path.exists():  # another process was faster
                return _there_already(path, importer, settings, source)
            shorter = None if original else size or SIZE
            if decoded and expect is not None:
                expect(_expected(listing, size or SIZE, path))
            parts = _parts(listing, folder, shorter, decoded)
            _remove_others(folder, parts)
            _encode(parts, shorter, decoded, workers, progress or (lambda done, total: None), listing, path, importer)
            store = _write(path, name, importer, listing, parts, settings)
            _remove_others(folder, ())
    except OSError as error:
        raise writing_problem(path, error) from None
    return store


# Before anything is written --------------------------------------------------------------------------------


def _checked_name(importer: str, name: str | None) -> str:
    check_importer(importer)
    if name is None and importer in OWN:
        raise DataError("--name: missing; give a name for the data set")
    if name in {*datasets(), *OWN} and (name != importer or importer in OWN):
        raise DataError(f"--name: '{name}' is a known data set's own name; choose another")
    return name or importer


def _settings(importer: str, size: int | None, original: bool, decoded: bool) -> dict[str, Any]:
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
        raise DataError(f"--size {size}: should be at least 1, pixels of the shorter side")
    kind = "JPEG, decoded" if decoded else "JPEG"
    return {"importer": importer, "encoding": kind, "quality": QUALITY, "size": size or SIZE, "resampling": "bicubic"}


def _changed(store: Store, importer: str, source: Path, name: str) -> str | None:
    """That the user's own images are more or fewer than those of the store; None if not, or if they are gone."""
    if importer not in OWN:
        return None
    with contextlib.suppress(DataError, OSError):
        if (now := len(_read(importer, source, name).pictures)) != len(store):
            return (
                f"{source} has {now:,} images now, and the data set still the {len(store):,} that it was made of; to "
                f"make it again, delete {store.path} first"
            )
    return None


def _expected(listing: Listing, size: int, path: Path) -> str:
    """How large the store of decoded images will be, from some of them."""
    step = -(-len(listing.pictures) // SAMPLE)
    pixels = []
    for picture in listing.pictures[::step]:
        with contextlib.suppress(Exception):  # whatever a decoder raises: told when it is encoded
            with Image.open(str(listing.content(picture))) as image:
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


def _there_already(path: Path, importer: str, settings: dict[str, Any], source: Path | str) -> Store:
    """The existing store; DataError if it was made with other settings, or from other images of the user."""
    store = Store.open(path)
    made_of, given = store.manifest.get("source"), Path(source).expanduser().absolute()
    names = (given, *(found for found in given.glob("*.csv") if importer == "csv"))  # csv: the file, or its folder
    if importer in OWN and made_of is not None and Path(made_of) not in names:
        raise DataError(
            f"{path}: already exists, made from {made_of}, not {given}; delete that folder, or give another --name"
        )
    found = store.manifest.get("settings", {})
    for key, value in settings.items():
        if found.get(key) != value:
            raise DataError(
                f"{path}: already exists, with {key} {found.get(key)}, not {value}; delete that folder, or give "
                "another --name"
            )
    return store


def _read(importer: str, source: Path, name: str) -> Listing:
    """The listing, with its counts checked and all its files present."""
    check_source(importer, source)
    try:
        listing = ARCHIVES[importer].read(source) if importer in ARCHIVES else OWN[importer](source)
    except OSError as error:
        raise DataError(f"{error.filename or source}: cannot be read ({error.strerror or error})") from None
    if not listing.pictures:
        raise DataError(f"{listing.origin}: no image is listed; give a source that has some")
    sources = Counter(picture.source for picture in listing.pictures)
    twice = [source for source, count in sources.items() if count > 1]
    if twice:
        raise DataError(f"{listing.origin}: {_named(twice)} listed twice; every image has one class")
    missing, same = _looked_up(listing)
    if missing:
        raise DataError(
            f"{name}: {len(missing):,} of {len(sources):,} images are missing in {listing.root}: {_named(missing)}; "
            f"{_remedy(importer, listing)}"
        )
    for one, other in same:
        places = [f"{picture.source} ({_place(listing, picture)})" for picture in (one, other)]
        more = f"; so are {len(same) - 1:,} more" if len(same) > 1 else ""
        raise DataError(
            f"{listing.origin}: {' and '.join(places)} are the same file, through a link{more}; every image has one "
            "class and "
            "one part: remove one of the two"
        )
    if importer in ARCHIVES:
        check_counts(listing, ARCHIVES[importer].counts, importer)
    return listing


def _looked_up(listing: Listing) -> tuple[list[str], list[tuple[Picture, Picture]]]:
    """The missing files, and the pairs that are one file, reached by a link, in two classes or splits. Names of one
    file that are not links (hard links) may come from a tool that merges equal files: these are no such pairs."""
    missing: list[str] = []
    same: list[tuple[Picture, Picture]] = []
    first: dict[tuple[int, int], Picture] = {}
    for picture in listing.pictures if listing.pictures[0].pixels is None else ():
        try:
            status = (listing.root / picture.source).stat()
        except (OSError, ValueError):
            missing.append(picture.source)
            continue
        if not stat.S_ISREG(status.st_mode):
            missing.append(picture.source)
        elif status.st_nlink == 1:
            other = first.setdefault((status.st_dev, status.st_ino), picture)
            if (other.class_id, other.split) != (picture.class_id, picture.split):
                same.append((other, picture))
    return missing, same


def _place(listing: Listing, picture: Picture) -> str:
    splits = {other.split for other in listing.pictures}
    part = f", {picture.split}" if len(splits) > 1 else ""
    return f"class '{listing.class_names[picture.class_id]}'{part}"


def _remedy(importer: str, listing: Listing) -> str:
    """What to do about images that are missing or cannot be read."""
    if importer in ARCHIVES:
        return "unpack the archive again"
    if listing.table is not None:
        return f"replace these files, or remove their lines from {listing.table}"
    return "replace or remove these files"


# Encoding --------------------------------------------------------------------------------------------------


def _parts(listing: Listing, folder: Path, size: int | None, decoded: bool) -> list[_Part]:
    contents = [listing.content(picture) for picture in listing.pictures]
    length = min(PART, max(1, len(contents) // PARTS))
    parts = []
    for number, first in enumerate(range(0, len(contents), length)):
        some = contents[first : first + length]
        try:
            parts.append(_Part(part_path(folder, number, some, size, decoded), first, some))
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from None
    return parts


def _remove_others(folder: Path, parts: Sequence[_Part]) -> None:
    """Remove what an earlier preparation left for other files or settings."""
    ours = {part.path.name for part in parts} | {LOCK}
    for child in folder.iterdir():
        if child.name not in ours:
            child.unlink(missing_ok=True)


def _encode(
    parts: Sequence[_Part],
    size: int | None,
    decoded: bool,
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
        with contextlib.closing(_results(waiting, size, decoded, workers)) as results:
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
        shown = _named([f"{source} ({reason})" for source, reason in unreadable])
        raise DataError(
            f"{listing.origin}: {len(unreadable):,} of {total:,} images cannot be read: {shown}; "
            f"{_remedy(importer, listing)}"
        )


def _results(
    parts: Sequence[_Part], size: int | None, decoded: bool, workers: int
) -> Generator[tuple[_Part, list[Unreadable]], None, None]:
    """Each part and its unreadable images, in the order of completion."""
    if workers == 1 or sum(len(part.contents) for part in parts) <= PART:  # done before another process has started
        for part in parts:
            yield part, write_part(part.path, part.contents, size, decoded) or []
        return
    context = multiprocessing.get_context("spawn")  # forking a process with threads risks a deadlock
    called_off = context.Event()
    pool = ProcessPoolExecutor(min(workers, len(parts)), context, begin, (called_off,))
    try:
        # Ctrl-C in a terminal reaches every process: workers inherit that it is ignored.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = {pool.submit(write_part, part.path, part.contents, size, decoded): part for part in parts}
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


def _write(
    path: Path, name: str, importer: str, listing: Listing, parts: Sequence[_Part], settings: dict[str, Any]
) -> Store:
    label = {class_id: rank for rank, class_id in enumerate(sorted(listing.class_names))}

    def rows() -> Iterator[Row]:
        pictures = iter(listing.pictures)
        for part in parts:  # one at a time: many systems do not allow a thousand open files
            for image in _table(part)["image"]:
                picture = next(pictures)
                yield Row(image.as_py(), label[picture.class_id], picture.split)

    sizes = [np.stack([_table(part)[side].to_numpy() for side in ("width", "height")], axis=1) for part in parts]
    columns: dict[str, Any] = {
        "source": [_text(picture.source) for picture in listing.pictures],
        "original_size": np.concatenate(sizes),
    }
    if listing.super_classes:
        columns["super_class"] = np.array([picture.super_class for picture in listing.pictures], np.int32)
    if listing.pictures[0].box is not None:
        columns["box"] = np.array([picture.box for picture in listing.pictures], np.float32)
    facts: dict[str, Any] = {"source": _text(str(listing.origin))}
    if listing.layout:
        facts["layout"] = listing.layout
    if listing.super_classes:
        facts["super_classes"] = list(listing.super_classes)
    return write_store(
        path,
        name=name,
        channels=3,
        class_names=[_text(listing.class_names[class_id]) for class_id in label],
        rows=rows(),
        seed=None,
        settings=settings,
        facts=facts,
        columns=columns,
    )


def _table(part: _Part) -> pa.Table:
    table = read_part(part.path, len(part.contents))
    if table is None:
        raise DataError(f"{part.path}: is no longer complete; run the same command again")
    return table


def _text(name: str) -> str:
    """A file name as text; its bytes may be in another encoding than UTF-8."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _some(images: int) -> str:
    return "1 image lies" if images == 1 else f"{images:,} images lie"


def _named(things: Sequence[str]) -> str:
    """The first few of them."""
    more = f" and {len(things) - NAMED:,} more" if len(things) > NAMED else ""
    return ", ".join(things[:NAMED]) + more
