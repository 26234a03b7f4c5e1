"""Whole searches as users run them: the command line, a real Ray cluster, a real MLflow database, real faults."""

import contextlib
import json
import os
import signal
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support.conductors import leaderboard_here
from support.output_schemas import conforms
from support.terminals import LONG, TINY, Terminal, alive, family, last_line, title, wait
from support.terminals import terminal as terminal

from orchestrator.config.resolve import resolve_search
from orchestrator.execution.worker import run_training
from orchestrator.storage.cursors import recorded_runs
from orchestrator.storage.ledger import Ledger

GRID: dict[str, Any] = TINY | {
    "space": {"lr": [1e-3, 1e30], "weight_decay": [0.0, 1e-4]},
    "algorithm": "grid",
    "num_trials": None,
    "scheduler": "none",
}
WAITING: dict[str, Any] = TINY | {
    "scheduler": {"name": "promotion", "reduction_factor": 2},
    "start_from": [{"lr": 1e-2}, {"lr": 3e-3}, {"lr": 1e-5}, {"lr": 2e-5}],
}
"""The second trial waits until the fourth has come."""
POPULATION: dict[str, Any] = TINY | {
    "algorithm": "random",
    "num_trials": 4,
    "scheduler": {"name": "population", "every": 2},
}
HOPELESS: dict[str, Any] = TINY | {"space": {"lr": [1e30, 2e30]}, "num_trials": 2}
STATUS = {"done": "FINISHED", "pruned": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
DEAD_SERVER = "http://127.0.0.1:9"


def shows_results_then_pages(stdout: str) -> None:
    """The leaderboard, the test and what to run next, once, and then where to look."""
    parts = ("on held-out classes", "\nfinal test:", "\nwhat to run next", "\non a page:", "\nin MLflow:")
    places = [stdout.find(part) for part in parts]
    assert -1 not in places and places == sorted(places), stdout
    assert all(stdout.count(part) == 1 for part in parts[1:])


def check_records(terminal: Terminal, name: str, database: str = "mlflow.db") -> dict[str, Any]:
    """MLflow holds what the journal holds: one run each, one point per validation, no run left open.

    Gives the runs by trial id, the search's own as "".
    """
    from mlflow import MlflowClient

    events = terminal.events(name)
    ledger = Ledger.of(events)
    client = MlflowClient(f"sqlite:///{terminal.storage / database}")
    experiment = client.get_experiment_by_name("glyphs-small")
    runs = client.search_runs([experiment.experiment_id], f"tags.`orchestrator.search` = '{name}'")
    found = {run.data.tags.get("orchestrator.trial_id", ""): run for run in runs}
    trials = ledger.trials | ledger.finals
    assert sorted(run.data.tags.get("orchestrator.trial_id", "") for run in runs) == sorted(["", *trials])
    parent = found[""]
    assert parent.data.tags["orchestrator.kind"] == "search"
    assert parent.info.status == STATUS[ledger.state]
    for trial_id, trial in trials.items():
        run = found[trial_id]
        assert run.info.status == STATUS[trial.state]
        assert run.data.tags["orchestrator.state"] == trial.state
        assert run.data.tags["orchestrator.kind"] == trial.kind
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        searched = {key: str(value) for key, value in trial.params.items()}
        assert searched.items() <= run.data.params.items() and "backbone" in run.data.params  # and all other settings
        assert run.data.tags["orchestrator.searched"] == ", ".join(searched)
        curve = client.get_metric_history(run.info.run_id, "val/map_at_r")
        assert [point.value for point in sorted(curve, key=lambda point: point.step)] == trial.curve
        losses = client.get_metric_history(run.info.run_id, "train/loss")
        assert sorted(point.step for point in losses) == list(range(1, trial.validations + 1))
        if trial.curve and trial.state in ("done", "pruned"):
            best = client.get_metric_history(run.info.run_id, "best/val_map_at_r")
            values = [point.value for point in sorted(best, key=lambda point: point.step)]
            assert values[-1] == trial.best and (len(values) == 1 or trial.restarted)
    return found


def model_files(terminal: Terminal, run: Any) -> list[str]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{terminal.storage / 'mlflow.db'}")
    return sorted(Path(file.path).name for file in client.list_artifacts(run.info.run_id, "model"))


# A search that nothing disturbs ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(terminal: Terminal) -> dict[str, Any]:
    """Six trials, two at a time; the JSON that the search printed."""
    stdout, stderr = terminal.finish(terminal.search(TINY, "parallel"))
    assert "Traceback" not in stderr
    return last_line(stdout)


@pytest.mark.slow
def test_the_json_names_everything(finished: dict[str, Any]) -> None:
    assert finished["name"] == "parallel"
    assert finished["objective"] == "val/map_at_r"
    assert finished["experiment_id"] and finished["parent_run_id"]
    assert len(finished["trials"]) == 6
    for trial in finished["trials"]:
        assert trial["state"] in ("done", "pruned")
        assert trial["run_id"] and trial["trial_id"]
        assert 0 < trial["objective"] < 1
        assert 1e-5 <= trial["params"]["lr"] <= 1e-2
    assert finished["best"]["objective"] == max(trial["objective"] for trial in finished["trials"])
    assert 0 < finished["final"]["metrics"]["test/map_at_r"] < 1


@pytest.mark.slow
def test_trials_overlap_and_some_are_stopped_early(terminal: Terminal, finished: dict[str, Any]) -> None:
    trials = list(Ledger.of(terminal.events("parallel")).trials.values())
    first, second = trials[:2]
    assert second.started < (first.ended or 0) and first.started < (second.ended or 0)
    validations = {trial.trial_id: trial.validations for trial in trials}
    for trial in finished["trials"]:
        assert validations[trial["trial_id"]] < 6 if trial["state"] == "pruned" else 6
    assert "pruned" in [trial["state"] for trial in finished["trials"]]


@pytest.mark.slow
def test_mlflow_holds_the_search(terminal: Terminal, finished: dict[str, Any]) -> None:
    from mlflow import MlflowClient

    runs = check_records(terminal, "parallel")
    assert runs[""].info.run_id == finished["parent_run_id"]
    assert {t["trial_id"]: t["run_id"] for t in finished["trials"]}.items() <= {
        trial_id: run.info.run_id for trial_id, run in runs.items()
    }.items()
    tags = runs[""].data.tags
    git = ["git", "-C", str(terminal.project), "rev-parse", "HEAD"]
    assert tags["git.commit"] == subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    assert tags["git.dirty"] == "false"
    assert tags["version.torch"] == version("torch")
    store = json.loads(next((terminal.storage / "data").rglob("manifest.json")).read_text(encoding="utf-8"))
    assert tags["dataset.digest"] == store["digest"]
    client = MlflowClient(f"sqlite:///{terminal.storage / 'mlflow.db'}")
    names = {file.path for file in client.list_artifacts(finished["parent_run_id"])}
    assert {"config.yaml", "leaderboard.csv"} <= names
    final = runs["final"]
    assert "test/map_at_r" in final.data.metrics
    assert model_files(terminal, final) == ["model.pt"]
    ranking = [trial.trial_id for trial in Ledger.of(terminal.events("parallel")).ranking()]
    with_model = {trial_id for trial_id in ranking if model_files(terminal, runs[trial_id])}
    assert with_model == set(ranking[:3])
    tables = {"insight/classes.csv", "insight/confusions.csv", "insight/similarities.csv"}
    pages = {"insight/model.html", "insight/gallery.json", "insight/gallery"}
    for trial_id in [*ranking, "final"]:
        shown = {file.path for file in client.list_artifacts(runs[trial_id].info.run_id, "insight")}
        best = trial_id in (*ranking[:3], "final")
        assert shown == (tables | pages if best else tables), trial_id
        assert ("mlflow.loggedArtifacts" in runs[trial_id].data.tags) == best
    assert "report/model.html" in {file.path for file in client.list_artifacts(finished["parent_run_id"], "report")}
    gallery = json.loads(Path(client.download_artifacts(final.info.run_id, "insight/gallery.json")).read_text("utf-8"))
    image = client.download_artifacts(final.info.run_id, gallery["data"][0][2]["filepath"])
    assert Path(image).stat().st_size > 100
    assert "Which classes are confused most?" in tags["mlflow.note.content"]
    (output,) = final.outputs.model_outputs
    logged = client.get_logged_model(output.model_id)
    assert (logged.status, logged.source_run_id) == ("READY", final.info.run_id)
    (dataset,) = final.inputs.dataset_inputs
    assert store["digest"].startswith(dataset.dataset.digest) and len(dataset.dataset.digest) == 36


@pytest.mark.slow
def test_a_finished_search_is_left_as_it_is(terminal: Terminal, finished: dict[str, Any]) -> None:
    before = terminal.journal("parallel").read_bytes()
    stdout, _ = terminal.run("resume", "parallel", "--json")
    assert last_line(stdout) == finished
    assert terminal.journal("parallel").read_bytes() == before
    stdout, _ = terminal.run("report", "parallel", "--json")
    assert last_line(stdout) == finished


@pytest.mark.slow
def test_a_training_over_several_seeds(terminal: Terminal) -> None:
    options = [
        "--method",
        "proxy_anchor",
        "--dataset",
        "glyphs-small",
        "--epochs",
        "1",
        "--repeats",
        "2",
        "--seed",
        "3",
    ]
    stdout, _ = terminal.run("train", *options, "--name", "repeats", "--json")
    summary = last_line(stdout)
    assert [trial["params"] for trial in summary["trials"]] == [{"seed": 3}, {"seed": 4}]
    tests = [trial["metrics"]["test/map_at_r"] for trial in summary["trials"]]
    (group,) = summary["repeated"]
    assert group["metrics"]["map_at_r"]["mean"] == pytest.approx(sum(tests) / 2)
    assert group["metrics"]["map_at_r"]["low"] < min(tests) < max(tests) < group["metrics"]["map_at_r"]["high"]
    check_records(terminal, "repeats")


# The same seed, and a death in the middle ------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(terminal: Terminal) -> list[dict[str, Any]]:
    """The leaderboard of a search in one slot, of which a trial waits and goes on."""
    shows_results_then_pages(terminal.finish(terminal.search(WAITING, "once", "--max-concurrent", "1", answer=""))[0])
    return terminal.leaderboard("once")


@pytest.mark.slow
def test_the_same_seed_gives_the_same_leaderboard(
    terminal: Terminal, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Also where no Ray runs the trials."""
    assert undisturbed == leaderboard_here(WAITING, tmp_path / "searches" / "here", terminal.storage / "data")
    assert len(undisturbed) == 7
    assert len({row["lr"] for row in undisturbed[:6]}) == 6
    assert "pruned" in [row["state"] for row in undisturbed]
    starts = [event["trial_id"] for event in terminal.events("once", "trial_started")]
    assert starts[:5] == ["0000", "0001", "0002", "0003", "0001"]
    check_records(terminal, "once")
    second = Ledger.of(terminal.events("once")).trials["0001"]
    experiment = resolve_search(WAITING, name="once", source="once.yaml").experiment(second.params)
    whole = run_training(experiment, data=terminal.storage / "data", folder=None)
    assert [next(whole).metrics["val/map_at_r"] for _ in second.curve] == second.curve, "as if it had never waited"


@pytest.mark.slow
def test_kill_and_resume(terminal: Terminal, undisturbed: list[dict[str, Any]]) -> None:
    process = terminal.search(WAITING, "killed", "--max-concurrent", "1")
    terminal.wait_for_validations(process, "killed", 9)
    # Ray's own agents spend a minute telling a cluster that is gone of its end
    processes = [child for child in family(process) if not title(child).endswith("Agent")]
    assert any(title(child).startswith("ray::Trial") for child in processes)
    process.kill()
    process.communicate()
    assert Ledger.of(terminal.events("killed")).state == "running"
    wait(lambda: not alive(processes), 30)
    shows_results_then_pages(terminal.run("resume", "killed")[0])
    assert terminal.leaderboard("killed") == undisturbed
    check_records(terminal, "killed")


@pytest.mark.slow
def test_a_population_that_was_killed(terminal: Terminal, tmp_path: Path) -> None:
    """It has the copies, and they the values, of one that nothing disturbs and no Ray runs; MLflow has their curves."""
    process = terminal.search(POPULATION, "population", "--max-concurrent", "2")
    terminal.wait_for_validations(process, "population", 10)
    process.kill()
    process.wait()
    shows_results_then_pages(terminal.run("resume", "population")[0])
    alone = leaderboard_here(POPULATION, tmp_path / "searches" / "here", terminal.storage / "data")
    assert terminal.leaderboard("population") == alone
    assert sum("from 2" in str(row.get("schedule")) for row in alone) >= 1
    check_records(terminal, "population")


@pytest.mark.slow
def test_interrupt_and_resume(terminal: Terminal, undisturbed: list[dict[str, Any]]) -> None:
    process = terminal.search(WAITING, "interrupted", "--max-concurrent", "1")
    terminal.wait_for_validations(process, "interrupted", 9)
    processes = family(process)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = terminal.finish(process, code=130, seconds=60)
    assert f"orchestrator resume interrupted --storage {terminal.storage}" in stderr
    assert last_line(stdout)["state"] == "interrupted"
    assert "Traceback" not in stderr
    wait(lambda: not alive(processes), 20)
    runs = check_records(terminal, "interrupted")
    assert "KILLED" in [run.info.status for run in runs.values()]
    terminal.run("resume", "interrupted")
    assert terminal.leaderboard("interrupted") == undisturbed
    check_records(terminal, "interrupted")


@pytest.mark.slow
def test_pause_then_go_on_then_more(terminal: Terminal) -> None:
    space = LONG | {"space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}}, "final": True}
    process = terminal.search(space, "paused", "--max-concurrent", "1")
    terminal.wait_for_validations(process, "paused", 2)
    conforms("pause", json.loads(terminal.run("pause", "paused", "--json")[0]))
    stdout, _ = terminal.finish(process, code=130)
    assert last_line(stdout)["reason"].startswith("paused by ")
    assert [(trial["state"], trial["validations"]) for trial in last_line(stdout)["trials"]] == [("done", 16)]
    terminal.run("resume", "paused")
    assert [row["state"] for row in terminal.leaderboard("paused")] == ["done"] * 3
    _, refused = terminal.run("resume", "paused", "--num-trials", "2", code=2)
    assert "the search has tried 2 points already" in refused
    stdout, _ = terminal.run("resume", "paused", "--num-trials", "3", "--budget", "hours=1", "--json")
    conforms("resume", last_line(stdout))
    assert [trial["state"] for trial in last_line(stdout)["trials"]] == ["done"] * 3
    assert last_line(stdout)["final"]["params"] == last_line(stdout)["best"]["params"]
    check_records(terminal, "paused")


@pytest.mark.slow
def test_a_stopped_search_goes_on_with_other_workers(terminal: Terminal) -> None:
    space = LONG | {"settings": LONG["settings"] | {"precision": "float64"}, "num_trials": 1}
    alone = terminal.search(space, "alone")
    process = terminal.search(space, "widened")
    terminal.wait_for_validations(process, "widened", 2)
    processes = family(process)
    status = json.loads(terminal.run("stop", "widened", "--json")[0])
    conforms("stop", status)
    assert (status["state"], status["driver"], status["counts"]["interrupted"]) == ("interrupted", None, 1)
    stdout, stderr = terminal.finish(process, code=130, seconds=60)
    assert f"orchestrator resume widened --storage {terminal.storage}" in stderr
    assert status["reason"] == last_line(stdout)["reason"] and status["reason"].startswith("stopped by ")
    wait(lambda: not alive(processes), 20)
    listed = json.loads(terminal.run("list", "--json")[0])
    assert status["counts"] in [one["counts"] for one in listed if one["name"] == "widened"]
    _, refused = terminal.run("resume", "widened", "--workers", "33", code=2)
    assert "workers: 33 workers cannot share the global batch of 32 images" in refused
    terminal.run("resume", "widened", "--workers", "2")
    terminal.finish(alone)
    ours, theirs = ([e["metrics"] for e in terminal.events(name, "validation")] for name in ("widened", "alone"))
    numbers = [event["validation"] for event in terminal.events("widened", "validation")]
    assert numbers == list(range(1, 17)) and len(ours) == len(theirs) == 16
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=0, abs=1e-9)
    assert Ledger.of(terminal.events("widened")).config["workers"] == 2
    check_records(terminal, "widened")
    _, refused = terminal.run("resume", "widened", "--workers", "4", code=2)
    assert "--workers: 4: search 'widened' is done, nothing is left to train" in refused


@pytest.mark.slow
def test_a_clock_that_jumps_changes_nothing(terminal: Terminal, tmp_path: Path) -> None:
    """Forwards by days, then back behind the search's start, for all its processes at once."""
    from services import FakeTime

    if FakeTime.library() is None:
        pytest.skip("needs libfaketime (Debian's package faketime)")
    space = LONG | {"num_trials": None, "budget": {"hours": 1.0, "epochs": 6}}
    for name in map("jumping-{}".format, range(5)):  # again, for the forks that libfaketime loses
        clock = FakeTime(tmp_path / name)
        process = terminal.search(space, name, "--max-concurrent", "1", **clock.environment())
        with contextlib.suppress(AssertionError):
            terminal.wait_for_validations(process, name, 2)
            break
    for validation, hours in ((2, 50.0), (6, -80.0), (10, 0.5), (18, -1.0), (22, 100.0)):
        terminal.wait_for_validations(process, name, validation)
        clock.jump(3600 * hours)
    stdout, stderr = terminal.finish(process)
    assert "Traceback" not in stderr
    assert [(trial["state"], trial["validations"]) for trial in last_line(stdout)["trials"]] == [("done", 16)] * 2
    events = terminal.events(name)
    times = [event["time"] for event in events]
    assert max(times) - min(times) > 3_600_000 * 70 and times != sorted(times), "the search saw the jumps"
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert [event["elapsed"] for event in events if "elapsed" in event] == sorted(
        event["elapsed"] for event in events if "elapsed" in event
    )
    assert Ledger.of(events).elapsed < 3600
    check_records(terminal, name)


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once(terminal: Terminal) -> None:
    longer = LONG | {"settings": LONG["settings"] | {"epochs": 30}}  # it must not end before the interrupts
    process = terminal.search(longer, "impatient")
    terminal.wait_for_validations(process, "impatient", 3)
    wait(lambda: len(recorded_runs(terminal.journal("impatient")).trials) == 2, 60)
    processes = family(process)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = terminal.finish(process, code=130, seconds=60)
    assert "orchestrator resume impatient" in stderr
    assert "Traceback" not in stderr
    wait(lambda: not alive(processes), 20)
    assert Ledger.of(terminal.events("impatient")).state == "interrupted"
    terminal.run("sync", "impatient")  # the rest, if it came while that was sent
    check_records(terminal, "impatient")


@pytest.mark.slow
def test_an_interrupt_before_the_first_trial_leaves_nothing(terminal: Terminal) -> None:
    process = terminal.search(LONG, "hasty")
    # the raylet's own children outlive it
    wait(lambda: any(child.name() == "raylet" and child.children() for child in alive(family(process))), 60)
    processes = family(process)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = terminal.finish(process, code=130, seconds=60)
    assert "Traceback" not in stderr
    wait(lambda: not alive(processes), 20)
    assert not terminal.journal("hasty").exists()


# Faults ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grid(terminal: Terminal) -> tuple[str, str]:
    """A grid, half of which diverges, while the tracking server is away: stdout and stderr."""
    return terminal.finish(terminal.search(GRID, "grid", "--tracking-uri", DEAD_SERVER))


@pytest.mark.slow
def test_a_grid_is_exact_and_ends(terminal: Terminal, grid: tuple[str, str]) -> None:
    trials = last_line(grid[0])["trials"]
    points = [(trial["params"]["lr"], trial["params"]["weight_decay"]) for trial in trials]
    assert sorted(points) == [(1e-3, 0.0), (1e-3, 1e-4), (1e30, 0.0), (1e30, 1e-4)]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_fails_its_trial_only(grid: tuple[str, str]) -> None:
    for trial in last_line(grid[0])["trials"]:
        if trial["params"]["lr"] == 1e30:
            assert trial["state"] == "failed"
            assert "not finite" in trial["reason"]
        else:
            assert (trial["state"], trial["reason"], trial["validations"]) == ("done", None, 6)
    assert "test/map_at_r" in last_line(grid[0])["final"]["metrics"]


@pytest.mark.slow
def test_a_tracking_server_that_is_away(terminal: Terminal, grid: tuple[str, str]) -> None:
    stdout, stderr = grid
    assert last_line(stdout)["parent_run_id"] is None
    assert f"no MLflow server answers at {DEAD_SERVER}" in stderr
    assert f"orchestrator sync grid --storage {terminal.storage}" in stderr
    _, still = terminal.run("sync", "grid", code=2)
    assert DEAD_SERVER in still, "sync tries the server of the search, not another one"

    terminal.run("sync", "grid", "--tracking-uri", f"sqlite:///{terminal.storage / 'later.db'}")
    runs = check_records(terminal, "grid", "later.db")
    failed = [run for run in runs.values() if run.info.status == "FAILED"]
    assert len(failed) == 2
    assert all("not finite" in run.data.tags["orchestrator.reason"] for run in failed)
    stdout, _ = terminal.run("report", "grid", "--json")
    assert last_line(stdout)["parent_run_id"] == runs[""].info.run_id


@pytest.mark.slow
def test_all_trials_failed(terminal: Terminal) -> None:
    stdout, stderr = terminal.finish(terminal.search(HOPELESS, "hopeless"), code=1)
    assert last_line(stdout)["state"] == "failed"
    assert last_line(stdout)["best"] is None and last_line(stdout)["final"] is None
    assert "error: all 2 trials failed; the first: the loss is not finite at step" in stderr
    check_records(terminal, "hopeless")
    _, stderr = terminal.run("resume", "hopeless", code=1)
    assert "error: all 2 trials failed" in stderr


@pytest.mark.slow
def test_a_killed_raylet_ends_the_search_to_be_resumed(terminal: Terminal) -> None:
    process = terminal.search(LONG, "beheaded")
    terminal.wait_for_validations(process, "beheaded", 3)
    processes = family(process)
    next(child for child in processes if child.name() == "raylet").kill()
    _, stderr = terminal.finish(process, code=1)
    assert "error: the Ray node of this machine has died; fix this and continue with" in stderr
    assert "Traceback" not in stderr
    wait(lambda: not alive([child for child in processes if not title(child).endswith("Agent")]), 60)
    check_records(terminal, "beheaded")
    terminal.run("resume", "beheaded")
    assert [row["state"] for row in terminal.leaderboard("beheaded")] == ["done", "done"]
    check_records(terminal, "beheaded")


@pytest.mark.slow
def test_a_trial_goes_on_after_an_announced_end_of_its_process_and_after_a_loss(terminal: Terminal) -> None:
    """The search allows no failure, and a single loss: an announced end is neither."""
    process = terminal.search(LONG, "wounded", "--num-trials", "1", "--max-restarts", "1")
    for validations, number in ((2, signal.SIGTERM), (6, signal.SIGKILL), (9, signal.SIGTERM)):
        terminal.wait_for_validations(process, "wounded", validations)
        next(child for child in family(process) if title(child).startswith("ray::Trial")).send_signal(number)
    stdout, stderr = terminal.finish(process)
    ends = [(end["state"], end.get("interruption")) for end in terminal.events("wounded", "trial_ended")]
    assert ends == [("interrupted", "preempted"), ("interrupted", "preempted"), ("done", None)]
    assert [trial["state"] for trial in last_line(stdout)["trials"]] == ["done"]
    assert "Traceback" not in stderr
    numbers = [event["validation"] for event in terminal.events("wounded", "validation")]
    assert numbers == list(range(1, 17))
    check_records(terminal, "wounded")
