"""What docs/security.md says of servers, secrets and files."""

import base64
import contextlib
import json
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from services import MLflowServer, Postgres
from support.insight_views import CURVES, NAMES, view
from support.made_pages import HOSTILE, Elements, figures, made, spread
from support.memory_tracking import MemoryTracker
from support.recorded import forge, record
from support.terminals import LONG, TINY, Terminal, family, terminal, wait

from orchestrator.errors import InputError
from orchestrator.report.comparison import Comparison
from orchestrator.report.findings import Findings
from orchestrator.report.html import rendering
from orchestrator.report.html.comparison_page import comparison_page
from orchestrator.report.html.model_page import model_page
from orchestrator.report.html.search_page import page
from orchestrator.storage.journal import Journal
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.places import Places
from orchestrator.storage.reading import read_journal
from orchestrator.training.checkpoint import load_checkpoint

__all__ = ["terminal"]
PASSWORD = "hunter2-of-the-tests"


class Intruder:
    """Runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def pages(folder: Path, name: str) -> dict[str, str]:
    """The pages of a search, a comparison and a model, with this name of everything that a user or a file names."""
    finals = {"0003": [0.52, 0.5], "0006": [0.51, 0.53]}
    ledger = made(folder, spread(12), pruned=lambda number: number % 3 == 1, reason=name, finals=finals)
    ledger.name, ledger.tags = name, {name: name}
    found = Findings.of(ledger)
    renamed = {**found.settings, "method": name, "dataset": name, "backbone": name}
    found = replace(found, settings=renamed, confused=name, command=name, numbers=(name,), warnings=(name,))
    model = replace(
        view([name, *NAMES[1:]], curves={name: [1.0, 2.0], **CURVES}), title=name, facts=[name], told=[name]
    )
    return {
        "search": page(found, images=name),
        "comparison": comparison_page(Comparison.of(name, {name: ledger, "other": ledger}, missing=[name])),
        "model": model_page(replace(model, title=name, facts=[name], told=[name])),
    }


def test_no_name_is_markup_in_a_page(tmp_path: Path) -> None:
    calm = pages(tmp_path / "calm", ("calm" * 30)[: len(HOSTILE)])  # a short name has another form
    for kind, html in pages(tmp_path / "hostile", HOSTILE).items():
        seen = Elements(html)
        built, of_calm = ([tag for tag, _ in one.tags if tag != "wbr"] for one in (seen, Elements(calm[kind])))
        assert built == of_calm, kind  # but for places where a long name may break
        assert "".join(seen.text).count(HOSTILE) >= 3, kind
        if kind != "model":
            assert not re.search(r"<(?!/?b>|br>|/?extra>)", json.dumps(figures(html))), kind  # plotly reads HTML


def test_the_test_of_names_sees_templates_that_do_not_escape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    careless = rendering.environment().overlay(autoescape=False)
    monkeypatch.setattr(rendering, "environment", lambda: careless)
    monkeypatch.setattr(rendering, "escape", str)
    found = pages(tmp_path, HOSTILE)
    assert all(("script", {}) in Elements(html.partition("<body>")[2]).tags[:5] for html in found.values())
    assert re.search(r"<(?!/?b>|br>|/?extra>)", json.dumps(figures(found["comparison"])))


def test_a_checkpoint_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save({"model": Intruder(tmp_path / "trace")}, tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match="not a checkpoint of this tool"):
        load_checkpoint(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "trace").exists()
    torch.load(tmp_path / "checkpoint.pt", weights_only=False)
    assert (tmp_path / "trace").exists(), "so it would have been"


@pytest.mark.parametrize("name", ["../outside", "/etc", ".hidden", "a/b", ""])
def test_a_name_stays_in_the_storage(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="should be letters, digits"):
        Places(tmp_path).search(name)


def test_a_forged_journal_leads_nowhere(tmp_path: Path) -> None:
    """Whoever may write to the storage can write journals, but not have files written or sent from elsewhere."""
    with Journal(tmp_path / "journal.jsonl") as journal:
        record(journal, "search_started")
    forge(tmp_path / "journal.jsonl", "trial_started", trial_id="../../elsewhere", kind="trial", params={})
    with pytest.raises(InputError, match=r"trial_id: '\.\./\.\./elsewhere': "):
        read_journal(tmp_path / "journal.jsonl")


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "trials/../../secret"])
def test_no_file_from_elsewhere_is_sent(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "search"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    (folder / "fine.txt").write_text("fine")
    with Journal(folder / "journal.jsonl") as journal:
        record(journal, "search_started")
        record(journal, "artifact", trial_id=None, path=path)
        record(journal, "artifact", trial_id=None, path="fine.txt")
    tracker = MemoryTracker(folder / "journal.jsonl")
    tracker.notify()
    (run,) = tracker.runs.values()
    assert run["artifacts"] == {"config.yaml", "fine.txt"}
    assert tracker.problem is not None and "is not in the search's folder" in tracker.problem


def test_no_secret_in_the_help() -> None:
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"http://me:{PASSWORD}@127.0.0.1:9", "COLUMNS": "300"}
    for command in ("search", "resume", "train", "sync", "ui"):
        words = [sys.executable, "-m", "orchestrator", command, "--help"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert "MLFLOW_TRACKING_URI" in done.stdout and PASSWORD not in done.stdout


def test_the_token_is_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.execution.ray_start import a_token

    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("HOME", "/dev/null/nowhere")  # as one that cannot be written
    with a_token():
        kept = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        assert len(kept.read_text()) >= 32 and kept.stat().st_mode & 0o777 == 0o600
    assert not kept.exists() and "RAY_AUTH_TOKEN_PATH" not in os.environ

    monkeypatch.setenv("HOME", str(tmp_path))
    with a_token():
        assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    token = tmp_path / ".ray" / "auth_token"
    made = token.read_text()
    assert len(made) >= 32 and token.stat().st_mode & 0o777 == 0o600
    token.chmod(0o644)
    with a_token():
        pass
    assert token.read_text() == made and token.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in token.parent.iterdir()] == ["auth_token"]


@pytest.mark.slow
def test_our_cluster_listens_to_this_machine_alone_and_asks_for_a_token(terminal: Terminal) -> None:
    process = terminal.search(LONG, "closed", "--num-trials", "1")
    terminal.wait_for_validations(process, "closed", 1)
    listening = set()
    for member in family(process):
        with contextlib.suppress(psutil.Error):
            listening |= {c.laddr for c in member.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert listening
    assert {address.ip for address in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    words = " ".join(word for member in family(process) for word in member.cmdline())
    assert "raylet" in words and "monitor.py" not in words, "servers that only cost time"
    gcs = next(m for m in family(process) if "gcs_server" in m.name())
    port = re.search(r"--gcs_server_port=(\d+)", " ".join(gcs.cmdline()))
    assert port is not None
    if port[1] == "0":
        ports = [c.laddr.port for c in gcs.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    else:
        ports = [int(port[1])]
    # else Ray looks for 127.0.0.1 at the machine's outer address, where nobody listens
    here = os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}

    def comes_in(number: int, environment: dict[str, str], seconds: float) -> bool:
        script = f"import ray; ray.init('127.0.0.1:{number}'); print('came in')"
        with contextlib.suppress(subprocess.TimeoutExpired):
            words = [sys.executable, "-c", script]
            done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=seconds)
            return "came in" in done.stdout
        return False

    begun = time.monotonic()
    assert any(comes_in(number, here, 40) for number in ports)
    enough = max(15.0, 3 * (time.monotonic() - begun))
    assert not any(comes_in(number, here | {"RAY_AUTH_TOKEN": "0" * 32}, enough) for number in ports)
    process.terminate()  # unless it has ended meanwhile
    process.communicate(timeout=120)


# A tracking server with PostgreSQL, a password and TLS ------------------------------------------------------------


class GuardedServer(MLflowServer):
    """Basic auth, and TLS with a certificate of its own making."""

    @property
    def uri(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path:
        return self.folder / "tls.crt"

    def command(self) -> list[str]:
        options = f"--ssl-certfile={self.certificate} --ssl-keyfile={self.folder / 'tls.key'}"
        return [*super().command(), "--app-name", "basic-auth", "--uvicorn-opts", options]

    def environment(self) -> dict[str, str]:
        users = f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{self.folder / 'users.db'}\n"
        users += f"admin_username = admin\nadmin_password = {PASSWORD}\n"
        users += "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        (self.folder / "users.ini").write_text(users)
        words = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -out {self.certificate}"
        words += f" -keyout {self.folder / 'tls.key'} -addext subjectAltName=IP:127.0.0.1"
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
        return super().environment() | {
            "MLFLOW_AUTH_CONFIG_PATH": str(self.folder / "users.ini"),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": "of-the-tests",
        }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    """As `deploy/compose.yaml` has it, but for the store of artifacts."""
    if not Postgres.installed():
        pytest.skip("needs PostgreSQL (initdb, postgres)")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="pg") as base:
        Path(base).chmod(0o711)
        postgres = Postgres(Path(base) / "postgres")
        server = GuardedServer(tmp_path_factory.mktemp("mlflow") / "server", postgres.uri)
        try:
            postgres.start()
            server.start()
            yield server
        finally:
            server.kill()
            postgres.kill()


def ask(server: GuardedServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """MLflow's own interface, as the administrator."""
    context = ssl.create_default_context(cafile=str(server.certificate))
    login = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.uri}/api/2.0/mlflow/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, context=context, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@pytest.mark.slow
def test_a_server_with_a_password_and_tls(
    terminal: Terminal, server: GuardedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First without the password: the search runs, and says what is missing; then `sync` with it."""
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(server.certificate))
    small = TINY | {"num_trials": 2, "scheduler": "none", "final": False}
    _, stderr = terminal.finish(terminal.search(small, "guarded", "--tracking-uri", server.uri))
    assert "401" in stderr or "not authenticated" in stderr.lower()
    assert "orchestrator sync guarded" in stderr

    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    stdout, _ = terminal.run("sync", "guarded", "--tracking-uri", server.uri)
    assert "the search has 3 runs there" in stdout

    experiments = ask(server, "experiments/search", {"max_results": 10})["experiments"]
    (experiment,) = [found["experiment_id"] for found in experiments if found["name"] == "glyphs-small"]
    runs = ask(server, "runs/search", {"experiment_ids": [experiment], "max_results": 100})["runs"]
    assert len(runs) == 3 and {run["info"]["status"] for run in runs} == {"FINISHED"}
    assert PASSWORD not in json.dumps(runs)
    measured = [[metric["key"] for metric in run["data"].get("metrics", [])] for run in runs]
    assert all(measured)  # the search's own run has the best value
    assert all(len(keys) == len(set(keys)) for keys in measured)
    assert_no_secret(terminal.storage)
    assert Ledger.of(terminal.events("guarded")).state == "done"


def assert_no_secret(*folders: Path, secrets: Sequence[str] = (PASSWORD,)) -> None:
    """Not in any file, whatever it is called: databases and Ray's logs too."""
    for path in [path for folder in folders for path in folder.rglob("*")]:
        with contextlib.suppress(OSError):  # sockets, and what is gone meanwhile
            content = path.read_bytes() if path.is_file() else b""
            assert not [secret for secret in secrets if secret.encode() in content], path


PLANTED = {
    name: f"planted-{name.lower()}"
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SECURITY_TOKEN",
        "AWS_SESSION_TOKEN",
        "MLFLOW_TRACKING_USERNAME",
        "MLFLOW_TRACKING_PASSWORD",
        "MLFLOW_TRACKING_TOKEN",
        "HF_TOKEN",
        "MY_PASSWORD",
    )
} | {"RAY_AUTH_TOKEN": "5ec7e7" * 8}


@pytest.mark.slow
def test_no_secret_of_a_search_is_kept(terminal: Terminal) -> None:
    """Not in the environment's, nor an address's password: in no file of the search or of Ray, and in no child's
    command line, while it runs and after."""
    secrets = [PASSWORD, *PLANTED.values()]
    uri = f"http://me:{PASSWORD}@127.0.0.1:9"
    variables = PLANTED | {"RAY_AUTH_MODE": "token", "MLFLOW_TRACKING_URI": uri, "RAY_worker_niceness": "0"}
    process = terminal.search(LONG, "secretive", "--tracking-uri", uri, **variables)
    wait(lambda: process.poll() is not None or terminal.events("secretive", "validation"), 400)
    (raylet,) = [member for member in family(process) if member.name() == "raylet"]
    temporary = Path(raylet.environ()["TMPDIR"])
    (log,) = temporary.rglob("runtime_env_agent.log")
    said = log.read_text()
    assert "Listening" in said, "what Ray logs is looked at"
    assert "Creating runtime env" not in said, "a process with an environment of its own is none of those started ahead"
    assert_no_secret(temporary, terminal.storage, terminal.project, secrets=secrets)
    for member in family(process):
        with contextlib.suppress(psutil.Error):
            assert not [secret for secret in secrets if secret in " ".join(member.cmdline())], member
    process.terminate()
    stdout, stderr = terminal.finish(process, code=130)
    assert not [secret for secret in secrets if secret in stdout + stderr]
    wait(lambda: not family_of(process.pid), 60)
    time.sleep(0.1)
    assert_no_secret(terminal.storage, terminal.project, secrets=secrets)


def family_of(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []
