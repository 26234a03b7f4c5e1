"""Stanford Online Products and In-shop Clothes Retrieval."""

from pathlib import Path, PurePosixPath

from orchestrator.data.archives.listing import (
    UNPACK_AGAIN,
    Archive,
    Count,
    Counts,
    Listing,
    Picture,
    archive_root,
    expect_header,
    parsed_integer,
    path_inside,
    refuse_twice,
    text_rows,
)
from orchestrator.errors import DataError
from orchestrator.problems import suggestion


def read_sop(source: Path) -> Listing:
    """Stanford Online Products: a table for each split; the super-class is the product's kind."""
    root = archive_root(source, ["Ebay_train.txt"], "Stanford_Online_Products")
    header = "image_id class_id super_class_id path"
    pictures: list[Picture] = []
    lines_by_id: dict[str, str] = {}
    kinds: dict[int, str] = {}
    for split in ("train", "test"):
        rows = text_rows(root / f"Ebay_{split}.txt", 4)
        expect_header(rows, header, root / f"Ebay_{split}.txt")
        for where, (image_id, class_text, super_text, path) in rows:
            refuse_twice(lines_by_id, image_id, where)
            image = path_inside(path, where)
            kind = parsed_integer(super_text, where, "super_class_id")
            name = PurePosixPath(image).parts[0].removesuffix("_final")
            if kinds.setdefault(kind, name) != name:
                raise DataError(f"{where}: super_class_id {kind} is {kinds[kind]} elsewhere, but the image is {path}")
            class_id = parsed_integer(class_text, where, "class_id")
            pictures.append(Picture(image, class_id, split, kind))
    rank = {kind: i for i, kind in enumerate(sorted(kinds))}
    pictures = [p._replace(super_class=rank[p.super_class]) for p in pictures if p.super_class is not None]
    names = {class_id: f"{class_id}" for class_id in sorted({picture.class_id for picture in pictures})}
    return Listing(root, names, pictures, [kinds[kind] for kind in sorted(kinds)])


def read_inshop(source: Path) -> Listing:
    """In-Shop: a count, a header, and a table with uneven spaces; train, query and gallery."""
    partition = "list_eval_partition.txt"
    root = archive_root(source, [f"Eval/{partition}", partition], "In-shop Clothes Retrieval Benchmark")
    path = root / "Eval" / partition
    path = path if path.exists() else root / partition
    folders = [f"{parent}{name}" for name in ("img", "img_highres") for parent in ("Img/", "")]
    there = [name for name in folders if (root / name).is_dir()]
    if not there:
        raise DataError(f"{root}: no folder of images; needed is one of {', '.join(folders)}{UNPACK_AGAIN}")
    lines = iter(text_rows(path, 1))
    where, (text,) = next(lines, (f"{path} line 1", ("",)))
    announced = parsed_integer(text, where, "number of images")
    first = next((row[0] for _, row in text_rows(path, 3, skip=2)), "").partition("/")[2]
    folder = next((name for name in there if (root / name / first).is_file()), there[0])
    rows = text_rows(path, 3, skip=1)
    expect_header(rows, "image_name item_id evaluation_status", path)
    pictures = []
    names: dict[int, str] = {}
    groups: dict[str, int] = {}
    for where, (image, item, split) in rows:
        if split not in ("train", "query", "gallery"):
            raise DataError(f"{where}: status '{split}'{suggestion(split, ('train', 'query', 'gallery'))}")
        class_id = parsed_integer(item.removeprefix("id_"), where, "item_id")
        names[class_id] = item
        parts = PurePosixPath(image).parts
        if parts[:1] != ("img",) or len(parts) < 3:
            raise DataError(f"{where}: image '{image}' should be img/<group>/.../<file>")
        kind = groups.setdefault("/".join(parts[1:-2]) or parts[1], len(groups))
        pictures.append(Picture(path_inside(f"{folder}/{'/'.join(parts[1:])}", where), class_id, split, kind))
    if len(pictures) != announced:
        raise DataError(f"{path}: {len(pictures)} images, but its first line says {announced}: the file is incomplete")
    order = sorted(groups)
    rank = {groups[name]: i for i, name in enumerate(order)}
    pictures = [p._replace(super_class=rank[p.super_class]) for p in pictures if p.super_class is not None]
    return Listing(root, names, pictures, order, layout=folder)


SOP = Archive(
    name="sop",
    summary="Stanford Online Products",
    origin="https://cvgl.stanford.edu/projects/lifted_struct/",
    read=read_sop,
    counts=Counts(Count(120_053, 22_634), {"train": Count(59_551, 11_318), "test": Count(60_502, 11_316)}),
)
INSHOP = Archive(
    name="inshop",
    summary="DeepFashion In-Shop clothes, with query and gallery",
    origin="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    read=read_inshop,
    counts=Counts(
        Count(52_712, 7_982),
        {"train": Count(25_882, 3_997), "query": Count(14_218, 3_985), "gallery": Count(12_612, 3_985)},
        dense=False,
    ),
)
