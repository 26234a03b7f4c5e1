"""Draws emoji of several vendors as pictures, a folder per sign: real pictures that package registries carry.

    npm install --prefix . @iconify-json/noto @iconify-json/noto-v1 @iconify-json/openmoji @iconify-json/twemoji \\
        @iconify-json/emojione @iconify-json/emojione-v1 @iconify-json/fluent-emoji-flat @iconify-json/fxemoji \\
        @iconify-json/streamline-emojis
    uv pip install resvg-py
    python examples/emoji.py node_modules/@iconify-json emoji
    orchestrator datasets prepare folder --source emoji --name emoji

A sign is a class, its drawings by the vendors are its images. The sets have licences of their own (Apache-2.0, MIT,
CC-BY, CC-BY-SA).
"""

import argparse
import importlib
import json
import sys
from collections import defaultdict
from pathlib import Path

LEFT_OUT = ("skin-tone", "flag", "keycap", "oclock", "thirty", "regional", "-low")
"""Parts of names whose signs differ in a colour or a hand only."""


def drawings(sets: Path, at_least: int) -> dict[str, dict[str, str]]:
    """Sign -> vendor -> SVG, of the signs that `at_least` vendors draw."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for file in sorted(sets.glob("*/icons.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        for name, icon in content["icons"].items():
            if not any(part in name for part in LEFT_OUT):
                width = icon.get("width", content.get("width", 16))
                height = icon.get("height", content.get("height", 16))
                side = max(width, height)  # a square around the drawing
                left, top = (
                    icon.get(key, 0) - (side - length) / 2 for key, length in (("left", width), ("top", height))
                )
                box = f'viewBox="{left:g} {top:g} {side:g} {side:g}"'
                found[name][file.parent.name] = (
                    f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box}>'
                    f"{icon['body']}</svg>"
                )
    return {name: of for name, of in sorted(found.items()) if len(of) >= at_least}


def draw(svg: str, size: int) -> bytes:
    """A PNG of size x size pixels, on white."""
    resvg = importlib.import_module("resvg_py")  # of this example alone
    return bytes(resvg.svg_to_bytes(svg_string=svg, width=size, height=size, background="white"))


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Draw emoji of several vendors, a folder per sign.")
    parser.add_argument("sets", type=Path, help="the folder node_modules/@iconify-json")
    parser.add_argument("output", type=Path, help="a folder to make")
    parser.add_argument("--size", type=int, default=112, help="pixels of a side (112)")
    parser.add_argument("--at-least", type=int, default=8, help="vendors that must draw a sign (8)")
    given = parser.parse_args(words)
    signs = drawings(given.sets, given.at_least)
    if not signs:
        sys.exit(f"error: {given.sets}: no sign in {given.at_least} sets: it should be node_modules/@iconify-json")
    if given.output.exists():
        sys.exit(f"error: {given.output}: exists already; name a new folder")
    for name, of in signs.items():
        folder = given.output / name
        folder.mkdir(parents=True)
        for vendor, svg in of.items():
            (folder / f"{vendor}.png").write_bytes(draw(svg, given.size))
    print(f"{len(signs)} signs, {sum(map(len, signs.values()))} pictures in {given.output}")


if __name__ == "__main__":
    main()
