"""A simple package index on this machine, for asking it with the real HTTP client."""

from __future__ import annotations

import html
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATIENCE = 30

JSON = "application/vnd.pypi.simple.v1+json"


class PackageIndex:
    """Serves ``/simple/NAME/``, and remembers who asked.

    Attributes:
        versions: Package -> the versions it offers; unknown packages are answered with 404.
        raw: When set, every page consists of just these bytes.
        kind: The `Content-Type` of every page; `JSON` makes them documents of PEP 691.
        files: Package -> further files, as entries of such a document.
        asked: Names in the order they were asked for.
        headers: The headers of the last request.
        holds: Answers wait while this is not set.
        gone: Set when somebody who waited for an answer hung up.
    """

    def __init__(self, versions: Mapping[str, list[str]]) -> None:
        self.versions = versions
        self.raw: bytes | None = None
        self.kind = JSON
        self.files: dict[str, list[dict[str, object]]] = {}
        self.headers: Mapping[str, str] = {}
        self.asked: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.gone = threading.Event()
        self.url = ""

    @property
    def variables(self) -> dict[str, str]:
        """What makes pip, and so fdl, ask here and nowhere else."""
        return {
            "PIP_INDEX_URL": self.url,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_FIND_LINKS": "",
            "PIP_NO_INDEX": "",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def page(self, name: str) -> bytes | None:
        if self.raw is not None:
            return self.raw
        if name not in self.versions:
            return None
        stem = name.replace("-", "_")
        files: list[dict[str, object]] = [
            {"filename": f"{stem}-{version}-py3-none-any.whl"} for version in self.versions[name]
        ]
        files += self.files.get(name, [])
        if self.kind == JSON:
            document = {"meta": {"api-version": "1.0"}, "name": name, "files": files}
            return json.dumps(document).encode()
        links = "".join(map(_link, files))
        return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()


def _link(file: Mapping[str, object]) -> str:
    """A file of a JSON document as a link of a page."""
    name, requires = file["filename"], html.escape(str(file.get("requires-python") or ""))
    attributes = f' data-requires-python="{requires}"' if requires else ""
    attributes += ' data-yanked="broken"' if file.get("yanked") else ""
    return f'<a href="../../files/{name}#sha256=0"{attributes}>{name}</a>'


@contextmanager
def serve(versions: Mapping[str, list[str]]) -> Iterator[PackageIndex]:
    """Run an index until the block ends."""
    index = PackageIndex(versions)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").split("/")[-1]
            index.asked.append(name)
            index.headers = dict(self.headers)
            while not index.open.wait(0.05):
                if self._hung_up():
                    index.gone.set()
                    return
            page = index.page(name)
            self.send_response(404 if page is None else 200)
            self.send_header("Content-Type", index.kind)
            self.send_header("Content-Length", str(len(page or b"")))
            self.end_headers()
            self.wfile.write(page or b"")

        def _hung_up(self) -> bool:
            import socket

            try:
                return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True

        def log_message(self, *_: object) -> None:
            """Nothing on the tests' standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    index.url = f"http://127.0.0.1:{server.server_port}/simple"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield index
    finally:
        index.open.set()
        server.shutdown()
        thread.join()
        server.server_close()
