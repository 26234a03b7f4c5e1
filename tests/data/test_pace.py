"""How many threads prepare images: from the cores, and from how long the training waits for them."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.image_pipelines import loader_threads
from support.image_pipelines import photographs as photographs

from orchestrator.data import pace, pipeline
from orchestrator.data.pace import FIRST, WINDOW, Pace, usable_cores
from orchestrator.data.pipeline import AHEAD, Reader, Request
from orchestrator.data.store import Store


def numbers(
    most: int, seconds: Callable[[int, int], float], step: float, batches: int, first: int = FIRST
) -> list[int]:
    """The numbers of threads after each batch of a training with steps of so many seconds, where so many threads need
    `seconds(threads, batch)` for a batch."""
    rule, threads, clock, found = Pace(most), first, 0.0, []
    for batch in range(batches):
        waited = max(0.0, seconds(threads, batch) - step)
        clock += step + waited
        threads = rule.threads(threads, waited, clock)
        found.append(threads)
    return found


def test_threads_are_added_until_the_training_does_not_wait() -> None:
    found = numbers(64, lambda threads, batch: 0.8 / threads, 0.03, 20 * WINDOW)
    assert sorted(set(found)) == [4, 8, 16, 32] and found == sorted(found)
    assert found.index(8) == WINDOW, "decided before there was anything to judge by"
    assert found[4 * WINDOW] == 32 == found[-1], "0.8 / 32 is below 0.03"
    assert set(numbers(64, lambda threads, batch: 0.1 / threads, 0.03, 20 * WINDOW)) == {4}


def test_there_are_no_more_of_them_than_cores() -> None:
    assert numbers(10, lambda threads, batch: 9 / threads, 0.03, 20 * WINDOW)[-1] == 10
    assert set(numbers(2, lambda threads, batch: 9 / threads, 0.03, 20 * WINDOW, first=2)) == {2}


def test_threads_that_do_not_help_are_taken_back() -> None:
    """Others use the cores, or a lock or a disk is what they wait for."""
    found = numbers(64, lambda threads, batch: 0.8 / min(threads, 8), 0.03, 20 * WINDOW)
    assert max(found) == 16 and found[4 * WINDOW] == 8 == found[-1]


def test_a_pause_and_a_slow_moment_decide_nothing() -> None:
    def seconds(threads: int, batch: int) -> float:
        return 30.0 if batch % WINDOW in (3, 9) else 0.02

    assert set(numbers(64, seconds, 0.03, 20 * WINDOW)) == {FIRST}


def test_a_reader_uses_that_many_keeps_the_order_and_ends_them_all(
    photographs: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number of threads in turn, none of which changes an image."""
    monkeypatch.setattr(pipeline, "usable_cores", lambda: 8)
    wanted = iter([4, 4, 6, 8, 8, 2, 2, 1, 5, *[5] * 40])
    monkeypatch.setattr(Pace, "threads", lambda self, now, waited, clock: next(wanted))
    how: dict[str, Any] = {"augmentation": "random_resized_crop_224", "image_size": 32}
    rows = [np.arange(start, start + 12) for start in range(0, 108, 12)]
    seen: list[int] = []
    with Reader(photographs, **how) as reader:
        expected = [images for _, images in reader.read([Request(part, 1) for part in rows])]

    def asked() -> Iterator[Request]:
        for part in rows:
            seen.append(len(loader_threads()))
            yield Request(part, 1)

    with Reader(photographs, **how, threads=None) as reader:
        for number, (request, images) in enumerate(reader.read(asked())):
            assert request.samples.tolist() == rows[number].tolist() and torch.equal(images, expected[number])
            assert len(seen) <= number + 1 + AHEAD
            assert len(loader_threads()) <= 8 + 8, "more than two numbers of threads at a time"
    assert not loader_threads()


def test_a_number_that_is_set_stays(photographs: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "WAITING", -1.0)  # it always waits too long
    monkeypatch.setattr(pipeline, "usable_cores", lambda: 8)
    how: dict[str, Any] = {"augmentation": "random_crop_224", "image_size": 32}
    most = {}
    for threads in (3, None):
        seen: set[threading.Thread] = set()
        with Reader(photographs, **how, threads=threads) as reader:
            for _ in reader.read(Request(np.arange(8), 0) for _ in range(2 * WINDOW + 4)):
                seen |= {thread for thread in threading.enumerate() if thread.name.startswith("images")}
        most[threads] = len(seen)
    assert most[3] == 3 and most[None] > FIRST


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity of processes")
def test_cores_are_those_of_this_process_and_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    for quota, cores in (("max 100000\n", 12), ("250000 100000\n", 2), ("20000 100000\n", 1), ("9900000 100000\n", 12)):
        monkeypatch.setattr(Path, "read_text", lambda self, encoding, quota=quota: quota)
        assert usable_cores() == cores
    monkeypatch.undo()
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
