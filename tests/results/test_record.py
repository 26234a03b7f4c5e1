"""The public record: which searches it takes, what it says of them, and that it keeps what it was given."""

import itertools
import json
import math
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from record_errors import WORLDS, simulated
from scipy.stats import t
from support.made_record import (
    DIGESTS,
    LEVELS,
    LR,
    PLAN,
    SEEDS,
    TAGS,
    TRIALS,
    drawn_scores,
    filled_record,
    made_record,
    made_search,
)
from support.output_schemas import conforms
from support.slow_intervals import closed_holm, half_width, slow_p, slow_parts

import orchestrator as dml
import search_spaces
from orchestrator.cli.main import main
from orchestrator.config.files import read_yaml
from orchestrator.config.resolve import resolve_search
from orchestrator.config.search import recorded_search
from orchestrator.errors import InputError
from orchestrator.evaluation.claims import SIGNIFICANT
from orchestrator.evaluation.verdicts import holm
from orchestrator.plugins import installed_methods
from orchestrator.report.class_tables import table_in
from orchestrator.report.commands import train_command
from orchestrator.results.adding import _command_of, _later_commits, _machine, add_row
from orchestrator.results.figures import costs, over_tasks
from orchestrator.results.outputs import AddedRow
from orchestrator.results.page import results_page, task_line
from orchestrator.results.plan import PlannedMethod, read_plan
from orchestrator.results.row import (
    CURVES,
    FACTS,
    JOURNAL,
    SCORES,
    SEARCH,
    RowTrial,
    measured_as,
    read_row,
    read_row_journal,
    read_rows,
)
from orchestrator.results.standings import Standings, TaskStandings, adjust, find_standings, read_standings
from orchestrator.storage.events import Gain
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import JOURNAL as LIVE_JOURNAL
from orchestrator.storage.places import Places
from orchestrator.storage.provenance import _gpu_names, git_state, provenance
from orchestrator.storage.reading import read_journal
from orchestrator.storage.trial_folder import TrialPaths
from orchestrator.storage.trial_record import TrialRecord

ROOT = Path(__file__).parents[2]
SCORES_CS = drawn_scores({"proxy_anchor": 0.0})["proxy_anchor"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled_record(tmp_path_factory.mktemp("record"))


@pytest.fixture(scope="module")
def standings(filled: Path) -> Standings:
    return read_standings(filled)


# Adding ------------------------------------------------------------------------------------------------------------


def added(tmp_path: Path, **search: Any) -> AddedRow:
    """A made search in a new record."""
    places = Places(tmp_path / "storage")
    name = made_search(places, "proxy_anchor", search.pop("scores", SCORES_CS), **search)
    return add_row(name, places, made_record(tmp_path, search.get("plan", PLAN)))


def test_a_row_keeps_what_the_search_found(tmp_path: Path) -> None:
    row = read_row(Path(added(tmp_path).folder))
    facts = row.facts
    assert (facts.name, facts.task, facts.winner, facts.seeds) == (
        "small.proxy_anchor",
        "small",
        "0000",
        list(range(5)),
    )
    assert facts.test["map_at_r"] == pytest.approx(SCORES_CS.mean(axis=0).tolist(), abs=1e-12)
    assert row.tables["map_at_r"][3].means["class 7"] == SCORES_CS[7, 3]
    assert facts.gain is not None and (facts.gain.low, facts.gain.classes) == (0.05, 20) and row.has_learned
    assert facts.epochs == 6 and {trial: one.best for trial, one in facts.trials.items()}["0000"] == 0.5
    assert facts.cost.core_seconds == (TRIALS + SEEDS) * 2 * 4.0 * 0.5 and facts.cost.training_core_seconds == 4.0
    journal = tmp_path / "storage" / "searches" / "glyphs-small.proxy_anchor" / LIVE_JOURNAL
    assert read_row_journal(row.folder) == journal.read_bytes()
    assert "--set validation_share=0.0 " in str(facts.train_command), "as a final run, on the whole training half"
    assert row.curves["0001"].values == [0.4 * 0.75, 0.4] and row.curves["0001"].epochs == [1.0, 2.0]


def test_the_search_file_of_a_row_is_that_search(tmp_path: Path) -> None:
    folder = Path(added(tmp_path).folder)
    of_row = resolve_search(read_yaml(folder / SEARCH), name="again", source="search.yaml")
    ledger = read_journal(tmp_path / "storage" / "searches" / "glyphs-small.proxy_anchor" / LIVE_JOURNAL)[1]
    given = ledger.config
    assert of_row.settings == given["settings"] and of_row.raw_space == given["raw_space"]
    assert (of_row.num_trials, of_row.final_seeds, of_row.algorithm) == (TRIALS, SEEDS, "random")
    command = "orchestrator search results/rows/small.proxy_anchor/search.yaml --name small.proxy_anchor"
    assert read_row(folder).facts.command == command


def test_the_same_search_again_changes_nothing_and_another_is_refused(tmp_path: Path) -> None:
    places, record = Places(tmp_path / "storage"), made_record(tmp_path)
    name = made_search(places, "proxy_anchor", SCORES_CS)
    first = add_row(name, places, record)
    before = {path: path.stat().st_mtime_ns for path in Path(first.folder).iterdir()}
    again = add_row(name, places, record)
    assert (first.new, again.new) == (True, False)
    assert {path: path.stat().st_mtime_ns for path in Path(first.folder).iterdir()} == before
    same = made_search(places, "proxy_anchor", SCORES_CS, name="same", tags={"host": "another"})
    with pytest.raises(InputError, match=r"row 'small.proxy_anchor': is recorded already, .*: no test differs"):
        add_row(same, places, record)
    other = made_search(places, "proxy_anchor", SCORES_CS + 0.01, name="other")
    with pytest.raises(InputError, match=r"its tests differ by up to 0\.01$"):
        add_row(other, places, record)
    assert {path: path.stat().st_mtime_ns for path in Path(first.folder).iterdir()} == before


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a trial fewer": ({"trials": TRIALS - 1}, f"trials: {TRIALS - 1} of its trials .* budget is {TRIALS}"),
    "a smaller budget": ({"num_trials": 2, "trials": 2}, rf"num_trials: 2: the record's is {TRIALS}"),
    "early stops": ({"scheduler": {"name": "asha"}}, "scheduler: 'asha': the record's is none"),
    "points known before": (
        {"start_from": [{"lr": 0.001, "alpha": 20.0}]},
        r"start_from: .*: the record's is none",
    ),
    "four seeds": (
        {"scores": SCORES_CS[:, :4], "final_seeds": 4},
        r"seeds: .* 0, 1, 2, 3; missing: 4 \(--final-seeds 5\)",
    ),
    "other seeds": ({"settings": {"seed": 3}}, "seed of the trainings: 3: the record's is 0"),
    "other images": ({"tags": {"dataset.digest": "f" * 64}}, "data set: its digest is ffffffffffff"),
    "changed code": ({"tags": {"git.dirty": "true"}}, "commit: the code was changed"),
    "longer trainings": ({"settings": {"epochs": 4}}, r"settings: epochs: 4: the task's is 2"),
    "another network": ({"settings": {"embedding_dim": 64}}, r"settings: embedding_dim: 64: the task's is 16"),
    "another lr": (
        {"space": {"lr": {"low": 1e-3, "high": 1e-2}, "alpha": {"low": 8, "high": 64}}},
        r"space: lr: .*: every row searches \{low: 0.0001",
    ),
    "more tuned": (
        {"space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}, "weight_decay": {"low": 0, "high": 1e-3}}},
        "space: weight_decay: is searched",
    ),
    "trainings that others had": (
        {"learn_from": [{"lr": 0.001, "alpha": 20.0}]},
        "learn_from: .*: the record's is none",
    ),
    "the worst trial": (
        {"objective": {"metric": "val/map_at_r", "mode": "min"}},
        "objective's mode: 'min': the record's is max",
    ),
    "a limit of cost": (
        {"constraints": {"cost/gpu_memory_megabytes": 1000.0}},
        "constraints: .*: the record's is none",
    ),
    "a narrower space": (
        {"space": {"lr": LR, "alpha": {"low": 31, "high": 33}}},
        r"space: alpha: .*: the search file .*proxy_anchor.yaml has \{'low': 8",
    ),
    "a method that is not tuned": (
        {"space": {"lr": LR}, "settings": {"alpha": 32}},
        "space: alpha: 32: the search file .* has",
    ),
    "code changed in between": ({"resumed": {**TAGS, "git.dirty": "true"}}, "commit: the code was changed"),
    "code that nobody knows": ({"resumed": {}}, "commit: is not known of all its trainings"),
    "a lost trial": ({"failure": "lost"}, r"trials: 2 of its trials .*; not by the training failed 0002"),
    "a trial without memory": ({"failure": "memory"}, "trials: 2 of its trials"),
    "not ended": ({"end": False}, "state: 'running'"),
    "another protocol": ({"settings": {"protocol": "mlrc"}}, "glyphs-small mlrc small_cnn is no task of the record"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_compare_is_refused(what: str, tmp_path: Path) -> None:
    search, expected = WRONG[what]
    with pytest.raises(InputError, match=expected):
        added(tmp_path, **search)
    assert not list((tmp_path / "results").glob("rows/*"))


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        added(tmp_path, trials=2, tags={"dataset.digest": "f" * 64}, scores=SCORES_CS[:, :4], settings={"epochs": 4})
    assert len(error.value.problems) == 4, error.value.problems


def test_damage_of_a_search_is_found(tmp_path: Path) -> None:
    """A changed score of a class, a changed or a missing line of the journal, a missing table."""
    places, record = Places(tmp_path / "storage"), made_record(tmp_path)
    name = made_search(places, "proxy_anchor", SCORES_CS)
    journal = places.search(name) / LIVE_JOURNAL
    lines = journal.read_text().splitlines(keepends=True)
    trial = next(line for line in lines if '"trial_id": "0001"' in line and '"event": "validation"' in line)
    for damaged in (
        [line for line in lines if '"trial_id": "0001"' not in line],
        [line.replace('"val/map_at_r": 0.3', '"val/map_at_r": 0.9') if line == trial else line for line in lines],
    ):
        journal.write_text("".join(damaged))
        with pytest.raises(InputError, match=r"journal.jsonl:\d+: corrupt"):
            add_row(name, places, record)
    journal.write_text("".join(lines))
    table = TrialPaths(places.search(name) / "trials" / "final-0000-seed-2").class_table
    whole = table.read_text()
    score = repr(float(SCORES_CS[4, 2]))
    assert score in whole
    for text in (whole.replace(score, repr(float(SCORES_CS[4, 2]) + 0.01)), ""):
        table.write_text(text)
        with pytest.raises(InputError, match="scores: final-0000-seed-2 has no table of its classes"):
            add_row(name, places, record)
    table.write_text(whole)
    assert add_row(name, places, record).new


def test_a_first_row_says_the_digest_where_the_plan_does_not(tmp_path: Path) -> None:
    places, record = Places(tmp_path / "storage"), made_record(tmp_path)
    add_row(made_search(places, "proxy_anchor", SCORES_CS, dataset="glyphs"), places, record)
    other = made_search(places, "pfml", SCORES_CS, dataset="glyphs", tags={"dataset.digest": "f" * 64})
    with pytest.raises(
        InputError, match="data set: its digest is ffffffffffff, that of the record's glyphs eeeeeeeeeeee"
    ):
        add_row(other, places, record)


def test_a_training_that_failed_was_tried(tmp_path: Path) -> None:
    row = read_row(Path(added(tmp_path, failure="training").folder))
    assert row.failed_trials == 1 and row.facts.later_commits == []


def test_a_row_says_at_which_commits_it_was_trained(tmp_path: Path) -> None:
    resumed = {"git.commit": "b" * 40, "git.dirty": "false"}
    row = read_row(Path(added(tmp_path, resumed=resumed).folder))
    assert (row.facts.commit, row.facts.later_commits) == ("c" * 40, ["b" * 40])
    assert f"{'c' * 40}, resumed at {'b' * 40}" in results_page(read_standings(tmp_path / "results"))


def test_a_commit_of_another_repository_is_refused(tmp_path: Path) -> None:
    """As of the one in which somebody stood who had installed the package."""
    places, record = Places(tmp_path / "storage"), made_record(tmp_path)
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    with pytest.raises(InputError, match="commit: 'c{40}': is none of the repository that has the record"):
        add_row(made_search(places, "proxy_anchor", SCORES_CS), places, record)
    tags = git_state(tmp_path)
    assert add_row(made_search(places, "proxy_anchor", SCORES_CS, name="ours", tags=tags), places, record).new


def test_a_row_from_a_gpu_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the driver does; of several alike once."""
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for script, gpu in (
        ("printf 'NVIDIA H200\\nNVIDIA H200\\nNVIDIA L4\\n'", "NVIDIA H200, NVIDIA L4"),
        ("exit 9", None),
        ("true", None),
    ):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        _gpu_names.cache_clear()
        tags = provenance()
        assert tags.get("gpu") == gpu
        ledger = SimpleNamespace(tags=tags | {"platform": "Linux", "version.torch": "2.15.0"})
        kind = _machine(ledger, SimpleNamespace(resources={"GPU": 1.0})).partition(", Linux")[0]  # type: ignore[arg-type]
        assert kind == (gpu or "gpu")
        assert _machine(ledger, SimpleNamespace(resources={"CPU": 1.0})).startswith("cpu, Linux")  # type: ignore[arg-type]
    _gpu_names.cache_clear()


def test_a_row_of_fewer_seeds_is_told_from_one_of_more(tmp_path: Path) -> None:
    places, record = Places(tmp_path / "storage"), made_record(tmp_path)
    add_row(made_search(places, "proxy_anchor", SCORES_CS), places, record)
    (record / "plan.yaml").write_text((record / "plan.yaml").read_text().replace("seeds: 5", "seeds: 6"))
    longer = np.column_stack([SCORES_CS, SCORES_CS[:, 0]])
    other = made_search(places, "proxy_anchor", longer, name="longer", final_seeds=6)
    with pytest.raises(InputError, match="no test differs, over 6 seeds here and 5 there: remove its folder to take"):
        add_row(other, places, record)


def test_a_method_is_searched_with_its_planned_settings(tmp_path: Path) -> None:
    plan = PLAN.replace("proxy_anchor: ,", "proxy_anchor: {settings: {weight_decay: 0.001}},")
    places, record = Places(tmp_path / "storage"), made_record(tmp_path, plan)
    text = (record / "plan.yaml").read_text()
    space = f"{{space: {tmp_path}/spaces/proxy_anchor.yaml, settings: {{weight_decay: 0.001}}}}"
    (record / "plan.yaml").write_text(text.replace("{settings: {weight_decay: 0.001}}", space))
    name = made_search(places, "proxy_anchor", SCORES_CS, settings={"weight_decay": 0.001})
    assert add_row(name, places, record).new
    usual = made_search(places, "proxy_anchor", SCORES_CS, name="usual")
    with pytest.raises(InputError, match=r"settings: weight_decay: 0.0001: the task's is 0.001"):
        add_row(usual, places, record)


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("backbone: small_cnn, ", "", "tasks: small: settings: this key is required: backbone"),
        ("{low: 1e-4, high: 1e-2, log: true}", "0.1", "space.lr: 0.1 should be a list"),
        ("algorithm: random", "algorithm: randm", "budget: algorithm: unknown .did you mean 'random'"),
        ("pfml: ,", "pfml: {settings: {dleta: 1}},", "methods: pfml: dleta: no such setting of 'pfml'"),
    ],
)
def test_a_plan_that_no_search_could_follow_is_refused(right: str, wrong: str, said: str, tmp_path: Path) -> None:
    assert right in PLAN
    with pytest.raises(InputError, match=said):
        read_plan(made_record(tmp_path, PLAN.replace(right, wrong, 1)))


def test_a_command_says_null_where_nothing_is_set(tmp_path: Path) -> None:
    plan = read_plan(made_record(tmp_path, PLAN.replace("{epochs: 2,", "{epochs: 2, clip_norm: null,")))
    assert "--set clip_norm=null" in plan.command("small", "pfml")


def test_a_row_of_another_record_has_its_files_there(tmp_path: Path) -> None:
    places, record = Places(tmp_path / "storage"), made_record(tmp_path).rename(tmp_path / "ours")
    row = read_row(Path(add_row(made_search(places, "proxy_anchor", SCORES_CS), places, record).folder))
    assert row.facts.command.startswith("orchestrator search ours/rows/small.proxy_anchor/search.yaml ")
    assert "ours/rows/small.proxy_anchor" in results_page(read_standings(record))


# Keeping -----------------------------------------------------------------------------------------------------------


def change_score(folder: Path) -> None:
    table = pq.read_table(folder / SCORES)
    values = table["map_at_r"].to_pylist()
    values[0], values[1] = values[0] + 0.01, values[1] - 0.01  # the mean stays
    at = table.schema.get_field_index("map_at_r")
    pq.write_table(table.set_column(at, "map_at_r", pa.array(values)), folder / SCORES)


def change_test(folder: Path) -> None:
    facts = json.loads((folder / FACTS).read_text())
    facts["test"]["map_at_r"][0] += 0.01
    (folder / FACTS).write_text(json.dumps(facts))


def swap(name: str) -> Callable[[Path], None]:
    """Take a file of another row."""

    def change(folder: Path) -> None:
        shutil.copyfile(folder.parent / "small.pfml" / name, folder / name)

    return change


def change_facts(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        facts = json.loads((folder / FACTS).read_text())
        (folder / FACTS).write_text(json.dumps(facts | changes))

    return change


def change_column(name: str, values: Any, kind: pa.DataType | None = None) -> Callable[[Path], None]:
    """Of the scores; a column that is new is added, one without values removed."""

    def change(folder: Path) -> None:
        table = pq.read_table(folder / SCORES)
        if name in table.column_names:
            table = table.drop_columns(name)
        if values is not None:
            table = table.append_column(name, pa.array([values] * len(table), kind))
        pq.write_table(table, folder / SCORES)

    return change


TESTS = {"map_at_r": [0.5] * SEEDS, "recall_at_1": [0.5] * SEEDS}
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a changed score": (change_score, rf"{SCORES}: is not that of {FACTS}"),
    "a changed test": (change_test, "test map_at_r with seed 0 is .* is not the mean"),
    "another journal": (swap(JOURNAL), rf"{JOURNAL}: is not that of {FACTS}"),
    "another search": (swap(SEARCH), rf"{SEARCH}: is not that of {FACTS}"),
    "another row": (swap(FACTS), "is of row small.pfml, not of small.triplet"),
    "another method": (change_facts(method="pfml"), "is of method pfml on task small, which is row small.pfml"),
    "a test fewer": (change_facts(test=TESTS | {"map_at_r": [0.5]}), "test: should have .* with each of 5 seeds"),
    "a lost metric": (change_facts(test={"map_at_r": [0.5] * SEEDS}), "should have map_at_r and recall_at_1"),
    "a test that is none": (
        change_facts(test=TESTS | {"map_at_r": [float("nan")] * SEEDS}),
        "test map_at_r with seed 0 is nan, and is not the mean|is no row of this version",
    ),
    "a lost column": (change_column("seed", None), f"{SCORES}: has columns .*, should have seed, class"),
    "a column more": (change_column("note", "x"), f"{SCORES}: has columns .*note"),
    "lost scores": (change_column("map_at_r", None, pa.float64()), f"{SCORES}: has columns"),
    "scores of text": (change_column("map_at_r", "high"), f"{SCORES}: column map_at_r is string"),
    "no queries": (change_column("queries", 0.0), f"{SCORES}: has no classes, or one without queries"),
    "a lost file": (lambda folder: (folder / SCORES).unlink(), rf"{SCORES}: cannot be read"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_of_a_record_is_found(what: str, filled: Path, tmp_path: Path) -> None:
    damage, expected = DAMAGE[what]
    record = Path(shutil.copytree(filled, tmp_path / "results"))
    damage(record / "rows" / "small.triplet")
    with pytest.raises(InputError, match=expected):
        read_rows(record)


def test_changed_curves_are_not_drawn(filled: Path, tmp_path: Path) -> None:
    record = Path(shutil.copytree(filled, tmp_path / "results"))
    folder = record / "rows" / "small.triplet"
    table = pq.read_table(folder / CURVES)
    at = table.schema.get_field_index("objective")
    pq.write_table(table.set_column(at, "objective", pa.array([0.9] * len(table))), folder / CURVES)
    with pytest.raises(InputError, match=rf"{CURVES}: is not that of {FACTS}: its digest is"):
        results_page(read_standings(record))


def test_a_folder_that_is_no_row_is_named(filled: Path, tmp_path: Path) -> None:
    record = Path(shutil.copytree(filled, tmp_path / "results"))
    (record / "rows" / "notes").mkdir()
    with pytest.raises(InputError, match=rf"notes: has no {FACTS}: add the row again .*, or remove the folder"):
        read_rows(record)


def test_the_plan_s_methods_are_spelt_alike(tmp_path: Path) -> None:
    """A misspelt reference would leave its comparisons out, and nobody would see it."""
    text = PLAN.replace("reference: proxy_anchor", "reference: proxy_ancor")
    record = made_record(tmp_path, text.replace("cub200, protocol", "cub200, methods: [triplt], protocol"))
    with pytest.raises(InputError) as error:
        read_plan(record)
    (first, second) = error.value.problems
    assert first.endswith("reference: 'proxy_ancor' is not among the planned methods (did you mean 'proxy_anchor'?)")
    assert second.endswith("tasks: birds: methods: 'triplt' is not among the planned methods (did you mean 'triplet'?)")


def test_settings_that_no_training_can_have_are_named_with_their_task(tmp_path: Path) -> None:
    text = PLAN.replace("reference: proxy_anchor", "reference: proxy_ancor")
    record = made_record(tmp_path, text.replace("protocol: conventional", "protocol: conventionl", 1))
    with pytest.raises(InputError) as error:
        read_plan(record)
    (first, second) = error.value.problems
    assert "'proxy_ancor' is not among" in first
    assert "plan.yaml: tasks: " in second and ": protocol: 'conventionl' is unknown" in second


def test_a_plan_without_methods_is_no_plan(tmp_path: Path) -> None:
    start = PLAN.index("methods: {")
    record = made_record(tmp_path, PLAN[:start] + "methods: {}" + PLAN[PLAN.index("}\n", start) + 1 :])
    with pytest.raises(InputError, match="'proxy_anchor' is not among the planned methods"):
        read_plan(record)


@pytest.mark.parametrize(
    ("text", "other", "expected"),
    [
        ("  small:", "  smal:", r"tasks: 4 rows are of task 'small', which the plan does not have .*'smal'"),
        ("metric: map_at_r", "metric: map_at_rr", r"metric: 'map_at_rr' is no score of 8 rows .*'map_at_r'"),
        ("dataset: glyphs-small", "dataset: glyphs-smal", r"has dataset 'glyphs-small', the plan's is 'glyphs-smal'"),
    ],
)
def test_rows_that_are_not_of_the_plan_are_named(
    text: str, other: str, expected: str, filled: Path, tmp_path: Path
) -> None:
    """They would be left out, or stand under another name, and nobody would see it."""
    record = Path(shutil.copytree(filled, tmp_path / "results"))
    plan = (record / "plan.yaml").read_text("utf-8")
    assert text in plan
    (record / "plan.yaml").write_text(plan.replace(text, other), "utf-8")
    with pytest.raises(InputError, match=expected):
        read_standings(record)


@pytest.mark.parametrize(
    ("method", "stop_after", "holds_out"),
    [("proxy_anchor", 10, False), ("proxy_anchor", 9, None), ("ccp", 10, True), ("ccp", 5, None)],
)
def test_a_command_is_printed_where_it_makes_the_test_again(
    method: str, stop_after: int, holds_out: bool | None
) -> None:
    """Not of a run that ended with its trial's best validation; a method that needs held-out classes keeps them."""
    raw = {"method": method, "dataset": "glyphs-small", "space": {"lr": {"low": 1e-3, "high": 1e-2}}, "num_trials": 1}
    search = resolve_search(raw, name="made", source="made.yaml")
    winner = TrialRecord("0000", 0, "trial", {"lr": 2e-3}, 0, validations=10)
    run = TrialRecord("final", 0, "final", {"lr": 2e-3}, 0, stop_after=stop_after)
    run.settings = search.experiment(run.params).flat()
    command = _command_of(search, winner, run)
    assert (command is None) is (holds_out is None)
    assert command is None or ("--set validation_share=0.0" in command) is not holds_out


def test_a_score_by_the_mlrc_protocol_is_of_all_models_together(tmp_path: Path) -> None:
    """The folds' own tables are of their held-out classes, so that none is of a test by one model."""
    for folder, score in (("fold-0", 0.1), ("fold-1", 0.3), ("", 0.6)):
        place = TrialPaths(tmp_path / folder).class_table
        place.parent.mkdir(parents=True)
        place.write_text(f"class,queries,map_at_r\na,2,{score}\nb,2,{score}\n")
    name = measured_as("map_at_r", "mlrc")
    together, apart = table_in(tmp_path, name, 0.6), table_in(tmp_path, "map_at_r", 0.2)
    assert together is not None and apart is not None
    assert (name, dict(together.means), dict(apart.means)) == (
        "concatenated_map_at_r",
        {"a": 0.6, "b": 0.6},
        {"a": 0.2, "b": 0.2},
    )
    assert table_in(tmp_path, name, 0.2) is None and measured_as("map_at_r", "conventional") == "map_at_r"


@pytest.mark.slow
def test_the_printed_command_makes_the_row_s_first_test_again(tmp_path: Path, data_folder: Path) -> None:
    """A real search, and the command that its row would print. The trial's own settings would hold classes out."""
    (tmp_path / "data").symlink_to(data_folder)
    raw = {
        "method": "proxy_anchor",
        "dataset": "glyphs-small",
        "settings": {"epochs": 2, "embedding_dim": 16, "device": "cpu", "threads": 1},
        "space": {"lr": {"low": 1e-3, "high": 1e-2, "log": True}},
        "algorithm": "random",
        "num_trials": 1,
        "final_seeds": 1,
    }
    dml.search(raw, name="made", storage=tmp_path, progress=False)
    ledger: Ledger = read_journal(Places(tmp_path).journal("made"))[1]
    (run,) = ledger.finals.values()
    winner = ledger.winner()
    assert winner is not None
    tests: list[float] = []
    again_words = _command_of(recorded_search(ledger.config), winner, run)
    for number, command in enumerate((again_words, train_command(run.settings))):
        words = shlex.split(str(command))[1:]
        with pytest.raises(SystemExit, match="0"):
            main([*words, "--name", f"again-{number}", "--storage", str(tmp_path)])
        (again,) = read_journal(Places(tmp_path).journal(f"again-{number}"))[1].trials.values()
        tests.append(again.test["map_at_r"])
    assert tests[0] == run.test["map_at_r"] != tests[1]


# What it says ------------------------------------------------------------------------------------------------------


def test_weighted_holm_is_the_closure_of_weighted_bonferroni() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        ps = (rng.random(6) ** 3).tolist()
        weights = rng.integers(1, 5, 6).astype(float).tolist()
        assert holm(ps, weights) == pytest.approx(closed_holm(ps, weights))
        assert holm(ps, [2.0] * 6) == pytest.approx(holm(ps))
    assert math.isnan(holm([math.nan, 0.01], [1.0, 1.0])[0]) and holm([math.nan, 0.01], [1.0, 3.0])[1] == 0.01


def test_the_figures_are_those_of_a_slow_computation(standings: Standings) -> None:
    """From the drawn scores by scipy's t, leaving out one class or seed at a time, and Holm's closure."""
    scores = {task: drawn_scores(LEVELS, seed=number) for number, task in enumerate(("small", "large"))}
    pairs = [(task, *pair) for task in scores for pair in itertools.combinations(LEVELS, 2)]
    ps = {
        pair: slow_p(float(apart.mean()), slow_parts(apart))
        for pair in pairs
        if (apart := scores[pair[0]][pair[1]] - scores[pair[0]][pair[2]]) is not None
    }
    with_reference = [pair for pair in pairs if "proxy_anchor" in pair]
    weights = [0.5 / len(with_reference) if pair in with_reference else 0.5 / (len(pairs) - 6) for pair in pairs]
    adjusted = dict(zip(pairs, closed_holm([ps[pair] for pair in pairs], weights), strict=True))
    for one in standings.outputs:
        values_CS = scores[one.task][one.method]
        assert one.score == pytest.approx(values_CS.mean(), abs=1e-9)
        middle = math.log(one.score / (1 - one.score))
        half = half_width(slow_parts(values_CS), 0.95) / (one.score * (1 - one.score))
        ends = [1 / (1 + math.exp(-end)) for end in (middle - half, middle + half)]
        assert [one.low, one.high] == pytest.approx(ends, abs=1e-9)
        best = max(scores[one.task], key=lambda method: scores[one.task][method].mean())
        for other, said in (("proxy_anchor", one.against_reference), (best, one.against_best)):
            if one.method == other:
                assert said is None
                continue
            assert said is not None
            apart = values_CS - scores[one.task][other]
            pair = next(p for p in pairs if p[0] == one.task and {one.method, other} == set(p[1:]))
            assert said.difference == pytest.approx(apart.mean(), abs=1e-9)
            assert said.p == pytest.approx(ps[pair], rel=1e-4)
            assert said.adjusted_p == pytest.approx(adjusted[pair], rel=1e-4)
            real = "better" if said.difference > 0 else "worse"
            assert said.verdict == (real if adjusted[pair] < SIGNIFICANT else "not told apart")
            assert (said.low > 0 or said.high < 0) == (said.verdict != "not told apart")


def test_groups_are_the_largest_runs_that_are_not_told_apart(standings: Standings) -> None:
    for task in standings.tasks:
        methods = [row.facts.method for row in task.rows]
        runs = [
            methods[first:last]
            for first, last in itertools.combinations(range(len(methods) + 1), 2)
            if last - first > 1
            and all(not task.contrasts[pair].real for pair in itertools.combinations(methods[first:last], 2))
        ]
        largest = [run for run in runs if not any(set(run) < set(other) for other in runs)]
        assert task.groups == largest
        assert largest == [[name for name in methods if name in ("proxy_anchor", "triplet")]]


def test_over_tasks_every_one_counts_the_same(standings: Standings) -> None:
    """By hand, of two tasks: the mean, with one degree of freedom."""
    (over,) = standings.over.values()
    assert [one.one for one in over] == ["contrastive", "pfml", "triplet"]
    ps = {one.one: one.summary.estimate.p for one in over}
    for one, output in zip(over, standings.over_outputs, strict=True):
        contrasts = [task.contrast(one.one, "proxy_anchor") for task in standings.tasks]
        estimates = [contrast.estimate for contrast in contrasts if contrast is not None]
        (a, b), (v, w) = [each.mean for each in estimates], [each.error**2 for each in estimates]
        assert one.by_set == output.by_task == {"small": a, "large": b} and one.summary.deviation is None
        mean, error = (a + b) / 2, math.sqrt(max((a - b) ** 2 / 2, (v + w) / 2) / 2)
        assert one.summary.estimate.mean == pytest.approx(mean)
        assert one.summary.estimate.p == pytest.approx(2 * t.sf(abs(mean) / error, 1))
        half = t.isf(0.025 / one.times, 1) * error
        assert (output.low, output.high) == pytest.approx((max(-1, mean - half), min(1, mean + half)))
    first = min(ps, key=ps.__getitem__)
    assert next(one.times for one in over if one.one == first) == pytest.approx(3)


def test_the_picture_over_tasks_shows_what_the_table_says(
    standings: Standings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diamond for each method, with what of its interval has room, and a dot for each of its tasks."""
    (protocol,) = standings.over
    first, *others = standings.over_outputs
    unbounded = first.model_copy(update={"low": -1.0, "high": 1.0})
    monkeypatch.setitem(vars(standings), "over_outputs", [unbounded, *others])
    figure = over_tasks(standings, protocol)
    names, reach = figure.layout["yaxis"]["ticktext"], figure.layout["xaxis"]["range"][1]
    shown: dict[str, dict[str, float]] = {}
    for trace in figure.data:
        shown.setdefault(trace.get("name", "means"), {}).update(
            {names[y]: x for x, y in zip(trace["x"], trace["y"], strict=True)}
        )
    outputs = standings.over_outputs
    assert shown.pop("means") == {one.method: one.difference for one in outputs}
    assert shown == {task: {one.method: one.by_task[task] for one in outputs} for task in outputs[0].by_task}
    drawn = 0
    for trace in figure.data[: len(outputs)]:
        (one,) = (one for one in outputs if one.method == names[trace["y"][0]])
        if one.low < -reach and one.high > reach:
            assert "error_x" not in trace
        else:
            drawn += 1
            assert one.difference + trace["error_x"]["array"][0] == pytest.approx(min(one.high, reach))
            assert one.difference - trace["error_x"]["arrayminus"][0] == pytest.approx(max(one.low, -reach))
    assert drawn == 2 and figure.said.endswith(
        "The intervals of 1 of 3 methods are wider than the picture, and not drawn."
    )
    assert "mean difference over 2 tasks, with its interval" in figure.said
    fewer = first.model_copy(update={"by_task": {"small": first.by_task["small"]}})
    monkeypatch.setitem(vars(standings), "over_outputs", [fewer, *others])
    assert "over the 1 to 2 tasks that it has rows of, with" in over_tasks(standings, protocol).said


def test_those_that_no_cheaper_one_is_above_are_named(standings: Standings) -> None:
    task = standings.tasks[0]
    best, second, _, fourth = (row.facts.method for row in task.rows)

    def named(seconds: list[float]) -> str:
        rows = [
            replace(row, facts=row.facts.model_copy(update={"cost": row.facts.cost.model_copy(update=one)}))
            for row, one in zip(task.rows, ({"training_core_seconds": one} for one in seconds), strict=True)
        ]
        return costs(replace(task, rows=rows)).said.partition("scores higher than: ")[2]

    assert named([4.0, 3.0, 5.0, 2.0]) == f"{fourth} (2.0 s), {second} (3.0 s), {best} (4.0 s)."
    assert named([1.0, 1.0, 5.0, 2.0]) == f"{best} (1.0 s)."
    cost = task.rows[0].facts.cost.model_copy(update={"training_core_seconds": 4.0, "training_seconds": 8.0})
    for hours, seconds in ((0.0, 4.0), (0.5, 8.0)):  # of the clock, beside a GPU
        of_row = {"cost": cost.model_copy(update={"gpu_hours": hours})}
        (row,) = [replace(row, facts=row.facts.model_copy(update=of_row)) for row in task.rows[:1]]
        assert f"{best} ({seconds:.1f} s)" in costs(replace(task, rows=[row])).said


def test_unplanned_rows_do_not_stand_for_planned_ones(filled: Path, tmp_path: Path) -> None:
    record = Path(shutil.copytree(filled, tmp_path / "results"))
    plan = record / "plan.yaml"
    plan.write_text(plan.read_text().replace("embedding_dim: 512}", "embedding_dim: 512}, methods: [pfml]"))
    assert "is not complete: 8 of 9 planned rows" in results_page(read_standings(record))
    scores_CS = drawn_scores({"margin": 0.0})["margin"]
    places = Places(tmp_path / "storage")
    space = {"lr": LR, "alpha": {"low": 0.1, "high": 0.5}}
    add_row(made_search(places, "margin", scores_CS, space=space), places, record)
    assert "is not complete: 8 of 9 planned rows" in results_page(read_standings(record))


def test_tasks_of_one_source_count_once(filled: Path) -> None:
    plan, rows = read_plan(filled), read_rows(filled)
    assert find_standings(plan, rows).over
    tasks = {name: task.model_copy(update={"source": "typefaces"}) for name, task in plan.tasks.items()}
    assert not find_standings(plan.model_copy(update={"tasks": tasks}), rows).over


def test_without_the_reference_nothing_is_said_to_be_it(filled: Path) -> None:
    rows = [row for row in read_rows(filled) if row.facts.method != "proxy_anchor"]
    page = results_page(find_standings(read_plan(filled), rows))
    assert (
        "no row of proxy_anchor" in page and "the reference" not in page and "diamond" not in page.split("</main>")[0]
    )


def test_rows_of_fewer_seeds_than_planned_are_refused(filled: Path) -> None:
    plan = read_plan(filled)
    more = plan.model_copy(update={"seeds": plan.seeds + 1})
    with pytest.raises(InputError) as error:
        find_standings(more, read_rows(filled))
    assert len(error.value.problems) == 8
    assert "row 'small.pfml': is tested with 5 seeds, the plan asks for 6: make it anew" in error.value.problems


def test_what_has_not_learned_is_named(filled: Path) -> None:
    """By the first seed's gain over the untrained network; one that was not measured is not named."""
    rows = read_rows(filled)
    gain = Gain(metric="map_at_r", difference=0.01, low=-0.01, high=0.03, up=9, classes=18)
    none, some = gain, gain.model_copy(update={"low": 0.005})
    for one, named in ((None, False), (some, False), (none, True)):
        changed = [replace(row, facts=row.facts.model_copy(update={"gain": one})) for row in rows]
        standings = find_standings(read_plan(filled), changed)
        assert ("Not shown to be better than before the training" in task_line(standings, standings.tasks[0])) is named


def test_trials_that_failed_are_counted(filled: Path) -> None:
    rows = read_rows(filled)
    number, trial = next(iter(rows[0].facts.trials.items()))
    trials = rows[0].facts.trials | {number: trial.model_copy(update={"state": "failed"})}
    changed = [replace(rows[0], facts=rows[0].facts.model_copy(update={"trials": trials})), *rows[1:]]
    for of, counted in ((rows, 0), (changed, 1)):
        page = results_page(find_standings(read_plan(filled), of))
        assert page.count(f"Trials that failed: 1 of {rows[0].facts.method}.") == counted
        assert page.count(f"{len(trials)} trials (1 failed), ") == counted


def test_what_falls_from_held_out_classes_to_the_test_is_named(filled: Path) -> None:
    """Of ten methods the best held out, last in the test; of fewer, none."""
    row, *_ = read_rows(filled)
    scores = [0.9, *np.linspace(0.8, 0.4, 9)]
    rows = [
        replace(row, facts=row.facts.model_copy(update={"method": f"method_{at}", "held_out": score}))
        for at, score in enumerate(scores)
    ]
    task = TaskStandings("small", read_plan(filled).tasks["small"], [*rows[1:], rows[0]], {}, "map_at_r")
    assert task.falls == [("method_0", 1, 10)]
    assert replace(task, rows=rows).falls == [] == replace(task, rows=[*rows[2:], rows[0]]).falls


def test_how_far_a_search_could_have_come_otherwise(standings: Standings) -> None:
    """Against trials that are drawn again, and a worked case of two."""
    row = standings.tasks[0].rows[0]
    values = np.array([trial.best for trial in row.facts.trials.values()])
    largest = np.random.default_rng(0).choice(values, (100_000, len(values))).max(axis=1)
    assert row.search_deviation == pytest.approx(largest.std(), rel=0.02) and largest.std() > 0
    two = {name: RowTrial(state="done", params={}, best=best) for name, best in (("0", 0.2), ("1", 0.6))}
    other = replace(row, facts=row.facts.model_copy(update={"trials": two}))
    assert other.search_deviation == pytest.approx(0.4 * math.sqrt(3 / 16))


@pytest.mark.parametrize("world", WORLDS[:3], ids=lambda world: world.name)
def test_methods_that_do_not_differ_are_rarely_told_apart(world: Any) -> None:
    """In at most 5% of records any two; 60 records of two tasks with six methods: more than 8 have a chance of 0.2%."""
    rng = np.random.default_rng(1)
    assert simulated(rng, world, np.zeros(6), records=60).err <= 8 / 60


def test_intervals_over_classes_alone_would_tell_them_apart() -> None:
    """The planted bug: what the test above holds the record to."""
    nothing = simulated(np.random.default_rng(1), WORLDS[1], np.zeros(6), records=20, ignoring="seeds")
    assert nothing.err > 0.5


def test_half_of_the_error_goes_to_the_reference() -> None:
    adjusted, times = adjust([0.001, 0.002, 0.9, 0.9, 0.9], [True, False, False, False, False])
    assert adjusted[0] == pytest.approx(0.002) and adjusted[1] == pytest.approx(0.002 * 4) and times[1] == 4.0


# The page, the command, the plan -------------------------------------------------------------------------------------


def test_the_page_has_every_row_with_what_makes_it_again(standings: Standings) -> None:
    page = results_page(standings)
    for row in (row for task in standings.tasks for row in task.rows):
        facts = row.facts
        tuning = f"{len(facts.params)} setting{'s' * (len(facts.params) > 1)}, {len(facts.trials)} trials, "
        for text in (facts.journal_digest, facts.search_digest, facts.dataset_digest, facts.commit, facts.machine):
            assert text and text in page and tuning in page
        assert f'id="row-{facts.name}"' in page and f'id="curves-{facts.name}"' in page
    assert "small: the settings found for pfml lead with" in page and '"symbol":"diamond"' in page
    assert "Compared with proxy_anchor: 1 better, 1 worse and 1 not told apart; the median interval of" in page
    seconds = sum(row.facts.cost.core_seconds or 0 for task in standings.tasks for row in task.rows)
    assert f"(higher is better) · {seconds / 3600:.1f} core-hours" in page
    families = 1 + len(standings.over)
    assert families > 1 and f"So {families} families" in page and f"together in {5 * families}%" in page
    assert "8 of 12 planned rows" in page and "birds.proxy_anchor" in page
    for name in ("http://", "https://"):
        assert f'src="{name}' not in page and f'href="{name}' not in page


def test_the_commands(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["results", *words])
        assert end.value.code == 0
        return capsys.readouterr().out

    told = json.loads(run("--record", str(filled), "--json"))
    conforms("results show", told)
    assert len(told["rows"]) == 8 and told["empty_tasks"] == ["birds"]
    for width in ("80", "140"):
        monkeypatch.setenv("COLUMNS", width)
        shown = run("show", "--record", str(filled))
        assert "Told apart at 5% for 12 pairs of methods together" in shown
        assert "birds: no rows yet" in shown and max(map(len, shown.splitlines())) <= int(width)
        heads = next(line for line in shown.splitlines() if "map_at_r" in line and "method" in line)
        for head in ("recall@1", "95%"):  # a column that is left out is named
            assert (head in heads) != (f"{head}: in a wider terminal" in shown or f"{head} and 95%: in" in shown)
        for row in told["rows"]:
            assert row["task"] in shown and f"{row['method']} " in shown and f"{row['score']:.4f}" in shown
    name, storage = "glyphs-small.pfml", str(filled.parent / "storage")
    add = ("add", name, "--record", str(filled), "--storage", storage)
    assert "is there already" in run(*add)
    conforms("results add", json.loads(run(*add, "--json")))
    page = tmp_path / "record.html"
    assert json.loads(run("page", str(page), "--record", str(filled), "--json")) == {"path": str(page)}
    assert "The record" in page.read_text()


def test_a_folder_without_a_plan_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["results", "--record", str(tmp_path)])
    error = capsys.readouterr().err
    assert end.value.code == 2 and "no record here" in error and str(tmp_path) in error


def test_every_method_is_planned_or_left_out_with_a_reason() -> None:
    plan = read_plan(ROOT / "results")
    assert plan.reference in plan.methods and not plan.methods.keys() & plan.left_out.keys()
    assert plan.methods.keys() | plan.left_out.keys() == set(installed_methods())


def test_every_planned_search_is_one() -> None:
    """As `orchestrator search` would resolve it; and it searches what all search."""
    plan, spaces = read_plan(ROOT / "results"), Path(search_spaces.__file__).parent
    for name, planned in plan.methods.items():
        how = planned or PlannedMethod()
        raw = read_yaml(spaces / f"{how.space or name}.yaml")
        for task_name in ("glyphs-small", "glyphs-small-mlrc"):
            task = plan.tasks[task_name]
            settings = {**raw["settings"], "protocol": task.protocol, "label_noise": 0, **task.settings}
            settings |= {**how.settings, **plan.settings}
            whole = {**raw, "dataset": task.dataset, "space": {**raw["space"], **plan.space}, "settings": settings}
            search = resolve_search({**whole, "scheduler": "none"}, name="x", source=f"{name}.yaml")
            assert search.methods == [name] and "lr" in {parameter.key for parameter in search.parameters()}
            flat = search.example().flat()
            different = {key: flat[key] for key, value in task.training(name).items() if flat[key] != value}
            assert different.keys() <= {"lr"}, f"{name} on {task_name}"


def test_the_shipped_rows_follow_from_their_journals(tmp_path: Path) -> None:
    """At most five of them, the newest first."""
    rows = sorted(read_rows(ROOT / "results"), key=lambda row: row.facts.date)[-5:]
    for row in rows:
        path = tmp_path / row.label / LIVE_JOURNAL
        path.parent.mkdir()
        path.write_bytes(read_row_journal(row.folder))
        events, ledger = read_journal(path)
        winner, facts = ledger.winner(), row.facts
        assert winner is not None and (winner.trial_id, winner.best) == (facts.winner, facts.held_out)
        tests = {int(run.settings["seed"]): run.test for run in ledger.tests_of(winner)}
        assert {m: [tests[seed][m] for seed in facts.seeds] for m in facts.test} == facts.test
        assert len(row.curves) == len(ledger.everyone()) and ledger.epochs == facts.epochs
        assert facts.later_commits == _later_commits(events)
        assert {path.name for path in row.folder.iterdir()} == {FACTS, SCORES, CURVES, JOURNAL, SEARCH}


def test_the_record_stays_small() -> None:
    size = sum(path.stat().st_size for path in (ROOT / "results").rglob("*") if path.is_file())
    rows = len(list((ROOT / "results" / "rows").glob("*")))
    assert size < 10e6 and size < 66e3 * (rows + 1)


@pytest.mark.parametrize("what", ["images", "classes", "queries", "seeds"])
def test_rows_of_a_task_are_of_the_same_queries(what: str, tmp_path: Path) -> None:
    """Two that came in by different hands may not be; each row is sound."""
    scores = drawn_scores(LEVELS)
    records = []
    for hand, methods in (("one", ("proxy_anchor", "contrastive", "pfml")), ("other", ("triplet",))):
        (folder := tmp_path / hand).mkdir()
        text = PLAN.replace(", digest: " + DIGESTS["glyphs-small"], "")
        if what == "seeds":
            text = text.replace("seeds: 5", "seeds: 6") if hand == "other" else text
        record = made_record(folder, text)
        for method in methods:
            of_method = scores[method]
            if (hand, what) == ("other", "classes"):
                of_method = of_method[:15]
            if (hand, what) == ("other", "seeds"):
                of_method = np.column_stack([of_method, of_method[:, 0]])
            tags = {"dataset.digest": "f" * 64} if (hand, what) == ("other", "images") else {}
            queries = 16 if (hand, what) == ("other", "queries") else 32
            seeds = of_method.shape[1]
            name = made_search(Places(folder), method, of_method, tags=tags, final_seeds=seeds, queries=queries)
            add_row(name, Places(folder), record)
        records.append(record)
    shutil.copytree(records[1] / "rows" / "small.triplet", records[0] / "rows" / "small.triplet")
    named = {"images": "data set's digest", "seeds": "seeds", "classes": "classes", "queries": "classes or numbers of"}
    with pytest.raises(InputError, match=f"row 'small.triplet': has another {named[what]}.* than 'small.contrastive'"):
        read_standings(records[0])
