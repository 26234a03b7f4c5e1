"""The six answers that a page begins with: within its first 150 words, with what qualifies them, and with numbers that
agree with the journal."""

import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.made_pages import PFML_SPACE, made, spread
from support.made_searches import SIZES, MadeSearch, sizes_of
from support.recounted_worlds import WORLDS, make, printed, text_of

from orchestrator.cli.tables import first_and_last
from orchestrator.config.shaping import untrained_key
from orchestrator.report.answers import Answers, answers_of
from orchestrator.report.findings import Findings
from orchestrator.report.formats import format_of
from orchestrator.report.html.search_page import write_page
from orchestrator.report.next_steps import next_steps
from orchestrator.report.summary import summary
from orchestrator.storage.events import Excess
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger

WORDS = 150


def answers(ledger: Ledger, folder: Path | None = None) -> Answers:
    findings = Findings.of(ledger, folder=folder)
    return answers_of(findings, next_steps(findings))


def missing(text: str, wanted: Answers) -> list[str]:
    """What of the answers, the command included, is not among the first words of a text."""
    first = " ".join(text.split()[:WORDS])
    parts = [part for one in wanted.each for part in (one.question, one.whole)]
    parts += [] if wanted.command is None else [wanted.command]
    return [part for part in parts if " ".join(part.split()) not in first]


def page_text(findings: Findings, folder: Path) -> str:
    write_page(findings, folder / "page.html")
    return text_of(folder / "page.html")


def grid(folder: Path) -> Ledger:
    points = [{"delta": delta, "alpha": 1.0, "seed": seed} for delta in (0.1, 0.2, 0.3) for seed in range(3)]
    space = {"delta": [0.1, 0.2, 0.3], "alpha": [1.0]}
    raw = {"method": "pfml", "dataset": "cub200", "space": space, "algorithm": "grid", "seeds": 3}
    return made(
        folder,
        points,
        lambda p: (
            0.5 + p["delta"] - 0.002 * p["seed"] * (p["delta"] > 0.15) + 0.001 * p["seed"] ** 2 * (p["delta"] > 0.25)
        ),
        raw=raw,
    )


def front(folder: Path) -> Ledger:
    raw = {"method": "pfml", "dataset": "cub200", "space": PFML_SPACE, "objectives": ["val/map_at_r", "cost/seconds"]}
    return made(folder, spread(20), raw=raw, pruned=lambda n: n % 3 == 1)


def loss(folder: Path) -> Ledger:
    raw = {"method": "pfml", "dataset": "cub200", "space": PFML_SPACE, "objective": "train/loss"}
    return made(folder, spread(6), raw={**raw, "objective": {"metric": "train/loss", "mode": "min"}})


def on_the_test(folder: Path) -> Ledger:
    raw = {"method": "pfml", "dataset": "cub200", "settings": {"selection": "test"}, "space": PFML_SPACE}
    return made(folder, spread(6), raw=raw, reason="the loss is NaN", end="interrupted", epochs=5)


def learned(folder: Path, before: float = 0.20, test: float = 0.55, gain: bool = True) -> Ledger:
    """Two trials, the better one tested with two seeds, of which the first has a score before its training."""
    with MadeSearch(folder, num_trials=2) as search:
        digest = str(search.ledger.tags.get("dataset.digest"))
        search.trial([0.3, 0.5], beside={"val/recall_at_1": [0.5, 0.7]})
        trial = search.trial([0.4, 0.6], beside={"val/recall_at_1": [0.6, 0.8]})
        for seed in range(2):
            settings = search.search.experiment({**search.params[trial], "seed": seed}).flat()
            score = {
                "key": untrained_key(settings, digest, on_test=True),
                "split": "test",
                "metrics": {"map_at_r": before, "recall_at_1": before + 0.1},
                "intervals": {},
                "of": SIZES["test"],
            }
            apart = test - before
            of = {"metric": "map_at_r", "difference": apart, "low": apart - 0.05, "high": apart + 0.05}
            known: dict[str, Any] = {"untrained": score} | ({"gain": {**of, "up": 50, "classes": 60}} if gain else {})
            more = {} if seed else known
            tested = {"map_at_r": test, "recall_at_1": test + 0.2}
            search.final(trial, seed, tested, **more)
        search.end()
    return search.ledger


LEDGERS: dict[str, Callable[[Path], Ledger]] = {
    "forty trials": lambda folder: made(folder, spread(40)),
    "with finals": lambda folder: made(folder, spread(20), finals={"0005": [0.5, 0.51], "0006": [0.4, 0.41]}),
    "stopped early": lambda folder: made(folder, spread(40), pruned=lambda n: n % 4 == 1, reason="NaN"),
    "runs": lambda folder: made(folder, spread(4), end=None),
    "nothing yet": lambda folder: made(folder, [], end=None),
    "failed": lambda folder: made(folder, spread(1), reason="val/map_at_r is nan at validation 1", end="failed"),
    "chosen on the test": on_the_test,
    "grid": grid,
    "front": front,
    "loss": loss,
    "learned": learned,
    "did not learn": lambda folder: learned(folder, before=0.60),
}


@pytest.mark.parametrize("name", LEDGERS)
def test_a_page_answers_within_its_first_150_words(name: str, tmp_path: Path) -> None:
    ledger = LEDGERS[name](tmp_path)
    findings = Findings.of(ledger, folder=tmp_path)
    wanted = answers(ledger, tmp_path)
    assert missing(page_text(findings, tmp_path), wanted) == []
    first, _ = first_and_last(ledger, Path("runs"), 100, tmp_path)
    assert missing(first.plain, wanted) == []
    assert summary(ledger, tmp_path / "journal.jsonl").answers == [answer.output for answer in wanted.each]
    text = format_of("markdown").leaderboard(ledger).replace("\\", "")
    assert missing(re.sub(r"[*`]|\n- ", " ", text), answers(ledger)) == []


@pytest.mark.parametrize("world", WORLDS)
def test_so_does_each_made_search(world: str, tmp_path: Path) -> None:
    folder = make(tmp_path, "made", **WORLDS[world])
    ledger = Ledger.of(Journal.read(folder / "journal.jsonl"))
    ledger.folder = folder
    assert missing(page_text(Findings.of(ledger, folder=folder), tmp_path), answers(ledger, folder)) == []


def test_answers_below_a_long_text_are_missed(tmp_path: Path) -> None:
    ledger = LEDGERS["with finals"](tmp_path)
    findings = Findings.of(ledger)
    text = page_text(findings, tmp_path)
    assert missing(" ".join([*findings.warnings, *findings.verdict, findings.certainty, text]), answers(ledger))


@pytest.mark.parametrize(
    "of, better",
    [({}, "yes"), ({"before": 0.6}, "no"), ({"before": 0.53}, "not known")],
)
def test_better_than_its_untrained_network(of: Mapping[str, Any], better: str, tmp_path: Path) -> None:
    ledger = learned(tmp_path, **of)
    found, before = answers(ledger), of.get("before", 0.20)
    assert found.better.question == "Is trial 0001 better?"
    assert found.better.text.startswith(f"Than its untrained network (seed 0): {better}. Than trial 0000: not known.")
    (lead, rival), apart = found.leads, 0.55 - before
    assert (lead.place, lead.metric, lead.value) == ("test", "map_at_r", 0.55)
    assert lead.difference == pytest.approx(apart) and lead.queries == round(1000 * (0.75 - before - 0.1))
    assert f"{apart:+.4f} over its untrained network (seed 0) ({abs(lead.queries or 0)} " in found.size.text
    assert f"95% {apart - 0.05:+.4f} to {apart + 0.05:+.4f} over 60 classes" in found.certainty.text
    assert (rival.of, rival.place, rival.queries) == ("trial 0000", "held-out", 100)
    assert rival.difference == pytest.approx(0.1) and "Trial 0000: one seed each" in found.certainty.text
    assert found.measured_on.text == (
        "The test: 60 unseen classes, 1,920 queries of glyphs-small; chosen on 18 held-out classes, 576 queries."
    )
    assert "1 min of training: 2 trials and 2 final runs" in found.cost.text


def test_without_a_table_of_classes_there_is_no_interval(tmp_path: Path) -> None:
    lead = answers(learned(tmp_path, gain=False)).leads[0]
    assert (lead.ends, lead.better) == (None, True) and lead.sure == "no interval, the table of its classes is missing"


def test_what_qualifies_an_answer_stands_before_it(tmp_path: Path) -> None:
    found = answers(on_the_test(tmp_path / "test"))
    assert found.measured_on.whole.startswith("Chosen on the TEST classes: no number is of unseen ones. ")
    assert found.better.whole.startswith("Interrupted: answers may change. ")
    found = answers(made(tmp_path / "untested", spread(4)))
    assert found.size.whole.startswith("Not tested; these classes chose it, so that values are rather too high. Held-")
    lost = answers(made(tmp_path / "lost", spread(4), end=None), tmp_path / "lost")
    assert lost.better.caveat == "Its process is gone, so that answers are of a part."
    with MadeSearch(tmp_path / "few") as search:
        search.trial([0.5])
        search.end()
    ledger = search.ledger
    ledger.sizes["validation"] = sizes_of(4, 40, 0.2)
    assert answers(ledger).measured_on.whole.startswith("The choice is on very little. Chosen on 4 held-out classes")


def test_how_many_trials_tell_how_much_too_high_the_best_is(tmp_path: Path) -> None:
    """The first 500 of more: that is said where the number is read."""
    for read, said in ((3, "as the best of 3:"), (2, "as the best of 2 (the first 2 of 3):")):
        with MadeSearch(tmp_path / str(read)) as search:
            for value in (0.4, 0.6, 0.5):
                search.trial([value])
            search.end()
        ledger = search.ledger
        ledger.trials["0001"].excess = Excess(value=0.0321, trials=read, classes=18)
        assert f"about 0.0321 too high, {said.rstrip(':')}." in answers(ledger).size.caveat
        assert f"being the {said.removeprefix('as the ').rstrip(':')})" in Findings.of(ledger).verdict[0]


def test_the_next_point_of_a_grid(tmp_path: Path) -> None:
    ledger = grid(tmp_path)
    (lead,) = answers(ledger).leads
    values = {
        delta: [trial.best or 0.0 for trial in ledger.trials.values() if trial.params["delta"] == delta]
        for delta in (0.3, 0.2)
    }
    assert lead.of.startswith("the next point (trial 000") and lead.better is True
    assert lead.value == pytest.approx(statistics.fmean(values[0.3]))
    assert lead.difference == pytest.approx(statistics.fmean(values[0.3]) - statistics.fmean(values[0.2]))


def test_a_tested_rival(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lead over the other trial is the difference that is printed, in the direction of the leading trial."""
    for world in ("confirmed", "the tests favour another", "alike", "two seeds"):
        make(tmp_path / world, "made", **WORLDS[world])
        report: Any = printed(capsys, f"report made --storage '{tmp_path / world}' --json")
        lead = report["leads"][-1]
        leader = report.get("favoured", report["best"])["trial_id"]
        both = {leader, lead["of"].removeprefix("trial ")}
        pair = next(d for d in report["differences"] if {d["one"], d["other"]} == both)
        sign = 1 if pair["one"] == leader else -1
        assert lead["difference"] == pytest.approx(sign * pair["difference"])
        if pair["adjusted_p"] is not None:
            ends = sorted(sign * pair[end] for end in ("low", "high"))
            assert [lead["low"], lead["high"]] == pytest.approx(ends)
        assert lead["better"] == (True if pair["real"] else None)
