"""`orchestrator best`: the search file that it makes, what fits into the hours, and what it answers."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.archive_trees import photo
from support.command_line import run
from support.made_record import Floats, drawn_scores, made_search
from support.made_searches import MadeSearch
from support.output_schemas import conforms
from support.own_folders import classes

import orchestrator as dml
from orchestrator.config.files import read_yaml, shipped_searches
from orchestrator.config.resolve import resolve_search
from orchestrator.config.space import parse_space
from orchestrator.data.prepare import prepare
from orchestrator.data.store import Store
from orchestrator.errors import InputError
from orchestrator.networks.backbones import architecture_of
from orchestrator.report.best import BestAnswers, Pretrained, answer_best, best_output
from orchestrator.report.findings import Findings
from orchestrator.search import best_file, pretrained
from orchestrator.search.best import HOURS_TAG, default_name, find_begun, hours_of
from orchestrator.search.best_file import OVERHEAD, FileMaker, Pace, fit_size, plan_best, read_short_list
from orchestrator.search.signals import continued_by
from orchestrator.storage.places import Places
from orchestrator.storage.reading import read_journal

ROWS = Path(__file__).parents[2] / "results" / "rows"
SEEDS = 3
PACES = {"frozen": Pace(1.0, 1.5), "tuned": Pace(10.0, 15.0)}


def test_the_short_list_has_what_the_record_says() -> None:
    listed = read_short_list()
    for method, entry in listed.methods.items():
        row = json.loads((ROWS / f"glyphs-small.{method}" / "row.json").read_text(encoding="utf-8"))
        assert entry.point.keys() == row["params"].keys() - {"lr"}
        for key, value in entry.point.items():
            assert value == pytest.approx(row["params"][key], rel=0.02), (method, key)
        space = parse_space(dict(read_yaml(shipped_searches()[method])["space"]), "space", {"method": method})
        assert space.part(entry.point) == {key: pytest.approx(value) for key, value in entry.point.items()}
    for backbone in listed.backbones:
        assert architecture_of(backbone).pretrained is not None


# What fits into the hours ------------------------------------------------------------------------------------------


@given(st.floats(1, 1e6), st.floats(0.01, 100), st.floats(1, 50), st.integers(1, 16))
def test_what_is_planned_fits(seconds: float, frozen: float, times: float, at_once: int) -> None:
    paces = {"frozen": Pace(frozen, 1.5 * frozen), "tuned": Pace(times * frozen, 1.5 * times * frozen)}
    try:
        size = fit_size(seconds, paces, at_once, SEEDS)
    except InputError as error:
        needed = float(str(error).split("about ")[1].split()[0]) * 3600
        assert needed > seconds and fit_size(needed, paces, at_once, SEEDS).epochs >= best_file.MIN_EPOCHS
        return
    dearest = max(paces[recipe].trial for recipe in size.recipes)
    assert size.last_trials == pytest.approx(size.epochs * dearest)
    assert size.final_runs >= size.epochs * 1.5 * dearest * math.ceil(SEEDS / at_once) - 1e-6
    assert size.search >= best_file.LENGTHS * size.epochs * dearest - 1e-6
    assert size.search + size.last_trials + size.final_runs + OVERHEAD == pytest.approx(seconds)


def test_what_does_not_fit_is_left_out_before_all_is_refused() -> None:
    assert fit_size(4000, PACES, 2, SEEDS).recipes == ("frozen", "tuned")
    assert fit_size(160, PACES, 2, SEEDS).recipes == ("frozen",)
    with pytest.raises(InputError, match=r"--budget: hours: too short .* about 0\.0[0-9]+ hours are needed"):
        fit_size(70, PACES, 2, SEEDS)
    assert fit_size(4000, PACES, 2, SEEDS, epochs=5).epochs == 5
    assert fit_size(1e6, PACES, 2, SEEDS).epochs == best_file.MAX_EPOCHS


# The file ----------------------------------------------------------------------------------------------------------


def measured(experiments: list[Any], *_: Any) -> list[Pretrained]:
    return [Pretrained(one.training.backbone, 0.3, {"map_at_r": 0.2}, {}) for one in experiments]


@pytest.fixture
def places(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A storage with the small glyphs, in which networks are measured and timed at once."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "data").symlink_to(data_folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(best_file, "measure_pretrained", measured)
    monkeypatch.setattr(FileMaker, "paces", lambda self, backbones: PACES)
    return Places(tmp_path / "runs")


def planned(places: Places, hours: float = 2.0, **overrides: Any) -> best_file.BestSearch:
    return plan_best(
        "glyphs-small",
        hours,
        places,
        name="best-glyphs-small",
        overrides=overrides,
        at_once=2,
        say=print,
        stage=lambda doing: None,
    )


def test_the_file_searches_over_methods_and_recipes(places: Places) -> None:
    made = planned(places)
    search = made.search
    assert search.methods == list(read_short_list().methods) == made.plan.methods
    assert search.final_seeds == SEEDS and search.final_trials == 1
    assert 3600 * search.budget.limits()["hours"] == pytest.approx(made.plan.seconds_of_the_search, abs=1)
    assert 3600 * search.budget.limits()["hours"] + made.plan.seconds_of_the_final_runs < 3600 * made.plan.hours
    first = search.learn_from[: len(search.methods)]
    assert {point["method"] for point in first} == set(search.methods), "each method is tried first"
    assert len({point["augmentation"] for point in first}) == 2
    for point in search.learn_from:
        experiment = search.experiment(point)
        assert (experiment.training.warmup_epochs == made.plan.epochs) == (point["augmentation"] == "none")
    again = resolve_search(yaml_of(made.plan.file, places.storage), name="again", source="again.yaml")
    assert again.content() == search.content()
    conforms("best", made.plan.plain)


def yaml_of(text: str, folder: Path) -> dict[str, Any]:
    (folder / "again.yaml").write_text(text)
    return dict(read_yaml(folder / "again.yaml"))


def test_what_is_fixed_is_not_searched(places: Places) -> None:
    search = planned(places, method="triplet", backbone="mobilenet_v2", epochs=4, lr=0.002).search
    assert search.methods == ["triplet"] and search.settings["backbone"] == "mobilenet_v2"
    assert search.settings["lr"] == 0.002 and search.example().training.epochs == 4
    assert {one.key for one in search.parameters()}.isdisjoint({"method", "backbone", "lr", "epochs"})
    with pytest.raises(InputError, match=r"--set: epoch: no such setting .*did you mean"):
        planned(places, epoch=4)
    with pytest.raises(InputError, match="--set: method: 'tripel': has no shipped search"):
        planned(places, method="tripel")


def test_few_classes_are_held_out_in_larger_part_and_too_few_are_refused(glyphs: Store, tmp_path: Path) -> None:
    photo(classes(tmp_path / "few", "abcdefghijkl") / "a" / "wide.png", 99, (40, 20))
    few = prepare("folder", tmp_path / "few", tmp_path / "data", name="few")
    made = FileMaker(read_short_list(), "few", few, {})
    assert made.settings["validation_share"] == 0.5 and not made.drawn
    assert made.augmentation("frozen") == "random_crop_224"
    assert "validation_share" not in FileMaker(read_short_list(), "glyphs-small", glyphs, {}).settings


# A search that has begun -------------------------------------------------------------------------------------------


def begun_search(places: Places, scores_CS: Floats, **more: Any) -> str:
    """A finished search of 1.2 hours, that was given 2."""
    tags = {HOURS_TAG: "2"}
    changes = {"budget": {"hours": 1.2}, "final_seeds": SEEDS, **more}
    return made_search(places, "proxy_anchor", scores_CS, name="best-glyphs-small", tags=tags, **changes)


def test_more_hours_are_for_the_search_and_fewer_change_nothing(places: Places) -> None:
    assert find_begun("best-glyphs-small", "glyphs-small", places) is None
    name = begun_search(places, drawn_scores({"a": 0.0}, seeds=SEEDS)["a"])
    begun = find_begun(name, "glyphs-small", places)
    assert begun is not None and begun.hours == pytest.approx(2) and begun.searching == 1.2
    assert begun.more(2.0) == {} and begun.more(1.0) == {}
    assert begun.more(5.0) == {"hours": pytest.approx(4.2)}
    used = replace(begun, ledger=replace(begun.ledger, elapsed=3600 * 1.9))
    with pytest.raises(
        InputError, match=r"--budget: hours: 2\.5: best-glyphs-small has used 1\.9 and keeps 0\.8 for fin"
    ):
        used.more(2.5)
    assert used.more(2.0) == {} and used.more(2.8) == {"hours": pytest.approx(2.0)}
    with pytest.raises(InputError, match=r"--name 'best-glyphs-small': is a search of the data set glyphs-small"):
        find_begun(name, "glyphs", places)
    made_search(places, "pfml", drawn_scores({"a": 0.0}, seeds=SEEDS)["a"], name="other", final_seeds=SEEDS)
    with pytest.raises(InputError, match="is a search that this command has not begun"):
        find_begun("other", "glyphs-small", places)


# The answers -------------------------------------------------------------------------------------------------------


def answers(places: Places, trained: float, classes: int = 20) -> tuple[BestAnswers, list[Pretrained], Any]:
    """Of a search whose tests are so much above the pre-trained network, in truth."""
    scores = drawn_scores({"trained": trained, "bare": 0.0}, classes=classes, seeds=SEEDS)
    name = begun_search(places, scores["trained"])
    ledger = read_journal(places.journal(name))[1]
    bare = scores["bare"][:, 0]
    by_class = {"map_at_r": {f"class {label}": float(score) for label, score in enumerate(bare)}}
    network = Pretrained("resnet50", 0.4, {"map_at_r": float(bare.mean()), "recall_at_1": 0.5}, by_class)
    return answer_best(Findings.of(ledger), [network]), [network], ledger


@pytest.mark.parametrize(("trained", "worth", "word"), [(0.1, True, "Yes."), (-0.1, False, "No:"), (0.0, None, "Not")])
def test_whether_it_is_worth_it_is_said_as_it_is(places: Places, trained: float, worth: bool | None, word: str) -> None:
    result, networks, ledger = answers(places, trained)
    assert result.worth_it is worth
    assert result.between is not None and result.between.ends is not None and result.between.classes == 20
    low, high = result.between.ends
    assert result.between.mean == pytest.approx(result.test["map_at_r"] - networks[0].test["map_at_r"])
    assert low < trained + 0.02 and high > trained - 0.02
    assert ((low > 0) if worth else (high < 0) if worth is False else (low < 0 < high)) is True
    first, model, quality, day = (reply.answer for reply in result.replies)
    assert first.startswith(word) and "over 20 classes and 3 seeds" in first and f"{low:+.4f} to {high:+.4f}" in first
    assert "0000, the best of 3 trials" in model and "proxy_anchor" in model
    assert "95% over 20 classes and 3 seeds" in quality
    assert day.startswith("Cannot be said from 3 results")
    conforms("best", best_output(ledger, result, networks, None).plain)


def test_the_difference_is_that_of_the_classes(places: Places) -> None:
    """Planted: with the classes' means in another order the mean is the same, and the interval far wider."""
    result, (network,), ledger = answers(places, 0.1)
    means = network.by_class["map_at_r"]
    order = dict(zip(means, np.roll(list(means.values()), 7).tolist(), strict=True))
    wrong = answer_best(Findings.of(ledger), [Pretrained("x", 0.4, network.test, {"map_at_r": order})])
    assert result.between is not None and wrong.between is not None
    assert wrong.between.mean == pytest.approx(result.between.mean)
    assert wrong.between.estimate is not None and result.between.estimate is not None
    assert wrong.between.estimate.error > 2 * result.between.estimate.error


def test_without_a_network_or_a_test_nothing_is_claimed(places: Places) -> None:
    _, (network,), ledger = answers(places, 0.1)
    assert answer_best(Findings.of(ledger), []).replies[0].answer.startswith("Not known")
    untested = begun_ledger(places)
    first, model, quality, day = (reply.answer for reply in answer_best(Findings.of(untested), [network]).replies)
    assert first == "Not known: no trial has a result yet." and model.startswith("None")
    assert quality.startswith("Not known") and day.startswith("Cannot be said")


def begun_ledger(places: Places) -> Any:
    with MadeSearch(places.search("empty")) as made:
        return made.ledger


# The command -------------------------------------------------------------------------------------------------------


def test_wrong_words_are_told_in_a_line(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert places.storage.exists()
    classes(Path("photos"), "abcdef")
    Path("my photos (2)").mkdir()
    for command, said in {
        "best glyphs-small": "--budget: missing; say how many hours it may take, such as hours=2",
        "best glyphs-small --budget hour=2": "--budget: hour: no such limit (did you mean 'hours'?)",
        "best glyphs-small --budget epochs=2": "--budget: epochs: only hours can be given here: hours=2",
        "best glyphs-small --budget hours=0": "--budget: hours: 0: should be a number of hours above 0",
        "best glyph-small --budget 1": "DATASET: 'glyph-small' is neither a data set nor a folder of pictures (did "
        "you mean 'glyphs-small'?)",
        "best photos --budget 1 --dry-run": "DATASET: photos is a folder of pictures; make a data set of it first: "
        "orchestrator datasets prepare folder --source photos --name photos",
        "best 'my photos (2)' --budget 1 --dry-run": "DATASET: my photos (2) is a folder of pictures; make a data "
        "set of it first: orchestrator datasets prepare folder --source 'my photos (2)' --name my-photos-2",
        "best cub200 --budget 1": "data set 'cub200' is not prepared in ",
        "best glyphs-small --budget 0.02": "--budget: hours: too short for a search with 3 final runs of 3 epochs",
    }.items():
        ran = run(capsys, command)
        assert ran.code == 2 and ran.err.splitlines()[-1].startswith(f"error: {said}"), (command, ran.err)
    assert not (places.storage / "searches").exists()
    ran = run(capsys, "best photos --budget 1")
    assert ran.code == 2 and "photos: 6 classes, of which 3 test: too few" in ran.err
    assert (places.data / "photos").is_dir(), "it was prepared, as datasets prepare does"
    (places.data / "photos").rename(places.storage / "photos")


def test_a_dry_run_says_what_runs_and_begins_nothing(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(capsys, "best glyphs-small --budget hours=2 --dry-run")
    assert ran.code == 0 and "30 epochs" in ran.out and "3 final runs" in ran.out
    text = ran.out.partition("the search file:\n")[2]
    assert resolve_search(yaml_of(text, places.storage), name="x", source="x").final_seeds == SEEDS
    assert not (places.storage / "searches").exists()
    begun_search(places, drawn_scores({"a": 0.0}, seeds=SEEDS)["a"])
    ran = run(capsys, "best glyphs-small --budget hours=3 --dry-run")
    assert ran.out == "best-glyphs-small has 2 hours and is done: it searches on\n"
    conforms("best", json.loads(run(capsys, "best glyphs-small --budget hours=3 --dry-run --json").out))
    ran = run(capsys, "best glyphs-small --budget hours=2 --set lr=1e-3")
    assert ran.code == 2 and "--set: lr=1e-3: best-glyphs-small has begun with other settings" in ran.err


def test_a_finished_search_is_answered_from_what_is_there(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its model cannot be exported: that costs no answer."""
    scores = drawn_scores({"trained": 0.1, "bare": 0.0}, seeds=SEEDS)
    name = begun_search(places, scores["trained"])
    means = {"map_at_r": {f"class {label}": float(one) for label, one in enumerate(scores["bare"][:, 0])}}
    test = {"map_at_r": float(scores["bare"][:, 0].mean())}
    monkeypatch.setattr(pretrained, "measure_pretrained", lambda *_: [Pretrained("resnet50", 0.4, test, means)])
    ran = run(capsys, "best glyphs-small --budget hours=2")
    assert "is done, within 2 hours" in ran.err and "Is fine-tuning worth it? Yes." in ran.out
    assert "It was not exported: 'best-glyphs-small': there is no model" in " ".join(ran.out.split())
    assert ran.code == 2 and ran.err.splitlines()[-1].startswith("error: 'best-glyphs-small': there is no model")
    ran = run(capsys, "best glyphs-small --budget hours=2 --json")
    printed = json.loads(ran.out.splitlines()[-1])
    conforms("best", printed)
    result = dml.best("glyphs-small", budget={"hours": 2}, storage=places.storage, progress=False)
    assert result.plain == printed and printed["worth_it"] is True and printed["exported"] is None
    assert result.search == name and repr(result).startswith("Is fine-tuning worth it? Yes.")
    with pytest.raises(InputError, match=r"settings: lr: 1: best-glyphs-small has begun with other settings"):
        dml.best("glyphs-small", budget={"hours": 2}, settings={"lr": 1}, storage=places.storage, progress=False)


def test_an_interrupt_at_the_end_names_the_command_that_gives_the_answers(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within a search, which by itself would name `resume`."""

    def interrupted(*_: object) -> None:
        with continued_by("orchestrator resume best-glyphs-small"):
            raise KeyboardInterrupt

    begun_search(places, drawn_scores({"a": 0.0}, seeds=SEEDS)["a"])
    monkeypatch.setattr("orchestrator.search.best.go_on_best", interrupted)
    ran = run(capsys, "best glyphs-small --budget hours=3")
    assert ran.code == 130 and "resume" not in ran.err
    assert "interrupted; continue with:  orchestrator best glyphs-small --budget hours=3" in ran.err


def test_hours_are_a_number() -> None:
    assert hours_of({"hours": 2}) == 2.0
    for wrong in ("x", True, -1, math.inf):
        with pytest.raises(InputError, match="should be a number of hours"):
            hours_of({"hours": wrong})
    assert default_name("s3://bucket/birds/") == "best-birds"
