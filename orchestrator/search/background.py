"""A search that runs beside its caller."""

import threading
from collections.abc import Callable


class Background(threading.Thread):
    """Drives a search in this process, beside its caller."""

    def __init__(self, drive: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=False)
        self.drive = drive
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.drive()
        except BaseException as error:  # told by `join`
            self.error = error

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self.error is not None:
            raise self.error
