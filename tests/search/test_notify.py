"""The message at the end of a search: who gets it, and that a wrong or silent one changes nothing."""

import json
import shlex
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from support.serving import serving

from orchestrator.cli.main import main
from orchestrator.errors import InputError
from orchestrator.search.notify import Notification, end_of_benchmark, end_of_search
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.trial_record import TrialRecord


class Hook(HTTPServer):
    """A webhook that keeps what it gets, and answers with `code`."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.code = 200
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/secret-path"


class _Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        self.server.got.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.server.code)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[Hook]:
    with serving(Hook()) as server:
        yield server


def ended() -> Ledger:
    ledger = Ledger(name="x", dataset="glyphs", method="pfml", metric="val/map_at_r", config={"num_trials": 1})
    ledger.trials["0003"] = TrialRecord("0003", 3, "trial", {}, 1, state="done", best=0.5, curve=[0.5])
    return ledger


def test_the_message_says_what_was_found() -> None:
    told = end_of_search(ended(), "done")
    assert told["text"].startswith("search x (pfml on glyphs): done")
    assert (told["name"], told["state"], told["objective"]) == ("x", "done", "val/map_at_r")
    assert end_of_benchmark("b", "stopped by me")["text"] == "benchmark b: interrupted (stopped by me)"


def test_the_command_and_the_webhook_get_it(hook: Hook, tmp_path: Path) -> None:
    script = tmp_path / "told.py"
    script.write_text(
        "import os, sys, pathlib\n"
        "pathlib.Path(sys.argv[1]).write_text(os.environ['ORCHESTRATOR_TEXT'] + '\\n' + sys.stdin.read())\n"
    )
    kept = tmp_path / "kept; touch evil"  # no shell reads it
    command = shlex.join([sys.executable, str(script), str(kept)])
    message = {"text": "a $(touch evil) b", "name": "x", "state": "done"}
    assert Notification.of(command, hook.url).send(message) == []
    first, rest = kept.read_text().split("\n", 1)
    assert first == message["text"] and json.loads(rest) == message
    assert [json.loads(data) for data in hook.got] == [message]
    assert not (tmp_path / "evil").exists()


def test_who_cannot_be_told_is_a_warning_without_the_secret(hook: Hook) -> None:
    hook.code = 500
    failing = shlex.join([sys.executable, "-c", "raise SystemExit(3)"])
    first, second = Notification.of(failing, hook.url).send({"text": "x"})
    assert first == f"--notify-command: {sys.executable} ended with code 3"
    assert second == "--notify-url: 127.0.0.1 answers 500"
    (silent,) = Notification.of(None, "http://127.0.0.1:9/secret-path").send({})
    assert silent.startswith("--notify-url: 127.0.0.1 cannot be told (") and "secret" not in silent
    assert Notification.of(None, None).send({}) == []


@pytest.mark.parametrize(
    ("command", "url", "says"),
    [
        ("no-such-program-here -x", None, "--notify-command: no program 'no-such-program-here' is found"),
        ("echo 'open", None, "--notify-command: echo 'open: no closing quotation"),
        (None, "ftp://host/secret", "--notify-url: should be an address such as https://"),
        (None, "https:secret", "--notify-url: should be an address such as https://"),
    ],
)
def test_a_wrong_one_is_refused_before_the_search(
    command: str | None, url: str | None, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as refused:
        Notification.of(command, url)
    assert str(refused.value).startswith(says) and "secret" not in str(refused.value)
    option = ["--notify-command", command] if command is not None else ["--notify-url", str(url)]
    with pytest.raises(SystemExit) as leaving:
        main(["search", "demo", "--storage", str(tmp_path), *option])
    assert leaving.value.code == 2 and capsys.readouterr().err.startswith(f"error: {says}")
    assert not list(tmp_path.iterdir())
