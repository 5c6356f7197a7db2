"""One connection to a host through the user's own OpenSSH, and the program at its other end."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdl.run.hosts.machines import word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fdl.run.hosts.machines import Finding, Machine

_OPTIONS = (
    "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5",
    "-o", "ServerAliveCountMax=3", "-o", "RemoteCommand=none", "-o", "LogLevel=ERROR", "-T",
)  # fmt: skip
_CONNECTS_S = 20.0
_ALIVE_S = 2.0
NO_FOLDER, NO_PYTHON = 91, 92
"""Exit codes of the shell that starts the program there."""

_START = (
    "import sys,json;r=json.loads(sys.stdin.readline());"
    "exec(compile(r['source'],'fdl-far','exec'),r)"
)


_SSH = (
    ("could not resolve", "its name {host} does not resolve to an address",
     "getent hosts {host}; correct `address` of `hosts: {name}`, or ~/.ssh/config"),
    ("no route to host", "there is no route to {host}", "ip route get {host}"),
    ("network is unreachable", "there is no route to {host}", "ip route get {host}"),
    ("connection refused", "{host} answers, but no ssh server runs there",
     "start it on {host}: sudo systemctl start ssh"),
    ("timed out", "{host} does not answer: the address is wrong, or it is switched off",
     "ping -c 1 {host}"),
    ("permission denied", "ssh may not log in without a password", "ssh-copy-id {address}"),
    ("host key verification failed", "ssh does not know the key of {host}, or it has changed",
     "ssh {address}"),
)  # fmt: skip


_JUMPED = "unknown port 65535"
"""ssh says so where it connects through another program, such as itself on a jump host."""
_NAMED = re.compile(
    r"connect to host (\S+) port|resolve hostname (\S+):|(\S+): Permission denied"
    r"|host key is known for (\S+) and"
)


def _refused_by_ssh(said: str, machine: Machine) -> Finding:
    """What ssh says when it does not connect, as a cause and a command."""
    address, prefix = machine.address, ""
    if "stdio forwarding failed" in said:
        why = re.search(r"open failed: (?:connect failed: )?([^\r\n]+)", said)
        cause = f"its jump host does not reach the next one: {why[1] if why else 'no answer'}"
        return machine.finding("ssh", cause, f"ssh -v {address} true")
    if _JUMPED in said.lower() and (named := _NAMED.search(said)):
        address = next(filter(None, named.groups()))
        prefix = f"jump host {address}: "
    known = {"host": address.rpartition("@")[2], "address": address, "name": machine.name}
    for sign, cause, following in _SSH:
        if sign in said.lower():
            return machine.finding("ssh", prefix + cause.format(**known), following.format(**known))
    lines = said.strip().splitlines() or ["ssh has ended without a message"]
    cause = f"ssh does not connect: {lines[-1]}"
    return machine.finding("ssh", cause, f"ssh -v {machine.address} true")


class Connection:
    """A host, from the connection to it to the end of the command there.

    Args:
        machine: The host.
        socket: File of the shared connection, in a folder that only the user may read.
        heard: Called with the kind and the content of each message: ``out`` and ``err`` are what
            the command prints, ``fact`` is a mapping, and ``lost`` the end of the connection.

    Attributes:
        machine: The host.
        facts: What it has answered.
        ended: The exit code of the command there; None while it runs.
        last_heard: When it has said something.
    """

    def __init__(
        self, machine: Machine, socket: Path, heard: Callable[[Connection, str, Any], None]
    ) -> None:
        self.machine = machine
        self.facts: dict[str, Any] = {}
        self.ended: int | None = None
        self.last_heard = time.monotonic()
        self._socket = socket
        self._heard = heard
        self._answers: dict[str, Any] = {}
        self._news = threading.Condition()
        self._master: subprocess.Popen[bytes] | None = None
        self._far: subprocess.Popen[bytes] | None = None
        self._closing = False
        self._sending = threading.Lock()

    def open(self) -> Finding | None:
        """Log in; why that is not possible, or None."""
        if self.machine.is_here:
            return None
        # It ends with the pipe, so also when fdl is killed.
        self._master = master = _started(
            ["ssh", "-M", "-S", str(self._socket), *_OPTIONS, self.machine.address, "cat"]
        )
        assert master.stdin is not None  # noqa: S101 - pipes were asked for
        assert master.stdout is not None  # noqa: S101
        with suppress(BrokenPipeError):
            master.stdin.write(b"fdl\n")
            master.stdin.flush()
        ready, _, _ = select.select([master.stdout], [], [], _CONNECTS_S)
        if ready and master.stdout.readline():
            return None
        master.kill()
        said = master.communicate()[1].decode(errors="replace") if ready else "timed out"
        return _refused_by_ssh(said, self.machine)

    @property
    def shell(self) -> list[str]:
        """The words before a command line for the host's shell."""
        if self.machine.is_here:
            return ["sh", "-c"]
        shared = ["-S", str(self._socket), "-o", "ControlMaster=no"]
        return ["ssh", *shared, *_OPTIONS, self.machine.address]

    @property
    def rsync_shell(self) -> str:
        """The option ``-e`` of rsync, which adds the address itself."""
        return shlex.join(self.shell[:-1])

    def start(self) -> None:
        """Start our program there, in the folder of the project."""
        folder, python = word(self.machine.folder), word(self.machine.python)
        # Our program reads versions of packages, which may depend on them.
        given = "".join(
            f"export {name}={shlex.quote(value)}; " for name, value in self.machine.env.items()
        )
        script = given + (
            f"cd {folder} 2>/dev/null || exit {NO_FOLDER}; "
            f"command -v {python} >/dev/null || exit {NO_PYTHON}; "
            f"exec {python} -P -u -c {shlex.quote(_START)}"
        )
        self._far = _started([*self.shell, script])
        threading.Thread(target=self._listen, args=(self._far,), daemon=True).start()
        program = Path(__file__).with_name("far.py").read_text(encoding="utf-8")
        self.send({"source": program, "__name__": "__main__"})
        threading.Thread(target=self._stay_alive, daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; nothing happens if the connection has ended."""
        if self._far is None or self._far.stdin is None:
            return
        with self._sending, suppress(OSError, ValueError):
            self._far.stdin.write(json.dumps(message).encode() + b"\n")
            self._far.stdin.flush()

    def ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send a question and wait for its answer; ``{}`` if none comes."""
        name = str(message["do"])
        self.send(message)
        with self._news:
            self._news.wait_for(lambda: name in self._answers or self._over(), seconds)
            return dict(self._answers.pop(name, {}))

    def exit_code(self) -> int | None:
        """The exit code of our program there, or of ssh; None while it runs."""
        return self._far.poll() if self._far else None

    def close(self) -> None:
        """End what runs there, and the connection."""
        self._closing = True
        for process in (self._far, self._master):
            if process is None:
                continue
            with suppress(OSError, ValueError):
                assert process.stdin is not None  # noqa: S101
                process.stdin.close()
            try:
                process.wait(15 if process is self._far else 3)
            except subprocess.TimeoutExpired:
                process.kill()

    def complaint(self) -> str:
        """What ssh or the interpreter there has printed on standard error at last."""
        found = b""
        for process in (self._far, self._master):
            if process is None or process.stderr is None:
                continue
            os.set_blocking(process.stderr.fileno(), False)
            with suppress(BlockingIOError, ValueError):
                found += os.read(process.stderr.fileno(), 1 << 16)
        return found.decode(errors="replace")

    def _over(self) -> bool:
        return self._far is None or self._far.poll() is not None

    def _stay_alive(self) -> None:
        while not self._closing and not self._over():
            self.send({"do": "alive"})
            time.sleep(_ALIVE_S)

    def _listen(self, far: subprocess.Popen[bytes]) -> None:
        """Take the messages of the other end apart until it has ended."""
        assert far.stdout is not None  # noqa: S101
        while head := far.stdout.readline():
            kind, size = head.split()
            data = far.stdout.read(int(size))
            self.last_heard = time.monotonic()
            if kind in (b"out", b"err"):
                self._heard(self, kind.decode(), data)
                continue
            fact = json.loads(data)
            if "answer" in fact:
                with self._news:
                    self._answers[fact["answer"]] = fact
                    self._news.notify_all()
            elif "ended" in fact:
                self.ended = int(fact["ended"])
                self._heard(self, "ended", self.ended)
            elif fact:
                self._heard(self, "fact", fact)
        far.wait()
        with self._news:
            self._news.notify_all()
        if not self._closing and self.ended is None:
            self._heard(self, "lost", far.returncode)


def _started(words: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Ctrl-C in the terminal is for fdl alone.
        start_new_session=True,
    )
