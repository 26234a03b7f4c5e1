"""Signs from Iconify's collections: a class is a sign, its images are the drawings that vendors made of it.

A collection is a package of the npm registry, SVG in JSON, by one vendor and with a licence of its own.
"""

import json
import tarfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.data.archives.listing import Licence, Listing, Picture, reason_of
from orchestrator.errors import DataError
from orchestrator.registries import NpmTarball, file_in

if TYPE_CHECKING:
    from orchestrator.data.encoding import Drawing

SIDE = 112
"""Pixels of a picture's side."""

_SCOPE = "@iconify-json/"

SignOf = Callable[[str, str], str | None]
"""The sign of a vendor and the name of one of its drawings; None for a drawing that is left out."""


def iconify_package(vendor: str, version: str, size: int, sha512: str) -> NpmTarball:
    """A vendor's collection: bytes of the tarball, and its digest as npm prints it, without `sha512-`."""
    return NpmTarball(_SCOPE + vendor, version, size, f"sha512-{sha512}")


def read_signs(source: Path, packages: Sequence[NpmTarball], at_least: int, sign_of: SignOf) -> Listing:
    """The signs that `at_least` of these packages have, in the order of their names. `source`: a folder of the
    tarballs, whose digests are checked."""
    drawings: dict[str, dict[str, tuple[str, Drawing]]] = defaultdict(dict)
    licences = []
    for package in packages:
        vendor = package.package.removeprefix(_SCOPE)
        path = file_in(package, source)
        icons, info = _members(path, "icons.json", "info.json")
        licence, author = info["license"], info["author"]
        address = licence["url"] if "url" in licence else author["url"]
        licences.append(Licence(vendor, licence["spdx"], address, f"{info['name']} by {author['name']}"))
        for name, icon in icons["icons"].items():
            if (sign := sign_of(vendor, name)) is not None:
                drawings[sign][vendor] = name, _drawing(icons | icon)
    signs = sorted(sign for sign, of in drawings.items() if len(of) >= at_least)
    pictures = [
        Picture(f"{vendor}/{name}", class_id, pixels=drawing, vendor=vendor)
        for class_id, sign in enumerate(signs, start=1)
        for vendor, (name, drawing) in drawings[sign].items()
    ]
    return Listing(source, dict(enumerate(signs, start=1)), pictures, licences=licences)


def _members(path: Path, *names: str) -> list[dict[str, Any]]:
    try:
        with tarfile.open(path) as archive:
            files = [archive.extractfile(f"package/{name}") for name in names]
            return [json.load(file) for file in files if file is not None]
    except (tarfile.TarError, KeyError, ValueError, EOFError) as error:
        raise DataError(f"{path}: is no set of signs ({reason_of(error)})") from None


def _drawing(icon: dict[str, Any]) -> "Drawing":
    """A square with the drawing in its middle."""
    from orchestrator.data.encoding import Drawing

    width, height = icon.get("width", 16), icon.get("height", 16)
    side = max(width, height)
    left, top = icon.get("left", 0) - (side - width) / 2, icon.get("top", 0) - (side - height) / 2
    box = f'viewBox="{left:g} {top:g} {side:g} {side:g}"'
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return Drawing(f"<svg {spaces} {box}>{icon['body']}</svg>", SIDE)
