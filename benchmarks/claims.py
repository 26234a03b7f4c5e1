"""Tests the shipped claims that have no verdict yet, and keeps each verdict beside its claim.

    python benchmarks/claims.py --storage DIR [PAPER/NAME ...]           # those named, or all without a verdict
    python benchmarks/claims.py --storage DIR --again [PAPER/NAME ...]   # verdicts anew, from trainings that are there

It runs what `orchestrator claim` runs, one training at a time in this process, without Ray. A claim that was killed
goes on where it was; one that another process tests is left to it, so several may share a storage. The data sets are
prepared before (`orchestrator datasets prepare emoji`); afterwards, `make claims-table what-works`.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from orchestrator.claims.file import read_claim
from orchestrator.claims.running import run_claim
from orchestrator.claims.shipped import find_claim, measured_verdict, shipped_claims
from orchestrator.errors import TrainingFailed
from orchestrator.execution.inline import InlineRunner
from orchestrator.storage.journal import lock


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Whether this process alone holds the file, for as long as the block runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        yield lock(file)


def test(name: str, storage: Path, again: bool) -> bool:
    """Whether the claim ended, now or before. SystemExit if it was stopped."""
    path = find_claim(name)
    claim = read_claim(path, storage)
    with held(storage / "tested" / name.replace("/", ".")) as alone:
        if not alone:
            print(f"{name}: another process tests it", flush=True)
            return True
        if not again and measured_verdict(path, claim) is not None:
            return True
        print(f"{name}: {claim.hypothesis.claim}", flush=True)
        try:
            result = run_claim(
                claim, storage=storage, tuner=InlineRunner, tell=lambda line: print(f"  {line}", flush=True)
            )
        except TrainingFailed as error:
            print(f"  {error}", flush=True)
            return False
        print(f"  {result.verdict.line}", flush=True)
        if result.stopped is not None:
            raise SystemExit(f"{result.stopped}; the same command goes on")
        path.with_suffix(".json").write_text(result.verdict.model_dump_json(indent=1) + "\n", "utf-8")
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="PAPER/NAME", default=list(shipped_claims()))
    parser.add_argument("--storage", type=Path, required=True)
    parser.add_argument("--again", action="store_true")
    chosen = parser.parse_args()
    ended = [test(name, chosen.storage.resolve(), chosen.again) for name in chosen.names]
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
