"""The locations in a storage, the allowed names of searches, and the check that a folder is writable."""

import contextlib
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import InputError
from orchestrator.problems import Bare, Option, Problem, suggestion
from orchestrator.storage import paths
from orchestrator.storage.folder import Folder
from orchestrator.storage.journal import refresh
from orchestrator.storage.ledger import BENCHMARK
from orchestrator.storage.opening import open_file
from orchestrator.storage.presence import driver
from orchestrator.storage.trial_folder import IMAGES

NAME_CHARACTERS = 100
NAMED = Option("name")


def check_name(name: str, option: Option | str = NAMED) -> str:
    """Check a search's name; it is a folder name and part of addresses."""
    if len(name) > NAME_CHARACTERS:
        rule = f"'{name[:20]}...' has {len(name)} characters; at most {NAME_CHARACTERS} are allowed"
        raise InputError(Problem((option,), rule=rule))
    if not paths.NAME.fullmatch(name):
        rule = "should be letters, digits, '.', '_' or '-' (a to z, without accents), beginning with a letter or digit"
        raise InputError(Problem((option,), Bare(f"'{name}'"), rule, begins_rule=True))
    return name


WORK = "work"
"""The folder of a search that processes join (`execution.exchange`)."""
JOURNAL = "journal.jsonl"
LEADERBOARD = "leaderboard.csv"
SEARCH_FILE = "search.yaml"
"""The file of a search, as it began; `orchestrator search` takes it."""
BENCHMARK_RECORD = "benchmark.json"
BENCHMARK_PAGE = "report.html"
CLAIM_RECORD = "claim.json"
CLAIM_VERDICT = "verdict.json"
CLAIM_PAGE = "report.html"
PAGE = "report/search.html"
MODEL_PAGE = str(Path(PAGE).with_name(IMAGES))


@dataclass(frozen=True)
class Places:
    """The locations under a storage folder, or in the working copy of one on an object store. Lookups update the
    working copy."""

    storage: Path

    @property
    def data(self) -> Path:
        """The data sets."""
        return self.storage / "data"

    @property
    def artifacts(self) -> Path:
        """MLflow's artifacts, for the default tracker."""
        return self.storage / "mlartifacts"

    def search(self, name: str) -> Path:
        """The folder of one search."""
        return self.storage / "searches" / check_name(name, "NAME")

    def benchmark(self, name: str) -> Path:
        """The folder of a benchmark: its record and its page."""
        return self.storage / "benchmarks" / check_name(name)

    def claim(self, key: str) -> Path:
        """The folder of a claim: its file as it was, its verdict and its page."""
        return self.storage / "claims" / check_name(key)

    def has_benchmark(self, name: str) -> bool:
        """Whether there is a record of a benchmark, or something else in its place; reading it tells which."""
        try:
            return Folder(self.benchmark(name), patient=False).read(BENCHMARK_RECORD) is not None
        except (OSError, ValueError):
            return True

    def pages_seen_from(self, folder: Path, searches: Mapping[str, str]) -> dict[str, str]:
        """The pages of searches that have one, by label, as links of a page in this folder."""
        pages = {label: self.search(name) / PAGE for label, name in searches.items()}
        return {
            label: Path(os.path.relpath(page.absolute(), folder.absolute())).as_posix()
            for label, page in pages.items()
            if page.exists()
        }

    def resume_command(self, name: str) -> str:
        """What is typed to go on with a search, where those that join it look for it too."""
        words = [f"orchestrator resume {name}{paths.in_command(self.storage)}", *address_words(self.search(name))]
        return " ".join(words)

    def check_exists(self) -> None:
        """InputError if it is a folder that does not exist."""
        if paths.address_of(self.storage) is None and not self.storage.is_dir():
            rule = (f"there is no storage at {self.storage}: name the folder of one, ", Option("storage"), " DIR")
            raise InputError(Problem((STORAGE,), rule=rule))

    def journal(self, name: str) -> Path:
        """The journal of a search that exists; InputError with a suggestion otherwise."""
        path = self.search(name) / JOURNAL
        refresh(path)
        self.check_exists()
        if not has_started(path):
            if driver(path.parent):
                raise InputError(f"'{name}' is starting and has recorded nothing yet: try again in a moment")
            with contextlib.suppress(OSError), open_file(path) as file:
                if file.read(1):
                    raise InputError(
                        f"{paths.display_path(path)}: its first line is incomplete (the process that wrote it was "
                        f"killed, or its machine stopped), so nothing is recorded: start the search '{name}' anew"
                    )
            names = self.names()
            hint, rule = suggestion(name, names), f"no search '{name}' under {paths.display_path(self.storage)}"
            raise InputError(Problem(rule=rule, suggestion=hint, advice="" if names else " (none yet)"))
        return path

    def names(self) -> list[str]:
        """The folders of searches and trainings."""
        return Folder(self.storage / "searches").folders()

    def without_claims(self, names: Sequence[str]) -> list[str]:
        """Of these names those that do not belong to a claim of this storage."""
        prefixes = tuple(claim_prefix(key) for key in Folder(self.storage / "claims").folders())
        return [name for name in names if not name.startswith(prefixes)]

    def journals(self, names: Sequence[str] | None = None) -> list[Path]:
        """The journals of all searches, or of these, that have begun."""
        journals = [self.storage / "searches" / name / JOURNAL for name in (self.names() if names is None else names)]
        for path in journals:
            refresh(path)
        return [path for path in journals if has_started(path)]

    def new_journal(self, name: str) -> Path:
        """The journal path of a new search; InputError if the name is already used."""
        path = self.search(name) / JOURNAL
        refresh(path)
        if has_started(path):
            again = f"({self.resume_command(name)})"
            rule = f"exists in {paths.display_path(path.parent)}: continue it {again} or choose another name"
            raise InputError(Problem((NAMED,), Bare(f"'{name}'"), rule, begins_rule=True))
        return path


def claim_prefix(key: str) -> str:
    """How the names of a claim's searches and trainings begin."""
    return f"claim-{key}-"


def address_words(search: Path) -> list[str]:
    """The option by which a command trains where those that join this search look for it; none of another search."""
    return ["--address", "storage"] if (search / WORK).is_dir() else []


def benchmark_of_search(tags: Mapping[str, Any], storage: Path) -> str:
    """The benchmark that a search with these tags is part of, if the storage has it; else empty."""
    name = str(tags.get(BENCHMARK, ""))
    return name if paths.NAME.fullmatch(name) and Places(storage).has_benchmark(name) else ""


def has_started(journal: Path) -> bool:
    """Whether a journal has its first event: not if the driver died before writing it, or the disk was full."""
    try:
        with open_file(journal) as file:
            return file.readline().endswith(b"\n")
    except (FileNotFoundError, NotADirectoryError):  # the latter: the storage is a file, or beneath one
        return False
    except (OSError, InputError):
        return True  # something else is in its place; reading it reports that


STORAGE = Option("storage", "ORCHESTRATOR_STORAGE")


def writable(folder: Path, option: Option = STORAGE, remedy: str = "name another folder") -> Path:
    """The absolute folder, created if necessary; InputError if nothing can be written there."""
    folder = folder.expanduser().resolve()
    probe = folder / f".write-test-{uuid.uuid4().hex}"
    if folder.is_file():
        raise InputError(Problem((option,), Bare(folder), "is a file: name a folder", begins_rule=True))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        rule = f"cannot be written ({error.strerror})"
        raise InputError(Problem((option,), Bare(folder), rule, advice=f": {remedy}", begins_rule=True)) from None
    Folder(folder).check_writable(option)
    return folder
