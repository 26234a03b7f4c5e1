"""Stores at s3:// addresses, against a real S3 server: fetched once, whole or not at all, and refused in one line."""

import contextlib
import json
import multiprocessing
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from botocore.exceptions import ClientError
from support.output_schemas import conforms
from support.s3 import SECRET, Server, moto

from orchestrator.cli.main import main
from orchestrator.config.training import resolve_experiment
from orchestrator.data import copies, remote
from orchestrator.data.catalog import open_dataset, overview
from orchestrator.data.copies import find_copy, list_copies, make_room
from orchestrator.data.manifest import IMAGES, MANIFEST
from orchestrator.data.remote import open_remote, publish_store
from orchestrator.data.store import Row, Store, write_store
from orchestrator.errors import DataError, InputError
from orchestrator.storage import buckets, object_store, s3
from orchestrator.storage.address import Address
from orchestrator.storage.buckets import open_bucket
from orchestrator.storage.s3 import S3Bucket

PIECE = 4096


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An S3 server of this module's."""
    with moto(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path))
    monkeypatch.setattr(remote, "PIECE", PIECE)
    monkeypatch.setattr(remote, "THREADS", 2)


@pytest.fixture
def bucket(server: Server, request: pytest.FixtureRequest) -> str:
    """An empty bucket of this test."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:60].strip("-")
    server.files().create_dir(name)
    return name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Noise of some pieces' length."""
    rng = np.random.default_rng(0)
    rows = [Row(rng.bytes(3000), number // 4, "train" if number < 16 else "test") for number in range(32)]
    return write_store(
        tmp_path_factory.mktemp("made") / "noise",
        name="noise",
        channels=3,
        class_names=[f"class {label}" for label in range(8)],
        rows=rows,
        seed=None,
        settings={"importer": "folder"},
        columns={"source": [f"{number}.jpg" for number in range(32)]},
    )


def s3_client(bucket: str, anonymous: bool = False) -> Any:
    """boto3's own, as the package made it."""
    opened = open_bucket("s3", bucket, anonymous=anonymous)
    assert isinstance(opened, S3Bucket)
    return opened.client


def size(made: Store) -> int:
    return (made.path / IMAGES).stat().st_size


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    return int(leaving.value.code or 0)


def test_what_is_published_is_what_is_fetched(made: Store, bucket: str, tmp_path: Path, server: Server) -> None:
    address = f"s3://{bucket}/sets/noise"
    said: list[str] = []
    assert publish_store(made, address, say=said.append)
    assert not publish_store(made, address)  # there already
    fetched = open_dataset(address, tmp_path, say=said.append)
    assert fetched.path == find_copy(Address.parse(address), tmp_path) and fetched.path.name.endswith("%2Fsets%2Fnoise")
    for name in (IMAGES, MANIFEST):
        assert (fetched.path / name).read_bytes() == (made.path / name).read_bytes()
    fetched.verify()
    assert [child.name for child in (tmp_path / "data" / "s3").iterdir()] == [fetched.path.name]
    kilobytes = rf"\({size(made) / 1e6:.1f} MB\)"
    assert [
        bool(re.match(f"{doing}ing .*{bucket}", line)) for doing, line in zip(("publish", "fetch"), said, strict=True)
    ]
    assert re.search(kilobytes, said[1])
    pieces = -(-size(made) // PIECE)
    asked = server.requests("GET", f"{bucket}/sets")
    assert asked == 3 + pieces  # the manifest for each of the three
    assert server.requests("HEAD", f"{bucket}/sets") == 1, "the size of the images"
    again = open_dataset(address + "/", tmp_path)
    assert again.manifest == made.manifest and server.requests("GET", f"{bucket}/sets") == asked


def test_a_fetched_store_needs_no_network(
    made: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_store(made, f"s3://{bucket}/noise")
    open_remote(f"s3://{bucket}/noise", tmp_path)
    monkeypatch.setattr(remote, "_RemoteStore", None)
    assert open_remote(f"s3://{bucket}/noise", tmp_path).column("source")[3] == "3.jpg"


def test_of_several_one_fetches(made: Store, bucket: str, tmp_path: Path, server: Server) -> None:
    """Threads, but what they lock are files that each of them opened, as processes do."""
    address = f"s3://{bucket}/noise"
    publish_store(made, address)
    said: list[str] = []
    with ThreadPoolExecutor(3) as pool:
        fetched = list(pool.map(lambda _: open_remote(address, tmp_path, say=said.append), range(3)))
    assert {one.manifest["digest"] for one in fetched} == {made.manifest["digest"]}
    assert sum(line.startswith("fetching") for line in said) == 1
    assert server.requests("GET", f"{bucket}/noise/{IMAGES}") == -(-size(made) // PIECE)
    assert [child.name for child in (tmp_path / "data" / "s3").iterdir()] == [fetched[0].path.name]


PIECES = remote._RemoteStore.pieces


class Broken(Exception):
    """The end of a process."""


def break_off(monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """Make fetching end after some pieces; the offsets at which fetches begin."""
    begun: list[int] = []

    def pieces(self: Any, done: int, size: int) -> Iterator[bytes]:
        begun.append(done)
        with contextlib.closing(PIECES(self, done, size)) as given:
            for number, piece in enumerate(given):
                if number == after:
                    raise Broken
                yield piece

    monkeypatch.setattr(remote._RemoteStore, "pieces", pieces)
    return begun


def test_an_interrupted_fetch_goes_on(
    made: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    address = f"s3://{bucket}/noise"
    publish_store(made, address)
    begun = break_off(monkeypatch, after=5)
    for _ in range(2):
        with pytest.raises(Broken):
            open_remote(address, tmp_path)
    assert not list((tmp_path / "data" / "s3").glob("[!.]*"))
    said: list[str] = []
    monkeypatch.setattr(remote, "THREADS", 1)
    asked = server.requests("GET", f"{bucket}/noise/{IMAGES}")
    begun = break_off(monkeypatch, after=9999)
    fetched = open_remote(address, tmp_path, say=said.append)
    assert begun == [10 * PIECE]
    assert server.requests("GET", f"{bucket}/noise/{IMAGES}") - asked == -(-size(made) // PIECE) - 10
    assert "0.0 MB of it are there" in said[0]
    fetched.verify()
    assert [child.name for child in (tmp_path / "data" / "s3").iterdir()] == [fetched.path.name]


def test_half_of_another_store_is_not_gone_on_with(
    made: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    address = f"s3://{bucket}/noise"
    publish_store(made, address)
    break_off(monkeypatch, after=5)
    with pytest.raises(Broken):
        open_remote(address, tmp_path)
    server.files().delete_file(f"{bucket}/noise/{MANIFEST}")
    rng = np.random.default_rng(1)
    rows = [Row(rng.bytes(3000), number % 2, "train") for number in range(20)]
    other = write_store(
        tmp_path / "other", name="other", channels=3, class_names=["a", "b"], rows=rows, seed=None, settings={}
    )
    publish_store(other, address)
    begun = break_off(monkeypatch, after=9999)
    assert open_remote(address, tmp_path).manifest["digest"] == other.manifest["digest"]
    assert begun == [0]


def put(server: Server, name: str, data: bytes) -> None:
    with server.files().open_output_stream(name) as file:
        file.write(data)


@pytest.mark.parametrize("damage", ["an image", "half"])
def test_what_does_not_have_the_digest_is_refused(
    made: Store, bucket: str, tmp_path: Path, server: Server, damage: str
) -> None:
    publish_store(made, f"s3://{bucket}/noise")
    data = bytearray((made.path / IMAGES).read_bytes())
    data[len(data) // 2] ^= 1
    put(server, f"{bucket}/noise/{IMAGES}", bytes(data) if damage == "an image" else bytes(data[: len(data) // 2]))
    with pytest.raises(DataError, match=rf"^s3://{bucket}/noise: the fetched .* do not have the digest .* deleted"):
        open_remote(f"s3://{bucket}/noise", tmp_path)
    assert not list((tmp_path / "data" / "s3").iterdir())
    put(server, f"{bucket}/noise/{IMAGES}", (made.path / IMAGES).read_bytes())
    open_remote(f"s3://{bucket}/noise", tmp_path).verify()


def test_half_a_data_set(made: Store, bucket: str, tmp_path: Path, server: Server) -> None:
    address = f"s3://{bucket}/noise"
    with pytest.raises(DataError, match=f"^{address}: no data set there \\(no manifest.json\\); check the prefix$"):
        open_remote(address, tmp_path)
    put(server, f"{bucket}/noise/{IMAGES}", b"x")
    with pytest.raises(DataError, match=f"^{address}: half a data set: images.arrow without manifest.json; publish"):
        open_remote(address, tmp_path)
    put(server, f"{bucket}/noise/{MANIFEST}", b"{}")
    with pytest.raises(DataError, match=f"^{address}/manifest.json: format_version is 'missing'.*publish the data set"):
        open_remote(address, tmp_path)
    put(server, f"{bucket}/noise/{MANIFEST}", b"<html>")
    with pytest.raises(DataError, match=f"^{address}/manifest.json: not readable as JSON"):
        open_remote(address, tmp_path)
    server.files().delete_file(f"{bucket}/noise/{IMAGES}")
    put(server, f"{bucket}/noise/{MANIFEST}", (made.path / MANIFEST).read_bytes())
    with pytest.raises(DataError, match=f"^{address}: half a data set: manifest.json without images.arrow; publish"):
        open_remote(address, tmp_path)
    assert not list((tmp_path / "data" / "s3").iterdir())


def test_another_store_is_not_replaced(made: Store, bucket: str, tmp_path: Path) -> None:
    other = write_store(
        tmp_path / "o", name="o", channels=3, class_names=["a"], rows=[Row(b"x", 0, "test")], seed=None, settings={}
    )
    publish_store(other, f"s3://{bucket}/noise")
    with pytest.raises(DataError, match=f"^s3://{bucket}/noise: another data set is there; choose another prefix"):
        publish_store(made, f"s3://{bucket}/noise")


def test_publishing_that_broke_off_is_half_a_data_set(
    made: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = remote._RemoteStore.write

    def write(self: Any, name: str, path: Path) -> None:
        if name == MANIFEST:
            raise Broken
        whole(self, name, path)

    with monkeypatch.context() as patch:
        patch.setattr(remote._RemoteStore, "write", write)
        with pytest.raises(Broken):
            publish_store(made, f"s3://{bucket}/noise")
    with pytest.raises(DataError, match="half a data set"):
        open_remote(f"s3://{bucket}/noise", tmp_path)
    assert publish_store(made, f"s3://{bucket}/noise")
    open_remote(f"s3://{bucket}/noise", tmp_path).verify()


# --- this machine's copies


def publish(made: Store, bucket: str, *names: str) -> list[str]:
    """The addresses of as many equal stores."""
    addresses = [f"s3://{bucket}/{name}" for name in names]
    for address in addresses:
        publish_store(made, address)
    return addresses


def copy_of(address: str) -> Path:
    return find_copy(Address.parse(address), Path("/nowhere"))


def test_the_storages_of_a_machine_share_a_copy(made: Store, bucket: str, tmp_path: Path, server: Server) -> None:
    (address,) = publish(made, bucket, "noise")
    first = open_remote(address, tmp_path / "one")
    asked = server.requests("GET", f"{bucket}/noise/{IMAGES}")
    assert open_remote(address, tmp_path / "two").path == first.path == copy_of(address)
    assert server.requests("GET", f"{bucket}/noise/{IMAGES}") == asked
    assert list_copies(tmp_path / "one") == {address: first.path}


def test_another_endpoint_is_another_store(
    made: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (address,) = publish(made, bucket, "noise")
    open_remote(address, tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(object_store, "IMPATIENCE_SECONDS", 0.1)
    assert list_copies(tmp_path) == {}
    with pytest.raises(DataError, match="no connection"):
        open_remote(address, tmp_path)


def test_what_an_earlier_version_fetched_is_used(
    made: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"s3://{bucket}/noise"
    earlier = tmp_path / "runs" / "data" / "s3" / f"{bucket}%2Fnoise"
    shutil.copytree(made.path, earlier)
    monkeypatch.setattr(remote, "_RemoteStore", None)
    assert open_remote(address, tmp_path / "runs" / "data").path == earlier
    assert list_copies(tmp_path / "runs" / "data") == {address: earlier}


def fetch(address: str, begun: Any = None) -> None:
    """In a process of its own: fetch, and say when; with `begun`, stop at the third piece."""

    def pieces(self: Any, done: int, size: int) -> Generator[bytes, None, None]:
        for number, piece in enumerate(PIECES(self, done, size)):
            if number == 2:
                begun.set()
                time.sleep(60)
            yield piece

    if begun is not None:
        remote._RemoteStore.pieces = pieces  # type: ignore[method-assign]
    open_remote(address, "/nowhere").verify()


def test_processes_fetch_once_and_a_killed_one_blocks_none(made: Store, bucket: str, server: Server) -> None:
    (address,) = publish(made, bucket, "noise")
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    killed = context.Process(target=fetch, args=(address, begun))
    killed.start()
    assert begun.wait(60)
    others = [context.Process(target=fetch, args=(address,)) for _ in range(4)]
    for process in others:
        process.start()
    others[0].join(0.3)
    assert all(process.is_alive() for process in others), "they wait"
    killed.kill()
    for process in (killed, *others):
        process.join(60)
    assert [process.exitcode for process in others] == [0] * 4
    asked = server.requests("GET", f"{bucket}/noise/{IMAGES}")
    assert asked <= -(-size(made) // PIECE) + 5, "what was there, and at most what was read ahead"
    assert [path.name for path in copy_of(address).parent.iterdir()] == [copy_of(address).name]


def test_a_copy_that_was_cut_is_fetched_again(made: Store, bucket: str, tmp_path: Path) -> None:
    (address,) = publish(made, bucket, "noise")
    path = open_remote(address, tmp_path).path
    said: list[str] = []
    for name in (IMAGES, MANIFEST):
        os.truncate(path / name, 10)
        open_remote(address, tmp_path, say=said.append).verify()
    assert [line for line in said if "damaged" in line] == [
        f"{path} is damaged and was deleted: it is fetched again"
    ] * 2
    used = open_remote(address, tmp_path)
    (path / IMAGES).write_bytes(b"")
    with pytest.raises(DataError, match=f"^{path / IMAGES}: not a complete Arrow file"):
        open_remote(address, tmp_path)
    del used


def test_the_longest_unused_copy_makes_room(
    made: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c, d, e = publish(made, bucket, *"abcde")
    monkeypatch.setenv("ORCHESTRATOR_CACHE_SIZE", f"{3.5 * size(made):.0f}")
    for when, address in enumerate((a, b, c, a)):
        path = open_remote(address, tmp_path).path
        os.utime(path, (when, when))
    said: list[str] = []
    open_remote(d, tmp_path, say=said.append)
    assert set(list_copies(tmp_path)) == {a, c, d} and said[0].startswith(f"deleted {copy_of(b)}, to make room")
    open_remote(e, tmp_path)
    assert set(list_copies(tmp_path)) == {a, d, e}
    assert not [path for path in copy_of(a).parent.iterdir() if path.name.startswith(".")]


def test_a_copy_in_use_stays(made: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another process, of this one, and one that is being fetched; also if the bound is then exceeded."""
    a, b, c, d = publish(made, bucket, *"abcd")
    monkeypatch.setenv("ORCHESTRATOR_CACHE_SIZE", "1 KB")
    context = multiprocessing.get_context("fork")
    ready, begun = context.Event(), context.Event()

    def use(address: str) -> None:
        kept = open_remote(address, tmp_path)
        ready.set()
        time.sleep(60)
        del kept

    processes = [context.Process(target=use, args=(a,)), context.Process(target=fetch, args=(b, begun))]
    for process in processes:
        process.start()
    assert ready.wait(60) and begun.wait(60)
    kept = open_remote(c, tmp_path)
    opened = open_remote(d, tmp_path)
    assert set(list_copies(tmp_path)) == {a, c, d}
    draft = copy_of(b).with_name(f".{copy_of(b).name}.fetch")
    assert draft.exists()
    for process in processes:
        process.kill()
        process.join(60)
    del opened
    make_room(copy_of("s3://another/one"), 10, lambda line: None)
    assert set(list_copies(tmp_path)) == {c} and not draft.exists()
    kept.verify()


def test_a_size_that_means_nothing_is_one_line(
    made: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (address,) = publish(made, bucket, "noise")
    monkeypatch.setenv("ORCHESTRATOR_CACHE_SIZE", "5 apples")
    with pytest.raises(InputError, match="^ORCHESTRATOR_CACHE_SIZE: '5 apples': should be a size such as 100 GB"):
        open_remote(address, tmp_path)
    monkeypatch.setenv("ORCHESTRATOR_CACHE_SIZE", "1.5gb")
    assert copies.max_bytes() == 1_500_000_000


# --- out of reach, each in one line at the command line


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """A server that takes connections and answers none."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def denying() -> Iterator[str]:
    """A server that denies everything, as S3 does to a key that it does not know."""
    program = (
        "import http.server as h\n"
        "class Deny(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(403); self.send_header('Content-Length', '0'); self.end_headers()\n"
        "    do_HEAD = do_PUT = do_POST = do_GET\n"
        "    def log_message(self, *words): pass\n"
        "server = h.HTTPServer(('127.0.0.1', 0), Deny)\n"
        "print(server.server_port, flush=True)\n"
        "server.serve_forever()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (lambda: contextlib.nullcontext(None), r"no bucket 'no-such-bucket' at 127.0.0.1:\d+"),
        (denying, r"access denied by 127.0.0.1:\d+; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (silent, r"no connection to 127.0.0.1:\d+ \(.*\); check AWS_ENDPOINT_URL"),
        (
            lambda: contextlib.nullcontext("http://me:hush@127.0.0.1:1"),
            r"no connection to 127.0.0.1:1 \(.*\); check AWS_ENDPOINT_URL",
        ),
    ],
    ids=["no bucket", "denied", "silent", "unreachable"],
)
def test_out_of_reach(
    where: Any,
    message: str,
    made: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(s3, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(object_store, "IMPATIENCE_SECONDS", 0.5)
    address = "s3://no-such-bucket/noise"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "noise").symlink_to(made.path)
    with where() as endpoint:
        if endpoint is not None:
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        for command in (
            ["train", "--method=proxy_nca", f"--dataset={address}", "--name=one"],
            ["datasets", address],
            ["datasets", "publish", "noise", address],
        ):
            assert run(*command, f"--storage={tmp_path}") == 2
            printed = capfd.readouterr()
            assert re.search(rf"^error: {address}: {message}", printed.err, re.MULTILINE), printed.err
            assert len([line for line in printed.err.splitlines() if line.startswith("error")]) == 1
            assert "Traceback" not in printed.err and not printed.out
            assert SECRET not in printed.err and "hush" not in printed.err
    assert not (tmp_path / "searches" / "one").exists() and not list((tmp_path / "data").glob("s3/*"))


# --- addresses and secrets


@pytest.mark.parametrize(
    "address",
    [
        "s3://",
        "s3://bucket",
        "s3://bucket/",
        "gs://bucket",
        "az://",
        "file://bucket/x",
        "s3://bucket//x",
        "s3://bucket/../x",
    ],
)
def test_what_is_no_address(address: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(f"'{address}': an address should be s3://bucket/prefix")):
        open_dataset(address, tmp_path)
    with pytest.raises(InputError, match=re.escape(f"dataset: '{address}': an address should be s3://bucket/prefix")):
        resolve_experiment({"method": "proxy_nca", "dataset": address}, "test")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bucket", ["b", "Bucket", "bucket-"])
def test_what_is_no_bucket(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"bucket's name should be 3 to 63 small letters.*, not '{bucket}'"):
        open_dataset(f"s3://{bucket}/x", tmp_path)
    with pytest.raises(InputError, match=f"dataset: 's3://{bucket}/x': the bucket's name should be 3 to 63"):
        resolve_experiment({"method": "proxy_nca", "dataset": f"s3://{bucket}/x"}, "test")


def test_secrets_are_neither_taken_nor_repeated(
    made: Store, bucket: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"s3://somebody:{SECRET}@{bucket}/noise"
    for command in (["train", "--method=proxy_nca", f"--dataset={address}"], ["datasets", address]):
        assert run(*command, f"--storage={tmp_path}") == 2
        printed = capfd.readouterr()
        assert "s3://***@" in printed.err and "an address should be s3://bucket/prefix" in printed.err
        assert SECRET not in printed.err + printed.out

    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "Odd", "Message": f"{SECRET} said"}}, "GetObject")

    monkeypatch.setattr(s3_client(bucket, anonymous=True), "get_object", refuse)
    with pytest.raises(DataError, match=rf"^s3://{bucket}/noise: .* answers Odd, .*: \*\*\* said\)$"):
        open_remote(f"s3://{bucket}/noise", tmp_path)


def test_the_region_is_the_one_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert S3Bucket("any", "host").client.meta.region_name == "eu-west-3"


def test_a_public_bucket_needs_no_credentials(
    made: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_store(made, f"s3://{bucket}/noise")
    for name in (IMAGES, MANIFEST):
        s3_client(bucket).put_object_acl(Bucket=bucket, Key=f"noise/{name}", ACL="public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    buckets._bucket.cache_clear()
    assert open_remote(f"s3://{bucket}/noise", tmp_path).manifest == made.manifest
    buckets._bucket.cache_clear()
    with pytest.raises(OSError, match="no credentials for 127.0.0.1"):
        open_bucket("s3", bucket).get("noise/manifest.json")
    buckets._bucket.cache_clear()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "AWS_PROFILE",
            "nobody",
            r"s3://any-bucket: The config profile \(nobody\) could not be found; look at the AWS_",
        ),
        ("AWS_ENDPOINT_URL", "me:hush@host", "AWS_ENDPOINT_URL: should be an address such as https://host:port"),
    ],
)
def test_settings_of_aws_that_mean_nothing_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path))
    buckets._bucket.cache_clear()
    for command in (["datasets", "s3://any-bucket/noise"], ["list", "--storage=s3://any-bucket/runs"]):
        assert run(*command) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert re.match(f"error: {told}", line) and "hush" not in line


@pytest.mark.slow
def test_a_training_by_address(glyphs: Store, bucket: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Published, trained on, evaluated and listed at the command line; nothing written holds a secret."""
    address, storage = f"s3://{bucket}/glyphs-small", f"--storage={tmp_path}"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").symlink_to(glyphs.path)
    for state in ("published", "is there already"):
        assert run("datasets", "publish", "mine", address, storage) == 0
        assert f"glyphs-small: {state}: orchestrator train --dataset {address} ..." in capfd.readouterr().out
    assert run("datasets", "publish", "mine", address, storage, "--json") == 0
    published = json.loads(capfd.readouterr().out)
    conforms("datasets publish", published)
    assert published == {"name": "glyphs-small", "address": address, "new": False}
    assert run("datasets", address, storage, "--json") == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["state"], shown["images"], shown["classes"]) == ("not fetched", len(glyphs), glyphs.num_classes)
    settings = {"embedding_dim": 4, "class_subset": 8, "classes_per_batch": 2, "validation_share": 0, "threads": 1}
    sets = [f"--set={key}={value}" for key, value in settings.items()]
    command = ["train", "--method=proxy_nca", f"--dataset={address}", "--epochs=1", "--name=one", *sets]
    assert run(*command, storage) == 0
    assert run("evaluate", "one", f"--dataset={address}/", storage, "--json") == 0
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert 0 <= found["metrics"]["map_at_r"] <= 1
    assert overview(tmp_path / "data")[address].state == "fetched"
    first = json.loads((tmp_path / "searches" / "one" / "journal.jsonl").read_text().splitlines()[0])
    assert first["dataset"] == address and first["tags"]["dataset.digest"] == glyphs.manifest["digest"]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
