"""The process that trains for one that joined a search (`orchestrator.execution.joiner`, its parent).

On stdin it gets a line of JSON for each trial (`work`, `search`, `storage`, `digest`), and after each result but the
last `go` or `stop`. On stdout it says `ready`, and answers with a line of JSON for each result, a message's `kind` and
`result`, or `refused` with a reason. What the training prints goes to stderr, which is a file. When stdin ends, so has
the parent, perhaps by a kill: this process ends at once, since another may train the trial from now on.
"""

import contextlib
import faulthandler
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import InputError
from orchestrator.execution.exchange import read_work, result_fields
from orchestrator.execution.protocol import Work
from orchestrator.execution.worker import own_results
from orchestrator.stdio import read_lines
from orchestrator.storage.places import Places
from orchestrator.training.notice import heed_sigterm, withdraw


def train_requested(request: Mapping[str, Any], words: "queue.SimpleQueue[bytes]") -> Iterator[dict[str, Any]]:
    """The answers to a request: the trial's results, until one is the last or the parent says `stop`."""
    places = Places(Path(request["storage"]))
    try:
        work = read_work(request["work"], places, request["search"])
        check_machine(work, places, request["digest"])
    except (InputError, OSError, TypeError, KeyError) as error:
        yield {"kind": "refused", "reason": f"this machine cannot train it: {error}"}
        return
    with contextlib.closing(own_results(work)) as training:
        for result in training:
            yield result_fields(result)
            if result.done or words.get() != b"go":
                return


def check_machine(work: Work, places: Places, digest: str) -> None:
    """InputError if this machine lacks the device, or if its data set is not the one that the search began with."""
    from orchestrator.data.catalog import open_dataset
    from orchestrator.training.device import choose_device

    training = work.experiment.training
    choose_device(training.device)
    here = str(open_dataset(training.dataset, places.data).manifest["digest"])
    if here != digest:
        raise InputError(
            f"the data set '{training.dataset}' here is not the one this search began with (digest {here[:12]}, then "
            f"{digest[:12]}): its trials could not be compared"
        )


def main() -> None:
    """Train until stdin ends."""
    # sent to all processes of a job: the parent decides
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    heed_sigterm()
    faulthandler.enable(all_threads=False)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    words: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        for word in read_lines():
            words.put(word)
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    import torch  # noqa: F401 (if it cannot be imported, no trial is to blame)

    print(json.dumps({"kind": "ready"}), file=out, flush=True)
    while True:
        request = json.loads(words.get())
        withdraw()  # an end that was announced to the training before
        for answer in train_requested(request, words):
            print(json.dumps(answer, default=float), file=out, flush=True)


if __name__ == "__main__":
    main()
