"""How many workers a trial has whose number may change: as many as there is room for.

Not by Ray Train's own `num_workers=(low, high)`, which Ray 2.52 does not have, which ends a group in the middle of an
epoch to change its size, and whose counting starts a process of its own.
"""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from orchestrator.config.workers import Workers
from orchestrator.execution.protocol import Work
from orchestrator.execution.ray_cluster import places
from orchestrator.text import pluralize

ROOM_SECONDS = 3.0
"""How long a place for a worker is waited for, after the one before."""
WAIT_SECONDS = 3.0
"""How often a trial with fewer than its fewest workers asks for places."""
GROW_SECONDS = 60.0
"""How often a trial with fewer than its most workers asks for places, at a validation."""


@dataclass
class Shortage:
    """Says, once, that trials wait because the cluster has room for fewer workers than a trial needs, and its end."""

    needed: int
    lasts: bool = False

    def tell(self, room: int) -> None:
        """The cluster has room for so many workers now, used or not."""
        if (room < self.needed) != self.lasts:
            self.lasts = not self.lasts
            state = "trials wait for more" if self.lasts else "trials go on"
            needed, there = pluralize(self.needed, "worker"), f"the cluster has room for {room}"
            print(f"note: a trial needs {needed}, {there}: {state}", file=sys.stderr)


class Groups:
    """The groups of workers that train a trial, one after another.

    Args:
        fit: trains with so many workers until the training ends, stops, or gives way to a larger group.
        mailbox: of the trial.
    """

    def __init__(self, work: Work, mailbox: Any, fit: Callable[[int], None]) -> None:
        assert isinstance(work.workers, Workers)
        self.work, self.workers, self.mailbox, self.fit = work, work.workers, mailbox, fit
        self.over = threading.Event()
        """Set where the trial needs no more groups."""
        self.size = 0
        self.looked = time.monotonic()

    def train(self) -> None:
        """Train with the workers there are, until the training ends. Raises what ends a group more than `max_restarts`
        times without a validation in between."""
        losses, heard = 0, -1
        while (count := self.wait_for_room()) is not None:
            self.size = count
            try:
                self.fit(count)
            except Exception:
                last: int = ray.get(self.mailbox.last_validation.remote())
                losses, heard = losses + 1 if last == heard else 1, last
                if losses > self.work.max_restarts or self.over.is_set():
                    raise
            else:
                if not ray.get(self.mailbox.gives_way.remote()):
                    return

    def wait_for_room(self) -> int | None:
        """The number of workers of the next group; None if the trial needs none."""
        while not self.over.is_set():
            count = room(self.work, min(self.workers.high, self._places()))
            if count >= self.workers.low:
                self.looked = time.monotonic()
                return count
            self.over.wait(WAIT_SECONDS)
        return None

    def may_grow(self) -> bool:
        """Whether there is room for more workers now; asked at a validation, and then at most every GROW_SECONDS."""
        if self.size == self.workers.high or time.monotonic() - self.looked < GROW_SECONDS:
            return False
        self.looked = time.monotonic()
        return room(self.work, min(self.workers.high, self._places()) - self.size) > 0

    def _places(self) -> int:
        """How many workers fit on the cluster, where nothing else runs on it."""
        return places(self.work.resources, self.work.node_labels)


def room(work: Work, wanted: int) -> int:
    """How many more workers of a trial get a place on the cluster now, at most `wanted`: each asks for a place of its
    own, and gives it back."""
    labels: dict[str, Any] = {"bundle_label_selector": [dict(work.node_labels)]} if work.node_labels else {}
    groups = [placement_group([dict(work.resources)], **labels) for _ in range(wanted)]
    count, seconds = 0, ROOM_SECONDS
    try:
        for group in groups:
            if group.wait(seconds):
                count += 1
            else:
                seconds = 0.05  # the cluster is full: only those that are there already count
        return count
    finally:
        for group in groups:
            remove_placement_group(group)
