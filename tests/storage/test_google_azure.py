"""Storages at gs:// and az:// addresses: S3's faults, against a server with Google's preconditions, and Azurite."""

import os
import random
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

import pytest
from support.azure_server import ACCOUNT, KEY, AzureServer, azurite, create_container, find_azurite
from support.google_server import GoogleServer
from support.object_storages import check_two_drivers, elsewhere, journal_of
from support.recorded import begin, events_of
from support.s3 import SECRET, Server, Unsteady, unsteady
from support.serving import serving

from orchestrator.cli.main import main
from orchestrator.config.resolve import resolve_search
from orchestrator.config.training import resolve_experiment
from orchestrator.data.catalog import open_dataset
from orchestrator.data.remote import publish_store
from orchestrator.data.store import Store
from orchestrator.errors import InputError, storage_fault
from orchestrator.execution.protocol import Interrupted, Validated, Work
from orchestrator.execution.worker import results
from orchestrator.search.conductor import Conductor
from orchestrator.storage import buckets, google_azure, object_store
from orchestrator.storage.buckets import find_bucket, open_bucket
from orchestrator.storage.folder import Folder
from orchestrator.storage.journal import Journal, refresh
from orchestrator.storage.paths import address_of, local, portable, working_copy
from orchestrator.storage.trial_files import MANIFEST, TrialFiles, drop, fetch_trial
from orchestrator.storage.trial_folder import CHECKPOINT

pytest.importorskip("obstore")

KINDS = [
    "gs",
    "az",
    pytest.param(
        "azurite",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(find_azurite() is None, reason="npm install --prefix ~/.cache/azurite azurite"),
        ],
    ),
]


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleServer | Server]:
    """A server of this module's: of Google's kind, or of Azure's."""
    if request.param == "gs":
        with serving(GoogleServer()) as server:
            yield server
    elif request.param == "az":
        with serving(AzureServer()) as server:
            yield server
    else:
        with azurite(tmp_path_factory.mktemp("azurite")) as emulator:
            yield emulator


@pytest.fixture
def front(server: GoogleServer | Server) -> Iterator[Unsteady]:
    """What the tests' clients take for the server."""
    with unsteady(server) as front:
        yield front


@pytest.fixture
def storage(
    server: GoogleServer | Server,
    front: Unsteady,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> str:
    """The address of a storage in an empty bucket of this test."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:60].strip("-")
    for variable in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(variable)
    if isinstance(server, GoogleServer):
        server.buckets[name] = {}
    else:
        create_container(server, name)
    is_google = isinstance(server, GoogleServer) and not isinstance(server, AzureServer)
    if is_google:
        environment = {"GOOGLE_BASE_URL": front.endpoint, "GOOGLE_BEARER_TOKEN": SECRET}
    else:
        environment = {"AZURE_STORAGE_ENDPOINT": f"{front.endpoint}/{ACCOUNT}", "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT}
        environment |= {"AZURE_STORAGE_ACCOUNT_KEY": KEY}
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 3.0)
    monkeypatch.setattr(object_store, "IMPATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(object_store, "LONGEST_PAUSE_SECONDS", 0.1)
    elsewhere(monkeypatch, tmp_path / "here")
    return f"{'gs' if is_google else 'az'}://{name}/runs"


def keys(storage: str) -> list[str]:
    """The objects of a storage."""
    bucket, prefix = find_bucket(working_copy(storage)) or pytest.fail("on a disk")
    return [key.removeprefix(f"{prefix}/") for key in bucket.keys(f"{prefix}/")]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    return int(leaving.value.code or 0)


def test_a_working_copy_stands_for_an_address(storage: str, tmp_path: Path) -> None:
    trial = working_copy(storage + "/") / "searches" / "x" / "trials" / "0003"
    assert trial.is_relative_to(tmp_path / "here") and "%" not in str(trial)
    assert address_of(trial) == f"{storage}/searches/x/trials/0003"
    assert portable(trial) == f"{storage}//searches/x/trials/0003" and local(portable(trial)) == trial


def test_objects_are_as_on_s3(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google_azure, "PIECE", 2**20)
    bucket, prefix = find_bucket(working_copy(storage)) or pytest.fail("on a disk")
    assert bucket.get(f"{prefix}/a") is None and bucket.size(f"{prefix}/a") is None
    for name in ("x/00", "x/01", "x/02", "x/03", "x/04", "x/05", "x2/00", "a b%20é~+"):
        bucket.put(f"{prefix}/{name}", name.encode())
    assert bucket.get(f"{prefix}/a b%20é~+") == "a b%20é~+".encode() and bucket.part(f"{prefix}/x/01", 1, 2) == b"/0"
    assert bucket.keys(f"{prefix}/x/") == [f"{prefix}/x/0{number}" for number in range(6)]
    assert bucket.keys(f"{prefix}/x/", f"{prefix}/x/02") == [f"{prefix}/x/0{number}" for number in (3, 4, 5)]
    assert bucket.keys(f"{prefix}/none/") == [] and bucket.folders(f"{prefix}/") == [f"{prefix}/x/", f"{prefix}/x2/"]
    bucket.remove([f"{prefix}/x/00", f"{prefix}/none"])
    bucket.copy(f"{prefix}/x/01", f"{prefix}/x/02")
    assert bucket.get(f"{prefix}/x/02") == b"x/01" and bucket.size(f"{prefix}/x/02") == 4
    (tmp_path / "large").write_bytes(os.urandom(3 * 2**20 + 1))
    bucket.upload(tmp_path / "large", f"{prefix}/large")
    assert bucket.download(f"{prefix}/large", tmp_path / "copy") is not None
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "large").read_bytes()
    assert bucket.download(f"{prefix}/none", tmp_path / "none") is None and not (tmp_path / "none").exists()
    with pytest.raises(FileNotFoundError, match="absent"):
        bucket.upload(tmp_path / "absent", f"{prefix}/large")


def test_of_many_that_create_an_object_one_does(storage: str, front: Unsteady, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where requests are refused or cut, or their answers lost."""
    chance = random.Random(0)
    front.whim = lambda method, path: chance.choice([None, None, "late", 503, "cut"]) if method == "PUT" else None
    bucket, prefix = find_bucket(working_copy(storage)) or pytest.fail("on a disk")
    for round_ in range(3):
        key, start = f"{prefix}/{round_}", threading.Barrier(8)

        def create(writer: int, key: str = key, start: threading.Barrier = start) -> bool:
            start.wait()
            return bucket.create(key, b"%d" % writer)

        with ThreadPoolExecutor(8) as pool:
            (winner,) = [writer for writer, created in enumerate(pool.map(create, range(8))) if created]
        assert bucket.get(key) == b"%d" % winner


def test_a_conflict_with_a_request_is_no_other_object(
    storage: str, front: Unsteady, monkeypatch: pytest.MonkeyPatch
) -> None:
    """409 and 412, and no object there: the request is repeated. Where there is one, it is another's."""
    bucket, prefix = find_bucket(working_copy(storage)) or pytest.fail("on a disk")
    whims: Iterator[int] = iter([409, 412, 429, 409])
    front.whim = lambda method, path: next(whims, None) if method == "PUT" else None
    assert bucket.create(f"{prefix}/a", b"mine") and next(whims, None) is None
    assert not bucket.create(f"{prefix}/a", b"another's") and bucket.get(f"{prefix}/a") == b"mine"
    front.whim = lambda method, path: 409 if method == "PUT" else None
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(OSError, match=f"^.*{prefix}/b"):
        bucket.create(f"{prefix}/b", b"mine")


def test_a_record_whose_answer_was_lost_is_written_once(storage: str, front: Unsteady) -> None:
    whims: Iterator[str | int | None] = iter(["late", 503, "cut", "late"])
    path = journal_of(storage)
    with Journal(path) as journal:
        front.whim = lambda method, path: next(whims, None) if method == "PUT" else None
        assert [journal.append("note", text=text).seq for text in "ab"] == [0, 1]
    assert next(whims, None) is None
    assert keys(storage) == [f"searches/x/journal/0000000{number}.jsonl" for number in (0, 1)]
    refresh(path)
    assert [event["text"] for event in Journal.read(path)] == ["a", "b"]


def test_two_drivers_never_write_one_number(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_two_drivers(storage, tmp_path, monkeypatch)


def test_a_store_that_refuses_for_ever_stops_the_search_in_order(
    storage: str, front: Unsteady, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = {"method": "proxy_anchor", "settings": {"device": "cpu"}, "space": {"lr": [1e-3, 1e-2]}, "algorithm": "grid"}
    resolved = resolve_search(raw, name="s", source="test.yaml")

    def conductor(journal: Journal) -> Conductor:
        folder, events = journal.path.parent, events_of(journal.path) or [begin(journal, resolved)]
        return Conductor(resolved, folder, data=folder, journal=journal, events=events, slots=1)

    with Journal(journal_of(storage)) as journal:
        search = conductor(journal)
        refused: Iterator[str | int | None] = iter([503, "cut", 429])
        front.whim = lambda method, path: next(refused, None)
        assert search.next() is not None, "what passes is waited for"
        front.whim = lambda method, path: 503
        monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 0.3)
        with pytest.raises(OSError, match="answers SlowDown, for . s") as raised:
            search.report(Validated("0000", 1, {"val/map_at_r": 0.1}, 1.0))
        fault = storage_fault(raised.value, storage)
        assert fault is not None and fault.startswith(f"{storage}/searches/x/journal/00000002")
        assert search.stopping and search.fault == fault and search.next() is None
    front.whim = lambda method, path: None
    elsewhere(monkeypatch, tmp_path / "there")
    with Journal(journal_of(storage)) as journal:
        work = conductor(journal).next()
        assert work is not None and work.folder == f"{storage}//searches/x/trials/0000"


def test_the_manifest_is_last(storage: str, front: Unsteady, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is cut, a reader takes all that was there before, and nothing else."""
    monkeypatch.setattr(object_store, "PATIENCE_SECONDS", 0.3)
    name = f"{storage}//searches/x/trials/0000"
    with TrialFiles(name) as files:
        (files.folder / CHECKPOINT).write_bytes(b"checkpoint 1")
        files.keep()
        for number, refused in enumerate((CHECKPOINT, MANIFEST), start=2):
            (files.folder / CHECKPOINT).unlink()
            (files.folder / CHECKPOINT).write_bytes(b"checkpoint %d" % number)
            front.whim = lambda method, path, refused=refused: "cut" if refused in unquote(path) else None  # type: ignore[misc]
            with pytest.raises(OSError, match="no connection"):
                files.keep()
            front.whim = lambda method, path: None
            with TrialFiles(name) as reader:
                reader.fetch(lambda value: value, leader=True)
                assert [path.name for path in reader.folder.iterdir()] == [CHECKPOINT]
                assert (reader.folder / CHECKPOINT).read_bytes() == b"checkpoint 1"
        files.keep()
    folder = local(name)
    fetch_trial(folder)
    assert (folder / CHECKPOINT).read_bytes() == b"checkpoint 3"
    drop(folder, [CHECKPOINT])
    assert [key.rpartition("/")[2] for key in keys(storage)] == [MANIFEST], "orphans go too"


def test_a_folder_is_listed_moved_and_deleted(storage: str) -> None:
    folder = Folder(working_copy(storage) / "searches")
    for name in ("x/journal/00000000.jsonl", "x/journal/00000001.jsonl", "x/a", "y/b"):
        folder.write(name, name.encode())
    folder.check_writable("storage")  # type: ignore[arg-type]
    assert folder.folders() == ["x", "y"] and not folder.is_empty()
    Folder(folder.path / "x").move(folder.path / "z")
    assert folder.folders() == ["y", "z"] and folder.read("z/a") == b"x/a"
    Folder(folder.path / "z").delete()
    assert keys(storage) == ["searches/y/b"]


def test_data_sets_are_published_and_fetched(storage: str, glyphs: Store, tmp_path: Path) -> None:
    address = f"{storage}/data/mine"
    assert publish_store(glyphs, address) and not publish_store(glyphs, address)
    assert open_dataset(address, tmp_path / "data").manifest == glyphs.manifest
    assert open_dataset("mine", working_copy(storage) / "data").manifest == glyphs.manifest


@pytest.mark.parametrize(
    ("bucket", "whim", "text"),
    [
        ("no-such-bucket", None, r"no (bucket|container) 'no-such-bucket' at 127.0.0.1"),
        ("", 403, r"access denied by 127.0.0.1:\d+; check the \w+_\* variables"),
        ("", 503, "answers SlowDown, for"),
        ("", "cut", r"no connection to 127.0.0.1:\d+ .*; check the \w+_\* variables and the network"),
        ("", 307, "redirects to another address; set "),
    ],
)
def test_what_cannot_be_reached_is_one_line(
    storage: str, front: Unsteady, bucket: str, whim: int | str, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    front.whim = lambda method, path: whim
    address = f"{storage.partition('://')[0]}://{bucket}/runs" if bucket else storage
    for command in (["status", "x"], ["list"]):
        assert run(*command, f"--storage={address}") == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith((f"error: {address}", "error: --storage")) and re.search(text, line)
        assert SECRET not in line and KEY not in line and "Debug" not in line


def test_a_server_that_repeats_a_secret_is_not_repeated(storage: str, front: Unsteady) -> None:
    front.whim = lambda method, path: 400
    with pytest.raises(OSError, match="answers Odd") as refused:
        open_bucket(storage.partition("://")[0], "abc").get("a")
    told = str(refused.value)
    assert SECRET not in told and KEY not in told and ("***" in told) == storage.startswith("gs://")


def test_an_absent_library_is_one_line(
    storage: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    buckets._bucket.cache_clear()
    monkeypatch.setitem(sys.modules, "obstore", None)
    for command in (["list"], ["status", "x"]):
        assert run(*command, f"--storage={storage}") == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert re.match(r"error: \w+://[\w-]+: .* needs the package obstore: install the extra `stores`", line)
    with pytest.raises(InputError, match="needs the package obstore"):
        open_bucket(storage.partition("://")[0], "another")


@pytest.mark.parametrize("server", KINDS[1:], indirect=True)
def test_a_training_goes_on_elsewhere(
    storage: str, front: Unsteady, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that fails is no fault of the trial; on another machine it goes on, and no object holds a secret."""
    settings = {"dataset": "glyphs-small", "method": "proxy_anchor", "epochs": 1, "validate_every": "8 steps"}
    settings |= {"classes_per_batch": 8, "images_per_class": 2, "device": "cpu", "embedding_dim": 4}
    experiment = resolve_experiment(settings | {"class_subset": 16, "threads": 1}, "trial")
    work = Work("0", experiment, str(data_folder), f"{storage}//searches/x/trials/0000", test=True)
    disturbed = results(work)
    first = next(disturbed)
    front.whim = lambda method, path: "cut" if MANIFEST in path else None
    stop = next(disturbed)
    assert isinstance(stop, Interrupted) and "no connection" in stop.reason
    front.whim = lambda method, path: None
    elsewhere(monkeypatch, tmp_path / "there")
    every = [result for result in results(work) if isinstance(result, Validated)]
    assert isinstance(first, Validated) and every[0].metrics == first.metrics and every[-1].test
    folder = local(work.folder)
    fetch_trial(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert CHECKPOINT in {path.name for path in files}
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
