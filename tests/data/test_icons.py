"""The data set of icons: which drawings of forty packages are a sign's, and that no set is another one's copy."""

from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.registry import Registry, fetched, tarball

from orchestrator.data.archives.icons import AT_LEAST, ENDINGS, ICON_SETS, ICONS, read_icons
from orchestrator.data.archives.listing import Count
from orchestrator.data.looks import SIDE, perceptual_hashes
from orchestrator.errors import DataError
from orchestrator.registries import NpmTarball

VENDORS = [package.package.rpartition("/")[2] for package in ICON_SETS]


def made_sets(folder: Path) -> list[NpmTarball]:
    """The forty packages with a bell by all, a ban by all but the first 22, a cat by all but the first 23, `x` and a
    brand; a vendor who draws in several styles has a bell of another style too, and no licence has an address."""
    registry, sets = Registry(), []
    for place, (package, vendor) in enumerate(zip(ICON_SETS, VENDORS, strict=True)):
        signs = ["bell", "x", "github", *(["ban"] if place >= 22 else []), *(["cat"] if place >= 23 else [])]
        ending = ENDINGS.get(vendor, "")
        names = [sign + ending for sign in signs] + (["bell", "bell-fill"] if ending else [])
        icons = {name: {"body": f'<rect width="{place + 1}" height="9"/>'} for name in names}
        author = {"name": "Someone", "url": "http://someone"}
        info = {"name": f"Set {place}", "author": author, "license": {"spdx": "MIT"}}
        content = tarball({"icons.json": {"icons": icons, "width": 48, "height": 48}, "info.json": info})
        made = registry.publish(package.package, package.version, content)
        (folder / made.filename).write_bytes(content)
        sets.append(made)
    return sets


def test_a_sign_is_drawn_by_enough_vendors_in_one_style_each(tmp_path: Path) -> None:
    assert len(set(VENDORS)) == 40 and AT_LEAST == 18 and ENDINGS.keys() <= set(VENDORS)
    sets = made_sets(tmp_path)
    listing = read_icons(tmp_path, sets)
    assert listing.class_names == {1: "ban", 2: "bell"}, "a cat has 17 vendors; x is close; github is a brand"
    assert Counter(picture.class_id for picture in listing.pictures) == {1: 18, 2: 40}
    bells = [picture for picture in listing.pictures if picture.class_id == 2]
    assert [picture.source for picture in bells] == [f"{vendor}/bell{ENDINGS.get(vendor, '')}" for vendor in VENDORS]
    assert [picture.vendor for picture in bells] == VENDORS
    first = listing.licences[0]
    assert (first.licence, first.address, first.attribution) == ("MIT", "http://someone", "Set 0 by Someone")
    path = tmp_path / sets[3].filename
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"{sets[3].filename}: .*: fetch it again"):
        read_icons(tmp_path, sets)


@pytest.mark.slow
def test_the_true_sets_are_as_they_were_and_no_copies_of_each_other() -> None:
    """Of the cache, or fetched: 9 MB."""
    pytest.importorskip("resvg_py", reason="the package resvg-py is missing")
    listing = read_icons(fetched(*ICON_SETS))
    assert Count(len(listing.pictures), len(listing.class_names)) == ICONS.counts.total
    licences = Counter(licence.licence for licence in listing.licences)
    assert licences == {"MIT": 24, "Apache-2.0": 10, "CC-BY-4.0": 3, "OFL-1.1": 2, "ISC": 1}
    assert all(licence.address.startswith("https://") for licence in listing.licences)

    thumbnails = [Image.fromarray(of.pixels.pixels).convert("L").resize((SIDE, SIDE)) for of in listing.pictures]
    hashes = perceptual_hashes(np.stack([np.asarray(image) for image in thumbnails]))
    looks: dict[int, dict[str | None, int]] = defaultdict(dict)
    for picture, look in zip(listing.pictures, hashes, strict=True):
        looks[picture.class_id][picture.vendor] = int(look, 16)
    near: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for of_sign in looks.values():
        for one, other in combinations(VENDORS, 2):
            if one in of_sign and other in of_sign:
                near[one, other].append((of_sign[one] ^ of_sign[other]).bit_count() <= 4)
    assert max(sum(alike) / len(alike) for alike in near.values()) < 0.2
