"""A small server of Google Cloud Storage's XML interface, in memory, with its preconditions on generations."""

import itertools
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 5
"""How many entries a page of a list has: so few that lists have several."""
Object = tuple[bytes, int]
"""An object's content and generation."""


class GoogleServer(ThreadingHTTPServer):
    """Buckets by name, each with its objects by key."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: "type[Handler] | None" = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.lock = threading.Lock()
        self.buckets: dict[str, dict[str, Object]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.generations = itertools.count(1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GoogleServer

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(url.path).removeprefix("/").partition("/")
        with self.server.lock:
            objects = self.server.buckets.get(bucket)
            if objects is None:
                self.refuse(404, "NoSuchBucket")
            elif not key:
                self.list_objects(objects, query)
            elif self.command in ("GET", "HEAD"):
                self.read(objects, key)
            elif self.command == "DELETE":
                self.answer(204) if objects.pop(key, None) else self.refuse(404, "NoSuchKey")
            elif self.command == "POST" and "uploads" in query:
                upload = str(next(self.server.generations))
                self.server.uploads[upload] = {}
                result = "InitiateMultipartUploadResult"
                self.answer(200, f"<{result}><UploadId>{upload}</UploadId></{result}>")
            elif self.command == "PUT" and "partNumber" in query:
                self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
                self.answer(200, headers={"ETag": f'"part{query["partNumber"]}"'})
            elif self.command == "POST":
                parts = self.server.uploads.pop(query["uploadId"])
                self.write(objects, key, b"".join(part for _, part in sorted(parts.items())))
            else:
                self.write(objects, key, body)

    def write(self, objects: dict[str, Object], key: str, body: bytes) -> None:
        condition = self.headers.get("x-goog-if-generation-match")
        if condition is not None and int(condition) != objects.get(key, (b"", 0))[1]:
            return self.refuse(412, "PreconditionFailed")
        if source := self.headers.get("x-goog-copy-source"):
            bucket, _, name = unquote(source).removeprefix("/").partition("/")
            if name not in self.server.buckets[bucket]:
                return self.refuse(404, "NoSuchKey")
            body = self.server.buckets[bucket][name][0]
        generation = next(self.server.generations)
        objects[key] = body, generation
        headers = {"ETag": f'"{generation}"', "x-goog-generation": str(generation)}
        result = "CompleteMultipartUploadResult" if self.command == "POST" else "CopyObjectResult"
        when = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        return self.answer(200, f'<{result}>{when}<ETag>"{generation}"</ETag></{result}>', headers)

    def read(self, objects: dict[str, Object], key: str) -> None:
        if key not in objects:
            return self.refuse(404, "NoSuchKey")
        data, generation = objects[key]
        size, status = len(data), 200
        headers = {"ETag": f'"{generation}"', "x-goog-generation": str(generation)}
        headers["Last-Modified"] = formatdate(usegmt=True)
        if span := self.headers.get("Range"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            data, status = data[int(first) : int(last or size) + 1], 206
            headers["Content-Range"] = f"bytes {first}-{int(first) + len(data) - 1}/{size}"
        return self.answer(status, data, headers)

    def list_objects(self, objects: dict[str, Object], query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after") or ""
        rows: dict[str, str] = {}
        for key, (data, generation) in sorted(objects.items()):
            folder, inner, _ = key.removeprefix(prefix).partition(delimiter or "\0")
            if not key.startswith(prefix) or key <= after:
                continue
            if delimiter and inner:
                name = f"{prefix}{folder}{delimiter}"
                if name > after:
                    rows[name] = f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                continue
            facts = f"<Size>{len(data)}</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            rows[key] = f"<Contents><Key>{escape(key)}</Key>{facts}<ETag>{generation}</ETag></Contents>"
        page = list(rows)[:PAGE]
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(rows) > PAGE else ""
        text = "".join(rows[name] for name in page)
        self.answer(200, f"<ListBucketResult>{text}{more}</ListBucketResult>")

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, f"<Error><Code>{code}</Code></Error>")

    def answer(self, status: int, body: bytes | str = b"", headers: dict[str, str] | None = None) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    def log_message(self, *_: Any) -> None:
        """Nothing."""
