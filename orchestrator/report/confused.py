"""Which classes the best model confuses, from the tables that its evaluation wrote."""

import contextlib
import csv
import zipfile
import zlib
from pathlib import Path
from typing import Any

from orchestrator.evaluation.confusions import Table, confused_most
from orchestrator.report.leading import final_of
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.opening import open_text
from orchestrator.storage.trial_folder import TrialPaths
from orchestrator.storage.trial_record import FINISHED, TrialRecord

SHOWN = 3
"""The number of best trials that have a page, besides the final model."""
DAMAGED = (OSError, ValueError, LookupError, TypeError, EOFError, csv.Error, zipfile.BadZipFile, zlib.error)
"""What reading an incomplete table or array may raise."""


def shown_models(ledger: Ledger) -> list[TrialRecord]:
    """The trials whose model is shown: the final run of the leading trial, and the best trials."""
    run = final_of(ledger)
    final = [run] if run is not None and run.state == "done" else []
    return final + [trial for trial in ledger.best_models(SHOWN) if trial.state in FINISHED]


def confused_classes(ledger: Ledger, folder: Path) -> str:
    """The confused classes in words, from the first of the models shown; empty if nothing is known of them."""
    for trial in shown_models(ledger)[:1]:
        for model in TrialPaths(folder / "trials" / trial.trial_id).all:
            with contextlib.suppress(*DAMAGED):
                classes, confusions = (read_table(model.insight / f"{name}.csv") for name in ("classes", "confusions"))
                return confused_most(classes, confusions)
    return ""


def read_table(path: Path) -> Table:
    """The columns of a table that an evaluation or a method's diagnostics wrote."""
    with open_text(path) as file:
        heads, *rows = csv.reader(file)
    return {head: [_value(head, row[place]) for row in rows] for place, head in enumerate(heads)}


def _value(head: str, text: str) -> Any:
    if head in ("class", "taken_for", "axis"):
        return text
    if not text:
        return None
    return int(text) if text.lstrip("-").isdigit() else float(text)
