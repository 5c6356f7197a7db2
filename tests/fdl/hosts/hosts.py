"""Two hosts with ssh: network namespaces of their own, each with an sshd, keys and a folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from tests import typed
from tests.flodl.distributed.network import Host, hosts_in_a_row, two_hosts, why_not
from tests.waiting import wait_for

ROOT = Path(__file__).parents[3]
SSHD = "/usr/sbin/sshd"
NAMES = ("alpha", "beta")


class Hosts:
    """Some hosts; fdl is typed on the first one.

    Attributes:
        folder: Keys and settings of ssh.
        hosts: The network of each.
        environ: The variables with which fdl is typed.
    """

    def __init__(self, folder: Path, hosts: Mapping[str, Host]) -> None:
        self.folder = folder
        self.hosts = hosts
        self._typing = next(iter(hosts.values()))
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
        dropped = ("VIRTUAL_ENV", "PYTHONPATH", "CI")
        kept = {name: text for name, text in os.environ.items() if name not in dropped}
        self.environ = {**kept, "PATH": path, "PYTHONPATH": str(ROOT)}

    def make_keys(self, jumps: Mapping[str, str] = MappingProxyType({})) -> None:
        """Make keys, the settings of both ends, and an ssh that reads them.

        Args:
            jumps: Host -> the one through which ssh reaches it.
        """
        for name in ("user", "host"):
            key = self.folder / name
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
            subprocess.run(words, check=True)
        public = (self.folder / "host.pub").read_text()
        self.folder.joinpath("known").write_text(f"* {public}")
        self.folder.joinpath("daemon").write_text(
            f"HostKey {self.folder}/host\nAuthorizedKeysFile {self.folder}/user.pub\n"
            "PermitRootLogin yes\nStrictModes no\nUsePAM no\nPidFile none\nPrintMotd no\n"
        )
        lines = [f"Host {name}\nHostName {one.address}\n" for name, one in self.hosts.items()]
        lines += [f"Host {name}\nProxyJump {through}\n" for name, through in jumps.items()]
        self.folder.joinpath("config").write_text(
            "".join(lines) + f"Host *\nUser root\nIdentityFile {self.folder}/user\n"
            f"UserKnownHostsFile {self.folder}/known\nStrictHostKeyChecking yes\n"
        )
        (self.folder / "bin").mkdir()
        ssh = self.folder / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/config "$@"\n')
        ssh.chmod(0o755)

    def start(self, name: str) -> None:
        """Let a host answer."""
        Path("/run/sshd").mkdir(exist_ok=True)
        words = [*self.hosts[name].within, SSHD, "-D", "-e", "-f", str(self.folder / "daemon")]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        wait_for(lambda: b"listening" in (self.folder / f"{name}.log").read_bytes(), 30)

    def pids(self, name: str) -> list[int]:
        """All processes of a host."""
        words = ["ip", "netns", "pids", self.hosts[name].name]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return [int(word) for word in done.stdout.split()]

    def signal(self, name: str, number: int) -> None:
        """Send a signal to every process of a host."""
        for pid in self.pids(name):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, name: str) -> None:
        """Let a host vanish, as when its power fails, and start it again without processes."""
        self.signal(name, signal.SIGKILL)
        self._daemons[name].wait()
        (self.folder / f"{name}.log").unlink()

    def popen(
        self, *words: str, cwd: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """``fdl`` typed on the first host, while it runs."""
        return subprocess.Popen(
            [*self._typing.within, sys.executable, "-m", "fdl", *words],
            cwd=cwd,
            env={**self.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def fdl(
        self, *words: str, cwd: Path, env: Mapping[str, str] | None = None
    ) -> tuple[int, str, str]:
        """``fdl`` typed on the first host: its exit code, and what it prints on both streams."""
        process = self.popen(*words, cwd=cwd, env=env)
        out, err = "", ""
        typed.note(
            ("-m", "fdl", *words), cwd, self.environ, lambda: (process.returncode, out + err)
        )
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    @contextmanager
    def agent(self) -> Iterator[None]:
        """Let an agent of ssh hold the user's key, and remove its file."""
        socket = self.folder / "agent"
        words = ["ssh-agent", "-D", "-a", str(socket)]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as agent:
            try:
                wait_for(socket.exists, 30)
                self.environ["SSH_AUTH_SOCK"] = str(socket)
                key = self.folder / "user"
                subprocess.run(["ssh-add", "-q", str(key)], env=self.environ, check=True)
                key.unlink()
                yield
            finally:
                agent.terminate()

    def close(self) -> None:
        """End the daemons and all that they have started."""
        for name, daemon in self._daemons.items():
            self.signal(name, signal.SIGCONT)
            self.signal(name, signal.SIGKILL)
            daemon.wait()


def obstacle() -> str:
    """Why there can be no such hosts here; empty where there can."""
    needed = ("ssh", "ssh-keygen", "rsync", "ip", "unshare")
    if not Path(SSHD).exists() or not all(map(shutil.which, needed)):
        return "needs root and Debian's packages openssh-server, rsync and iproute2"
    return "needs the right to make network namespaces" if why_not() else ""


@contextmanager
def hosts(folder: Path) -> Iterator[Hosts]:
    """Start alpha and beta; nothing is left of them afterwards."""
    with ExitStack() as stack:
        made = Hosts(folder, dict(zip(NAMES, stack.enter_context(two_hosts()), strict=True)))
        stack.callback(made.close)
        made.make_keys()
        for name in NAMES:
            made.start(name)
        yield made


@contextmanager
def behind_a_gate(folder: Path) -> Iterator[Hosts]:
    """Start hosts of which a laptop reaches only the first: laptop, gate, alpha, beta.

    ssh jumps to alpha through the gate, and to beta through both. The key is only in an agent.
    """
    names = ("laptop", "gate", *NAMES)
    with ExitStack() as stack:
        row = stack.enter_context(hosts_in_a_row(len(names)))
        made = Hosts(folder, dict(zip(names, row, strict=True)))
        stack.callback(made.close)
        made.make_keys(dict(pairwise(reversed(names[1:]))))
        for name in names[1:]:
            made.start(name)
        stack.enter_context(made.agent())
        yield made
