"""A small server of Azure's blobs in memory, and Azurite, Microsoft's emulator, as a process of its own.

Azurite is a package of Node: `npm install --prefix ~/.cache/azurite azurite`.
"""

import base64
import contextlib
import hashlib
import hmac
import http.client
import os
import re
import shutil
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from support.google_server import PAGE, GoogleServer, Handler, Object
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


class AzureHandler(Handler):
    """Blobs with block lists, copies and the condition `If-None-Match: *`; whose key signs a request is not checked."""

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        _, container, *rest = unquote(url.path).removeprefix("/").split("/", 2)
        key = rest[0] if rest else ""
        with self.server.lock:
            objects = self.server.buckets.get(container)
            if objects is None:
                self.refuse(404, "ContainerNotFound")
            elif query.get("comp") == "list":
                self.list_objects(objects, query)
            elif query.get("comp") == "batch":
                self.delete_many(objects, body)
            elif self.command in ("GET", "HEAD"):
                self.read(objects, key)
            elif self.command == "DELETE":
                self.answer(202) if objects.pop(key, None) else self.refuse(404, "BlobNotFound")
            elif query.get("comp") == "block":
                self.server.blocks[key, query["blockid"]] = body
                self.answer(201)
            elif query.get("comp") == "blocklist":
                blocks = [str(block.text) for block in ElementTree.fromstring(body)]
                self.write(objects, key, b"".join(self.server.blocks.pop((key, block)) for block in blocks))
            else:
                self.write(objects, key, body)

    server: "AzureServer"

    def write(self, objects: dict[str, Object], key: str, body: bytes) -> None:
        if self.headers.get("If-None-Match") == "*" and key in objects:
            return self.refuse(409, "BlobAlreadyExists")
        status = 201
        if source := self.headers.get("x-ms-copy-source"):
            name = unquote(urlsplit(source).path).removeprefix("/").split("/", 2)[2]
            if name not in objects:
                return self.refuse(404, "BlobNotFound")
            body, status = objects[name][0], 202
        generation = next(self.server.generations)
        objects[key] = body, generation
        return self.answer(status, headers={"ETag": f'"{generation}"', "Last-Modified": formatdate(usegmt=True)})

    def delete_many(self, objects: dict[str, Object], body: bytes) -> None:
        """A multipart answer to a multipart request, of a part for each blob."""
        parts = []
        for number, path in enumerate(re.findall(r"^DELETE (\S+) HTTP", body.decode(), re.MULTILINE)):
            gone = objects.pop(unquote(urlsplit(path).path).removeprefix("/").split("/", 2)[2], None)
            head = "HTTP/1.1 202 Accepted" if gone else "HTTP/1.1 404 None\r\nx-ms-error-code: BlobNotFound"
            parts.append(f"--b\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n{head}\r\n\r\n\r\n")
        self.answer(202, "".join([*parts, "--b--\r\n"]), {"Content-Type": "multipart/mixed; boundary=b"})

    def list_objects(self, objects: dict[str, Object], query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        rows: dict[str, str] = {}
        for key, (data, generation) in sorted(objects.items()):
            folder, inner, _ = key.removeprefix(prefix).partition(delimiter or "\0")
            if not key.startswith(prefix):
                continue
            if delimiter and inner:
                name = f"{prefix}{folder}{delimiter}"
                rows[name] = f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>"
                continue
            facts = (
                f"<Last-Modified>{formatdate(usegmt=True)}</Last-Modified><Content-Length>{len(data)}</Content-Length>"
            )
            facts += f"<Content-Type>x</Content-Type><Etag>{generation}</Etag>"
            rows[key] = f"<Blob><Name>{escape(key)}</Name><Properties>{facts}</Properties></Blob>"
        names = [name for name in rows if name > query.get("marker", "")]
        more = escape(names[PAGE - 1]) if len(names) > PAGE else ""
        text = "".join(rows[name] for name in names[:PAGE])
        blobs = f"<Blobs>{text}</Blobs><NextMarker>{more}</NextMarker>"
        self.answer(200, f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults>{blobs}</EnumerationResults>')

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, f"<Error><Code>{code}</Code></Error>", {"x-ms-error-code": code})

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any


class AzureServer(GoogleServer):
    """Containers by name, and the blocks that no list has taken yet."""

    def __init__(self) -> None:
        super().__init__(AzureHandler)
        self.blocks: dict[tuple[str, str], bytes] = {}
