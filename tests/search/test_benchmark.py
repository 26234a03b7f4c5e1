"""Methods at an equal budget, and searches side by side: over made trainings, and once over real ones."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.made_benchmarks import EPOCHS, LEVELS, MadeRunner, asked_for, side_by_side
from support.made_pages import CHROMIUM, HOSTILE, Elements, complaints, figures, made, opened
from support.made_searches import MadeSearch
from support.memory_tracking import MemoryTracker
from support.output_schemas import conforms
from support.terminals import Terminal, terminal, wait  # noqa: F401 (a fixture)

import orchestrator.data.remarks
from orchestrator.cli import terminal as cli_terminal
from orchestrator.cli.live import Display
from orchestrator.cli.main import main
from orchestrator.config.resolve import resolve_search
from orchestrator.errors import InputError
from orchestrator.report.comparison import Comparison
from orchestrator.report.deciding import deciding_steps
from orchestrator.report.html.comparison_page import comparison_page
from orchestrator.report.member import in_queries
from orchestrator.report.power import seeds_needed
from orchestrator.search import benchmark_searches
from orchestrator.search.benchmark import SEEDS, Benchmark, find_benchmark, members, resolve_benchmark
from orchestrator.search.benchmark_searches import Result
from orchestrator.search.driver import resume, start
from orchestrator.search.watcher import Watcher
from orchestrator.storage.ledger import BENCHMARK, Ledger
from orchestrator.storage.places import Places
from orchestrator.storage.presence import driver, send_request
from orchestrator.tracking.projection import EXPERIMENT

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A benchmark in this test's storage, without Ray and MLflow."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "data").symlink_to(data_folder)
    monkeypatch.setattr("orchestrator.search.driver.MLflowTracker", lambda path, uri, artifacts: MemoryTracker(path))

    def run(chosen: Benchmark, runner: MadeRunner) -> Result:
        return benchmark_searches.run_methods(chosen, runner, storage=tmp_path / "s")

    return run


def states(storage: Path, chosen: Benchmark) -> dict[str, str]:
    return {label: ledger.state for label, ledger in members(chosen, Places(storage)).items()}


def test_its_experiment_is_that_of_all_its_searches(run: Run, tmp_path: Path) -> None:
    first = asked_for("pfml", "proxy_anchor").model_copy(update={"experiment": "lab"})
    run(first, MadeRunner())
    more = resolve_benchmark(asked_for("multi_similarity"), find_benchmark(Places(tmp_path / "s"), "b"))
    run(more, MadeRunner())
    ledgers = members(more, Places(tmp_path / "s"))
    assert {label: one.tags.get(EXPERIMENT) for label, one in ledgers.items()} == dict.fromkeys(LEVELS, "lab")


def test_every_method_has_the_same_budget_and_the_verdict_is_sure(run: Run, tmp_path: Path) -> None:
    chosen = asked_for("pfml", "proxy_anchor", "multi_similarity")
    result = run(chosen, MadeRunner())
    assert result.stopped is None
    assert [member.label for member in result.comparison.members] == ["pfml", "proxy_anchor", "multi_similarity"]
    for member in result.comparison.members:
        assert 60 - EPOCHS < member.ledger.epochs <= 60
        assert len(member.tests) == SEEDS == len(member.ledger.finals)
        assert member.ledger.tags[BENCHMARK] == "b"
    verdict = result.comparison.verdict
    assert (
        verdict[0].startswith("Best configuration found: pfml, map_at_r 0.5") and "ahead of proxy_anchor" in verdict[0]
    )
    assert "paired t-test over 5 seeds on these classes, Holm's correction for 3 comparisons" in verdict[0]
    assert all(difference.real for difference in result.comparison.differences)
    html = result.page.read_text("utf-8")
    heads = re.findall(r'<h2 id="(\w+)-title">', html)
    assert heads == ["sizes", "real", "decide", "methods", "budget", "cost", "reproduce"]
    # its page leads to its searches' pages, and they lead back
    links = {link for _, found in Elements(html).tags if (link := found.get("href") or "").endswith("search.html")}
    assert links == {f"../../searches/b-{label}/report/search.html" for label in chosen.labels}
    for link in links:
        own = (result.page.parent / link).resolve()
        back = next(
            found["href"]
            for _, found in Elements(own.read_text("utf-8")).tags
            if "href" in found and "bench" in str(found["href"])
        )
        assert (own.parent / str(back)).resolve() == result.page.resolve()


def test_repeated_searches_make_it_a_verdict_on_methods(run: Run, tmp_path: Path) -> None:
    chosen = asked_for("pfml", "proxy_anchor", budget={"epochs": 18}).model_copy(update={"searches": 3})
    labels = ["pfml", "proxy_anchor", "pfml-2", "proxy_anchor-2", "pfml-3", "proxy_anchor-3"]
    assert list(chosen.labels) == labels
    found = run(chosen, MadeRunner()).comparison
    seeds = {m.label: sorted(m.tests) for m in found.members}
    assert seeds["pfml"] == list(range(5)) and seeds["proxy_anchor-3"] == list(range(2000, 2005))
    values = [statistics.fmean(0.5 + 0.01 * (s % 3) for s in seeds[name]) for name in labels[::2]]
    first, second = found.methods
    assert (first.label, second.label) == ("pfml", "proxy_anchor")
    assert list(first.values.values()) == pytest.approx(values) and first.deviation == pytest.approx(
        statistics.stdev(values)
    )
    (apart,) = found.differences
    assert (apart.seeds, apart.unit, apart.over) == (3, "search", "3 searches") and not deciding_steps(found)
    assert found.verdict[0].startswith("Best method: pfml, map_at_r 0.5") and "over 3 searches" in found.verdict[0]
    assert found.verdict[1].startswith("Searched again with other seeds, pfml finds configurations whose tests have a")
    assert found.verdict[1].endswith("that their training seeds account for.")
    assert not any("configuration found" in line for line in found.verdict)
    conforms("compare", found.output.plain)
    (heads,) = re.findall(r'id="differences-table".*?<thead>(.*?)</thead>', comparison_page(found), re.DOTALL)
    assert "searches" in heads and "seeds" not in heads
    assert run(chosen, again := MadeRunner()).stopped is None and again.ran == []
    with pytest.raises(InputError, match="--searches: 4: benchmark 'b' has 3 of each method; with more after a look"):
        resolve_benchmark(chosen.model_copy(update={"searches": 4}), chosen)
    assert resolve_benchmark(chosen, asked_for("pfml", "proxy_anchor")).searches == 3


def test_two_searches_of_each_method_are_no_verdict(run: Run) -> None:
    chosen = asked_for("pfml", "proxy_anchor", budget={"epochs": 18}).model_copy(update={"searches": 2})
    found = run(chosen, MadeRunner()).comparison
    assert found.verdict[0].startswith("Ahead: pfml, map_at_r 0.5")
    assert found.verdict[0].endswith("that may be chance (a verdict on methods needs 3 searches of each).")


def test_a_line_about_the_data_is_said_once(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all searches on one data set, when they begin and when they go on."""
    monkeypatch.setattr(orchestrator.data.remarks, "remarks", lambda store: ["of the data"])
    chosen = asked_for("pfml", "proxy_anchor", budget={"epochs": 18})
    run(chosen, MadeRunner(stop_after=1))
    assert capsys.readouterr().err.count("note: of the data") == 1
    run(chosen, MadeRunner())
    assert capsys.readouterr().err.count("note: of the data") == 1


def test_once_more_runs_nothing_and_another_method_only_itself(run: Run) -> None:
    chosen = asked_for("pfml", "proxy_anchor")
    run(chosen, MadeRunner())
    again = MadeRunner()
    run(chosen, again)
    assert again.ran == []
    given = Benchmark(name="b", methods=["multi_similarity"])
    more = resolve_benchmark(given, chosen)
    assert list(more.labels) == ["pfml", "proxy_anchor", "multi_similarity"]
    result = run(more, again)
    assert {word.split()[0] for word in again.ran} == {"multi_similarity"}
    assert len(result.comparison.members) == 3


@pytest.mark.parametrize("own_processes", [False, True])
def test_imports_begin_when_no_trial_is_left_to_begin_in_other_processes(
    run: Run, own_processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    runner = MadeRunner(own_processes=own_processes)
    beside = contextlib.nullcontext(lambda: begun.append(runner.ran[-1]))
    monkeypatch.setattr("orchestrator.search.driver.imports_beside", lambda: beside)
    run(asked_for("pfml"), runner)
    trials = [name for name in runner.ran if "final" not in name]
    assert len(trials) > 1 and begun[:1] == ([trials[-1]] if own_processes else [])


class Shown(Display):
    """What the display shows, in order: its lines, and its stages between `<` and `>`."""

    def __init__(self, is_terminal: bool) -> None:
        self.shown = io.StringIO()
        super().__init__(status=cli_terminal.Terminal(file=io.StringIO(), force_terminal=is_terminal).status(""))
        self.console = cli_terminal.Terminal(file=self.shown, force_terminal=is_terminal, width=200)

    def stage(self, doing: str) -> None:
        super().stage(doing)
        print(f"<{doing}>", file=self.shown)


@pytest.mark.parametrize(("kind", "why"), [("training", ""), ("search", ": no loss")])
def test_why_a_single_training_failed_is_told_by_the_last_line_alone(kind: str, why: str) -> None:
    shown = Shown(is_terminal=False)
    ledger, search = SimpleNamespace(kind=kind, selection=""), SimpleNamespace(num_trials=1)
    shown.conductor = SimpleNamespace(ledger=ledger, search=search)  # type: ignore[assignment]
    trial: Any = SimpleNamespace(
        trial_id="0000", kind="trial", state="failed", reason="no loss", best=None, test={}, validations=0
    )
    shown("ended", trial)
    assert shown.shown.getvalue() == f"trial 0000 failed after 0 validations{why}\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_stages_are_told_and_a_test_as_soon_as_it_is_known(
    run: Run, is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.search.driver.write_report", lambda *_: None)
    shown = Shown(is_terminal)
    search = resolve_search(
        {"method": "pfml", "dataset": "glyphs-small", "space": {"alpha": {"low": 0, "high": 6}}, "num_trials": 2},
        name="s",
        source="s.yaml",
        overrides={"epochs": EPOCHS},
    )
    start(search, MadeRunner(own_processes=True), storage=tmp_path / "s", watcher=shown)
    lines = shown.shown.getvalue().splitlines()
    stages = [line for line in lines if line.startswith("<")]
    assert stages == [
        "<reading the data set>",
        "<starting>",
        *([] if is_terminal else ["<starting to train>"]),
        "<writing the pages and the model>",
        "<sending the rest to MLflow>",
    ]
    ended = next(line for line in lines if re.search("final run done", line))
    assert ended.endswith(", test map_at_r 0.5000, recall_at_1 0.9000")
    assert lines.index("<starting>") < lines.index(ended) < lines.index("<writing the pages and the model>")
    status = shown.status
    assert status is not None and status.status == "sending the rest to MLflow ..."


def test_a_search_of_it_keeps_an_equal_budget_and_may_have_more_tests(run: Run, tmp_path: Path) -> None:
    chosen = asked_for("pfml", "proxy_anchor", budget={"epochs": 24}, final_seeds=2)
    run(chosen, MadeRunner())
    storage, runner = tmp_path / "s", MadeRunner()
    part = "'b-pfml' is part of the benchmark 'b'"
    for given, told in (
        ({"num_trials": 9}, f"--num-trials 9: {part}, whose searches have the same budget: give all of them more with: "
                            f"orchestrator benchmark --name b --num-trials 9 --storage {storage}"),
        ({"budget": {"epochs": 60, "hours": None}}, f"--budget epochs=60: {part}, whose searches have the same budget: "
            f"give all of them more with: orchestrator benchmark --name b --budget epochs=60 --budget hours=none "
            f"--storage {storage}"),
        ({"final_seeds": 1}, f"--final-seeds: 1: {part}, which tests each winner over 2 seeds: give as many or more"),
    ):  # fmt: skip
        with pytest.raises(InputError) as refused:
            resume("b-pfml", runner, storage=storage, **given)
        assert str(refused.value) == told
    assert runner.ran == []
    resume("b-pfml", runner, storage=storage, final_seeds=4)
    assert len(runner.ran) == 2
    again = MadeRunner()
    result = run(chosen, again)
    assert again.ran == [] and [len(member.tests) for member in result.comparison.members] == [4, 2]
    assert [difference.seeds for difference in result.comparison.differences] == [2]
    run(resolve_benchmark(Benchmark(name="b", methods=["pfml"], changes={"budget": {"epochs": 48}}), chosen), again)
    assert {word.split()[0] for word in again.ran} == {"pfml", "proxy_anchor"}
    shutil.rmtree(storage / "benchmarks")
    resume("b-pfml", MadeRunner(), storage=storage, budget={"epochs": 90})


def test_stopped_anywhere_it_goes_on(run: Run, tmp_path: Path) -> None:
    chosen = asked_for("pfml", "proxy_anchor", budget={"epochs": 24}, final_seeds=2)
    whole = MadeRunner()
    run(chosen, whole)
    expected = {label: board(ledger) for label, ledger in members(chosen, Places(tmp_path / "s")).items()}
    for stop_after in (3, 30, whole.reports - 1):
        shutil.rmtree(tmp_path / "s" / "searches")
        shutil.rmtree(tmp_path / "s" / "benchmarks")
        stopped = run(chosen, MadeRunner(stop_after))
        assert stopped.stopped == "interrupted" and not stopped.fault
        before = find_benchmark(Places(tmp_path / "s"), "b")
        assert before == chosen
        assert run(before, MadeRunner()).stopped is None
        found = {label: board(ledger) for label, ledger in members(chosen, Places(tmp_path / "s")).items()}
        assert found == expected, stop_after


def board(ledger: Ledger) -> list[tuple[Any, ...]]:
    return [(t.trial_id, t.state, t.best, t.validations, t.params, t.test) for t in ledger.everyone()]


def test_more_budget_goes_to_all(run: Run, tmp_path: Path) -> None:
    chosen = asked_for("pfml", "proxy_anchor")
    run(chosen, MadeRunner())
    before = {label: len(ledger.trials) for label, ledger in members(chosen, Places(tmp_path / "s")).items()}
    more = resolve_benchmark(Benchmark(name="b", methods=["pfml"], changes={"budget": {"epochs": 120}}), chosen)
    again = MadeRunner()
    result = run(more, again)
    for member in result.comparison.members:
        assert len(member.ledger.trials) > before[member.label]
        assert 120 - EPOCHS < member.ledger.epochs <= 120
    assert not any("Budgets differ" in note for note in result.comparison.notes)
    assert run(more, MadeRunner(stop_after=0)).stopped is None  # there is nothing left to do


def test_its_state_is_told_and_what_to_do_next(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words.split(), "--storage", str(tmp_path / "s")])
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out + output.err

    chosen = asked_for("pfml", "proxy_anchor")
    run(chosen, MadeRunner(stop_after=10))
    code, told = ask("status b")
    assert code == 0 and re.search("b-pfml +interrupted", told) and re.search("b-proxy_anchor +to come", told)
    assert "0 of 2 searches done" in told and "the verdict so far:  orchestrator report b" in told
    assert "continue with:  orchestrator resume b --storage" in told
    found = json.loads(ask("status b --json")[1])
    conforms("status", found)
    assert [one["state"] for one in found] == ["interrupted", "to come"]
    conforms("report", json.loads(ask("report b --json")[1]))
    assert "benchmark 'b' is not running; continue with: orchestrator resume b" in ask("stop b")[1]
    monkeypatch.setattr(orchestrator.data.remarks, "remarks", lambda store: ["of the data"])
    code, told = ask("benchmark --name b --budget epochs=90 --dry-run")
    assert (
        code == 0 and re.search(r"\n *pfml .* \d+ trials? ", told) and re.search(r"\n *proxy_anchor .* 0 trials ", told)
    )
    assert "budget of each: epochs 90\n" in told and told.count("note: of the data") == 1
    assert len(told.splitlines()) < 35 and re.search(r"\ntotal: at most [\d.]+ ", told)
    assert find_benchmark(Places(tmp_path / "s"), "b") == chosen
    code, told = ask("search pfml --dataset glyphs-small --num-trials 1 --name b")
    assert (code, told) == (2, "error: --name: 'b' is a benchmark's; choose another name for the search\n")
    run(chosen, MadeRunner())
    assert "benchmark 'b' is done: nothing would run" in ask("benchmark --name b --dry-run")[1]
    told = ask("status b")[1]
    assert "2 of 2 searches done" in told and "the verdict:  " in told and "continue with" not in told
    assert ask("stop b") == (2, "error: stop: benchmark 'b' is not running (it is done)\n")
    assert {one["benchmark"] for one in json.loads(ask("list --json")[1])} == {"b"}
    assert ask("resume b --workers 2") == (
        2,
        "error: --workers: 2: is for one search, and b is a benchmark: resume one of its searches (they are listed by: "
        "orchestrator status b)\n",
    )
    assert "orchestrator benchmark --name b --budget epochs=90" in ask("resume b --budget epochs=90")[1]


def test_it_can_be_stopped_between_two_searches(run: Run, tmp_path: Path) -> None:
    chosen = asked_for("pfml", "proxy_anchor", budget={"epochs": 24}, final_seeds=2)

    def ask_once_begun(label: str, place: int) -> Watcher:
        wait(lambda: driver(Places(tmp_path / "s").benchmark("b")), 60)
        send_request(Places(tmp_path / "s").benchmark("b"), "stop")
        return Watcher()

    result = benchmark_searches.run_methods(chosen, MadeRunner(), storage=tmp_path / "s", watcher=ask_once_begun)
    assert result.stopped == "stopped before its next search" and not result.fault
    assert states(tmp_path / "s", chosen) == {"pfml": "done"}
    assert {path.name for path in (tmp_path / "s" / "benchmarks" / "b").iterdir()} == {"benchmark.json", "report.html"}
    assert run(chosen, MadeRunner()).stopped is None
    assert states(tmp_path / "s", chosen) == {"pfml": "done", "proxy_anchor": "done"}


def test_a_method_that_fails_is_told(run: Run) -> None:
    result = run(asked_for("pfml", "proxy_anchor", num_trials=2), MadeRunner(failing=("proxy_anchor",)))
    assert "proxy_anchor has no result: the loss is NaN." in result.comparison.notes
    assert result.comparison.verdict[0].startswith("Only pfml has a test")
    assert comparison_page(result.comparison)


def test_ccp_is_searched_by_its_shipped_space() -> None:
    search = asked_for("ccp").search("ccp")
    assert search.source == "ccp_bayesian.yaml" and search.num_trials is None and search.final_seeds == SEEDS


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "--methods: missing; give two or more, such as pfml,proxy_anchor"),
        (["--methods", "pfml,proxy_anchor"], "--budget: missing; give each method the same, such as epochs=200"),
        (["--methods", "pfml,proxy_anchr", "--budget", "epochs=40"], "proxy_anchr: no such method or search (did you"),
        (["--methods", "pfml,pfml", "--budget", "epochs=40"], "--methods: pfml, pfml: one is named twice"),
        (["--methods", "pfml,ccp", "--budget", "epochs=4"], "error: --budget: epochs: 4: one trial takes 20 alone"),
        (["--methods", "pfml,ccp", "--budget", "epoch=4"], "--budget: epoch: no such limit (did you mean 'epochs'?)"),
        (["--methods", "pfml,ccp", "--budget", "1", "--set", "delt=1"], "--set: delt"),
        (
            ["--methods", "pfml,proxy_anchor", "--budget", "1", "--set", "delta=0.2"],
            "--set: delta: no such setting of 'proxy_anchor' (see orchestrator settings, orchestrator methods "
            "proxy_anchor); --set is for all of them",
        ),
        (["--methods", "pfml,./no.yaml", "--budget", "1"], "./no.yaml: no such search file"),
        (
            ["--methods", "pfml", "--budget", "epochs=40"],
            "--methods: pfml: give two or more to compare; for one:",
        ),
        (["--methods", "pfml,,ccp", "--budget", "epochs=40"], "--methods: 'pfml,,ccp': a name is missing between its"),
        (["--methods", "pfml,ccp", "--budget", "trials_without_improvement=3"], "--budget: missing; give each method"),
        (
            ["--methods", "ccp,proxy_anchr", "--budget", "epochs=4"],
            "proxy_anchr: no such method or search (did you",
        ),
        (["--name", "../b", "--methods", "pfml"], "--name: '../b' should be letters"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["benchmark", *words, "--storage", str(tmp_path / "s")])
    errors = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2 and len(errors) == 1 and said in errors[0], errors
    assert not (tmp_path / "s").exists()


def test_what_began_stays_as_it_was() -> None:
    before = asked_for("pfml", final_seeds=3)
    for given, said in (
        ({"changes": {"seed": 4}}, "--seed: 4: benchmark 'b' began with none"),
        ({"changes": {"final_seeds": 4}}, "--final-seeds: 4: benchmark 'b' began with 3"),
        ({"overrides": {"epochs": 9}}, "--set epochs: 9: benchmark 'b' began with 6"),
        ({"methods": ["my/pfml.yaml"]}, "--methods: 'pfml' was pfml before"),
    ):
        with pytest.raises(InputError, match=said):
            resolve_benchmark(Benchmark(**({"name": "b", "methods": ["pfml"]} | given)), before)
    assert resolve_benchmark(None, before) == before


# Comparisons -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_told_apart(tmp_path: Path) -> None:
    tests = {"a": [0.52, 0.50, 0.54], "b": [0.51, 0.53, 0.50], "c": [0.20, 0.21, 0.19]}
    found = Comparison.of("x", side_by_side(tmp_path, tests))
    assert found.verdict[0].startswith("Not distinguishable over these seeds: a, map_at_r 0.5200 ± 0.0200 on unseen")
    assert found.verdict[1].startswith("a is better than c (+0.32")
    assert "How many seeds would tell them apart cannot be said from fewer than 4." in found.outlook
    tests = {name: [*values, *(value + 0.01 for value in values)] for name, values in tests.items()}
    (said,) = [line for line in Comparison.of("x", side_by_side(tmp_path / "6", tests)).outlook if "To tell" in line]
    assert re.match(r"To tell a difference as large as that of a and b would take about \d+ seeds \(\d+ to ", said)
    assert said.endswith(", each, with a chance of 80%.")


def test_what_would_decide_it(tmp_path: Path) -> None:
    """Too few seeds for a forecast: five of each; enough: as many as it says, of both; told apart: none."""
    few = Comparison.of("x", side_by_side(tmp_path / "3", {"a": [0.52, 0.50, 0.54], "b": [0.51, 0.53, 0.50]}))
    steps = deciding_steps(few)
    assert [step.what for step in steps] == ["Test a over 5 seeds (2 more)", "Test b over 5 seeds (2 more)"]
    assert all(step.command == "orchestrator resume made --final-seeds 5" for step in steps)
    assert "have 3 seeds in common: at least 4 are needed" in steps[0].why
    assert steps[0].seconds == 2 * 30.0 * 10  # two trainings of ten validations, 30 s each
    near = {"a": [0.520, 0.500, 0.540, 0.530], "b": [0.505, 0.497, 0.520, 0.525]}
    enough = Comparison.of("x", side_by_side(tmp_path / "4", near))
    (difference,) = enough.differences
    needed = seeds_needed(difference, 1)
    assert not difference.real and needed is not None and needed.seeds is not None and 4 < needed.seeds <= 30
    assert {step.command for step in deciding_steps(enough)} == {
        f"orchestrator resume made --final-seeds {needed.seeds}"
    }
    far = {"a": [0.52, 0.50, 0.54, 0.53], "b": [0.22, 0.20, 0.24, 0.231]}
    assert deciding_steps(Comparison.of("x", side_by_side(tmp_path / "5", far))) == []
    level = {"a": [0.52, 0.50, 0.54, 0.53], "b": [0.52, 0.50, 0.54, 0.5299]}
    assert deciding_steps(Comparison.of("x", side_by_side(tmp_path / "6", level))) == []  # hundreds of seeds


def test_effect_sizes_come_with_their_intervals(tmp_path: Path) -> None:
    tests = {"a": [0.52, 0.50, 0.54, 0.53], "b": [0.50, 0.49, 0.52, 0.52]}
    html = comparison_page(Comparison.of("x", side_by_side(tmp_path, tests)))
    apart = [one - other for one, other in zip(*tests.values(), strict=True)]
    mean, spread = statistics.mean(apart), statistics.stdev(apart)
    half = 3.670003 * spread / 2  # Student's t, 3 degrees of freedom, at 3.5%: it is the first look
    (row,) = re.findall(r'id="effects-table".*?<tbody>(.*?)</tbody>', html, re.DOTALL)
    cells = [" ".join(cell.split()) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
    assert cells == [
        "a",
        "b",
        "4",
        *(f"{value:.4f}" for value in (mean, mean - half, mean + half)),
        f"{mean / spread:.2f}",
    ]
    (point,) = figures(html)["effects"]["data"]
    assert point["x"] == [pytest.approx(mean)] and point["meta"] == ["a", "b"]
    assert point["error_x"]["array"] == [pytest.approx(half, rel=1e-4)]
    few = {label: values[:3] for label, values in tests.items()}
    assert "in <wbr>deviations" not in (fewer := comparison_page(Comparison.of("x", side_by_side(tmp_path / "3", few))))
    assert "in deviations" in html and "in deviations" not in fewer


def test_the_outlook_agrees_with_the_verdict(tmp_path: Path) -> None:
    """What cannot be told apart is not said to be settled; and a best at an edge is not said to be the last word."""
    outlook = Comparison.of("x", side_by_side(tmp_path, {"a": [0.52, 0.50, 0.54], "b": [0.51, 0.53, 0.50]})).outlook
    little = [line for line in outlook if "change little" in line]
    unsettled = [line for line in outlook if "widen it" in line or "still rose" in line]
    assert not (little and unsettled)
    assert all("needs more seeds, or more test classes" in line for line in little)


def test_differences_are_told_in_queries(tmp_path: Path) -> None:
    folders = {label: tmp_path / label for label in ("a", "b")}
    ledgers = {}
    for label, value in (("a", 0.55), ("b", 0.52)):
        with MadeSearch(folders[label]) as search:
            source = search.trial([0.5])
            for seed in range(4):
                search.final(source, seed, {"map_at_r": value + 0.001 * (seed % 2), "recall_at_1": value - 0.3})
            search.end()
        ledgers[label] = search.ledger
    found = Comparison.of("x", ledgers)
    assert found.verdict[1] == "Of 1,000 queries 30 more have a right nearest neighbour with a than with b."
    a, b = found.members
    assert in_queries(b, a) == ["Of 1,000 queries 30 fewer have a right nearest neighbour with b than with a."]
    assert in_queries(a, a) == ["Of 1,000 queries as many have a right nearest neighbour with a as with a."]


def test_one_seed_each_may_be_chance(tmp_path: Path) -> None:
    found = Comparison.of("x", side_by_side(tmp_path, {"a": [0.5], "b": [0.4]}))
    assert found.verdict[0].startswith("Ahead: a, map_at_r 0.5000 on unseen classes, before b 0.4000; that may be")


def test_numbers_of_different_things_are_refused(tmp_path: Path) -> None:
    ledgers = side_by_side(tmp_path / "1", {"a": [0.5, 0.6]})
    raw = {"method": "pfml", "dataset": "cars196", "space": {"delta": {"low": 0.1, "high": 0.35}}}
    other = made(tmp_path / "2", [{"delta": 0.2}], lambda p: 0.1, raw=raw)
    with pytest.raises(InputError, match="numbers cannot be compared: dataset: cub200 in 'a', cars196 in 'b'"):
        Comparison.of("x", ledgers | {"b": other})
    on_test = {"settings": {"selection": "test"}, "dataset": "cub200"}
    other = made(tmp_path / "3", [{"delta": 0.2}], lambda p: 0.1, raw=raw | on_test)
    with pytest.raises(InputError, match="selection: validation in 'a', test in 'b'"):
        Comparison.of("x", ledgers | {"b": other})
    other.tags["dataset.digest"], ledgers["a"].tags["dataset.digest"] = "1" * 64, "2" * 64
    with pytest.raises(InputError, match="images of the data set: 222222222222 in 'a', 111111111111 in 'b'"):
        Comparison.of("x", ledgers | {"b": other})


def test_what_else_differs_is_told(tmp_path: Path) -> None:
    one = side_by_side(tmp_path / "1", {"a": [0.5, 0.6]})
    other = side_by_side(tmp_path / "2", {"b": [0.5, 0.6]}, epochs=20)
    notes = Comparison.of("x", one | other, missing=["c"]).notes
    assert "epochs differs: 10 (a), 20 (b)." in notes and "c has not begun." in notes


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_draws_the_comparison(tmp_path: Path) -> None:
    ledgers = side_by_side(tmp_path, {"a": [0.51, 0.53], "b": [0.4, 0.45]})
    path = tmp_path / "comparison.html"
    path.write_text(comparison_page(Comparison.of(HOSTILE, ledgers)), encoding="utf-8")
    seen = opened(path.as_uri(), "--dump-dom", folder=tmp_path)
    assert complaints(seen.stderr) == []
    plots = [found for _, found in Elements(seen.stdout).tags if "plot" in (found.get("class") or "").split()]
    assert len(plots) == 4 and all(found.get("data-drawn") == "yes" for found in plots)


@pytest.mark.slow
def test_a_killed_benchmark_goes_on(terminal: Terminal) -> None:  # noqa: F811
    words = ["benchmark", "--name", "b", "--dataset", "glyphs-small", "--budget", "epochs=6", "--final-seeds", "2"]
    words += ["--set", "epochs=2", "--set", "embedding_dim=8", "--set", "classes_per_batch=8", "--set", "device=cpu"]
    first = terminal.begin(*words, "--methods", "proxy_anchor,multi_similarity")
    wait(lambda: len(terminal.events("b-multi_similarity", "validation")) > 1, 600)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    done = len(terminal.events("b-proxy_anchor"))
    stdout, _ = terminal.run("resume", "b", "--json")
    assert len(terminal.events("b-proxy_anchor")) == done
    verdict = json.loads(stdout.splitlines()[-1])
    conforms("resume", verdict)
    assert {member["label"]: member["state"] for member in verdict["members"]} == {
        "proxy_anchor": "done",
        "multi_similarity": "done",
    }
    assert all(len(member["test"]["seeds"]) == 2 for member in verdict["members"])
    stdout, _ = terminal.run("compare", "b-proxy_anchor", "b-multi_similarity", "--json")
    assert json.loads(stdout)["differences"][0]["difference"] == verdict["differences"][0]["difference"]
