"""Tables for a paper: what is bold, what the columns are called, what the caption says."""

import re
from pathlib import Path

from support.made_searches import MadeSearch, scores

from orchestrator.report.comparison import Comparison
from orchestrator.report.formats import format_of
from orchestrator.storage.ledger import Ledger

LOW, ALIKE, HIGH = [0.50, 0.51, 0.49, 0.50], [0.552, 0.545, 0.556, 0.549], [0.55, 0.551, 0.548, 0.552]


def searched(folder: Path, *values: list[float]) -> Ledger:
    """A search whose trials have these tests, the one chosen on held-out classes first."""
    folder.mkdir(exist_ok=True)
    with MadeSearch(folder) as made:
        for number in range(len(values)):
            made.trial([0.6 - 0.01 * number])
        for number, tests in enumerate(values):
            for seed, test in enumerate(scores(tests)):
                made.final(f"{number:04d}", seed, test)
        made.end()
    return made.ledger


def cells(tex: str) -> list[list[str]]:
    """The lines of a table in LaTeX, heads first, without the rules."""
    lines = [line for line in tex.splitlines() if line.endswith(r"\\")]
    return [[cell.strip() for cell in line.removesuffix(r"\\").split(" & ")] for line in lines]


def bold(tex: str, column: int) -> list[bool]:
    return [line[column].startswith(r"\textbf") for line in cells(tex)[1:]]


def test_bold_are_the_best_and_those_not_told_apart_from_it(tmp_path: Path) -> None:
    tex = format_of("latex").leaderboard(searched(tmp_path, LOW, ALIKE, HIGH))
    heads = cells(tex)[0]
    (place,) = [place for place, head in enumerate(heads) if head.startswith("MAP@R, test")]
    assert bold(tex, place) == [False, True, True]
    assert bold(tex, 0) == [True, False, False], "the one that was chosen"


def test_no_machine_words(tmp_path: Path) -> None:
    ledgers = {"first": searched(tmp_path / "a", HIGH), "second": searched(tmp_path / "b", LOW)}
    compared = format_of("latex").comparison(Comparison.of("c", ledgers))
    for tex in (compared, format_of("latex").leaderboard(ledgers["first"])):
        words = re.sub(r"\\[a-z]+|\\_", lambda found: "_" if found[0] == r"\_" else "", tex)
        words = words.replace("small_cnn", "")  # a backbone's name
        assert "_" not in words and "s/training" not in words and "hours of" not in words
        (caption,) = re.findall(r"\\caption\{(.*)\}", tex)
        assert len(caption) < 260 and "Bold" in caption and "glyphs-small" in caption
    heads, first, second = cells(compared)
    assert [head for head in heads if "test" in head] == ["MAP@R, test", "recall@1, test"]
    assert first[3] == r"\textbf{0.7503 $\pm$ 0.0017}" and second[3] == r"0.7000 $\pm$ 0.0082"


def test_a_comparison_has_recall_for_programs_too(tmp_path: Path) -> None:
    text = format_of("csv").comparison(Comparison.of("c", {"a": searched(tmp_path, HIGH)}))
    assert text.splitlines()[0].startswith("#,search,test map_at_r,test recall_at_1,seeds")
