"""Tables of recorded searches: what is kept, and that a replay is the search it was recorded from, trial by trial."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.made_runner import OneAtATime
from support.recorded import begin

from orchestrator.benchmarking import (
    TabularCurve,
    TabularTask,
    collect_task,
    evaluate_algorithm,
    find_difference,
    read_task,
    read_tasks,
    replay,
    write_tasks,
)
from orchestrator.benchmarking.replaying import goal_of
from orchestrator.benchmarking.table import METADATA
from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import Search
from orchestrator.errors import InputError
from orchestrator.execution.protocol import Failed, Result, TrialSource, Validated, Work
from orchestrator.search.conductor import Conductor
from orchestrator.storage.journal import Journal

VALIDATIONS = 9
ASHA = {"name": "asha", "grace_validations": 1, "reduction_factor": 3}
RAW: dict[str, Any] = {
    "method": "margin",
    "dataset": "glyphs-small",
    "settings": {"epochs": 3, "device": "cpu"},
    "space": {
        "lr": [1e-4, 1e-3, 1e-2],
        "alpha": {"low": 0.1, "high": 0.4, "step": 0.1},
        "learn_beta": {"choices": {"no": {}, "one": {"proxy_lr_multiplier": [1, 10]}}},
    },
    "algorithm": "grid",
    "final": False,
}


class Made(OneAtATime):
    """Trainings of which those with the larger rate rise later and higher, by their seed too; one point diverges."""

    def run(self, conductor: TrialSource) -> None:
        while not conductor.is_finished and (work := conductor.next()) is not None:
            for result in results(work):
                if conductor.report(result):
                    break


def results(work: Work) -> Iterator[Result]:
    settings = work.experiment.flat()
    late = 3 + math.log10(settings["lr"])
    high = 0.2 + 0.1 * late + settings["alpha"] * (settings["learn_beta"] == "one") + 0.01 * settings["seed"]
    for number in range(1, VALIDATIONS + 1):
        if settings["lr"] == 1e-2 and settings["alpha"] == 0.4 and number == 3:
            yield Failed(work.trial_id, "the loss is nan", failure="training")
            return
        value = high / (1 + math.exp(late - number))
        metrics = {"epoch": number / 3, "train/loss": 1 - value, "val/map_at_r": value, "diagnostics/radius": 0.1}
        ended = number == VALIDATIONS
        test = {"map_at_r": value / 2, "map_at_r_over_classes_low": 0.0} if ended else {}
        yield Validated(work.trial_id, number, metrics, float(number), finished=ended, test=test)


def run(folder: Path, **changes: Any) -> Path:
    """A search of the made trainings, as a real one: its journal."""
    search = resolve_search({**RAW, **changes}, name="made", source="made.yaml")
    return run_search(folder, search.model_copy(update={"test_trials": True}))


def run_search(folder: Path, search: Search) -> Path:
    with Journal(folder / "journal.jsonl") as journal:
        first = begin(journal, search)
        conductor = Conductor(search, folder, data=folder, journal=journal, events=[first], slots=1)
        Made().run(conductor)
        conductor.end()
    return folder / "journal.jsonl"


def unsealed(journal: Path) -> list[dict[str, Any]]:
    """The events of a journal without their checksums, as of an earlier version: they may be changed."""
    return [{k: v for k, v in json.loads(line).items() if k != "sum"} for line in journal.read_text().splitlines()]


def with_seed(seed: int) -> dict[str, Any]:
    return {"settings": {**RAW["settings"], "seed": seed}}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TabularTask:
    """The whole grid with two seeds, written and read again."""
    folder = tmp_path_factory.mktemp("recorded")
    journals = [run(folder / f"seed-{seed}", **with_seed(seed)) for seed in (0, 1)]
    collected = collect_task("made", journals, planned=36)
    write_tasks([collected, replace(collected, name="kept", planned=37, held_out=True)], folder / "made.parquet")
    assert read_task("made", folder / "made.parquet") == collected
    kept = read_tasks(folder / "made.parquet")["kept"]
    assert (kept.held_out, kept.complete) == (True, False)
    with pytest.raises(InputError, match=r"^task 'kept': 36 of its 37 points are recorded; partial=True takes these$"):
        read_task("kept", folder / "made.parquet")
    with pytest.raises(InputError, match="did you mean 'made'"):
        read_task("mad", folder / "made.parquet")
    return read_task("made", folder / "made.parquet")


def test_a_table_keeps_what_a_training_gave(task: TabularTask) -> None:
    assert (len(task.points), task.seeds, task.validations) == (36, [0, 1], VALIDATIONS)
    curve = task.curve({"lr": 1e-3, "alpha": 0.2, "learn_beta": "one", "proxy_lr_multiplier": 10}, 1)
    assert set(curve.metrics) == {"epoch", "train/loss", "val/map_at_r"}
    assert curve.metrics["val/map_at_r"][-1] == pytest.approx(0.41, abs=1e-3)
    assert curve.test == {"map_at_r": curve.metrics["val/map_at_r"][-1] / 2}
    assert list(curve.seconds) == list(range(1, VALIDATIONS + 1))
    point = {"lr": 1e-2, "alpha": 0.4, "learn_beta": "no"}
    failed = task.curve(point)
    for wrong, message in (
        ({}, "lr: is missing"),
        ({"lrr": 1e-2}, "lr: is missing"),
        (point | {"lrr": 1}, r"lrr: is not searched \(did you mean 'lr'\?\)"),
        (point | {"lr": 10.0}, "lr: 10"),
        (point | {"lr": "fast"}, "lr: 'fast'"),
    ):
        with pytest.raises(InputError, match=message):
            task.curve(wrong)
    assert (len(failed), failed.reason, failed.test) == (2, "the loss is nan", {})
    assert task.best(1) == pytest.approx(task.best(0) + 0.01, abs=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "grid"},
        {"algorithm": "tpe", "scheduler": ASHA, "num_trials": 20},
        {"algorithm": "random", "scheduler": {"name": "median", "grace_validations": 2}, "num_trials": 15, "seed": 3},
        {"algorithm": "tpe", "scheduler": ASHA, "budget": {"epochs": 25}},
        {"algorithm": "tpe", "scheduler": "promotion", "num_trials": 20},
    ],
    ids=["as it was recorded", "tpe and asha", "random and median", "a budget of epochs", "trials that go on"],
)
def test_a_replay_equals_the_real_search(task: TabularTask, tmp_path: Path, changes: dict[str, Any]) -> None:
    real = run(tmp_path / "real", **with_seed(1), **changes)
    assert ('"pruned"' in real.read_text()) == ("scheduler" in changes), "early stops are compared too"
    replay(task, training_seed=1, folder=tmp_path / "replay", **changes)
    assert find_difference(real, tmp_path / "replay" / "journal.jsonl") is None


def test_a_table_that_is_off_by_one_validation_is_noticed(task: TabularTask, tmp_path: Path) -> None:
    real = run(tmp_path / "real", **with_seed(0), algorithm="tpe", scheduler=ASHA, num_trials=8)
    wrong = replace(task, curves={key: off_by_one(curve) for key, curve in task.curves.items()})
    replay(wrong, folder=tmp_path / "replay", algorithm="tpe", scheduler=ASHA, num_trials=8)
    difference = find_difference(real, tmp_path / "replay" / "journal.jsonl")
    assert difference is not None and difference.startswith("step 2: ")


def off_by_one(curve: TabularCurve) -> TabularCurve:
    def shift(values: Any) -> list[float]:
        return [*values[1:], values[-1]]

    return replace(curve, metrics={name: shift(values) for name, values in curve.metrics.items()})


def test_a_point_outside_the_table_is_the_nearest_new_one(task: TabularTask, tmp_path: Path) -> None:
    """A continuous space over the same points, so that hardly a suggestion is one of them."""
    space = {**RAW["space"], "lr": {"low": 1e-4, "high": 1e-2, "log": True}, "alpha": {"low": 0.1, "high": 0.4}}
    wide = replace(task, content={**task.content, "space": space, "algorithm": "tpe", "num_trials": 36})
    assert wide.table_points.nearest({"lr": 2.9e-4, "alpha": 0.26, "learn_beta": "no"}) == {
        "lr": 1e-4,
        "alpha": 0.3,
        "learn_beta": "no",
    }
    assert wide.curve({"lr": 3.4e-4, "alpha": 0.26, "learn_beta": "no"}) is wide.curve(
        {"lr": 1e-3, "alpha": 0.3, "learn_beta": "no"}
    )
    one = replay(wide, algorithm="tpe", seed=4)
    points = [trial.params for trial in one.ledger.trials.values()]
    assert sorted(map(repr, points)) == sorted(map(repr, task.points)), "each point of the table once"
    again = replay(wide, algorithm="tpe", seed=4)
    assert [trial.params for trial in again.ledger.trials.values()] == points


@pytest.mark.parametrize("slots", [1, 4])
def test_a_trial_that_goes_on_trains_nothing_twice(task: TabularTask, slots: int) -> None:
    one = replay(task, algorithm="random", scheduler="promotion", num_trials=30, slots=slots)
    trials = one.ledger.trials.values()
    assert any(trial.restarted for trial in trials)
    assert one.progress[-1].epochs == pytest.approx(sum(trial.epochs for trial in trials)) == one.ledger.epochs
    if slots == 1:
        assert one.progress[-1].seconds == pytest.approx(sum(trial.seconds for trial in trials))


def test_several_at_once_come_in_the_order_of_their_seconds(task: TabularTask) -> None:
    one, four = (replay(task, algorithm="random", num_trials=20, slots=slots) for slots in (1, 4))
    assert one.progress[-1].epochs == pytest.approx(four.progress[-1].epochs)
    assert one.progress[-1].seconds == pytest.approx(sum(trial.seconds for trial in one.ledger.trials.values()))
    assert one.progress[-1].seconds / 4 <= four.progress[-1].seconds < one.progress[-1].seconds / 3
    ended = replay(task, algorithm="random", num_trials=20, budget={"hours": 100 / 3600})
    assert 100 <= ended.progress[-1].seconds < 150, "hours are those of the recorded trainings"


def test_an_evaluation_counts_epochs_to_the_best(task: TabularTask) -> None:
    by_grid = evaluate_algorithm(task, seeds=range(2), algorithm="grid")
    spent = 0.0
    for number in range(len(task.points)):
        epochs, values = (task.curves[number, 0].metrics[name] for name in ("epoch", "val/map_at_r"))
        reached = [e for e, value in zip(epochs, values, strict=True) if value >= 0.99 * task.best(0)]
        if reached:
            break
        spent += epochs[-1]
    assert by_grid.shares[0] == pytest.approx((spent + reached[0]) / task.epochs)
    assert by_grid.missed == 0 and by_grid.quartiles[0] <= by_grid.median <= by_grid.quartiles[1]
    hasty = evaluate_algorithm(task, seeds=range(2), algorithm="random", num_trials=1)
    assert hasty.missed == 2 and hasty.shares == (1.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "gp"}, "algorithm: gp"),
        ({"settings": {"lr": 1.0}}, "settings: .* is given by the task 'made'"),
        ({"training_seed": 2}, r"^training_seed=2: task 'made' was recorded with 0, 1$"),
        ({"scheduler": "ash"}, "did you mean 'asha'"),
        ({"slots": 0}, "slots: 0: should be at least 1"),
        ({"folder": Path(__file__)}, "folder: .*: is a file"),
        ({"constraints": {"cost/gpu_memory_megabytes": 1.0}}, "constraints: .* is not recorded in the table"),
        ({"trial_timeout": 1.0}, "trial_timeout: .*: needs trainings that run"),
    ],
)
def test_a_search_that_cannot_be_is_refused(task: TabularTask, changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replay(task, **changes)
    with pytest.raises(InputError, match="seeds: is empty"):
        evaluate_algorithm(task, seeds=[])
    with pytest.raises(InputError, match="missing.parquet: no such file"):
        read_tasks(Path("missing.parquet"))


def test_a_replay_spoils_no_journal(task: TabularTask, tmp_path: Path) -> None:
    kept = run(tmp_path / "kept", algorithm="random", num_trials=2)
    before = kept.read_bytes()
    with pytest.raises(InputError, match="folder: .*: holds a search; it should be a new folder"):
        replay(task, folder=tmp_path / "kept", num_trials=2)
    assert kept.read_bytes() == before
    with pytest.raises(InputError, match="task 'made': has no points"):
        replay(replace(task, points=[]))


def test_a_budget_of_cpu_hours_ends_a_replay(task: TabularTask) -> None:
    whole = replay(task, algorithm="random", num_trials=20)
    short = replay(task, algorithm="random", num_trials=20, budget={"cpu_hours": whole.progress[-1].seconds / 7200})
    assert len(short.ledger.trials) < len(whole.ledger.trials)
    assert whole.ledger.hours["CPU"] == pytest.approx(whole.progress[-1].seconds / 3600)


def test_the_trainings_seeds_take_turns_whatever_the_searches_seeds(
    task: TabularTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def note(task: TabularTask, training_seed: int, share: float) -> float:
        seeds.append(training_seed)
        return goal_of(task, training_seed, share)

    monkeypatch.setattr("orchestrator.benchmarking.replaying.goal_of", note)
    evaluate_algorithm(task, seeds=[0, 2, 4], algorithm="random", num_trials=1)
    assert seeds == [0, 1, 0]


def test_a_training_that_its_machine_ended_is_not_recorded(tmp_path: Path) -> None:
    journal = run(tmp_path / "whole", algorithm="random", num_trials=3)
    whole = collect_task("made", [journal], planned=3)
    events = unsealed(journal)
    ended = next(number for number, event in enumerate(events) if event["event"] == "trial_ended")
    for failure, points in (("training", 3), ("device", 2), ("lost", 2), ("timeout", 2)):
        events[ended] |= {"state": "failed", "reason": "gone", "failure": failure}
        journal.write_text("".join(json.dumps(event) + "\n" for event in events))
        assert len(collect_task("made", [journal], planned=3).points) == points
    assert len(whole.points) == 3
    with pytest.raises(InputError, match="made: no journal to make a task of"):
        collect_task("made", [], planned=3)


def test_searches_on_other_images_make_no_task(tmp_path: Path) -> None:
    journals = [run(tmp_path / f"seed-{seed}", **with_seed(seed), num_trials=3) for seed in (0, 1)]
    for journal, digest in zip(journals, "ab", strict=True):
        first, *rest = unsealed(journal)
        events = [first | {"tags": {"dataset.digest": digest}}, *rest]
        journal.write_text("".join(json.dumps(event) + "\n" for event in events))
    with pytest.raises(InputError, match=r"seed-1.*: is of another preparation of the data set than .*seed-0"):
        collect_task("made", journals, planned=3)


def test_searches_that_make_no_task_are_refused(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", algorithm="random", num_trials=3)
    stopped = run(tmp_path / "stopped", algorithm="random", num_trials=3, scheduler=ASHA)
    with pytest.raises(InputError, match="scheduler: asha stops trials early, a task has whole curves"):
        collect_task("made", [stopped], planned=3)
    with pytest.raises(InputError, match="seed: 0 is another journal's too"):
        collect_task("made", [whole, whole], planned=3)
    other = run(tmp_path / "other", **with_seed(1), algorithm="random", num_trials=4)
    with pytest.raises(InputError, match=r"differs from .* in more than the seed of its trainings"):
        collect_task("made", [whole, other], planned=3)
    (tmp_path / "no.parquet").write_text("no")
    with pytest.raises(InputError, match=r"no.parquet: cannot be read as Parquet"):
        read_tasks(tmp_path / "no.parquet")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, r"a.parquet: holds no tasks$"),
        ({METADATA: b'{"format": 2, "tasks": {}}'}, r"a.parquet: has format 2, this version reads 1$"),
        ({METADATA: b'{"format": 1'}, r"a.parquet: its tasks are damaged \(JSONDecodeError"),
        ({METADATA: b'{"format": 1}'}, r"a.parquet: its tasks are damaged \(KeyError: 'tasks'\)"),
        ({METADATA: b'{"format": 1, "tasks": {"t": {}}}'}, r"a.parquet: its tasks are damaged \(KeyError: 'task'\)"),
        ({METADATA: b"[]"}, r"a.parquet: its tasks are damaged \(AttributeError"),
    ],
)
def test_another_file_of_parquet_is_refused(tmp_path: Path, metadata: dict[bytes, bytes], message: str) -> None:
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(metadata), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        read_tasks(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="is a folder; name the file"):
        read_tasks(tmp_path)
