"""How much too high a search's best value is, from the tables of classes that its trials left."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

from orchestrator.evaluation.excess import expected_excess
from orchestrator.report.class_tables import table_in
from orchestrator.report.tested import is_held_out
from orchestrator.storage.events import Excess
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.paths import address_of
from orchestrator.storage.trial_record import TrialRecord

MAX_TABLES, MAX_FETCHED = 500, 50
"""Tables that are read: of the best trials; of a store that is not a disk fewer, as each is fetched. The others were
hardly candidates."""


def excess_of(ledger: Ledger, winner: TrialRecord, place_of: Callable[[TrialRecord], Path]) -> Excess | None:
    """The expected excess of the best trial's value. None for a loss, two objectives, points over several seeds, a
    choice on the test classes, and where too few tables of the winner's classes were kept."""
    plain = is_held_out(ledger.metric) and ledger.mode == "max" and ledger.second is None and not ledger.over_seeds
    if not plain or ledger.selection == "test" or winner.test or winner.settings.get("protocol") == "classification":
        return None
    import numpy as np

    name = ledger.metric.removeprefix("val/")
    most = MAX_TABLES if address_of(place_of(winner)) is None else MAX_FETCHED
    candidates = [winner, *islice((trial for trial in ledger.ranking() if trial is not winner), most - 1)]
    tables = [table_in(place_of(one), name, one.best) for one in candidates if one.best is not None]
    if not tables:
        return None
    first = tables[0]
    if first is None:
        return None
    alike = [table for table in tables if table is not None and dict(table.counts) == dict(first.counts)]
    values_CN = np.array([[table.means[label] for table in alike] for label in first.counts])
    return expected_excess(values_CN, np.array(list(first.counts.values())))
