"""The archives that can be prepared, by name: how each is read and what must be in it."""

from collections.abc import Callable
from pathlib import Path

from orchestrator.data.archives.birds import read_cub, read_nabirds
from orchestrator.data.archives.cars import read_cars
from orchestrator.data.archives.cifar import read_cifar10, read_cifar100
from orchestrator.data.archives.listing import Archive, Count, Counts, Listing
from orchestrator.data.archives.own import read_csv, read_folder
from orchestrator.data.archives.products import read_inshop, read_sop

ARCHIVES = {
    archive.name: archive
    for archive in (
        Archive(
            name="cub200",
            summary="CUB-200-2011, birds",
            origin="https://www.vision.caltech.edu/datasets/cub_200_2011/",
            read=read_cub,
            counts=Counts(Count(11_788, 200), first_half=5_864),
        ),
        Archive(
            name="cars196",
            summary="Stanford Cars",
            origin="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
            read=read_cars,
            counts=Counts(Count(16_185, 196), first_half=8_054),
        ),
        Archive(
            name="sop",
            summary="Stanford Online Products",
            origin="https://cvgl.stanford.edu/projects/lifted_struct/",
            read=read_sop,
            counts=Counts(Count(120_053, 22_634), {"train": Count(59_551, 11_318), "test": Count(60_502, 11_316)}),
        ),
        Archive(
            name="inshop",
            summary="DeepFashion In-Shop clothes, with query and gallery",
            origin="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
            read=read_inshop,
            counts=Counts(
                Count(52_712, 7_982),
                {"train": Count(25_882, 3_997), "query": Count(14_218, 3_985), "gallery": Count(12_612, 3_985)},
                dense=False,
            ),
        ),
        Archive(
            name="nabirds",
            summary="NABirds, North American birds",
            origin="https://dl.allaboutbirds.org/nabirds",
            read=read_nabirds,
            counts=Counts(Count(48_562, 555), dense=False),
        ),
        Archive(
            name="cifar10",
            summary="CIFAR-10, for tests on foreign images",
            origin="https://www.cs.toronto.edu/~kriz/cifar.html",
            read=read_cifar10,
            counts=Counts(Count(60_000, 10), {"train": Count(50_000, 10), "test": Count(10_000, 10)}),
            pixels=True,
        ),
        Archive(
            name="cifar100",
            summary="CIFAR-100, for tests on foreign images",
            origin="https://www.cs.toronto.edu/~kriz/cifar.html",
            read=read_cifar100,
            counts=Counts(Count(60_000, 100), {"train": Count(50_000, 100), "test": Count(10_000, 100)}),
            pixels=True,
        ),
    )
}

OWN: dict[str, Callable[[Path], Listing]] = {"folder": read_folder, "csv": read_csv}
"""Readers of users' own images; their counts are not known."""
