"""The page about a cluster: its commands, in its order, on two machines with a home each."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.networks import Network, namespaces
from support.readers import ROOT, Reader, page_lines, page_steps

from orchestrator.config.files import read_yaml

NETWORK = Network("page", "10.214.0", 2, routed=True)
HEAD = NETWORK.address(1)
SMALL = "--num-trials 2 --epochs 1"
BLOCKS = [text for language, _, text in page_steps("cluster.md") if language == "bash"][:4]
ON = [1, 2, 2, 1]
"""The machine of each block: the job is submitted on the head."""


def test_each_block_has_its_machine() -> None:
    assert len(BLOCKS) == len(ON)
    assert [block.splitlines()[0].split()[0] for block in BLOCKS] == ["ray", "scp", "export", "ray"]
    assert read_yaml(ROOT / "search_spaces" / "demo.yaml")["final_workers"]["high"] == 2
    shared = {line for line in page_lines("cluster.md") if line.startswith("orchestrator ")}
    assert all(
        "--storage /shared/runs" in line or line.startswith("orchestrator work /shared/runs ") for line in shared
    )


@pytest.fixture
def base() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))  # sockets lie beneath
    try:
        NETWORK.build()
        yield folder
    finally:
        NETWORK.remove()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.skipif(not namespaces(), reason="needs root and network namespaces")
def test_it_ends_with_a_search_over_two_machines(base: Path, data_folder: Path) -> None:
    (base / "runs").mkdir()
    (base / "runs" / "data").symlink_to(data_folder)
    readers: dict[int, Reader] = {}
    for number in (1, 2):
        (base / str(number)).mkdir()
        environment = {"RAY_TMPDIR": str(base), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
        readers[number] = Reader(base / str(number), environment, NETWORK.inside(number))
    token = base / "1" / "home" / ".ray" / "auth_token"
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for number, block in zip(ON, BLOCKS, strict=True):
            reader = readers[number]
            for line in block.splitlines():
                typed = line.split(" #")[0].strip().replace("HEAD", HEAD).replace("/shared", str(base))
                if typed.startswith("scp "):
                    typed = f"mkdir -p ~/.ray && cp -p {token} ~/.ray/auth_token"
                elif typed.startswith("ray start"):
                    typed += " --num-cpus 1 --object-store-memory 100000000"
                    if number == 2:  # as the page says, without the variable
                        with pytest.raises(AssertionError, match="Authentication token is missing"):
                            reader.run(f"env -u RAY_AUTH_MODE {typed}")
                elif "orchestrator search" in typed:
                    typed += f" {SMALL}"
                if typed.startswith("mlflow server"):
                    servers.append(start_server(typed, reader))
                else:
                    reader.run(typed)
        assert token.stat().st_mode & 0o77 == 0
        for name in ("first", "second"):
            report = json.loads(readers[2].run(f"orchestrator report {name} --storage {base / 'runs'} --json"))
            assert report["state"] == "done"
            # of two processes, and each machine has room for one
            assert report["final"]["metrics"]["test/map_at_r"] > 0
        assert "second" in (base / "1" / "second.html").read_text(encoding="utf-8")
        names = readers[2].run(
            f"python -c \"import mlflow; mlflow.set_tracking_uri('http://{HEAD}:5000'); "
            "print(mlflow.search_runs(search_all_experiments=True)['tags.mlflow.runName'].tolist())\""
        )
        assert "first" in names and "second" in names
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def start_server(line: str, reader: Reader) -> subprocess.Popen[bytes]:
    """MLflow's server, once it answers."""
    with open(reader.folder / "mlflow.txt", "wb") as log:
        server = subprocess.Popen(
            [*reader.before, "bash", "-c", line],
            cwd=reader.folder,
            env=reader.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + 300
    while "startup complete" not in (reader.folder / "mlflow.txt").read_text():
        assert server.poll() is None and time.monotonic() < deadline, (reader.folder / "mlflow.txt").read_text()
        time.sleep(1)
    return server
