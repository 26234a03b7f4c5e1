"""Azurite, Microsoft's emulator of Azure Blob Storage, as a process of its own.

It is a package of Node: `npm install --prefix ~/.cache/azurite azurite`.
"""

import base64
import contextlib
import hashlib
import hmac
import http.client
import os
import shutil
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

from support.s3 import Server, serve

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The emulator's own, which everybody knows."""


def find_azurite() -> str | None:
    """The program, if it is installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return shutil.which("azurite-blob") or shutil.which(cache / "azurite" / "node_modules" / ".bin" / "azurite-blob")


def azurite(folder: Path) -> contextlib.AbstractContextManager[Server]:
    """The emulator, at a port of its own."""
    program = find_azurite()
    assert program is not None
    command = [program, "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    return serve(command, r"successfully listens on (http://\S+)", folder)


def create_container(server: Server, name: str) -> None:
    """A container in the emulator's account."""
    date = formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    named = "".join(f"{header}:{value}\n" for header, value in headers.items())
    text = "PUT" + 12 * "\n" + f"{named}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    signature = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
    connection = http.client.HTTPConnection(urlsplit(server.endpoint).netloc)
    connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers | {"Content-Length": "0"})
    assert connection.getresponse().status == 201
    connection.close()
