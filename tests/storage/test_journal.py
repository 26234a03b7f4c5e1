"""Journals that are damaged: none is read wrongly without a word, and none ends in a traceback."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.driven_studies import EPOCHS, drive, search_of, start
from support.made_pages import made, spread
from support.recorded import events_of

from orchestrator.errors import InputError
from orchestrator.report.formats import format_of
from orchestrator.report.summary import summary
from orchestrator.search.journal_repair import cut
from orchestrator.storage import records
from orchestrator.storage.events import FORMAT
from orchestrator.storage.journal import Journal, JournalError
from orchestrator.storage.leaderboard import leaderboard_rows
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.reading import read_journal

Lines = list[bytes]
Damage = Callable[[Lines, Lines, random.Random], Lines]


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lines, Lines]:
    """The lines of a search's journal, and those of another with the same course."""
    folder = tmp_path_factory.mktemp("journals")
    made(folder / "a", spread(6), epochs=4, pruned=lambda n: n % 3 == 1, finals={"0000": [0.5, 0.51]})
    made(folder / "b", [*spread(7)[1:]], epochs=4, pruned=lambda n: n % 3 == 1, finals={"0000": [0.6, 0.61]})
    first, second = ((folder / name / "journal.jsonl").read_bytes().splitlines(keepends=True) for name in "ab")
    return first, second


def without_sums(lines: Lines) -> Lines:
    """As earlier versions wrote them."""
    return [line[: line.rindex(b', "sum"')] + b"}\n" for line in lines]


def delete(lines: Lines, other: Lines, rng: random.Random) -> Lines:
    where = rng.randrange(len(lines) - 1)
    return lines[:where] + lines[where + rng.choice((1, 1, 2, 5)) :]


def swap(lines: Lines, other: Lines, rng: random.Random) -> Lines:
    one, two = rng.sample(range(len(lines)), 2)
    lines[one], lines[two] = lines[two], lines[one]
    return lines


def repeat(lines: Lines, other: Lines, rng: random.Random) -> Lines:
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return lines


def paste(lines: Lines, other: Lines, rng: random.Random) -> Lines:
    """A line of another search, in the same place: its number is right, and so is its own sum."""
    where = rng.randrange(len(lines))
    lines[where] = other[where]
    return lines


def flip(lines: Lines, other: Lines, rng: random.Random) -> Lines:
    content = bytearray(b"".join(lines))
    for _ in range(rng.choice((1, 1, 2))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return [bytes(content)]


def cut_out(lines: Lines, other: Lines, rng: random.Random) -> Lines:
    """Some bytes in the middle are gone, or all from there on."""
    content = b"".join(lines)
    where = rng.randrange(1, len(content) - 1)
    return [content[:where] + content[where + rng.randrange(1, 300) :] if rng.random() < 0.5 else content[:where]]


def edit(lines: Lines, other: Lines, rng: random.Random) -> Lines:
    """One digit of a number is another."""
    content = bytearray(b"".join(lines))
    where = rng.choice([place for place, byte in enumerate(content) if chr(byte).isdigit()])
    content[where] = rng.choice([digit for digit in b"0123456789" if digit != content[where]])
    return [bytes(content)]


def zero(lines: Lines, other: Lines, rng: random.Random) -> Lines:
    content = bytearray(b"".join(lines))
    where, length = rng.randrange(len(content)), rng.choice((1, 16, 512))
    content[where : where + length] = bytes(min(length, len(content) - where))
    return [bytes(content)]


WRONG: list[Any] = [None, True, -1, 1.5, 10**30, "", "x", [], {}, [[1]], {"a": {}}, "NaN", 1e308, "\x1b[31m", "../x"]


def fields(value: Any) -> Iterator[tuple[Any, Any]]:
    """All places in a value, each as its container and key."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from fields(value[key])


def mistype(lines: Lines, other: Lines, rng: random.Random) -> Lines:
    """A field of a line has another type, or is not there; the sum stays."""
    where = rng.randrange(len(lines))
    record = json.loads(lines[where])
    container, key = rng.choice([*((record, key) for key in record), *fields(record)])
    if isinstance(container, dict) and rng.random() < 0.2:
        del container[key]
    else:
        container[key] = rng.choice(WRONG)
    lines[where] = json.dumps(record).encode() + b"\n"
    return lines


STRUCTURAL: dict[str, Damage] = {"delete": delete, "swap": swap, "repeat": repeat}
"""Of whole lines."""
EVERY: dict[str, Damage] = STRUCTURAL | {
    "cut out": cut_out,
    "paste": paste,
    "flip": flip,
    "edit": edit,
    "zero": zero,
    "mistype": mistype,
}


def shown(ledger: Ledger) -> Any:
    winner = ledger.winner()
    return leaderboard_rows(ledger), winner and winner.trial_id


def place(folder: Path, lines: Lines, events: int, search_id: str = "id") -> Path:
    """A search's folder with this journal, all of whose events were sent to MLflow before it was damaged."""
    folder.mkdir(parents=True, exist_ok=True)
    sent = {"search_id": search_id, "events": events, "offset": 1, "experiment_id": "1", "parent_run_id": "1"}
    (folder / "tracking-0.json").write_text(json.dumps(sent | {"trials": {}, "tracking_uri": "http://x"}))
    path = folder / "journal.jsonl"
    path.write_bytes(b"".join(lines))
    return path


def silent(
    searches: tuple[Lines, Lines],
    folder: Path,
    kinds: dict[str, Damage],
    seed: int,
    number: int,
    *,
    noted: bool = False,
) -> list[str]:
    """Of so many damaged journals, those that were read as something else without a word (`noted`: or with the note
    that there are no checksums)."""
    lines, other = searches
    folder.mkdir()
    truth = shown(read_journal(place(folder, lines, len(lines)))[1])
    rng, found = random.Random(seed), []
    told: list[tuple[str, str]] = []
    for turn in range(number):
        name = list(kinds)[turn % len(kinds)]
        path = place(folder, kinds[name](list(lines), list(other), rng), len(lines))
        try:
            ledger = read_journal(path)[1]
        except InputError as error:
            told.append((f"{path}:", str(error)))
            continue
        if shown(ledger) != truth and not (noted and "without checksums" in ledger.notes[0]):
            found.append(f"{name} {seed} {turn}")
        format_of("csv").leaderboard(ledger), json.dumps(summary(ledger, path).plain)
        if turn % 10 < 2:
            format_of("markdown").leaderboard(ledger)
    for where, message in told:
        assert message.startswith(where), message
        assert "\n" not in message and len(message) < 1000
    return found


@pytest.mark.parametrize("seed", range(4))
def test_no_damage_is_silent(searches: tuple[Lines, Lines], tmp_path: Path, seed: int) -> None:
    assert silent(searches, tmp_path / "new", EVERY, seed, 450) == []


@pytest.mark.parametrize("seed", range(2))
def test_an_old_journal_is_checked_as_far_as_it_can_be(searches: Any, tmp_path: Path, seed: int) -> None:
    old = without_sums(searches[0]), without_sums(searches[1])
    assert silent(old, tmp_path / "whole lines", STRUCTURAL, seed, 120) == []
    assert silent(old, tmp_path / "changed", EVERY, seed, 270, noted=True) == []
    assert "without checksums" in read_journal(place(tmp_path / "old", old[0], 0))[1].notes[0]
    assert read_journal(place(tmp_path / "new", searches[0], 0))[1].notes == []


def test_an_old_journal_that_was_gone_on_with_is_covered_by_its_first_sum(searches: Any, tmp_path: Path) -> None:
    lines = without_sums(searches[0])
    path = place(tmp_path / "s", lines, 0)
    with Journal(path) as journal:
        journal.append("note", text="resumed")
    assert read_journal(path)[1].notes == []
    both = path.read_bytes().splitlines(keepends=True), searches[1]
    kinds = EVERY | {"paste": swap}
    assert silent(both, tmp_path / "both", kinds, 3, 180) == []


def unchained(before: records.Position, content: bytes) -> str:
    """Each line's sum is its own."""
    return "0" * 8 + f"{hash(content) & 0xFFFFFFFF:08x}"


PLANTED: dict[str, tuple[Callable[..., str], str]] = {
    "sums that do not look at the content": (lambda before, content: "0" * 16, "edit"),
    "sums without a chain": (unchained, "paste"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_what_the_checks_are_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    """With a planted bug, damage is silent."""
    sum_, kind = PLANTED[bug]
    monkeypatch.setattr(records, "_sum", sum_)
    both = []
    for name, points in (("a", spread(4)), ("b", spread(5)[1:])):
        made(tmp_path / name, points, epochs=3)
        both.append((tmp_path / name / "journal.jsonl").read_bytes().splitlines(keepends=True))
    assert silent((both[0], both[1]), tmp_path / "s", {kind: EVERY[kind]}, 0, 60)


def test_a_sum_that_is_gone_is_missed(searches: tuple[Lines, Lines], tmp_path: Path) -> None:
    lines = list(searches[0])
    lines[-1:] = without_sums(lines[-1:])
    path = place(tmp_path / "s", lines, 0)
    with pytest.raises(JournalError, match=rf"journal\.jsonl:{len(lines)}: .* it has no checksum"):
        Journal.read(path)


@pytest.mark.parametrize(
    "line",
    [b"[" * 100_000, b'{"event": "note", "seq": 1, "time": 1, "text": NaN}', b"{" + b'"a":{' * 50_000, b"1" * 5000],
)
def test_a_line_that_no_reader_likes(searches: tuple[Lines, Lines], tmp_path: Path, line: bytes) -> None:
    path = place(tmp_path / "s", [searches[0][0], line + b"\n", *searches[0][2:]], 0)
    with pytest.raises(JournalError, match=r"journal\.jsonl:2: corrupt journal line: .*; line 1 is intact"):
        Journal.read(path)


def test_text_with_half_a_character_is_recorded(tmp_path: Path) -> None:
    """A file's name that is no UTF-8, in a trial's reason."""
    with Journal(tmp_path / "journal.jsonl") as journal:
        stored = journal.append("note", text="caf\udce9")
    assert events_of(tmp_path / "journal.jsonl") == [stored]


# Going on --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [False, True])
def test_a_damaged_search_goes_on_from_its_whole_part(tmp_path: Path, sent: bool) -> None:
    raw = {"method": "pfml", "dataset": "glyphs-small", "settings": {"epochs": EPOCHS}, "final": False}
    raw |= {"space": {"lr": {"low": 1e-5, "high": 1e-1, "log": True}}, "num_trials": 6, "algorithm": "random"}
    whole = start(search_of(raw), tmp_path / "s")
    drive(whole)
    whole.journal.close()
    path = tmp_path / "s" / "journal.jsonl"
    lines, events = path.read_bytes().splitlines(keepends=True), Journal.read(path)
    for number in range(6):
        (tmp_path / "s" / "trials" / f"{number:04d}").mkdir(parents=True)
        (tmp_path / "s" / "trials" / f"{number:04d}" / "best.pt").write_text("model")
    bad = next(
        n for n, event in enumerate(events) if event.get("trial_id") == "0003" and event["event"] == "validation"
    )
    damaged = lines[:bad] if sent else [*lines[:bad], b"{]\n", *lines[bad + 1 :]]
    place(tmp_path / "s", damaged, len(lines) if sent else 0)
    with pytest.raises(InputError, match=rf":{bad + 1}: .*; lines? 1 (is|to {bad} are) intact: .* s --cut-damaged"):
        read_journal(path)
    said = cut(path)
    assert said == f"{bad} records kept; the journal as it was, and what belongs to the rest: {tmp_path}/s/damaged-1"
    assert path.read_bytes() == b"".join(lines[:bad])
    aside = tmp_path / "s" / "damaged-1"
    assert (aside / "journal.jsonl").read_bytes() == b"".join(damaged) and (aside / "tracking-0.json").exists()
    assert {model.parent.name for model in aside.glob("trials/*/best.pt")} == {"0003", "0004", "0005"}
    assert {model.parent.name for model in path.parent.glob("trials/*/best.pt")} == {"0000", "0001", "0002"}
    again = start(search_of(raw), tmp_path / "s")
    drive(again)
    again.journal.close()
    assert leaderboard_rows(read_journal(path)[1]) == leaderboard_rows(Ledger.of(events))
    assert cut(path) is None and not (tmp_path / "s" / "damaged-2").exists()


def test_nothing_is_cut_where_nothing_is_whole(searches: tuple[Lines, Lines], tmp_path: Path) -> None:
    path = place(tmp_path / "s", [b"{]\n", *searches[0][1:]], 0)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"journal\.jsonl:1: .*start a new search"):
        cut(path)
    assert path.read_bytes() == before and sorted(p.name for p in path.parent.iterdir()) == [
        "journal.jsonl",
        "tracking-0.json",
    ]
    shutil.rmtree(path.parent)
    assert cut(path) is None


def test_a_journal_of_a_later_format_is_refused_by_name(searches: tuple[Lines, Lines], tmp_path: Path) -> None:
    events = [json.loads(line) for line in searches[0]]
    assert Ledger.of(events).trials
    assert Ledger.of([events[0] | {"format": FORMAT, "unheard": "of"}, *events[1:]]).trials
    message = f"^j:1: the search was begun by a later version, in format {FORMAT + 1} of the journal"
    with pytest.raises(InputError, match=message):
        Ledger.of([events[0] | {"format": FORMAT + 1}, *events[1:]], "j")


@pytest.mark.parametrize(
    ("event", "change"),
    [
        ("search_started", {"sizes": "many"}),
        ("search_started", {"sizes": {"validation": {"classes": "many"}}}),
        ("result", {"untrained": 7}),
        ("result", {"untrained": {"key": "k", "split": "validation", "metrics": {"map_at_r": None}}}),
        ("result", {"best_interval": [0.5]}),
    ],
)
def test_every_field_that_is_used_is_checked(searches: tuple[Lines, Lines], event: str, change: dict[str, Any]) -> None:
    events = [json.loads(line) for line in searches[0]]
    at = [found["event"] for found in events].index("trial_ended")
    result = {"event": "result", "trial_id": events[at]["trial_id"], "metrics": {}, "best_interval": [0.25, 0.5]}
    events.insert(at, result)
    assert Ledger.of([events[0] | {"sizes": {"validation": None}}, *events[1:]]).trials  # nothing was held out
    wrong = [found | change if found["event"] == event else found for found in events]
    with pytest.raises(InputError, match=f"'{event}' is not as it should be"):
        Ledger.of(wrong)
