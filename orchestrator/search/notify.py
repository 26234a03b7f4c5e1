"""A message at the end of a search: to a command of the user's, or to a webhook. It never changes how a search ends."""

import json
import os
import shlex
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from orchestrator.errors import InputError
from orchestrator.problems import Bare, Option, Problem
from orchestrator.storage.leaderboard import chosen_value
from orchestrator.storage.ledger import Ledger

COMMAND_SECONDS = 60.0
URL_SECONDS = 10.0


@dataclass(frozen=True)
class Notification:
    """Whom to tell of the end: a program with its arguments, and a web address; either may be missing."""

    command: tuple[str, ...] = ()
    url: str | None = None

    @classmethod
    def of(cls, command: str | None, url: str | None) -> "Notification":
        """InputError, before anything starts, for a command that does not exist or an address that is none. The address
        is often a secret: no message repeats it."""
        words: tuple[str, ...] = ()
        if command is not None:
            try:
                words = tuple(shlex.split(command))
            except ValueError as error:
                raise InputError(Problem((Option("notify_command"),), Bare(command), f"{str(error).lower()}")) from None
            if not words or shutil.which(words[0]) is None:
                program = words[0] if words else command
                raise InputError(
                    Problem((Option("notify_command"),), rule=f"no program '{program}' is found; give its path")
                )
        if url is not None:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise InputError(
                    Problem((Option("notify_url"),), rule="should be an address such as https://hooks.example/path")
                )
        return cls(words, url)

    def send(self, message: Mapping[str, Any]) -> list[str]:
        """Tell both, and return a line for each that could not be told.

        The command gets the message as JSON on its standard input, and as ORCHESTRATOR_TEXT, _NAME and _STATE in its
        environment; no shell reads it. The address gets the JSON by POST.
        """
        data, problems = json.dumps(message).encode(), []
        if self.command:
            variables = {f"ORCHESTRATOR_{key.upper()}": str(message.get(key, "")) for key in ("text", "name", "state")}
            try:
                done = subprocess.run(
                    self.command,
                    input=data,
                    env=os.environ | variables,
                    timeout=COMMAND_SECONDS,
                    stdout=subprocess.DEVNULL,
                )
                if done.returncode:
                    problems.append(f"--notify-command: {self.command[0]} ended with code {done.returncode}")
            except subprocess.TimeoutExpired:
                problems.append(
                    f"--notify-command: {self.command[0]} took more than {COMMAND_SECONDS:g} s; it was ended"
                )
            except OSError as error:
                problems.append(f"--notify-command: {self.command[0]}: {error.strerror or error}")
        if self.url is not None:
            host = urlsplit(self.url).hostname
            request = urllib.request.Request(self.url, data, {"Content-Type": "application/json"}, method="POST")
            try:
                urllib.request.urlopen(request, timeout=URL_SECONDS).close()
            except urllib.error.HTTPError as error:
                problems.append(f"--notify-url: {host} answers {error.code}")
            except (OSError, ValueError, HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                problems.append(f"--notify-url: {host} cannot be told ({getattr(reason, 'strerror', None) or reason})")
        return problems


def end_of_search(ledger: Ledger, state: str) -> dict[str, Any]:
    """What is told of a search that has ended; `text` is what chat programs show."""
    from orchestrator.report.leading import find_favoured

    winner, ahead = ledger.winner(), find_favoured(ledger)
    tests = ledger.tests_of(winner if ahead is None else ahead.trial)
    text = f"{ledger.kind} {ledger.name} ({ledger.method} on {ledger.dataset}): {state}"
    best = None if winner is None else chosen_value(ledger, winner)
    if winner is not None and best is not None:
        text += f"; best {ledger.metric} {best:.4f} by trial {winner.trial_id}"
    if ahead is not None:
        text += f"; {ahead.text}"
    tested = tests[0].test if tests else {}
    if tested:
        text += "; test " + ", ".join(
            f"{name} {tested[name]:.4f}" for name in ("map_at_r", "recall_at_1") if name in tested
        )
    return {
        "text": text,
        "name": ledger.name,
        "state": state,
        "dataset": ledger.dataset,
        "method": ledger.method,
        "objective": ledger.metric,
        "best": best,
        "test": dict(tested),
    }


def end_of_benchmark(name: str, stopped: str | None) -> dict[str, Any]:
    """What is told of a benchmark that has ended."""
    state = "done" if stopped is None else "interrupted"
    return {"text": f"benchmark {name}: {state}" + (f" ({stopped})" if stopped else ""), "name": name, "state": state}
