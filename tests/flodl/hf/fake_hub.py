"""A Hub on this machine: repositories made from directories, served over HTTP as the real one does.

with FakeHub() as hub:
    hub.add_repo("owner/name", directory, {"v1": older_directory})
    done = hub.python("from flodl.hf import …", tmp_path)
    assert hub.bodies() == ["/owner/name/resolve/…/config.json"]

Files with the endings of large ones are redirected to a second server on another port, which must
never see a token. A repository keeps the files as they were when it was added.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from tests import fork_server

DEFAULT_BRANCH = "main"
LARGE = (".safetensors", ".bin", ".onnx", ".model", ".h5")
_STALL_SECONDS = 20.0
_IDLE_SECONDS = 20.0
_FOREIGN = re.compile(r"HF_|HUGGING|TRANSFORMERS_|FLODL_|\w+_proxy$", re.IGNORECASE)
_RESOLVE = re.compile(r"/(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_API = re.compile(
    r"/api/models/(?P<repo>[^/]+(?:/[^/]+)??)"
    r"(?:/(?P<what>revision|tree)/(?P<revision>[^/]+)(?P<folder>/.*)?)?"
)


@dataclass(frozen=True)
class Request:
    """What was asked, and how it was answered.

    Attributes:
        method: ``HEAD`` or ``GET``.
        path: Without the query.
        headers: Names in lower case.
        status: Of the answer.
        sent: Bytes of its body.
        server: ``hub`` or ``cdn``.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    status: int
    sent: int
    server: str

    @property
    def token(self) -> str | None:
        """The token that came with it."""
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token if kind == "Bearer" else None


@dataclass
class Fault:
    """What goes wrong with the answers to some requests.

    Attributes:
        part: Requests whose path contains this are concerned.
        method: Only those of this method; any when None.
        status: Answer with this status and no body.
        headers: Those of such an answer.
        cut_at: Drop the connection after so many bytes of the body.
        stall: Send no answer until the client or the server has had enough.
        before: Called before the answer, which is then as it should be.
        times: How many answers it spoils.
    """

    part: str
    method: str | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_at: int | None = None
    stall: bool = False
    before: Callable[[], object] | None = None
    times: int = 1


@dataclass
class _Repo:
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    readers: frozenset[str] | None = None
    gated: bool = False


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @classmethod
    def refusal(cls, status: int, code: str, text: str, **headers: str) -> _Answer:
        """An error as the Hub puts it."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        body = json.dumps({"error": text}).encode()
        return cls(status, {"X-Error-Code": code, "X-Error-Message": text, **more}, body)


class FakeHub:
    """The Hub and its CDN, each a server of its own on 127.0.0.1.

    Attributes:
        requests: Every answer so far, in the order they ended.
        faults: What shall go wrong next; tests may add to it at any time.
        tokens: Those that belong to an account.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.tokens: set[str] = set()
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self._repos: dict[str, _Repo] = {}
        self._blobs: dict[str, bytes] = {}
        self._servers = [
            ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, name)) for name in ("hub", "cdn")
        ]
        self._threads = []
        for server in self._servers:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            self._threads.append(thread)
        self.url, self._cdn = (f"http://127.0.0.1:{s.server_port}" for s in self._servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening; a second call does nothing."""
        if self.closing.is_set():
            return
        self.closing.set()
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()

    def add_repo(
        self,
        name: str,
        directory: Path | str,
        revisions: Mapping[str, Path | str] | None = None,
        *,
        readers: Iterable[str] | None = None,
        gated: bool = False,
    ) -> str:
        """Add a repository, or commit to the branches of one.

        Args:
            name: ``owner/name`` or only a name.
            directory: What the default branch holds.
            revisions: Other branches and tags, and what each of them holds.
            readers: Tokens that may read it; anybody when omitted.
            gated: Whether the others are told of it.

        Returns:
            The commit of the default branch.
        """
        repo = self._repos.setdefault(name, _Repo())
        repo.readers = None if readers is None else frozenset(readers)
        repo.gated = gated
        self.tokens |= repo.readers or frozenset()
        for revision, folder in {DEFAULT_BRANCH: directory, **(revisions or {})}.items():
            files = {
                path.relative_to(folder).as_posix(): path.read_bytes()
                for path in sorted(Path(folder).rglob("*"))
                if path.is_file()
            }
            digest = hashlib.sha1(name.encode())
            for file, content in files.items():
                digest.update(f"\n{file} {_sha256(content)}".encode())
                self._blobs[_sha256(content)] = content
            repo.commits[digest.hexdigest()] = files
            repo.revisions[revision] = digest.hexdigest()
        return repo.revisions[DEFAULT_BRANCH]

    def commit(self, name: str, revision: str = DEFAULT_BRANCH) -> str:
        """The commit that a branch or tag is now."""
        return self._repos[name].revisions[revision]

    def bodies(self) -> list[str]:
        """The paths of all answers that had a body which was a file, or part of one."""
        files = [r for r in self.requests if r.method == "GET" and r.status in {200, 206}]
        return [r.path for r in files if r.sent and not r.path.startswith("/api/")]

    def env(self, tmp_path: Path) -> dict[str, str]:
        """The environment of a program that uses this Hub, with a cache of its own.

        Args:
            tmp_path: Folder of the test; the cache is ``hf-home/hub`` in it.
        """
        kept = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
        kept.pop("SSL_CERT_FILE", None)
        return {
            **kept,
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(tmp_path / "hf-home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_ETAG_TIMEOUT": "5",
            "HF_HUB_DOWNLOAD_TIMEOUT": "5",
            "NO_PROXY": "*",
            # Nobody is asked over TLS, and to read the certificates of the machine takes long.
            "SSL_CERT_DIR": str(tmp_path),
        }

    def python(
        self, program: str, tmp_path: Path, *args: str, timeout: float = 90, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in a process of its own, in the environment of :meth:`env`.

        Args:
            program: Its source.
            tmp_path: Folder of the test.
            args: What it finds in ``sys.argv[1:]``.
            timeout: Seconds after which it is killed.
            env: More of the environment.
        """
        environment = {**self.env(tmp_path), **env}
        return fork_server.python(
            "-c", program, *args, env=environment, timeout=timeout, torch=True, abrupt=True
        )

    # What the servers ask

    def fault_for(self, method: str, path: str) -> Fault | None:
        """The fault that spoils the answer to a request; it is used up by that."""
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.part in path and fault.method in {None, method}:
                    fault.times -= 1
                    return fault
        return None

    def answer_of_cdn(self, path: str) -> _Answer:
        """A large file, by its digest."""
        content = self._blobs.get(path.removeprefix("/blob/"))
        return _Answer(404) if content is None else _Answer(200, {}, content)

    def answer_of_hub(self, path: str, token: str | None) -> _Answer:
        """A file, where there is one, or what is known of a repository."""
        resolve, api = _RESOLVE.fullmatch(path), _API.fullmatch(path)
        match = resolve or api
        if match is None:
            return _Answer(404)
        name, revision = match["repo"], unquote(match["revision"] or DEFAULT_BRANCH)
        repo = self._repos.get(name)
        refusal = self._refusal(repo, token, files=resolve is not None)
        if refusal is not None or repo is None:
            return refusal or _Answer(404)
        commit = revision if revision in repo.commits else repo.revisions.get(revision)
        if commit is None:
            return _Answer.refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if resolve is not None:
            return self._file(repo, commit, unquote(match["file"]))
        if match["what"] == "tree":
            return _json(_tree(repo.commits[commit], unquote(match["folder"] or "")))
        files = [{"rfilename": file} for file in repo.commits[commit]]
        about = {"id": name, "modelId": name, "sha": commit, "siblings": files, "tags": []}
        return _json({**about, "private": repo.readers is not None, "gated": repo.gated})

    def _refusal(self, repo: _Repo | None, token: str | None, *, files: bool) -> _Answer | None:
        if token is not None and token not in self.tokens:
            return _Answer(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        may_read = repo is not None and (repo.readers is None or token in repo.readers)
        if may_read or (repo is not None and repo.gated and not files):
            return None
        if repo is not None and repo.gated:
            text = "Access to this model is restricted: you must accept its terms."
            return _Answer.refusal(401 if token is None else 403, "GatedRepo", text)
        # Those without a token are not told whether it is missing or private.
        return _Answer.refusal(401 if token is None else 404, "RepoNotFound", "Not found")

    def _file(self, repo: _Repo, commit: str, file: str) -> _Answer:
        content = repo.commits[commit].get(file)
        if content is None:
            text = f"{file} does not exist on {commit}"
            return _Answer.refusal(404, "EntryNotFound", text, X_Repo_Commit=commit)
        digest = _sha256(content)
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not file.endswith(LARGE):
            return _Answer(200, {**headers, "ETag": f'"{digest[:40]}"'}, content)
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
        return _Answer(302, {**headers, **linked, "Location": f"{self._cdn}/blob/{digest}"})


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json(value: object) -> _Answer:
    return _Answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())


def _tree(files: Mapping[str, bytes], folder: str) -> list[dict[str, Any]]:
    start = f"{folder.strip('/')}/".lstrip("/")
    entries: list[dict[str, Any]] = []
    for file, content in files.items():
        if not file.startswith(start):
            continue
        digest, size = _sha256(content), len(content)
        entry: dict[str, Any] = {"type": "file", "path": file, "size": size, "oid": digest[:40]}
        if file.endswith(LARGE):
            entry["lfs"] = {"oid": digest, "size": size, "pointerSize": 130}
        entries.append(entry)
    return entries


def _handler(hub: FakeHub, name: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _IDLE_SECONDS

        def do_GET(self) -> None:
            self._serve()

        def do_HEAD(self) -> None:
            self._serve()

        def log_message(self, *_: object) -> None:
            """Keep quiet: the requests are kept."""

        def _serve(self) -> None:
            path = urlsplit(self.path).path
            fault = hub.fault_for(self.command, path)
            if fault is not None and fault.stall:
                hub.closing.wait(_STALL_SECONDS)
                self._drop(path)
                return
            if fault is not None and fault.before is not None:
                fault.before()
            kind, _, token = self.headers.get("Authorization", "").partition(" ")
            if fault is not None and fault.status is not None:
                answer = _Answer(fault.status, fault.headers)
            elif name == "cdn":
                answer = hub.answer_of_cdn(path)
            else:
                answer = hub.answer_of_hub(path, token if kind == "Bearer" else None)
            self._send(path, self._ranged(answer), None if fault is None else fault.cut_at)

        def _ranged(self, answer: _Answer) -> _Answer:
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if match is None or answer.status != 200:
                return answer
            size = len(answer.body)
            first, last = int(match[1]), min(int(match[2] or size - 1), size - 1)
            if first > last:
                return _Answer(416, {"Content-Range": f"bytes */{size}"})
            of = {"Content-Range": f"bytes {first}-{last}/{size}"}
            return _Answer(206, {**answer.headers, **of}, answer.body[first : last + 1])

        def _send(self, path: str, answer: _Answer, cut_at: int | None) -> None:
            body = b"" if self.command == "HEAD" else answer.body[:cut_at]
            # Before the answer is out: who has it may already look at the requests.
            self._note(path, answer.status, len(body))
            self.send_response(answer.status)
            for header, value in answer.headers.items():
                self.send_header(header, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(body)
            if cut_at is not None:
                self.close_connection = True

        def _drop(self, path: str) -> None:
            self._note(path, 0, 0)
            self.close_connection = True

        def _note(self, path: str, status: int, sent: int) -> None:
            headers = {key.lower(): value for key, value in self.headers.items()}
            with hub.lock:
                hub.requests.append(Request(self.command, path, headers, status, sent, name))

    return Handler
