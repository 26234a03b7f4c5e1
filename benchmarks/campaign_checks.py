"""What must hold of a disturbed search at its end: each check yields its name and what it found, empty if it holds."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from campaign import ALONE_SECONDS, MARK, NAME, Campaign
from journal_model import JournalModel
from services import until

from orchestrator.storage.leaderboard import leaderboard_rows
from orchestrator.storage.ledger import Ledger

STATUS = {"done": "FINISHED", "pruned": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
ROUNDING = 1e-6
"""How far numbers of a training may be apart whose workers were more or fewer; it computes in float64."""


def rows(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A leaderboard without the one column that is a matter of luck."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in leaderboard_rows(Ledger.of(events))]


def check_journal(campaign: Campaign, calm: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Nothing lost, nothing twice, and the numbers of a search that nothing disturbed."""
    events = campaign.events()
    ledger = Ledger.of(events)
    counts = Counter((e["trial_id"], e["validation"]) for e in events if e["event"] == "validation")
    twice = [key for key, count in counts.items() if count > 1]
    broken = JournalModel.of(events, campaign.slots).broken
    yield "the journal is accepted by the written model", "; ".join(broken[:3])
    yield "each validation journaled once", str(twice[:3]) if twice else ""
    ended: dict[str, int] = {}
    again = []
    for event in events:
        if event["event"] == "trial_ended" and event["state"] != "interrupted":
            ended[event["trial_id"]] = event["seq"]
        elif event["event"] in ("trial_started", "validation") and event["trial_id"] in ended:
            again.append(event["trial_id"])
    yield "no finished trial run again", str(again[:3]) if again else ""
    states = Counter(trial.state for trial in ledger.everyone())
    bad = {state: number for state, number in states.items() if state not in ("done", "pruned")}
    expected = campaign.trials + 2 * campaign.final_seeds
    missing = f"{sum(states.values())} of {expected} runs; {dict(states)}" if sum(states.values()) != expected else ""
    yield "every trial and final run came to its end", str(bad) if bad else missing
    yield "the search is done", "" if ledger.state == "done" else ledger.state
    tolerance = ROUNDING if campaign.elastic else 0.0
    pairs = list(zip(rows(events), rows(calm), strict=False))
    different = [(a, b) for a, b in pairs if not alike(a, b, tolerance)]
    unequal = f"{len(different)} rows, first {different[0]}" if different else ""
    if not unequal and len(rows(events)) != len(rows(calm)):
        unequal = "other lengths"
    equal = "equal to rounding" if campaign.elastic else "bit-identical"
    yield f"leaderboard and every final metric {equal}", unequal
    mine, its = curves(events), curves(calm)
    finals = {key for key in mine | its if key[0].startswith("final")}
    same = {key: mine[key] for key in mine.keys() - finals} == {key: its[key] for key in its.keys() - finals}
    yield "curves of the trials bit-identical", "" if same else "they differ"
    wrong = sorted(key for key in finals if not alike(mine.get(key), its.get(key), tolerance))
    yield f"curves of the final runs {equal}", str(wrong[:3]) if wrong else ""


def alike(one: object, other: object, tolerance: float) -> bool:
    """Whether two values are equal, their floats up to a tolerance."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(alike(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= tolerance
    return one == other


def curves(events: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, float]]:
    """All metrics of all validations."""
    return {(e["trial_id"], e["validation"]): e["metrics"] for e in events if e["event"] == "validation"}


def check_study(campaign: Campaign) -> Iterator[tuple[str, str]]:
    """The Optuna study holds the journal's trials."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = JournalStorage(JournalFileBackend(str(campaign.folder / "study.journal")))
    study = optuna.load_study(study_name=NAME, storage=storage)
    found = {t.user_attrs["trial_id"]: t for t in study.trials if "trial_id" in t.user_attrs}
    ledger = Ledger.of(campaign.events())
    names = {"done": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
    wrong = [
        trial.trial_id
        for trial in ledger.trials.values()
        if trial.trial_id not in found
        or found[trial.trial_id].state.name != names[trial.state]
        or found[trial.trial_id].user_attrs["params"] != trial.params
        or found[trial.trial_id].value != trial.best
        or len(found[trial.trial_id].intermediate_values) != len(trial.curve)
    ]
    extra = sorted(found.keys() - ledger.trials.keys())
    open_ = [t.number for t in study.trials if not t.state.is_finished()]
    yield "the study has the journal's trials, values and curves", f"{wrong[:3]} {extra[:3]}" if wrong or extra else ""
    yield "no trial of the study left open", str(open_) if open_ else ""


def check_mlflow(campaign: Campaign) -> Iterator[tuple[str, str]]:
    """In the database itself: one run per trial, one point per metric and epoch, right statuses."""
    import psycopg

    assert campaign.postgres is not None
    events = campaign.events()
    ledger = Ledger.of(events)
    with contextlib.closing(psycopg.connect(campaign.postgres.uri)) as connection, connection.cursor() as cursor:

        def query(text: str) -> list[tuple[Any, ...]]:
            cursor.execute(text)
            return list(cursor.fetchall())

        runs = query("SELECT run_uuid, status, name FROM runs WHERE lifecycle_stage = 'active'")
        tags: dict[str, dict[str, str]] = {run: {} for run, _, _ in runs}
        for run, key, value in query("SELECT run_uuid, key, value FROM tags"):
            tags[run][key] = value
        repeated = query("SELECT run_uuid, key, step FROM metrics GROUP BY 1, 2, 3 HAVING count(*) > 1")
        points = query("SELECT run_uuid, key, step, value FROM metrics WHERE key LIKE 'val/%' OR key LIKE 'train/%'")
    of = {run: tags[run].get("orchestrator.trial_id", "") for run, _, _ in runs}
    wanted = sorted(["", *(trial.trial_id for trial in ledger.everyone())])
    yield "MLflow: one run per trial, and the search's own", "" if sorted(of.values()) == wanted else str(len(runs))
    yield "MLflow: one point per metric and epoch", str(repeated[:2]) if repeated else ""
    there = {(of[run], int(step), key): value for run, key, step, value in points}
    here = {
        (trial, step, key): value
        for (trial, step), metrics in curves(events).items()
        for key, value in metrics.items()
        if key.startswith(("val/", "train/"))
    }
    yield "MLflow: the journal's points, to the last bit", "" if there == here else f"{len(there)} of {len(here)}"
    states = {trial.trial_id: STATUS[trial.state] for trial in ledger.everyone()} | {"": STATUS[ledger.state]}
    wrong = [(of[run], status) for run, status, _ in runs if states.get(of[run]) != status]
    yield "MLflow: statuses right", str(wrong[:3]) if wrong else ""


def check_machine(campaign: Campaign) -> Iterator[tuple[str, str]]:
    """Nothing of the search is left on the machine."""

    def marked() -> list[str]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == campaign.identity and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline())[:60])
        return found

    with contextlib.suppress(TimeoutError):
        until(lambda: not marked(), ALONE_SECONDS, "the processes' end")
    yield "no process left (so no actor, no placement group)", str(marked()[:3]) if marked() else ""
    left = sorted(str(path.relative_to(campaign.temporary)) for path in campaign.temporary.rglob("*"))
    yield "temporary folder empty", f"{len(left)}: {left[:3]}" if left else ""
    litter = [path for path in campaign.storage.rglob("*") if is_litter(path)]
    yield (
        "no half-written file in the storage",
        str([str(p.relative_to(campaign.storage)) for p in litter[:3]]) if (litter) else "",
    )
    kept = list(campaign.folder.rglob("checkpoint.pt"))
    yield "no checkpoint of an ended trial kept", str(len(kept)) if kept else ""


def is_litter(path: Path) -> bool:
    """Temporary neighbours of files, locks, probes."""
    return path.name.startswith((".checkpoint", ".best", ".model", ".write-test")) or path.suffix in (
        ".part",
        ".rename",
    )
