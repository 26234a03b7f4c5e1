"""Emoji: the same sign drawn by nine vendors, in colour. A class is a sign, its images are the vendors' drawings.

The drawings are packages of the npm registry (Iconify's collections, SVG in JSON), each with a licence of its own.
"""

import json
import tarfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.data.archives.listing import Archive, Count, Counts, Licence, Listing, Picture, reason_of
from orchestrator.errors import DataError
from orchestrator.registries import NpmTarball, file_in

if TYPE_CHECKING:
    from orchestrator.data.encoding import Drawing

SIDE = 112
"""Pixels of a picture's side."""
AT_LEAST = 7
"""Vendors that must have drawn a sign."""
PARTS_LEFT_OUT = ("skin-tone", "keycap", "oclock", "thirty", "regional")
BEGINNINGS_LEFT_OUT, ENDS_LEFT_OUT = ("flag-",), ("-low",)
"""Names, or parts of them, of signs that differ from others in a colour, a letter or a hand only."""

_SET = "@iconify-json/"


def _set(name: str, version: str, size: int, sha512: str) -> NpmTarball:
    return NpmTarball(_SET + name, version, size, f"sha512-{sha512}")


SETS = (
    _set("noto", "1.2.9", 3_102_958,
         "DQiuXENbun41ch+XPSV55H9FaWKpHTyz46YIKtSaKYD4fIDDzL1tR6H4np/T38jfrTAeI3rcKF0mqHYeZVAuaw=="),
    _set("noto-v1", "1.2.5", 1_587_591,
         "/DsVMius69Q0fRS53z7QK1TROSuar606jiIx+laXtdsYGMXpf6LtHBx6CGfoo3UHHb/XpBsw+1L1x3eyPqMuVA=="),
    _set("openmoji", "1.2.29", 1_264_633,
         "vXdhkqcXVSO6suy+m9LbcUM3OdVyuNOtpV8/als/WqfkQIRxevL5Geb/g+6GH/Qwnq1OqksEmaDGTCmZ5nFKJQ=="),
    _set("twemoji", "1.2.5", 1_555_888,
         "uKpuIEV0v6K5BW3Mjdyl+XKFVAbbcPxAgifKvEMtZoUZB5+YiY5zaMm2uNNCxyXzAWU9yNLlj41WU6/mvgALsw=="),
    _set("emojione", "1.2.3", 687_690,
         "T9+T3HIbJNLKKsmxYKlaYhvnHYkz/HNYTV7SHCXVZPfeUi4FqskY70YeN8yYAZT8cCv7w5vJxS4Q1m8zb9CMMg=="),
    _set("emojione-v1", "1.2.3", 3_704_153,
         "UjI2VQEXVtGlPBvQuxEizro7QCgBcJDOYwKUupquvvZ8UV4xOlvm45IU82JYWegiAWLerY79gFLMZ26U6Ms+ww=="),
    _set("fluent-emoji-flat", "1.2.6", 1_172_438,
         "RY47RgPb47fYUiyrA64sIOL0+UU02s29sXpNBbIQRBUlPlfNFTKUmZDERGuxDs/7yNGWqQYvuaSYM1M4fRXlUw=="),
    _set("fxemoji", "1.2.2", 1_034_876,
         "UAasRaxzFUKfIGSmLwnoarsssA4LX0VLLuEmplIqM6ZNQqIQRtav8tZ4H1neTlBreXuMQyAifr5jP4kn78DpiQ=="),
    _set("streamline-emojis", "1.2.4", 381_714,
         "iNr9T9XuZVTyQPJO8ZlLxBzPkpi7qMl+z1l0C31vpEMqhPMelth3n7CeWQYtixdetDPdI81yeG4ROqjWpYJE6A=="),
)  # fmt: skip
"""The packages, a vendor each. `fluent-emoji` is left out: a near twin of the flat set."""


def read_emoji(source: Path, sets: Sequence[NpmTarball] = SETS) -> Listing:
    """The sets in a folder of their tarballs, whose digests are checked: the signs that AT_LEAST of them have under one
    name, without those that are left out."""
    drawings: dict[str, dict[str, Drawing]] = defaultdict(dict)
    licences = []
    for package in sets:
        vendor = package.package.removeprefix(_SET)
        path = file_in(package, source)
        icons, info = _members(path, "icons.json", "info.json")
        licences.append(
            Licence(
                vendor, info["license"]["spdx"], info["license"]["url"], f"{info['name']} by {info['author']['name']}"
            )
        )
        for name, icon in icons["icons"].items():
            if not _is_left_out(name):
                drawings[name][vendor] = _drawing(icons | icon)
    names = sorted(name for name, of in drawings.items() if len(of) >= AT_LEAST)
    pictures = [
        Picture(f"{vendor}/{name}", class_id, pixels=drawing, vendor=vendor)
        for class_id, name in enumerate(names, start=1)
        for vendor, drawing in drawings[name].items()
    ]
    return Listing(source, dict(enumerate(names, start=1)), pictures, licences=licences)


def _members(path: Path, *names: str) -> list[dict[str, Any]]:
    try:
        with tarfile.open(path) as archive:
            files = [archive.extractfile(f"package/{name}") for name in names]
            return [json.load(file) for file in files if file is not None]
    except (tarfile.TarError, KeyError, ValueError, EOFError) as error:
        raise DataError(f"{path}: is no set of emoji ({reason_of(error)})") from None


def _is_left_out(name: str) -> bool:
    return (
        name.startswith(BEGINNINGS_LEFT_OUT)
        or name.endswith(ENDS_LEFT_OUT)
        or any(part in name for part in PARTS_LEFT_OUT)
    )


def _drawing(icon: dict[str, Any]) -> "Drawing":
    """A square with the drawing in its middle."""
    from orchestrator.data.encoding import Drawing

    width, height = icon.get("width", 16), icon.get("height", 16)
    side = max(width, height)
    left, top = icon.get("left", 0) - (side - width) / 2, icon.get("top", 0) - (side - height) / 2
    box = f'viewBox="{left:g} {top:g} {side:g} {side:g}"'
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return Drawing(f"<svg {spaces} {box}>{icon['body']}</svg>", SIDE)


EMOJI = Archive(
    name="emoji",
    summary="the same sign drawn by up to nine vendors, in colour",
    origin="https://iconify.design",
    read=read_emoji,
    counts=Counts(Count(6_582, 860)),
    pixels=True,
    packages=SETS,
    needs="resvg_py",
)
