"""When a training writes a checkpoint between two validations: by time, and at once where its process is to end."""

import time

from orchestrator.errors import Preempted
from orchestrator.training.distributed import rank, read_notice, write_notice
from orchestrator.training.notice import announce_own_end, pending_notice

ASK_SECONDS = 1.0
"""How often the first of several processes asks whether another of them is to end."""


class Pauses:
    """When the training in this process writes its state between two validations.

    Of several processes the first one writes, alone, for all: a step leaves them with the same state. It hears of the
    end of another one through their group.

    Args:
        seconds: of `checkpoint_every`.
        processes: how many train together.
    """

    def __init__(self, seconds: float, processes: int = 1) -> None:
        self.seconds, self.processes = seconds, processes
        self.asked = self.written_at = time.monotonic()
        self.passed_on = False

    def note_checkpoint(self) -> None:
        """A checkpoint was written: the time until the next one begins."""
        self.written_at = time.monotonic()

    def take_step(self) -> bool:
        """After a step: whether this process writes a checkpoint now."""
        if rank() != 0:
            self._pass_on()
            return False
        late = time.monotonic() - self.written_at >= self.seconds
        return late or self._notice() is not None

    def check(self) -> None:
        """Raises Preempted where the process, or another that trains with it, is to end; all is written."""
        if rank() == 0 and (notice := self._notice()) is not None:
            raise Preempted(f"its process was announced to end ({notice})")

    def _notice(self) -> str | None:
        if pending_notice() is None and self.processes > 1 and time.monotonic() - self.asked >= ASK_SECONDS:
            self.asked = time.monotonic()
            if (notice := read_notice()) is not None:
                announce_own_end(notice)
        return pending_notice()

    def _pass_on(self) -> None:
        if not self.passed_on and (notice := pending_notice()) is not None:
            write_notice(f"{notice}, of process {rank()}")
            self.passed_on = True
