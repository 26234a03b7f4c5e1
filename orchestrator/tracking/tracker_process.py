"""The process that sends the journal of a running search to MLflow, so that MLflow computes beside the search.

Its parent is the search (`orchestrator.tracking.trackers.MLflowTracker`). On stdin it gets a line of JSON (`journal`,
`tracking_uri`, `artifact_root`, `longest_backoff`), then an empty line for new events, and `close` when there will be
no more. On stdout it answers each attempt to send with a line of JSON (`problem`, `refused`, `no_views`). When stdin
ends, so has the search, perhaps by a kill: this process ends at once, since another may send from now on. It ignores
the signals that end a search.
"""

import contextlib
import json
import os
import signal
import threading
from pathlib import Path

from orchestrator.stdio import read_lines
from orchestrator.tracking.address import error_line
from orchestrator.tracking.sender import Sender
from orchestrator.tracking.trackers import mlflow_sender

GATHER_SECONDS = 3.0
NICENESS = 5
"""The driver comes first. Not as low as Ray's workers, which are the trials: the end of a search waits for this
process, which at 15 hardly runs where other work takes all cores."""


def main() -> None:
    """Send until `close`, and then once more; after a failure try again after 1, 2, 4, ... seconds."""
    # sent to all processes of a job: the search still writes then
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    with open(os.devnull, "w") as nowhere:  # what a library prints is no answer
        os.dup2(nowhere.fileno(), 1)
    lines = read_lines()
    request = json.loads(next(lines))
    root = Path(request["artifact_root"]) if request["artifact_root"] else None
    wake, closing = threading.Event(), threading.Event()

    def listen() -> None:
        for word in lines:
            if word == b"close":
                closing.set()
            wake.set()
        os._exit(1)

    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    threading.Thread(target=listen, daemon=True).start()
    sender: Sender | None = None
    delay = 1.0
    while True:
        wake.clear()
        last = closing.is_set()
        problem = None
        try:
            sender = sender or mlflow_sender(Path(request["journal"]), request["tracking_uri"], root)
            sender.send()
        except Exception as error:  # tracking never ends a search
            problem = error_line(error)
        refused, no_views = (sender.refused, sender.no_views) if sender else ([], None)
        state = {"problem": problem, "refused": next(iter(refused), None), "no_views": no_views}
        print(json.dumps(state), file=answers, flush=True)
        if last:
            os._exit(0)  # all is sent: half a second of Python's own clearing up would be waited for
        if problem is None:
            delay = 1.0
            wake.wait()
            closing.wait(GATHER_SECONDS)  # one write for the events of some seconds costs less
        else:
            closing.wait(delay)
            delay = min(2 * delay, request["longest_backoff"])


if __name__ == "__main__":
    main()
