"""What runs on a host: it answers questions, starts a command, and ends it with the connection.

fdl sends this file through ssh, so it needs only the standard library and may meet any fdl there.
Each line of stdin is a message. On stdout each message is a line with its kind and length, and
then its content.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SILENCE_S = 20.0
"""After so long without a message, the connection is lost: the other end sends one every 2 s."""
_GRACE_S = 10.0
_LOOKS_S = 0.2
_PACKAGES = ("flodl", "torch", "torchft")
_JOINS_S = 120.0


class Far:
    """This end of the connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard = time.monotonic()
        self._child: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self._listener: socket.socket | None = None
        self._pids: dict[str, int] = {}
        self._stopped: set[str] = set()

    def run(self) -> None:
        """Answer until stdin ends, then end the command."""
        threading.Thread(target=self._watch, daemon=True).start()
        for line in sys.stdin:
            self._heard = time.monotonic()
            message = json.loads(line)
            what = message.pop("do")
            if what == "signal":
                self._signal(message["number"])
            elif what == "kill":
                self._kill()
            elif what == "run":
                # What waits must hear signals meanwhile.
                if message["after"]:
                    threading.Thread(target=self._run, kwargs=message, daemon=True).start()
                else:
                    self._run(**message)
            elif what != "alive":
                answer = getattr(self, what)
                threading.Thread(target=self._answer, args=(what, answer, message)).start()
        self.end()

    def end(self) -> None:
        """End the command: first ask it, then kill its processes that are left."""
        child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_S)
            self._kill()
        os._exit(0)

    def _kill(self) -> None:
        self._ended.set()
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _answer(self, name: str, function: Any, message: dict[str, Any]) -> None:
        try:
            found = function(**message)
        except OSError as problem:
            found = {"errno": problem.errno, "problem": problem.strerror or str(problem)}
        self._tell({"answer": name, **found})

    # --- Questions -----------------------------------------------------------------------------

    def check(
        self, files: dict[str, str], words: list[str], below: str, env: dict[str, str]
    ) -> dict[str, Any]:
        """The facts about this host and its folder."""
        found: dict[str, str] = {}
        for name in _PACKAGES:
            with suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
        differ = [path for path, known in files.items() if digest(path) != known]
        return {
            "host": socket.gethostname(),
            "address": os.environ.get("SSH_CONNECTION", "").split(" ")[2:3],
            "others": [one for one in _interfaces() if not one.startswith("127.")],
            "python": platform.python_version(),
            "packages": found,
            "time": time.time(),
            "differ": differ[:3],
            "count": len(differ),
            "absent": sum(not Path(path).exists() for path in differ),
            "plan": _planned(words, below, env),
        }

    def listen(self, host: str, ports: list[int]) -> dict[str, Any]:
        """Wait for the others at the first free port of an address."""
        for port in ports:
            try:
                self._listener = socket.create_server((host, port))
            except OSError as problem:
                if port == ports[-1] or problem.errno != 98:  # EADDRINUSE
                    raise
            else:
                return {"port": port}
        return {}

    def reach(self, host: str, port: int) -> dict[str, Any]:
        """Connect to the first host."""
        with socket.create_connection((host, port), timeout=8) as connection:
            return {"own": connection.getsockname()[0]}

    def stop_listening(self) -> dict[str, Any]:
        """Give the port back."""
        if self._listener is not None:
            self._listener.close()
        return {}

    # --- The command ---------------------------------------------------------------------------

    def _run(self, words: list[str], below: str, env: dict[str, str], own: str, after: str) -> None:
        if after and not self._can_join(after):
            self._tell({"ended": 1})
            return
        folder = tempfile.mkdtemp(prefix="fdl-host-")
        events = Path(folder, "events")
        events.touch()
        variables = {**os.environ, **env, "PYTHONUNBUFFERED": "1", "FDL_EVENTS": str(events)}
        if interface := _interfaces().get(own):
            # Without it, gloo and NCCL take the address that the name of this host has, if any.
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                variables.setdefault(name, interface)
        asked = json.dumps({"words": words, "row": None, "parent": os.getpid()})
        self._child = child = subprocess.Popen(
            [sys.executable, "-P", "-m", "fdl.cli.batch_node", asked],
            cwd=Path.cwd() / below,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if after and self._ended.is_set():  # a signal came while it started
            child.send_signal(signal.SIGTERM)
        for kind, stream in ((b"out", child.stdout), (b"err", child.stderr)):
            threading.Thread(target=self._copy, args=(kind, stream), daemon=True).start()
        threading.Thread(target=self._wait, args=(child, events)).start()

    def _can_join(self, meeting: str) -> bool:
        """Wait for the ranks of the first host, which others join."""
        host, _, port = meeting.rpartition(":")
        limit = time.monotonic() + _JOINS_S
        while time.monotonic() < limit and not self._ended.is_set():
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=2):
                return True
            time.sleep(_LOOKS_S)
        if not self._ended.is_set():
            self._say(b"err", b"the ranks of the first host have not begun in %d s\n" % _JOINS_S)
        return False

    def _copy(self, kind: bytes, stream: Any) -> None:
        while data := os.read(stream.fileno(), 1 << 16):
            self._say(kind, data)

    def _wait(self, child: subprocess.Popen[bytes], events: Path) -> None:
        copiers = [one for one in threading.enumerate() if one.name.endswith("(_copy)")]
        at = 0
        while True:
            code = child.poll()
            at = self._tell_events(events, at)
            if code is not None:
                break
            self._tell_stopped()
            time.sleep(_LOOKS_S)
        for copier in copiers:
            copier.join(2)
        with suppress(OSError):
            events.unlink()
            events.parent.rmdir()
        self._tell({"ended": code if code >= 0 else 128 - code})

    def _tell_events(self, events: Path, at: int) -> int:
        with events.open("rb") as file:
            file.seek(at)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                at += len(line)
                event = json.loads(line)
                if event["kind"] == "started":
                    self._pids, self._stopped = event["ranks"], set()
                self._tell(event)
        return at

    def _tell_stopped(self) -> None:
        """Tell once which rank a signal has stopped: the others wait for it in silence."""
        for rank, pid in self._pids.items():
            with suppress(OSError):
                text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
                if text.rpartition(")")[2].split()[0] == "T" and rank not in self._stopped:
                    self._stopped.add(rank)
                    self._tell({"kind": "stopped", "rank": int(rank), "pid": pid})

    def _signal(self, number: int) -> None:
        self._ended.set()
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    def _watch(self) -> None:
        """Say that this end is alive, and end when the other one is not."""
        while time.monotonic() - self._heard < _SILENCE_S:
            # A cut cable blocks a message; the command must end all the same.
            threading.Thread(target=self._tell, args=({},), daemon=True).start()
            time.sleep(2)
        self.end()

    # --- Messages ------------------------------------------------------------------------------

    def _tell(self, fact: dict[str, Any]) -> None:
        self._say(b"fact", json.dumps(fact).encode())

    def _say(self, kind: bytes, data: bytes) -> None:
        text = b"%s %d\n%s" % (kind, len(data), data)
        with self._lock, suppress(OSError):
            while text:
                text = text[os.write(1, text) :]


def digest(path: str | Path) -> str:
    """The digest of a file; empty if it cannot be read."""
    try:
        return hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return ""


def _planned(words: list[str], below: str, env: dict[str, str]) -> dict[str, Any]:
    """What the fdl of this host says that it would start."""
    folder = Path.cwd() / below
    if not folder.is_dir():
        return {"problem": f"there is no folder {folder}"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "fdl", *words],
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        plan: dict[str, Any] = json.loads(done.stdout)
    except (ValueError, subprocess.TimeoutExpired):
        lines = done.stderr.strip().splitlines() if "done" in locals() else []
        return {"problem": lines[0].removeprefix("error: ") if lines else "its fdl gives no answer"}
    return plan


def _interfaces() -> dict[str, str]:
    """The IPv4 addresses of this host, and the network interface of each."""
    if sys.platform != "linux":
        return {}
    import fcntl

    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                asked = name.encode()[:15].ljust(256, b"\0")
                found = fcntl.ioctl(any_socket.fileno(), 0x8915, asked)  # SIOCGIFADDR
                addresses[socket.inet_ntoa(found[20:24])] = name
    return addresses


if __name__ == "__main__":
    Far().run()
