"""The archives that can be prepared, by name: each is described in the file of this folder that reads it."""

from collections.abc import Callable
from pathlib import Path

from orchestrator.data.archives.birds import CUB200, NABIRDS
from orchestrator.data.archives.cars import CARS196
from orchestrator.data.archives.cifar import CIFAR_10, CIFAR_100
from orchestrator.data.archives.emoji import EMOJI
from orchestrator.data.archives.icons import ICONS
from orchestrator.data.archives.listing import Archive, Listing
from orchestrator.data.archives.own import read_csv, read_folder
from orchestrator.data.archives.products import INSHOP, SOP

ARCHIVES: dict[str, Archive] = {
    archive.name: archive
    for archive in (
        CUB200,
        CARS196,
        SOP,
        INSHOP,
        NABIRDS,
        CIFAR_10,
        CIFAR_100,
        EMOJI,
        ICONS,
    )
}

OWN: dict[str, Callable[[Path, Path | None], Listing]] = {"folder": read_folder, "csv": read_csv}
"""Readers of users' own images, whose counts are not known; the second folder has the data sets and is no class."""
