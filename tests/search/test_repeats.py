"""Leading points over further seeds: which get them, when, at what cost, and that the luckiest one does not win."""

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from support.driven_studies import TPE, drive, play, search_of, start
from support.made_runner import OneAtATime
from support.recorded import begin

from orchestrator.errors import InputError
from orchestrator.execution.protocol import Failed, TrialSource, Validated
from orchestrator.report.answers import answers_of
from orchestrator.report.findings import Findings
from orchestrator.report.next_steps import next_steps
from orchestrator.report.standing import without_repeats
from orchestrator.report.status import BestTrial
from orchestrator.search.conductor import Conductor
from orchestrator.search.control import status
from orchestrator.search.notify import end_of_search
from orchestrator.search.preflight import check_room
from orchestrator.search.start_from import best_settings
from orchestrator.storage.journal import Journal
from orchestrator.storage.leaderboard import chosen_value, leaderboard_rows, points_over_seeds
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord

RAW: dict[str, Any] = TPE | {"scheduler": "none", "algorithm": "random", "num_trials": 22, "seeds": 4, "final": False}
LUCKY = {0: [0.1, 0.2, 0.9, 0.5, 0.6, 0.55, 0.58, 0.3], 1: [0.5, 0.61, 0.54, 0.56], 2: [0.62, 0.55], 3: [0.6, 0.58]}


class Scripted(OneAtATime):
    """Each trial has the next value of its seed, in the order in which trials begin; None fails."""

    def __init__(self, values: dict[int, list[float | None]]) -> None:
        self.values = {seed: iter(of_seed) for seed, of_seed in values.items()}

    def run(self, conductor: TrialSource) -> None:
        while not conductor.is_finished and (work := conductor.next()) is not None:
            value = next(self.values[work.experiment.training.seed])
            if value is None:
                conductor.report(Failed(work.trial_id, "the loss is nan", failure="training"))
                continue
            metrics = {"val/map_at_r": value, "val/recall_at_1": value, "train/loss": 1.0, "epoch": 6.0}
            conductor.report(Validated(work.trial_id, 1, metrics, seconds=1.0, finished=True))


def seeds_of(ledger: Ledger) -> dict[int, list[str]]:
    """By seed its trials, in their order, each by the trial of the same point with the first seed."""
    first = {repr(trial.point): name for name, trial in ledger.trials.items() if trial.seed == 0}
    seeds: dict[int, list[str]] = {}
    for trial in ledger.trials.values():
        seeds.setdefault(trial.seed, []).append(first[repr(trial.point)])
    return seeds


def repeats(ledger: Ledger) -> list[TrialRecord]:
    return [trial for trial in ledger.trials.values() if "seed" in trial.params]


def points(ledger: Ledger) -> list[TrialRecord]:
    return [trial for trial in ledger.trials.values() if "seed" not in trial.params]


def run(folder: Path, values: dict[int, list[Any]], **changes: Any) -> Conductor:
    conductor = start(search_of(RAW | changes), folder)
    Scripted(values).run(conductor)
    conductor.end()
    return conductor


def test_half_as_many_points_get_each_further_seed(tmp_path: Path) -> None:
    conductor = run(tmp_path, {0: [*LUCKY[0]], 1: [0.3, 0.6, 0.5, 0.4], 2: [0.7, 0.4]}, num_trials=14, seeds=3)
    ledger = conductor.ledger
    assert (len(ledger.trials), ledger.repeats, ledger.state) == (14, 6, "done")
    seeds = seeds_of(ledger)
    assert seeds[0] == [f"{number:04d}" for number in range(8)]
    assert seeds[1] == ["0002", "0004", "0006", "0005"], "the best four, the best first"
    assert seeds[2] == ["0002", "0004"], "by the mean over both seeds, 0.6 both: the one that was tried first"
    winner = ledger.winner()
    assert winner is not None and winner.point == ledger.trials["0002"].point
    rows = leaderboard_rows(ledger)
    means = [row.get("mean_over_seeds") for row in rows if row["trial_id"] in ("0002", "0004")]
    assert means == [pytest.approx(1.9 / 3), pytest.approx(1.6 / 3)] and rows[0]["seeds"] == 3


def test_the_luckiest_value_does_not_win(tmp_path: Path) -> None:
    """The best of eight has 0.9 by luck and 0.5 with other seeds; its model, value and record say so."""
    ledger = run(tmp_path, {0: [*LUCKY[0]], 1: [0.3, 0.62, 0.6, 0.58], 2: [0.61, 0.6]}, num_trials=14, seeds=3).ledger
    assert seeds_of(ledger)[2] == ["0004", "0002"]
    winner = ledger.winner()
    assert winner is not None and winner.point == ledger.trials["0004"].point
    mean = statistics.fmean([0.6, 0.62, 0.61])
    assert chosen_value(ledger, winner) == pytest.approx(mean)
    ended = [event for event in Journal.read(tmp_path / "journal.jsonl") if event["event"] == "search_ended"]
    assert ended[-1]["best"] == {"trial_id": winner.trial_id, "objective": pytest.approx(mean)}
    points = points_over_seeds(ledger)
    assert [len(point.values) for point in points] == [3, 3, 2, 2, 1, 1, 1, 1]
    assert max(trial.best or 0 for trial in ledger.trials.values()) == 0.9


def test_reports_give_the_mean_and_its_seeds(tmp_path: Path) -> None:
    ledger = run(tmp_path, {0: [*LUCKY[0]], 1: [0.3, 0.62, 0.6, 0.58], 2: [0.61, 0.6]}, num_trials=14, seeds=3).ledger
    findings = Findings.of(ledger)
    assert findings.verdict[0].startswith("Best point by the mean over 3 seeds: delta 0.2182")
    assert "val/map_at_r 0.6100 ± 0.0100" in findings.verdict[0]
    assert "None of the other 3 points" in findings.certainty
    assert end_of_search(ledger, "done")["text"].endswith("best val/map_at_r 0.6100 by trial 0009")
    assert status(ledger, tmp_path).best == BestTrial(trial_id="0009", objective=0.61, loss=-0.61)
    more, confirm = next_steps(findings)
    assert "+0.0100 over the next point (trial 0002)" in " ".join(a.whole for a in answers_of(findings, [more]).each)
    assert more.command is not None and more.command.endswith("--num-trials 26")
    assert confirm.why == "Over so few seeds, the order may be chance."
    assert {setting.key for setting in findings.searched} == {"delta", "alpha"}
    assert len(without_repeats(ledger)) == 8
    best = best_settings(ledger, 2)
    assert [one["delta"] for one in best] == [ledger.trials[name].params["delta"] for name in ("0004", "0002")]


def test_a_choice_by_the_best_value_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: points are compared by the best of their seeds, not by the mean."""
    monkeypatch.setattr("orchestrator.search.repeats.statistics.fmean", max)
    with pytest.raises(AssertionError):
        test_the_luckiest_value_does_not_win(tmp_path)


def test_a_loss_is_halved_by_the_lowest(tmp_path: Path) -> None:
    values = {0: [0.5, 0.1, 0.4, 0.3], 1: [0.35, 0.3]}
    objective = {"metric": "val/map_at_r", "mode": "min"}
    ledger = run(tmp_path, values, num_trials=6, seeds=2, objective=objective).ledger
    assert seeds_of(ledger)[1] == ["0001", "0003"]
    winner = ledger.winner()
    assert winner is not None and winner.point == ledger.trials["0001"].point


def test_what_failed_or_was_stopped_takes_no_part(tmp_path: Path) -> None:
    values: dict[int, list[Any]] = {
        0: [0.5, None, 0.4, 0.3, 0.45, 0.2, 0.1, 0.2],
        1: [None, 0.6, 0.4, 0.3],
        2: [0.6, 0.5],
    }
    ledger = run(tmp_path, values, num_trials=14, seeds=3).ledger
    assert seeds_of(ledger)[1] == ["0000", "0004", "0002", "0003"]
    assert seeds_of(ledger)[2] == ["0004", "0002"], "not the first, of which the second seed failed"
    asha = start(search_of(TPE | {"num_trials": 30, "seeds": 3}), tmp_path / "asha")
    drive(asha)
    stopped = {repr(trial.point) for trial in asha.ledger.trials.values() if trial.state == "pruned"}
    assert stopped and asha.ledger.repeats == 6
    assert all(repr(trial.point) not in stopped and trial.state == "done" for trial in repeats(asha.ledger))


def test_few_points_have_fewer_repeats(tmp_path: Path) -> None:
    space = {"delta": [0.1, 0.2], "alpha": [4]}
    ledger = run(tmp_path, {0: [0.5, 0.4], 1: [0.3, 0.6], 2: [0.1, 0.2]}, space=space, num_trials=14, seeds=3).ledger
    assert (len(ledger.trials), ledger.repeats, ledger.state) == (6, 4, "done")


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize(
    "budget", [{"epochs": 100}, {"hours": 80 / 3600}, {"cpu_hours": 80 / 3600}, {"trials_without_improvement": 5}]
)
def test_budgets_keep_room_for_the_repeats(tmp_path: Path, budget: dict[str, float], slots: int) -> None:
    raw = {key: value for key, value in RAW.items() if key != "num_trials"}
    search, ledgers = search_of(raw | {"seeds": 3, "budget": budget}), list[Ledger]()
    with Journal(tmp_path / "journal.jsonl") as journal:
        conductor = Conductor(
            search,
            tmp_path,
            data=tmp_path,
            journal=journal,
            events=[begin(journal, search)],
            slots=slots,
            resources={"CPU": 1.0},
            clock=lambda: sum(trial.seconds for ledger in ledgers for trial in ledger.trials.values()) / slots,
        )
        ledgers.append(conductor.ledger)
        play(conductor)
    ledger = conductor.ledger
    assert ledger.repeats == 6 and len(ledger.trials) > 10
    assert not any(trial.number > first.number for first in repeats(ledger) for trial in points(ledger))
    assert ledger.epochs <= budget.get("epochs", math.inf)
    assert ledger.elapsed / 3600 <= budget.get("hours", math.inf) * 1.2
    assert ledger.hours["CPU"] <= budget.get("cpu_hours", math.inf) + slots * 6 / 3600


def test_more_trials_try_more_points_and_repeat_who_leads_then(tmp_path: Path) -> None:
    run(tmp_path, {0: [*LUCKY[0]], 1: [0.3, 0.62, 0.6, 0.58], 2: [0.61, 0.6]}, num_trials=14, seeds=3)
    values = {0: [0.2, 0.7, 0.1, 0.1], 1: [0.71], 2: [0.72]}
    ledger = Ledger.of(Journal.read(tmp_path / "journal.jsonl"))
    with pytest.raises(InputError, match=r"20: the search has tried 8 points already; give more than 20, as 6 are for"):
        check_room(search_of(RAW | {"num_trials": 20, "seeds": 3}), ledger)
    check_room(search_of(RAW | {"num_trials": 21, "seeds": 3}), ledger)
    ledger = run(tmp_path, values, num_trials=24, seeds=3).ledger
    assert len(ledger.trials) <= 24 and len(seeds_of(ledger)[0]) == 12
    winner = ledger.winner()
    assert winner is not None and winner.point == ledger.trials["0015"].point
    assert chosen_value(ledger, winner) == pytest.approx(0.71)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_trials": 21},
            "seeds: 4: the best 8 points get a second seed, so that 14 trials are repeats: give num_tr",
        ),
        ({"budget": {"epochs": 100}}, "give the budget at least 132 epochs, or fewer seeds"),
        ({"seeds": 17, "num_trials": 10**6}, "takes twice as many leading points with each seed: at most 16"),
        ({"objectives": ["val/map_at_r", "cost/seconds"]}, "points are compared by the mean of one objective"),
        ({"space": {"seed": {"low": 0, "high": 99}}}, "the space has seed too"),
        ({"start_from": [{"delta": 0.1 + n / 100, "alpha": 4} for n in range(9)]}, "of which 14 are for other seeds"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        search_of(RAW | changes)


def test_killed_at_every_event_it_ends_the_same(tmp_path: Path) -> None:
    """The journal is cut after each of its events, the search goes on from there."""
    search = search_of(RAW | {"num_trials": 10, "seeds": 3, "settings": {"epochs": 1}})
    values = {seed: [0.5 + 0.1 * math.sin(10 * seed + number) for number in range(9)] for seed in range(3)}

    def board(conductor: Conductor) -> list[Any]:
        return [(t.trial_id, t.params, t.state, t.best) for t in conductor.ledger.ranking()]

    def go(folder: Path) -> Conductor:
        conductor = start(search, folder)
        while not conductor.is_finished:
            work = conductor.next()
            assert work is not None
            seed = work.experiment.training.seed
            number = sorted(conductor.ledger.trials).index(work.trial_id)
            metrics = {"val/map_at_r": values[seed][number % 9], "train/loss": 1.0, "epoch": 1.0}
            conductor.report(Validated(work.trial_id, 1, metrics, seconds=1.0, finished=True))
        conductor.end()
        conductor.journal.close()
        return conductor

    whole = go(tmp_path / "whole")
    lines = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines(keepends=True)
    assert whole.ledger.repeats == 6
    for count in range(1, len(lines)):
        folder = tmp_path / f"{count}"
        folder.mkdir()
        (folder / "journal.jsonl").write_text("".join(lines[:count]))
        again = go(folder)
        assert board(again) == board(whole), lines[count]
