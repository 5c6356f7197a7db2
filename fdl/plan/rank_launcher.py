"""torchrun, as fdl starts it: ranks start again only if the training had begun.

A program of its own: it runs in the interpreter of the entry, where fdl may not be installed. It
differs from ``python -m torch.distributed.run`` in what follows a failure:

- A program that fails at its start would fail again in the same way, so it is not started again.
- Its own error is the last text and appears once, not once per rank. Until the training begins,
  what all ranks but the first print as errors is held back.
- The exit code is that of the rank that failed first; that of torchrun is always 1.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import logging
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

BEGUN = "training-has-begun"
"""File beside the error file of a rank, once it has trained a step: flodl.ranks.launch.launcher."""
NODE, EVENTS = "FDL_NODE", "FDL_EVENTS"
"""Variables of the hosts of ``fdl --on``: number of this one, and the file that this one tells."""
WATCHED = "training-is-watched"
"""File beside the error file of a rank whose training will say when it has begun."""

PLAIN_S = 60.0
"""Seconds after which a program that says nothing of this kind counts as begun."""
_HELD_S = 10.0
"""No text is held back longer. Ranks that fail in the same way do so at about the same time."""
_FIRST_RANK_S = 1.0
"""After the failure of another rank, so long may rank 0 of this machine fail by itself."""
_LOOKS_S = 0.1
_ANSWERS_S = 8.0
_LOOPBACK = ("127.", "::1")
_LATE_S = 15.0
_MOST_S = 600.0
_LEVEL = "TORCH_CPP_LOG_LEVEL"


class Lines:
    """A stream of the ranks of a machine, through a pipe for each rank.

    Args:
        number: 1 for standard output, 2 for standard error.
        holds: Whether the text of all ranks but the first is held back at first.
    """

    def __init__(self, number: int, *, holds: bool) -> None:
        self._number = number
        self._lock = threading.Lock()
        self._pipes: dict[int, int] = {}
        self._texts: dict[int, list[tuple[float, bytes]]] = {}
        self._names: dict[int, bytes] = {}
        self._rests: dict[int, bytes] = {}
        self._holds = holds
        self._thread = threading.Thread(target=self._run, daemon=True)

    def take(self, paths: dict[int, str], names: dict[int, bytes]) -> None:
        """Make a pipe at each path, for the rank with this number here.

        ``names`` are what stands before each line of a rank; empty for nothing.
        """
        self._names = names
        for rank, path in paths.items():
            os.mkfifo(path)
            # Also open for writing, so that it does not end with the first process that closes it.
            self._pipes[rank] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            self._texts[rank] = []
        if paths:
            self._thread.start()

    def show_all(self) -> None:
        """Show what was held back, and from now on everything at once."""
        self._holds = False
        self._pass_on()

    def finish(self) -> None:
        """Show everything, also lines without an end."""
        self.show_all()
        for rank in [rank for rank, rest in self._rests.items() if rest]:
            self._print(rank, [b"\n"])

    def show_only(self, ranks: Iterable[int]) -> None:
        """Show what these ranks have printed, and forget the rest."""
        self._pass_on()
        with self._lock:
            for rank in ranks:
                self._print(rank, [text for _, text in self._texts.get(rank, [])])
            self._texts = {rank: [] for rank in self._texts}

    def _run(self) -> None:
        while True:
            select.select([*self._pipes.values()], [], [], _LOOKS_S if self._holds else None)
            self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            now = time.monotonic()
            for rank, pipe in self._pipes.items():
                parts = self._texts[rank]
                with contextlib.suppress(BlockingIOError):
                    while True:
                        parts.append((now, os.read(pipe, 1 << 16)))
                holds = self._holds and rank
                due = [one for one in parts if not holds or now - one[0] > _HELD_S]
                del parts[: len(due)]
                self._print(rank, [text for _, text in due])

    def _print(self, rank: int, texts: Sequence[bytes]) -> None:
        name = self._names.get(rank)
        if name and texts:
            *lines, self._rests[rank] = (self._rests.get(rank, b"") + b"".join(texts)).split(b"\n")
            texts = [name + line + b"\n" for line in lines]
        _print(texts, self._number)


def _print(texts: Iterable[bytes], number: int = 2) -> None:
    stream = sys.stdout if number == 1 else sys.stderr
    # The stream may be closed, or nobody reads it any more.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        stream.buffer.writelines(texts)
        stream.flush()


def _say(text: str) -> None:
    _print([f"{text}\n".encode()])


class Start:
    """One start of the ranks of this machine.

    Attributes:
        failed: The rank here that failed first, or None.
    """

    def __init__(self, *, begun: bool) -> None:
        self._begun = begun
        self._at = time.monotonic()
        self._folders: dict[int, Path] = {}
        self._failed_at = 0.0
        self.failed: int | None = None
        self.errors = Lines(2, holds=not begun)
        self.printed = Lines(1, holds=False)
        self.ranks: dict[int, int] = {}
        self._ends: list[int] = []

    def watch(self, pids: dict[int, int]) -> None:
        """Note in which order the ranks end, where the system can tell.

        A rank that loses its peer fails within milliseconds; torch looks at codes less often.
        """
        # A container may forbid it.
        with contextlib.suppress(AttributeError, OSError):
            files = {os.pidfd_open(pid): rank for rank, pid in pids.items()}
            threading.Thread(target=self._note_ends, args=(files,), daemon=True).start()

    def _note_ends(self, files: dict[int, int]) -> None:
        while files:
            for file in select.select([*files], [], [])[0]:
                self._ends.append(files.pop(file))
                os.close(file)

    def hold(self, files: dict[int, str], out: dict[int, str], err: dict[int, str]) -> None:
        """Replace the streams of the ranks, whose error files these are.

        Among several machines that fdl has numbered, each line begins with the number of its rank.
        """
        self._folders = {rank: Path(file).parent for rank, file in files.items()}
        if not hasattr(os, "mkfifo"):
            return
        names = {rank: b"%d | " % number for rank, number in self.ranks.items()}
        if NODE not in os.environ:
            names = {}
        for lines, name, streams in ((self.errors, "stderr", err), (self.printed, "stdout", out)):
            paths = {rank: str(folder / name) for rank, folder in self._folders.items()}
            if not names:
                held = lines is self.errors and not self._begun
                paths = {rank: path for rank, path in paths.items() if rank and held}
            lines.take(paths, names)
            streams.update(paths)

    def finish(self) -> None:
        """Show all that the ranks have printed."""
        self.errors.finish()
        self.printed.finish()

    def has_begun(self) -> bool:
        """Whether the training has begun; then nothing is held back any more."""
        if not self._begun and (self._any(BEGUN) or self._is_long_plain()):
            self._begun = True
            self.errors.show_all()
        return self._begun

    def waits_for_first(self, codes: dict[int, int | None]) -> bool:
        """Note which rank failed first; whether rank 0 is about to say why it fails, too.

        Args:
            codes: The exit code of each rank; None while it runs.
        """
        ends = [*self._ends]
        ends += [rank for rank in codes if rank not in ends]
        failed = [rank for rank in ends if codes[rank]]
        now = time.monotonic()
        if failed and self.failed is None:
            self.failed, self._failed_at = failed[0], now
        runs = self.failed is not None and codes.get(0, 0) is None
        return runs and not self.has_begun() and now - self._failed_at < _FIRST_RANK_S

    def show_cause(self, codes: dict[int, int | None], *, met: bool) -> None:
        """Show the error of the rank that failed first, unless rank 0 has said the same.

        Args:
            codes: The exit codes of the ranks that ended by themselves.
            met: Whether a rank may have failed because another one did.
        """
        rank = self.failed or 0
        same = codes.get(0) == codes.get(rank) and self._same_error(0, rank, met)
        self.errors.show_only([] if rank == 0 or same else [rank])

    def _same_error(self, one: int, other: int, met: bool) -> bool:
        messages = [self._message(rank) for rank in (one, other)]
        return messages[0] == messages[1] if any(messages) else not met

    def _message(self, rank: int) -> str:
        try:
            text = (self._folders[rank] / "error.json").read_text(encoding="utf-8")
            return str(json.loads(text)["message"]["message"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _any(self, name: str) -> bool:
        return any((folder / name).exists() for folder in self._folders.values())

    def _is_long_plain(self) -> bool:
        return time.monotonic() - self._at > PLAIN_S and not self._any(WATCHED)


def _tell(kind: str, **facts: object) -> None:
    """Tell fdl on another machine what happens here, if it wants to know."""
    if path := os.environ.get(EVENTS):
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(json.dumps({"kind": kind, **facts}) + "\n")


def _torch(name: str = "") -> Any:
    """torch.distributed, or a module of it; fdl itself imports none of them."""
    return importlib.import_module("torch.distributed" + name)


class _Rules:
    """What an agent of torch does after a failure here."""

    _remaining_restarts: int
    _worker_group: Any
    # The rank that failed first, as all machines number it, and its exit code.
    cause = (0, 1)
    started = False
    logs: Any

    def _go_on_or_end(self, codes: dict[int, int | None], begun: bool) -> None:
        if begun and self._remaining_restarts:
            most = self._worker_group.spec.max_restarts
            times = f"{most - self._remaining_restarts + 1} of {most}"
            _say(f"warning: {_ended(*self.cause)}: starting all ranks again ({times})")
            return
        self._remaining_restarts = 0
        if not begun:
            self.logs.start.show_cause(codes, met=self._have_met())

    def _have_met(self) -> bool:
        """Whether ranks may have connected to each other: they leave keys in a store."""
        group = self._worker_group
        ours = getattr(group.spec.rdzv_handler, "use_agent_store", False)
        if group.group_world_size > 1 or not ours:
            return True  # the store may be gone with its process
        connect = _torch().TCPStore
        return bool(connect(group.master_addr, group.master_port).num_keys())


def _agent() -> Any:
    """The class of torch that starts and watches the ranks of a machine, with our rules."""
    states = _torch(".elastic.agent.server.api")
    local: Any = _torch(".elastic.agent.server.local_elastic_agent").LocalElasticAgent
    healthy = states.RunResult(state=states.WorkerState.HEALTHY)

    class Logs(_torch(".elastic.multiprocessing").DefaultLogsSpecs):  # type: ignore[misc]
        start = Start(begun=False)

        def reify(self, envs: Any) -> Any:
            found = super().reify(envs)
            self.start.hold(found.error_files, found.stdouts, found.stderrs)
            return found

    class Agent(_Rules, local):  # type: ignore[misc]
        logs = Logs(os.devnull)

        def __init__(self, spec: Any, logs_specs: Any, **options: Any) -> None:
            Agent.logs = Logs(logs_specs.root_log_dir)
            super().__init__(spec, self.logs, **options)

        def _rendezvous(self, worker_group: Any) -> None:
            _tell("waits")
            super()._rendezvous(worker_group)

        def _start_workers(self, worker_group: Any) -> Any:
            self.logs.start.finish()
            self.logs.start = Start(begun=self.logs.start.has_begun())
            ranks = {one.local_rank: one.global_rank for one in worker_group.workers}
            self.logs.start.ranks = ranks
            Agent.started = True
            pids = super()._start_workers(worker_group)
            self.logs.start.watch(pids)
            _tell("started", ranks={ranks[local]: pid for local, pid in pids.items()})
            return pids

        def _monitor_workers(self, worker_group: Any) -> Any:
            start, handlers = self.logs.start, self._pcontext.subprocess_handlers
            codes = {rank: handlers[rank].proc.poll() for rank in sorted(handlers)}
            begun = start.has_begun()
            if start.waits_for_first(codes):
                return healthy
            found = super()._monitor_workers(worker_group)
            if found.is_failed():
                first = start.failed
                if first is None:
                    first = start.failed = next(iter(found.failures.values())).local_rank
                number = worker_group.workers[first].global_rank
                Agent.cause = number, handlers[first].proc.poll()
                _tell("failed", rank=number, code=Agent.cause[1])
                self._go_on_or_end(codes, begun or start.has_begun())
            return found

    return Agent


def _meeting_trouble(options: Any) -> str:
    """Prepare to meet the launchers of other machines; why that is not possible, or empty.

    torch would look up the name of this machine, which may not resolve. If another program used
    the port, torch would wait for it as for a slow launcher.
    """
    if options.standalone or ":" not in options.rdzv_endpoint + options.master_addr:
        endpoint = f"{options.master_addr}:{options.master_port}" if NODE in os.environ else ""
    else:
        endpoint = options.rdzv_endpoint
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        return ""
    try:
        address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    except OSError:
        return f"the name {host}, where the machines meet, does not resolve here\n" + (
            f"hint: getent hosts {host}; correct `rdzv`, or /etc/hosts"
        )
    family, where = address[0], address[4]
    is_here = _is_own(family, where)
    joins = not is_here or not _is_free(family, where)
    if is_here and joins and not _is_launcher(host, int(port)):
        return f"port {port} of {host}, where the machines meet, is in use by another program\n" + (
            f"hint: ss -ltnp 'sport = :{port}' names it; or choose another port for `rdzv`"
        )
    if not is_here and (trouble := _wait_for_launcher(where, endpoint)):
        return trouble
    # torch itself knows a name of the loopback, and joins if another launcher was faster.
    settled = joins or not str(where[0]).startswith(_LOOPBACK)
    if NODE not in os.environ and "is_host" not in options.rdzv_conf and settled:
        options.rdzv_conf = ",".join(filter(None, [options.rdzv_conf, f"is_host={int(not joins)}"]))
    if NODE not in os.environ and not options.local_addr:
        options.local_addr = where[0] if is_here else _own_address(family, where)
    return ""


def _is_own(family: int, where: Any) -> bool:
    """Whether an address is one of this machine."""
    with socket.socket(family, socket.SOCK_DGRAM) as any_port:
        try:
            any_port.bind((where[0], 0, *where[2:]))
        except OSError:
            return False
        return True


def _is_free(family: int, where: Any) -> bool:
    try:
        socket.create_server(where[:2], family=family).close()
    except OSError:
        return False
    return True


def _is_launcher(host: str, port: int) -> bool:
    """Whether a launcher of torch answers at a port: another one of this machine."""
    from datetime import timedelta

    try:
        _torch().TCPStore(
            host, port, is_master=False, timeout=timedelta(seconds=_ANSWERS_S),
            wait_for_workers=False,
        )  # fmt: skip
    except RuntimeError:
        return False
    return True


def _own_address(family: int, where: Any) -> str:
    """The address of this machine on the way to another one."""
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect(where)
        return str(way.getsockname()[0])


def _wait_for_launcher(where: Any, endpoint: str) -> str:
    """Wait until the first machine answers; why it never will, or empty."""
    host, began, told = where[0], time.monotonic(), False
    while True:
        try:
            socket.create_connection(where[:2], timeout=_ANSWERS_S).close()
        except OSError as problem:
            if problem.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
                return f"there is no route to {endpoint}, where the machines meet\n" + (
                    f"hint: ip route get {host}; correct `rdzv`, or the network"
                )
        else:
            return ""
        waited = time.monotonic() - began
        if waited > _MOST_S:
            return f"nothing has answered at {endpoint} for {waited:.0f} s\n" + (
                f"hint: ping -c 1 {host}; type the same command there"
            )
        if waited > _LATE_S and not told:
            told = True
            _say(
                f"warning: nothing answers at {endpoint}, where the machines meet: its launcher "
                f"has not started, the address is wrong, or a firewall is between\n"
                f"hint: type the same command there, or try: ping -c 1 {host}"
            )
        time.sleep(_LOOKS_S)


def _ended(rank: int, code: int) -> str:
    how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
    return f"rank {rank} ended with {how}"


def _exit_code(rank: int, code: int) -> int:
    """The exit code for that of a rank; where a signal ended it, the program has no error."""
    if code < 0:
        _say(f"error: {_ended(rank, code)}")
    return code if code > 0 else 128 - code


@contextlib.contextmanager
def _quiet_torch() -> Iterator[None]:
    """Keep torch from logging in this process what follows the error of a program.

    Its libraries read a variable when they are loaded, which the ranks must not inherit.
    """
    if "LOGLEVEL" in os.environ or _LEVEL in os.environ:
        yield
        return
    logging.disable()
    os.environ[_LEVEL] = "ERROR"
    try:
        yield
    finally:
        del os.environ[_LEVEL]


def main(words: Sequence[str]) -> int:
    """Start the ranks of this machine, and wait for them.

    Args:
        words: The options of torchrun, and the program.

    Returns:
        The exit code of the rank that failed first, 0 for none; 128 + n for signal n.
    """
    with _quiet_torch():
        run, parts = _torch(".run"), _torch(".elastic.multiprocessing")
    if not hasattr(parts, "DefaultLogsSpecs"):  # torch 2.2 and older: as torchrun does it
        run.main([*words])
        return 0
    agent, meeting = _agent(), _torch(".elastic.rendezvous")
    _torch(".launcher.api").LocalElasticAgent = agent
    options = run.parse_args([*words])
    if trouble := _meeting_trouble(options):
        _say(f"error: {trouble}")
        return 1
    options.log_dir = folder = tempfile.mkdtemp(prefix="fdl-ranks-")
    try:
        run.run(options)
    except parts.errors.ChildFailedError:
        return _exit_code(*agent.cause)
    except (meeting.RendezvousClosedError, meeting.RendezvousConnectionError):
        if not agent.started:
            raise
        agent.logs.start.finish()
        _say("error: the launch has ended on another machine: see its output")
        return _exit_code(*agent.cause)
    except parts.SignalException as received:
        return 128 + int(received.sigval)
    finally:
        agent.logs.start.finish()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    # As with `python -m`: the folder of this file is not one of the program's.
    sys.path[0] = ""
    sys.exit(main(sys.argv[1:]))
