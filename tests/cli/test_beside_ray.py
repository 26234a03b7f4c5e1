"""Ray starts while a search is read: what is wrong with the search is told first, if possible without a start."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.made_pages import made, spread

from orchestrator import plugins
from orchestrator.cli import starting
from orchestrator.cli.main import main
from orchestrator.config.search import Search
from orchestrator.errors import ClusterFailed, InputError
from orchestrator.execution import ray_start
from orchestrator.storage.places import JOURNAL
from orchestrator.storage.presence import show_driver


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened to the cluster, which is a made one."""
    happened: list[str] = []

    @contextlib.contextmanager
    def own_cluster(ray_output: bool) -> Iterator[None]:
        happened.append("started")
        try:
            yield
        finally:
            happened.append("ended")

    monkeypatch.setattr(ray_start, "own_cluster", own_cluster)
    monkeypatch.setattr(starting, "_ray_runs", lambda: False)
    return happened


def found() -> Search:
    return Search(name="s", source="s", raw_space={}, settings={"method": "pfml"})


def test_a_search_is_given_while_the_cluster_runs(began: list[str]) -> None:
    with starting.beside_ray(found, None, False) as search:
        assert search == found() and began == ["started"]
    assert began == ["started", "ended"]


@pytest.mark.parametrize(("own_checks", "times"), [(False, 1), (True, 2)])
def test_a_search_is_resolved_once_but_for_own_checks_of_its_method(
    began: list[str], own_checks: bool, times: int
) -> None:
    calls = []

    def resolve() -> Search:
        calls.append(1)
        if own_checks and plugins._unchecked is not None:
            plugins._unchecked.add("pfml")
        return found()

    with starting.beside_ray(resolve, None, False) as search:
        assert search == found()
    assert len(calls) == times


def test_a_cluster_at_an_address_is_not_ours_to_start(began: list[str]) -> None:
    with starting.beside_ray(found, "host:6379", False):
        pass
    assert began == []


def test_a_fault_that_shows_at_once_starts_nothing(began: list[str]) -> None:
    def refuse() -> Search:
        raise InputError("delta: -1")

    with pytest.raises(InputError, match="delta"), starting.beside_ray(refuse, None, False):
        raise AssertionError
    assert began == []


def refuse_later() -> Search:
    """As a method does by checks of its own: its fields alone accept it."""
    if plugins._unchecked is None:
        raise InputError("delta: does not fit alpha")
    plugins._unchecked.add("pfml")
    return found()


def test_a_fault_that_a_method_tells_ends_the_cluster(began: list[str]) -> None:
    with pytest.raises(InputError, match="does not fit"), starting.beside_ray(refuse_later, None, False):
        raise AssertionError
    assert began == ["started", "ended"]


def test_a_cluster_that_does_not_start_is_told_after_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def own_cluster(ray_output: bool) -> Iterator[None]:
        raise ClusterFailed("no room")
        yield

    monkeypatch.setattr(ray_start, "own_cluster", own_cluster)
    monkeypatch.setattr(starting, "_ray_runs", lambda: False)
    with pytest.raises(ClusterFailed, match="no room"), starting.beside_ray(found, None, False):
        raise AssertionError
    with pytest.raises(InputError, match="does not fit"), starting.beside_ray(refuse_later, None, False):
        raise AssertionError


def interrupted(storage: Path, name: str) -> Path:
    folder = storage / "searches" / name
    made(folder, spread(3), end=None)
    return folder


def test_a_resume_starts_it_where_something_is_left_to_train(
    began: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a search that has ended, that runs, or whose journal is damaged; nor if a change may be refused."""

    def resumed(*words: str) -> list[str]:
        began.clear()
        with pytest.raises(SystemExit):
            main(["resume", *words, "--storage", str(tmp_path)])
        return began

    monkeypatch.setattr("orchestrator.search.driver.resume", refuse_later)
    folder = interrupted(tmp_path, "left")
    assert resumed("left") == ["started", "ended"]
    assert resumed("left", "--num-trials", "4") == [] and resumed("left", "--address", "host:6379") == []
    show_driver(folder)
    assert resumed("left") == []
    made(tmp_path / "searches" / "whole", spread(3))
    assert resumed("whole") == [] and resumed("nowhere") == []
    (interrupted(tmp_path, "damaged") / JOURNAL).write_text("{half\n", encoding="utf-8")
    assert resumed("damaged") == []


def test_repeats_and_benchmarks_start_it_too(began: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise InputError("refused")

    def command(*words: str) -> list[str]:
        began.clear()
        with pytest.raises(SystemExit):
            main([*words, "--dataset", "glyphs-small", "--storage", str(tmp_path)])
        return began

    monkeypatch.setattr("orchestrator.search.driver.start", refused)
    monkeypatch.setattr("orchestrator.search.benchmark_searches.run_methods", refused)
    assert command("train", "--method", "pfml", "--repeats", "2") == ["started", "ended"]
    assert command("train", "--method", "pfml") == []
    assert command("train", "--method", "pfml", "--repeats", "2", "--set", "delta=-1") == []
    assert command("benchmark", "--methods", "pfml,proxy_anchor", "--num-trials", "1") == ["started", "ended"]
    assert command("benchmark", "--methods", "nope,pfml", "--num-trials", "1") == []
    made(tmp_path / "searches" / "used", spread(3))
    assert command("train", "--method", "pfml", "--repeats", "2", "--name", "used") == []
    for words in (
        ("train", "--method", "pfml", "--repeats", "2"),
        ("benchmark", "--methods", "pfml,proxy_anchor", "--num-trials", "1"),
    ):
        assert command(*words, "--tracking-uri", "htp://host") == []


def test_reading_a_search_once_more_imports_nothing(tmp_path: Path) -> None:
    """The first reading is without torch, once there is a record of the methods."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom orchestrator.cli import starting\n"
        "read = lambda: starting.read_request('demo', 's', None, None, [], {}, Path('runs'))\n"
        "print(starting.first_look(read) is not None, 'torch' in sys.modules)"
    )
    environment = os.environ | {"ORCHESTRATOR_CACHE": str(tmp_path / "cache")}
    for torch in ("True", "False"):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["True", torch]


def test_results_are_shown_while_the_output_of_ray_is_hidden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = made(tmp_path, spread(3))
    results = starting.Results(tmp_path, as_json=False)
    with ray_start.quiet_ray(ray_output=False):
        print("a line of Ray's")
        results(ledger)
    results.ensure(ledger)
    shown = capsys.readouterr()
    assert shown.out.count("what to run next") == 1 and "a line of Ray's" not in shown.out
    assert shown.err == ""
