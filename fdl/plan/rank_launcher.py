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
import importlib
import json
import logging
import os
import select
import shutil
import signal
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
"""File beside the error file of a rank, once it has trained a step: flodl.ranks.launch.begun."""
WATCHED = "training-is-watched"
"""File beside the error file of a rank whose training will say when it has begun."""

PLAIN_S = 60.0
"""Seconds after which a program that says nothing of this kind counts as begun."""
_HELD_S = 10.0
"""No text is held back longer. Ranks that fail in the same way do so at about the same time."""
_FIRST_RANK_S = 1.0
"""After the failure of another rank, so long may rank 0 of this machine fail by itself."""
_LOOKS_S = 0.1
_LEVEL = "TORCH_CPP_LOG_LEVEL"


class HeldErrors:
    """Standard error of the ranks of a machine but the first, through a pipe for each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipes: dict[int, int] = {}
        self._texts: dict[int, list[tuple[float, bytes]]] = {}
        self._holds = True
        self._thread = threading.Thread(target=self._run, daemon=True)

    def take(self, paths: dict[int, str]) -> None:
        """Make a pipe at each path, for the rank with this number."""
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

    def show_only(self, ranks: Iterable[int]) -> None:
        """Show what these ranks have printed, and forget the rest."""
        self._pass_on()
        with self._lock:
            texts = [part for rank in ranks for part in self._texts.get(rank, [])]
            self._texts = {rank: [] for rank in self._texts}
            _print(text for _, text in texts)

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
                due = [one for one in parts if not self._holds or now - one[0] > _HELD_S]
                del parts[: len(due)]
                _print(text for _, text in due)


def _print(texts: Iterable[bytes]) -> None:
    # The stream may be closed, or nobody reads it any more.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.buffer.writelines(texts)
        sys.stderr.flush()


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
        self.errors = HeldErrors()

    def hold(self, files: dict[int, str], streams: dict[int, str]) -> None:
        """Replace the error streams of the ranks, whose error files these are."""
        self._folders = {rank: Path(file).parent for rank, file in files.items()}
        if self._begun or not hasattr(os, "mkfifo"):
            return
        paths = {rank: str(folder / "stderr") for rank, folder in self._folders.items() if rank}
        self.errors.take(paths)
        streams.update(paths)

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
        failed = [rank for rank, code in codes.items() if code]
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


def _torch(name: str = "") -> Any:
    """torch.distributed, or a module of it; fdl itself imports none of them."""
    return importlib.import_module("torch.distributed" + name)


def _agent() -> Any:
    """The class of torch that starts and watches the ranks of a machine, with our rules."""
    states = _torch(".elastic.agent.server.api")
    local: Any = _torch(".elastic.agent.server.local_elastic_agent").LocalElasticAgent
    healthy = states.RunResult(state=states.WorkerState.HEALTHY)

    class Logs(_torch(".elastic.multiprocessing").DefaultLogsSpecs):  # type: ignore[misc]
        start = Start(begun=False)

        def reify(self, envs: Any) -> Any:
            found = super().reify(envs)
            self.start.hold(found.error_files, found.stderrs)
            return found

    class Agent(local):  # type: ignore[misc]
        _remaining_restarts: int
        # The rank that failed first, as all machines number it, and its exit code.
        cause = (0, 1)
        started = False
        logs = Logs(os.devnull)

        def __init__(self, spec: Any, logs_specs: Any, **options: Any) -> None:
            Agent.logs = Logs(logs_specs.root_log_dir)
            super().__init__(spec, self.logs, **options)

        def _start_workers(self, worker_group: Any) -> Any:
            self.logs.start.errors.show_all()
            self.logs.start = Start(begun=self.logs.start.has_begun())
            Agent.started = True
            return super()._start_workers(worker_group)

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
                self._go_on_or_end(codes, begun or start.has_begun())
            return found

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

    return Agent


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
    options.log_dir = folder = tempfile.mkdtemp(prefix="fdl-ranks-")
    try:
        run.run(options)
    except parts.errors.ChildFailedError:
        return _exit_code(*agent.cause)
    except (meeting.RendezvousClosedError, meeting.RendezvousConnectionError):
        if not agent.started:
            raise
        agent.logs.start.errors.show_all()
        _say("error: the launch has ended on another machine: see its output")
        return _exit_code(*agent.cause)
    except parts.SignalException as received:
        return 128 + int(received.sigval)
    finally:
        agent.logs.start.errors.show_all()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    # As with `python -m`: the folder of this file is not one of the program's.
    sys.path[0] = ""
    sys.exit(main(sys.argv[1:]))
