"""What a store's folder holds: the names of its files, and its manifest, which is read without opening a store."""

from pathlib import Path

from orchestrator.errors import DataError

FORMAT_VERSION = 1
IMAGES = "images.arrow"
MANIFEST = "manifest.json"
SPLITS = ("train", "test", "query", "gallery")
MODES = {1: "L", 3: "RGB"}
"""Pillow's mode for a number of channels."""


def check_manifest(manifest: object, path: Path | str, remedy: str) -> None:
    """Raise DataError unless this is a manifest of this format; `path` and `remedy` are for the message."""
    required = {
        "format_version": int,
        "name": str,
        "images": int,
        "classes": int,
        "splits": dict,
        "channels": int,
    }
    required["digest"] = str
    if not isinstance(manifest, dict):
        raise DataError(f"{path}: a {type(manifest).__name__}, not an object; {remedy}")
    if manifest.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
        raise DataError(
            f"{path}: format_version {manifest['format_version']!r}, this version reads {FORMAT_VERSION}; {remedy}"
        )
    for key, kind in required.items():
        if not isinstance(manifest.get(key), kind):
            raise DataError(f"{path}: {key} is {manifest.get(key, 'missing')!r}, not of type {kind.__name__}; {remedy}")
    if manifest["channels"] not in MODES:
        raise DataError(f"{path}: channels is {manifest['channels']}, not 1 or 3; {remedy}")
