"""What is checked on every host before anything starts: a table, and the command that fixes it."""

from __future__ import annotations

import errno
import os
import shlex
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.run.batch.task import joining
from fdl.run.hosts.connection import NO_FOLDER, NO_PYTHON, Connection
from fdl.run.hosts.far import digest
from fdl.run.hosts.machines import FIRST_PORT, word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fdl.run.hosts.machines import Finding, Machine
    from fdl.run.step import Step, Where

_ANSWERS_S = 45.0
_CLOCK_S = 2.0
_PORTS = 100


def tracked_files(root: str) -> list[str]:
    """The files of the project that git tracks, relative to its folder; empty without git."""
    command = ["git", "-C", root, "ls-files", "-z", "--cached", "--", "."]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    names = done.stdout.decode(errors="surrogateescape").split("\0")
    return [name for name in names if name and Path(root, name).is_file()]


class Checks:
    """Checks all hosts at once.

    Args:
        connections: The hosts.
        step: The command.
        where: How it runs there.
        files: The files that must be the same as here.

    Attributes:
        findings: What is wrong.
        ranks: How many ranks each host has; 0 where that is not known.
        meeting: ``address:port`` where several hosts meet; empty for one host.
        own: The address of each host in the network of the ranks; empty if it is not known.
    """

    def __init__(
        self, connections: Sequence[Connection], step: Step, where: Where, files: Sequence[str]
    ) -> None:
        self._all = connections
        self._root = step.plan.root
        self._where = where
        self._elastic = step.plan.elastic
        count = 1 if self._elastic else len(connections)
        self._words = ["--dry-run", "--json", *joining(step.words, "HOST:1", count)]
        self._command = shlex.join(step.words)
        self._typed = f"fdl --on {where.on} {self._command}"
        self._files = {name: digest(Path(step.plan.root, name)) for name in files}
        self.findings: list[Finding] = []
        self.ranks: list[int] = []
        self.meeting = ""
        self.own = [""] * len(connections)

    def run(self) -> None:
        """Check every host, then whether the hosts reach each other."""
        with ThreadPoolExecutor(len(self._all)) as pool:
            self.findings += chain.from_iterable(pool.map(self._each, self._all))
        self._compare()
        if len(self._all) > 1 and self._all[0].facts:
            self._meet()
        self.ranks = [0 if self._elastic else _ranks(one.facts) for one in self._all]
        names = [one.machine.name for one in self._all]
        self.findings.sort(key=lambda one: names.index(one.host))

    def ranks_of(self, one: Connection) -> str:
        """The ranks of a host in words: ``rank 2``, ``ranks 0 to 3``."""
        number = self._all.index(one)
        first, count = sum(self.ranks[:number]), self.ranks[number]
        if not all(self.ranks[:number]) or not any(self.ranks):
            return f"host {number + 1} of {len(self.ranks)}"
        if count == 0:
            return f"from rank {first}"
        return f"rank {first}" if count == 1 else f"ranks {first} to {first + count - 1}"

    def show(self, *, always: bool) -> None:
        """Print the table of the checks, if there is a finding or it is asked for."""
        if not always and not self.findings and output.is_quiet():
            return
        from fdl.base.tables import table

        rows = []
        for one in self._all:
            name, ranks = one.machine.name, self.ranks_of(one)
            mine = [each for each in self.findings if each.host == name]
            rows += [(name, ranks, each.check, each.cause) for each in mine]
            if not mine:
                rows.append((name, ranks, "ok", _summary(one.facts)))
        heads = ("host", "ranks", "check", "found")
        output.console(stderr=True).print(table(rows, heads, wrap=(3,)))
        if len(self._all) > 1 and all(_could_be_elastic(one.facts) for one in self._all):
            output.note(
                "all hosts have torchft: with `--ranks 1 --elastic`, one may be lost during "
                "training"
            )
        for each in self.findings:
            output.hint(f"{each.host}: {each.next}")

    def require(self) -> None:
        """Refuse to start while a finding stops it.

        Raises:
            FdlError: It names the first one.
        """
        stops = [one for one in self.findings if one.stops]
        if stops:
            names = ", ".join(dict.fromkeys(one.host for one in stops))
            raise FdlError(
                f"nothing was started: {names} cannot take part ({stops[0].check}: "
                f"{stops[0].cause})",
                hint=stops[0].next,
            )

    def _each(self, one: Connection) -> list[Finding]:
        """Connect to a host and ask it."""
        machine = one.machine
        if found := one.open():
            return [found]
        if self._where.syncs and not machine.is_here and (found := self._sync(one)):
            return [found]
        one.start()
        began = time.time()
        facts = one.ask(
            {"do": "check", "files": self._files, "words": self._words, "below": self._where.below,
             "env": machine.variables},
            _ANSWERS_S,
        )  # fmt: skip
        if not facts:
            return [self._unstarted(one)]
        facts["late"] = facts["time"] - (began + time.time()) / 2, time.time() - began
        one.facts = facts
        return [*self._judge(machine, facts)]

    def _unstarted(self, one: Connection) -> Finding:
        """Why our program does not run on a host."""
        machine, code = one.machine, one.exit_code()
        if code == NO_FOLDER:
            again = self._typed.replace("fdl ", "fdl --sync ", 1)
            return machine.finding("folder", f"there is no folder {machine.folder}", again)
        if code == NO_PYTHON:
            cause = f"there is no {machine.python} in {machine.folder}"
            make = machine.typed("python3 -m venv .venv && .venv/bin/pip install flodl")
        else:
            last = one.complaint().strip().splitlines() or ["no answer"]
            cause = f"{machine.python} does not run: {last[-1]}"
            make = machine.runs("--version")
        return machine.finding("folder", cause, make)

    def _judge(self, machine: Machine, facts: Mapping[str, Any]) -> Iterator[Finding]:
        def missing(cause: str, package: str) -> Finding:
            following = machine.runs(f"-m pip install {package}")
            return machine.finding("packages", cause, following)

        if facts["count"]:
            names = ", ".join(facts["differ"]) + (", …" if facts["count"] > 3 else "")
            what = "is missing" if facts["absent"] == facts["count"] else "differs from here"
            cause = f"{names} {what} ({facts['count']} of {len(self._files)} files)"
            yield machine.finding("revision", cause, self._typed.replace("fdl ", "fdl --sync ", 1))
        late, took = facts["late"]
        if abs(late) > _CLOCK_S + took:
            cause = f"its clock is {abs(late):.0f} s {'ahead' if late > 0 else 'behind'}"
            make = machine.typed("sudo chronyc makestep")
            yield machine.finding("clock", cause, make, stops=False)
        plan = facts["plan"]
        if "flodl" not in facts["packages"]:
            yield missing(f"flodl is not installed for {machine.python}", "flodl")
        elif "problem" in plan:
            again = machine.runs(f"-m fdl -n {self._command}")
            yield machine.finding("command", plan["problem"], again)
        elif plan["ranks"] and "torch" not in facts["packages"]:
            yield missing(f"torch is not installed for {machine.python}", "torch")
        elif self._elastic and "torchft" not in facts["packages"]:
            cause = "elastic ranks need torchft, which is not installed"
            yield missing(cause, "'flodl[elastic]'")
        elif machine.gpus and plan["ranks"] and len(plan["ranks"]["gpus"]) < machine.gpus:
            there = len(plan["ranks"]["gpus"])
            cause = f"it has {there} usable GPUs, and the manifest says {machine.gpus}"
            yield machine.finding("GPUs", cause, machine.runs("-m fdl diagnose"))

    def _compare(self) -> None:
        """Compare versions with those of the first host."""
        first = self._all[0].facts
        there = self._all[0].machine.name
        for one in self._all[1:]:
            if not first or not one.facts:
                continue
            machine = one.machine
            minor = [facts["python"].rpartition(".")[0] for facts in (first, one.facts)]
            if minor[0] != minor[1]:
                cause = f"Python is {minor[1]} here and {minor[0]} on {there}"
                make = machine.typed(f"python{minor[0]} -m venv --clear .venv")
                self.findings.append(machine.finding("Python", cause, make))
            for name, version in first["packages"].items():
                mine = one.facts["packages"].get(name, version)
                if _release(mine) != _release(version):
                    cause = f"{name} is {mine} here and {version} on {there}"
                    following = machine.runs(f"-m pip install {name}=={_release(version)}")
                    self.findings.append(machine.finding("packages", cause, following))

    def _meet(self) -> None:
        """Find an address of the first host that all others reach, and the own address of each.

        A host behind a jump host may have another address for ssh than for its neighbours.
        """
        first = self._all[0]
        host, _, port = first.machine.meet.rpartition(":")
        said = next(iter(first.facts["address"]), "") or self._route_here()
        hosts = [host.strip("[]")] if host else list(dict.fromkeys([said, *first.facts["others"]]))
        ports = [int(port)] if port else list(range(FIRST_PORT, FIRST_PORT + _PORTS))
        problems: list[Finding] = []
        for host in hosts:
            answer = first.ask({"do": "listen", "host": host, "ports": ports}, _ANSWERS_S)
            if "port" not in answer:
                problems = problems or [self._not_heard(answer, host, ports[-1])]
                continue
            own, unreached = self._reach(host, answer["port"])
            if not unreached:
                self.meeting, self.own = f"{host}:{answer['port']}", own
                return
            problems = problems or unreached
        self.findings += problems

    def _not_heard(self, answer: Mapping[str, Any], host: str, port: int) -> Finding:
        """Why the first host cannot wait at an address."""
        machine = self._all[0].machine
        code, problem = answer.get("errno"), answer.get("problem", "no answer")
        if code == errno.EADDRINUSE:
            busy = f"port {port} of {host} is in use by another program, so no rank can meet there"
            return machine.finding("port", busy, machine.typed(f"ss -ltnp 'sport = :{port}'"))
        if code == errno.EADDRNOTAVAIL:
            its = ", ".join(self._all[0].facts["address"]) or "another one"
            cause = f"{host} is not an address of this host: ssh reached it at {its}"
            place = f"`meet: {machine.meet}`" if machine.meet else host
            return machine.finding("address", cause, f"correct {place} of `hosts: {machine.name}`")
        cause = f"the ranks cannot meet at {host}: {problem}"
        return machine.finding("address", cause, machine.typed(f"getent hosts {host}"))

    def _route_here(self) -> str:
        """The address of this machine on the way to another host."""
        peers = [one.facts["address"] for one in self._all[1:] if one.facts.get("address")]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            try:
                way.connect((peers[0][0] if peers else "192.0.2.1", 9))
            except OSError:
                return "127.0.0.1"
            return str(way.getsockname()[0])

    def _reach(self, host: str, port: int) -> tuple[list[str], list[Finding]]:
        """Let every other host connect to the first one.

        Returns:
            The own address of each, and why some do not reach it.
        """
        asked = {"do": "reach", "host": host, "port": port}

        def reach(one: Connection) -> dict[str, Any]:
            return one.ask(asked, _ANSWERS_S) if one.facts else {"own": ""}

        first, *others = self._all
        with ThreadPoolExecutor(len(self._all)) as pool:
            answers = list(pool.map(reach, others))
        first.ask({"do": "stop_listening"}, _ANSWERS_S)
        unreached = [
            _unreached(one.machine, answer, host, port, first.machine.name)
            for one, answer in zip(others, answers, strict=True)
            if "own" not in answer
        ]
        return [host, *(answer.get("own", "") for answer in answers)], unreached

    def _sync(self, one: Connection) -> Finding | None:
        """Copy the files that git tracks; why that is not possible, or None."""
        machine = one.machine
        if not self._files:
            return machine.finding(
                "sync",
                f"--sync copies what git tracks, and {self._root} is not a repository",
                f"cd {shlex.quote(self._root)} && git init && git add .",
            )
        names = b"\0".join(os.fsencode(name) for name in self._files)
        folder = f"mkdir -p {word(machine.folder)}"
        make = subprocess.run([*one.shell, folder], capture_output=True, check=False)
        words = [
            "rsync", "-a", "--from0", "--files-from=-", "-e", one.rsync_shell, f"{self._root}/",
            # A relative path begins in the home folder.
            f"{machine.address}:{machine.folder.removeprefix('~/')}/",
        ]  # fmt: skip
        install = "sudo apt install rsync"
        try:
            done = make if make.returncode else subprocess.run(
                words, input=names, capture_output=True, check=False, timeout=600
            )  # fmt: skip
        except FileNotFoundError:
            return machine.finding("sync", "rsync is not installed on this machine", install)
        if done.returncode == 0:
            return None
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["rsync failed"]
        if "not found" in said[0]:
            cause, following = "rsync is not installed there", install
        else:
            cause, following = f"the files cannot be copied: {said[0]}", "df -h ."
        return machine.finding("sync", cause, machine.typed(following))


def _could_be_elastic(facts: Mapping[str, Any]) -> bool:
    """Whether a host has what elastic ranks need, and its ranks are fixed."""
    return "torchft" in facts.get("packages", ()) and bool(facts["plan"].get("ranks"))


def _summary(facts: Mapping[str, Any]) -> str:
    ranks = facts["plan"].get("ranks") or {"gpus": []}
    gpus = ranks["gpus"]
    devices_text = f"{len(gpus)} × {gpus[0]}" if gpus else "CPU"
    packages = [f"{name} {version}" for name, version in facts["packages"].items()]
    return ", ".join([devices_text, f"Python {facts['python']}", *packages])


def _unreached(
    machine: Machine, answer: Mapping[str, Any], host: str, port: int, first: str
) -> Finding:
    """Why a host does not reach the first one."""
    code, problem = answer.get("errno"), answer.get("problem", "no answer")
    following = f"ping -c 1 {host}"
    if code in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        cause, following = f"it has no route to {first} at {host}", f"ip route get {host}"
    elif code == errno.ECONNREFUSED:
        cause = f"nothing answers at {host}:{port}: it may be the address of another machine"
    elif code is not None and code < 0:
        cause, following = f"the name {host} of {first} does not resolve", f"getent hosts {host}"
    else:
        cause = f"it does not reach {first} at {host}:{port}: {problem}; a firewall may be between"
    return machine.finding("network", cause, machine.typed(following))


def _ranks(facts: Mapping[str, Any]) -> int:
    plan = facts.get("plan", {"problem": ""})
    if "problem" in plan:
        return 0
    return int(plan["ranks"]["here"]) if plan["ranks"] else 1


def _release(version: str) -> str:
    """A version without its build: torch for a GPU and torch for the CPU go together."""
    return version.partition("+")[0]
