"""Searches that are disturbed at random moments, again and again, and what they have to show for it at the end.

    python benchmarks/faults.py --faults 300 --seed 0 --output benchmarks/faults.md

Three searches share the faults. In Ray's processes, of 40 trials on embedded data, one at a
time, with final runs of as many workers as there is room for (one to three), tracked by an MLflow server over
PostgreSQL; in processes that join through the storage, two trials at a time (`joined_campaign.py`); and on machines of
which links are cut and nodes vanish (`partitions.py`). `--at-once` lets so many of the three go on side by side.
Each is first run undisturbed, then again with its faults. What
ended is resumed, as a user would, and only that; a server that died is started again some seconds later. At the end the
two are compared, and everything that a search keeps is checked against the journal, which the written model must accept
(`journal_model.py`). Exit code 1 if any check fails.

The table is written after each fault, and says how many there were so far. SIGTERM or Ctrl-C: no more faults, the
searches come to their ends, and are checked; once more, and all ends. `--keep FOLDER` leaves all logs, and the
undisturbed searches; `--calm FOLDER` takes them from there in place of other such runs.

Full disks and read-only storages are mounted, and machines are network namespaces, which takes root on Linux; without
it these are left out and said so. As root the campaign has mounts and a /dev/shm of its own, so that nothing else on
the machine is taken for its litter. The clock that jumps is that of the search's Python code.
"""

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from campaign import (
    FAULTS,
    LATE,
    MARK,
    SHARE_OF_FINALS,
    STARTUP_SECONDS,
    Campaign,
    Fault,
    can_mount,
    unmount,
)
from campaign_checks import check_journal, check_machine, check_mlflow, check_study
from joined_campaign import JOINED_FAULTS, JoinedCampaign
from partitions import KINDS as LINK_FAULTS
from services import Clock, MLflowServer, Postgres, until

from orchestrator.storage.ledger import Ledger

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.networks import namespaces

ROOT = Path(__file__).resolve().parent
ENDED = "had ended"
"""What came of a fault that found nothing to disturb: it is not counted."""
CALM = "undisturbed.jsonl"
WORDS = {kind: words for table in (FAULTS, JOINED_FAULTS) for kind, (words, _) in table.items()} | LINK_FAULTS


@dataclass
class Part:
    """A search of the campaign, and its faults."""

    title: str
    kinds: list[str]
    weight: float
    """Faults of each kind, beside those of the other parts: they take long where Ray starts again or nodes do."""
    campaign: Campaign | None = None
    """None: that of the links, which another program disturbs."""
    count: int = 0
    faults: list[Fault] = field(default_factory=list)
    checks: list[tuple[str, str]] = field(default_factory=list)
    notes: str = ""
    seconds: float = 0.0

    @property
    def done(self) -> list[Fault]:
        """The faults so far."""
        return [fault for fault in self.faults if fault.outcome not in ("", ENDED)]


def divide(arguments: argparse.Namespace, base: Path) -> list[Part]:
    """The parts of the campaign, each with its share of the faults."""
    wanted = [kind for kind in WORDS if kind in (arguments.kinds or WORDS)]
    if not namespaces():
        wanted = [kind for kind in wanted if kind not in LINK_FAULTS]
    parts = [
        Part("In Ray's processes", list(FAULTS), 1.0, campaign_of(Campaign, arguments, base / "r")),
        Part("In processes that join", list(JOINED_FAULTS), 4.5, campaign_of(JoinedCampaign, arguments, base / "j")),
        Part("Between machines", list(LINK_FAULTS), 0.7),
    ]
    for part in parts:
        part.kinds = [kind for kind in part.kinds if kind in wanted]
    parts = [part for part in parts if part.kinds]
    left = arguments.faults
    weights = [len(part.kinds) * part.weight for part in parts]
    for number, part in enumerate(parts):
        part.count = round(left * weights[number] / sum(weights[number:]))
        left -= part.count
    return parts


def campaign_of(kind: type[Campaign], arguments: argparse.Namespace, base: Path) -> Campaign:
    """A campaign of its own place and chance."""
    campaign = kind(base, arguments.trials, arguments.final_seeds, random.Random(arguments.seed))
    campaign.elastic = "resize" in (arguments.kinds or WORDS) and kind is Campaign
    return campaign


def run(arguments: argparse.Namespace, base: Path) -> int:
    """All parts, and their table."""
    if not Postgres.installed():
        raise SystemExit("PostgreSQL (initdb, postgres) is not installed")
    base.chmod(0o711)
    parts = divide(arguments, base)
    stop_by_signal([part.campaign for part in parts if part.campaign])
    began = time.monotonic()

    shared_memory = set(Path("/dev/shm").iterdir())
    lock = threading.Lock()

    def page() -> str:
        with lock:
            text = table(arguments, parts)
            if arguments.output:
                arguments.output.write_text(text, encoding="utf-8")
            return text

    def go(part: Part) -> None:
        if part.campaign is None:
            cut_links(arguments, part, base)
        else:
            disturb_search(arguments, part, part.campaign, page)
        part.seconds = time.monotonic() - began
        page()

    with ThreadPoolExecutor(arguments.at_once) as threads:
        for result in [threads.submit(go, part) for part in parts]:
            result.result()
    left = sorted(str(path) for path in set(Path("/dev/shm").iterdir()) - shared_memory)
    parts[-1].checks.append(("/dev/shm as before, after all of them", str(left[:3]) if left else ""))
    failed = [(name, found) for part in parts for name, found in part.checks if found]
    print(page())
    seconds = round(time.monotonic() - began)
    print(json.dumps({"faults": sum(len(part.done) for part in parts), "failed": failed, "seconds": seconds}))
    return 1 if failed else 0


def undisturbed(arguments: argparse.Namespace, campaign: Campaign) -> list[dict[str, Any]]:
    """The events of the same search that nothing disturbed."""
    from orchestrator.data.catalog import open_dataset

    base = campaign.base / "calm"
    open_dataset("glyphs-small", base / "s" / "data")
    calm = type(campaign)(base, campaign.trials, campaign.final_seeds, random.Random(0), elastic=campaign.elastic)
    calm.temporary.mkdir()
    if arguments.calm:
        calm.folder.mkdir(parents=True)
        shutil.copy(arguments.calm / base.relative_to(campaign.base.parent) / CALM, calm.folder / "journal.jsonl")
    else:
        calm.begin()
        if calm.outlive(3600) != 0:
            raise SystemExit(f"the undisturbed search: {calm.said()}")
        shutil.copy(calm.folder / "journal.jsonl", base / CALM)
    events = calm.events()
    ledger = Ledger.of(events)
    if ledger.state != "done" or len(ledger.trials) != arguments.trials:
        raise SystemExit(f"undisturbed: {len(ledger.trials)} trials, {ledger.state}; need all of {arguments.trials}")
    return events


def disturb_search(arguments: argparse.Namespace, part: Part, campaign: Campaign, page: Callable[[], object]) -> None:
    """Calm search, disturbed search, checks."""
    campaign.base.mkdir(mode=0o711)
    calm = undisturbed(arguments, campaign)
    validations = [event["trial_id"] for event in calm if event["event"] == "validation"]
    finals = sum(trial_id.startswith("final") for trial_id in validations)
    part.notes = f"{len(validations)} validations, undisturbed in {Ledger.of(calm).elapsed:.0f} s"
    print(f"{part.title}: {part.notes}", file=sys.stderr, flush=True)
    campaign.storage.mkdir()
    campaign.temporary.mkdir()
    if not can_mount(campaign.storage):
        part.kinds = [kind for kind in part.kinds if kind not in ("disk", "readonly")]
    campaign.clock = Clock(campaign.base / "clock")
    shutil.copytree(campaign.base / "calm" / "s" / "data", campaign.storage / "data")
    campaign.postgres = Postgres(campaign.base / "postgres")
    part.faults = schedule(part.kinds, part.count, len(validations), finals, campaign.random)
    try:
        campaign.postgres.start()
        campaign.mlflow = MLflowServer(campaign.base / "mlflow", campaign.postgres.uri)
        campaign.mlflow.start()
        disturb(campaign, part.faults, page)
        part.checks += check_journal(campaign, calm)
        part.checks += check_study(campaign)
        part.checks += check_mlflow(campaign)
        part.checks += check_machine(campaign)
    finally:
        campaign.end()
        for server in (campaign.mlflow, campaign.postgres):
            if server is not None:
                server.kill()
        if arguments.keep and campaign.folder.exists():
            shutil.copytree(campaign.folder, campaign.base / "kept", dirs_exist_ok=True)
        while os.path.ismount(campaign.storage):
            unmount(campaign.storage)
    for path in sorted(campaign.base.glob("*-*.txt")):
        text = path.read_text(errors="replace")
        importing = text.rstrip().endswith("KeyboardInterrupt") and ", in main\n" not in text  # not our code yet
        if "Traceback" in text and not importing:
            campaign.problems.append(f"{path.name}: a traceback: {text.strip().splitlines()[-1][:200]}")
    lost = str(max(campaign.lost)) if any(campaign.lost) else ""
    part.checks.append(("at most one checkpoint interval lost", lost))
    part.checks.append(("nothing remarkable on the way", "; ".join(campaign.problems)))
    part.notes += f", with its faults in {campaign.lives} lives of the driver"


def cut_links(arguments: argparse.Namespace, part: Part, base: Path) -> None:
    """The same of a search between machines, by `partitions.py`."""
    result = base / "links.json"
    words = ["--cuts", str(part.count), "--trials", str(arguments.link_trials), "--seed", str(arguments.seed)]
    words += ["--kinds", *part.kinds, "--json", str(result)]
    with (base / "links.txt").open("wb") as log:
        subprocess.run([sys.executable, str(ROOT / "partitions.py"), *words], stdout=log, stderr=log)
    if not result.exists():
        part.checks.append(("the search between machines", (base / "links.txt").read_text(errors="replace")[-300:]))
        return
    content = json.loads(result.read_text())
    for kind, outcomes in content["faults"].items():
        part.faults += [Fault(0, kind, 0, outcome=outcome) for outcome in outcomes]
    part.checks += [(name, found) for name, found in content["checks"]]
    part.notes = content["notes"]


def schedule(kinds: list[str], count: int, total: int, finals: int, rng: random.Random) -> list[Fault]:
    """So many faults at random moments of a search of `total` validations, the last `finals` of them final runs'.

    Every kind comes equally often, but for those of the workers, who are there in the final runs only.
    """
    late = min(count, max(1, round(count * SHARE_OF_FINALS)))
    moments = sorted(rng.uniform(0, total - finals) for _ in range(count - late))
    moments += sorted(rng.uniform(total - finals, total - 1) for _ in range(late))
    early, only_late = [kind for kind in kinds if kind not in LATE], [kind for kind in kinds if kind in LATE]
    drawn: list[str] = []
    while len(drawn) < count - late:
        drawn += rng.sample(early, len(early))
    tail: list[str] = []
    while len(tail) < late:
        tail += only_late + rng.sample(kinds, min(1, len(kinds)))
    drawn = drawn[: count - late] + tail[:late]
    return [Fault(number, kind, int(at)) for number, (kind, at) in enumerate(zip(drawn, moments, strict=True), 1)]


def disturb(campaign: Campaign, faults: list[Fault], told: Callable[[], object]) -> None:
    """The search with its faults, to its end; `told` after each."""
    rng = campaign.random
    campaign.begin()
    for fault in faults:
        if campaign.enough or (fault.number > 1 and faults[fault.number - 2].outcome == ENDED):
            break
        if campaign.progress() < fault.at:
            if campaign.run_until(fault.at):
                time.sleep(rng.uniform(0, 0.5))
        else:  # the search is just starting or being taken up: so is the fault's moment
            campaign.linger(rng.uniform(0, STARTUP_SECONDS))
        campaign.tend()
        if not campaign.running:
            campaign.begin()
            campaign.linger(rng.uniform(0, STARTUP_SECONDS))
        before = Ledger.of(events) if (events := campaign.events()) else None
        running = before.running() if before else []
        fault.trial = running[0].trial_id if running else ""
        started = time.monotonic()
        fault.outcome = campaign.bring(fault.kind)
        if not fault.outcome:  # nothing there to be killed
            fault.kind, fault.outcome = "driver", campaign.kill_driver()
        fault.at = campaign.progress()
        fault.seconds = time.monotonic() - started
        campaign.check_work(before)
        campaign.check_orphans()
        line = f"{fault.number:3d} {fault.kind:10s} at {fault.at:3d} {fault.trial:16s} {fault.outcome}"
        print(f"{line} ({fault.seconds:.1f} s)", file=sys.stderr, flush=True)
        told()
        if not campaign.running and rng.random() < 0.5:
            time.sleep(rng.uniform(0, 5))
        if not campaign.running:
            campaign.begin()
    for _ in range(3):  # a server may be away at the very end: then once more, for what it missed
        code = campaign.outlive(1800)
        if code == 0 and not campaign.restarts and "sync" not in campaign.said():
            return
        if code is None:
            campaign.problems.append("the last life hangs")
            campaign.kill_driver()

        def tended() -> bool:
            campaign.tend()
            return not campaign.restarts

        until(tended, 60, "the servers")
        campaign.begin()
    campaign.problems.append(f"the last life ended with code {campaign.outlive(600)}: {campaign.said()[-300:]}")


def stop_by_signal(campaigns: list[Campaign]) -> None:
    """The first SIGTERM or Ctrl-C asks for no more faults, the second ends everything, in order: servers and all."""

    def handle(number: int, frame: object) -> None:
        if any(campaign.enough for campaign in campaigns):
            sys.exit("ended")
        for campaign in campaigns:
            campaign.enough = True
        print("no more faults; the searches come to their ends", file=sys.stderr, flush=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def own_namespace() -> None:
    """Begin again with mounts of our own and an empty /dev/shm, where that is permitted."""
    if os.geteuid() or not shutil.which("unshare") or MARK in os.environ:
        return
    os.environ[MARK] = "itself"
    mount = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c"]
    if subprocess.run([*command, mount, "sh", "true"], capture_output=True).returncode == 0:
        os.execvp(command[0], [*command, mount, "sh", sys.executable, *sys.argv])


def table(arguments: argparse.Namespace, parts: list[Part]) -> str:
    """The result as Markdown, or how far it is."""
    from orchestration import machine

    done = sum(len(part.done) for part in parts)
    options = f"--faults {arguments.faults} --trials {arguments.trials} --seed {arguments.seed}"
    options += f" --final-seeds {arguments.final_seeds}" if arguments.final_seeds != 2 else ""
    options += f" --kinds {' '.join(arguments.kinds)}" if arguments.kinds else ""
    lines = [
        "# Searches disturbed at random",
        "",
        f"`python benchmarks/faults.py {options}`, {datetime.now(UTC):%Y-%m-%d}, {machine()}, Python "
        f"{platform.python_version()}: {done} faults in {max(part.seconds for part in parts):.0f} s, {len(parts)} "
        f"searches of {arguments.trials} trials and {2 * arguments.final_seeds} final runs each ("
        f"{arguments.link_trials} and 2 between machines).",
        *(["", f"**Ended after {done} of {arguments.faults} faults.**"] if done < arguments.faults else []),
    ]
    for part in parts:
        lines += ["", f"## {part.title}", "", f"{len(part.done)} faults; {part.notes or 'not begun'}."]
        lines += [] if part.checks else ["", "**Not at its end: nothing below has been checked.**"]
        lines += ["", "| fault | times | what came of it |", "| --- | ---: | --- |"]
        for kind in part.kinds:
            mine = [fault for fault in part.done if fault.kind == kind]
            outcomes = Counter(fault.outcome.partition(" for ")[0] for fault in mine)
            told = ", ".join(f"{outcome} ({number})" for outcome, number in outcomes.most_common())
            lines.append(f"| {WORDS[kind]} | {len(mine)} | {told} |")
        lines += ["", "| what must hold at the end | |", "| --- | --- |"]
        lines += [f"| {name} | {found.replace('|', '/') or 'holds'} |" for name, found in part.checks]
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--final-seeds", type=int, default=2, help="of two final configurations")
    parser.add_argument("--link-trials", type=int, default=8, help="of the search between machines")
    parser.add_argument("--at-once", type=int, default=1, help="of the three searches")
    parser.add_argument("--kinds", nargs="*", choices=WORDS)
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--keep", type=Path, help="work in this folder, and leave it")
    parser.add_argument("--calm", type=Path, metavar="FOLDER", help="kept by an earlier campaign of the same searches")
    arguments = parser.parse_args()
    own_namespace()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("ended"))  # in order: mounts and servers go
    if arguments.keep:
        arguments.keep.mkdir(parents=True)
        sys.exit(run(arguments, arguments.keep.resolve()))
    with tempfile.TemporaryDirectory(prefix="f", dir="/tmp") as base:
        code = run(arguments, Path(base))
    sys.exit(code)


if __name__ == "__main__":
    main()
