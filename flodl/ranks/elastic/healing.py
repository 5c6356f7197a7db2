"""How a rank that joins gets the state of a training: one checkpoint file, from another rank.

The file is an ordinary checkpoint: safetensors and JSON, and nothing in it is executed. The rank
that has it serves it on the interface through which it reaches the lighthouse. It asks for the
token of the run. Before a rank takes the state, it compares the signature of the training with its
own.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, final

from fdl.base.files import staging
from flodl.errors import DistributedError
from flodl.ranks.signature import Signature, difference

_STATE = "state"
_SIGNATURE = "signature"
_MEMBERS = "members"

_SECONDS = 10.0
"""How long a request for a state waits until the state is there."""

_TRIES = 6
"""Requests in a row of which the last one ends a rank that joins."""


@final
class Healing:
    """torchft's interface for the transport of checkpoints, with a file instead of pickles.

    Args:
        host: Address on which to serve.
        token: Secret of the run.
        signature: What has to be the same on all ranks.

    Attributes:
        folder: A folder for the files, which is removed at the end.
        members: The ranks at the latest meeting, by name.
    """

    def __init__(self, host: str, token: str, signature: Signature) -> None:
        # As another rank receives it.
        self._token, self._signature = token, json.loads(json.dumps(signature))
        kept = contextlib.ExitStack()
        self.folder: Path = kept.enter_context(staging(tempfile.gettempdir(), mode=0o700))
        self._remove = weakref.finalize(self, kept.close)
        self._changed = threading.Condition()
        self._failed = 0
        self.members: Sequence[str] = ()
        self._step, self._file = -1, Path()
        self._server = ThreadingHTTPServer((host, 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever, name="flodl-healing", daemon=True
        ).start()

    def metadata(self) -> str:
        """Return the address, which torchft passes to the rank that joins."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def send_checkpoint(
        self,
        dst_ranks: list[int],  # noqa: ARG002 - torchft's interface
        step: int,
        state_dict: Any,
        timeout: timedelta,  # noqa: ARG002
    ) -> None:
        """Serve a state to ranks that are behind, until :meth:`disallow_checkpoint`."""
        with self._changed:
            self._step, self._file = step, Path(state_dict["user"]["default"])
            self._changed.notify_all()

    def disallow_checkpoint(self) -> None:
        """Serve no state any more: this rank changes its own now."""
        with self._changed:
            self._step = -1

    def recv_checkpoint(
        self,
        src_rank: int,  # noqa: ARG002 - torchft's interface
        metadata: str,
        step: int,
        timeout: timedelta,
    ) -> Any:
        """Fetch the state of a training from another rank.

        Raises:
            DistributedError: This rank does not train the same, or no rank can be reached.
            ConnectionError: The other rank is gone; another one may have the state.
        """
        import httpx2

        target = self.folder / "received.fdl"
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            with httpx2.Client(
                base_url=metadata,
                headers=headers,
                timeout=timeout.total_seconds(),
                trust_env=False,
            ) as client:
                answer = client.get(f"/{_SIGNATURE}")
                if answer.status_code == 403:
                    raise DistributedError(
                        "the token of this rank is not the one of the training: copy the whole "
                        "address that the training printed"
                    )
                theirs = answer.raise_for_status().json()
                names = ("a rank of the training", "this one")
                if told := difference(theirs, self._signature, names):
                    raise DistributedError(f"this rank cannot join: {told}")
                with (
                    client.stream("GET", f"/{_STATE}/{step}") as body,
                    target.open("wb") as file,
                ):
                    for piece in body.raise_for_status().iter_bytes(1 << 20):
                        file.write(piece)
        except httpx2.HTTPError as error:
            self._failed += 1
            told = f"the state of the training cannot be read from {metadata}: {error}"
            kind = ConnectionError if self._failed < _TRIES else DistributedError
            raise kind(told) from error
        self._failed = 0
        return {
            "user": {"default": str(target)},
            "torchft": {"step": step, "batches_committed": 0},
        }

    def is_left_out(self, name: str, addresses: Sequence[str]) -> bool:
        """Whether a rank at one of the addresses has met others, and not the rank of this name."""
        import httpx2

        headers = {"Authorization": f"Bearer {self._token}"}
        for address in addresses:
            with contextlib.suppress(httpx2.HTTPError):
                url = f"{address}/{_MEMBERS}"
                answer = httpx2.get(url, headers=headers, timeout=1.0, trust_env=False)
                if name not in answer.raise_for_status().json():
                    return True
        return False

    def shutdown(self, wait: bool = True) -> None:  # noqa: ARG002 - torchft's interface
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._remove()

    def answer(self, path: str, token: str) -> tuple[int, bytes | Path]:
        """Return the status of an answer, and its text or file."""
        if not hmac.compare_digest(token.encode(), f"Bearer {self._token}".encode()):
            return 403, b"another token"
        if path == f"/{_SIGNATURE}":
            return 200, json.dumps(self._signature).encode()
        if path == f"/{_MEMBERS}":
            return 200, json.dumps(self.members).encode()
        with self._changed:
            # The rank that joins may ask before this one has written its state.
            known = self._changed.wait_for(lambda: path == f"/{_STATE}/{self._step}", _SECONDS)
            return (200, self._file) if known else (404, b"no such state")


def _handler(healing: Healing) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = healing.answer(self.path, self.headers.get("Authorization", ""))
            size = content.stat().st_size if isinstance(content, Path) else len(content)
            self.send_response(status)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if isinstance(content, Path):
                with content.open("rb") as file:
                    shutil.copyfileobj(file, self.wfile, 1 << 20)
            else:
                self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Say nothing on the terminal."""

    return Handler
