"""Carry out a plan: resume, compile, verify, install.

All output of its commands goes to one file, ninja's counter to the screen.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from fdl.base.errors import BuildError, failing
from fdl.base.files import put, text_of
from fdl.base.hardware.machine import main_memory
from fdl.base.output import note
from fdl.base.progress import Progress
from fdl.base.shell_words import join
from fdl.base.signals import handled, interrupt
from fdl.base.units import size_text
from fdl.libtorch.active import Variant
from fdl.libtorch.build.plan import CONTAINER_CUDA, RESULTS, BuildPlan, Phase, Request, Step
from fdl.libtorch.catalog import Architecture, recorded
from fdl.libtorch.store import Store

if TYPE_CHECKING:
    from fdl.libtorch.prove import Facts

_OTHER_STORE = "choose a store you may write to, such as your own: fdl libtorch build --global"

_SHOWN_LINES = 4
"""Lines of output in the message about a failure."""

_GRACE_S = ((signal.SIGINT, 15.0), (signal.SIGTERM, 5.0))
"""Signals to a process group before it is killed, and the time for each. On the first signal, ninja
ends its compilers and deletes half-written files."""

_LOOKS_EVERY_S = 0.2
"""Time between two looks at a running command and its output."""


class Counter:
    """Reads ninja's ``[12/3456]``, also after the prefix that BuildKit puts before every line."""

    _SEEN = re.compile(r"(?:#\d+ \d+\.\d+ )?\[(\d+)/(\d+)\] ")

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._largest = 0

    def read(self, output: Iterable[str]) -> None:
        """Read some lines of output."""
        for match in filter(None, map(self._SEEN.match, output)):
            done, total = int(match[1]), int(match[2])
            self._largest = max(self._largest, total)
            # Submodules run their own ninja; the total of the main one shrinks only a little.
            if total * 2 < self._largest:
                continue
            if total != self._progress.total:
                self._progress.start(total, done)
            self._progress.update(done)

    def finish(self) -> None:
        """Count the last step; ninja announces a step when it begins, not when it ends."""
        self._progress.update(self._progress.total)


class Journal:
    """The log of one call, appended to that of earlier calls; a context manager.

    Commands write to the file themselves.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> Self:
        with failing(f"cannot write {self._file}", _OTHER_STORE, BuildError):
            self._log = self._file.open("a", encoding="utf-8", buffering=1)
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def write(self, line: str) -> None:
        """Add a line of fdl to the log."""
        self._log.write(f"{line}\n")

    def run(self, step: Step, counter: Counter | None = None) -> None:
        """Run one command to its end; the counter also reads its output.

        The command gets its own session: it cannot read the terminal, and Ctrl-C there reaches it
        only through :meth:`_stop`.

        Raises:
            BuildError: It cannot be started, or it failed; with the end of its output.
            KeyboardInterrupt: The user interrupted; the whole process group has ended.
        """
        self.write(f"{time.strftime('%H:%M:%S')} $ {join(step.argv)}")
        with self._file.open(encoding="utf-8", errors="replace") as output:
            begin = output.seek(0, os.SEEK_END)
            try:
                child = subprocess.Popen(
                    step.argv,
                    cwd=step.cwd,
                    env={**os.environ, **step.env},
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as problem:
                raise BuildError(
                    f"cannot start `{join(step.argv)}` in {step.cwd}: {problem.strerror}",
                    hint="install what is missing, then run the same command again",
                ) from None
            code = self._attend(child, output, counter)
            if code != 0 and not step.may_fail:
                output.seek(begin)
                raise self._failure(step, code, deque(output, maxlen=_SHOWN_LINES))

    def _attend(
        self, child: subprocess.Popen[bytes], output: TextIO, counter: Counter | None
    ) -> int:
        code = None
        try:
            while code is None:
                with suppress(subprocess.TimeoutExpired):
                    code = child.wait(_LOOKS_EVERY_S)
                if counter is not None:
                    counter.read(output)
        except KeyboardInterrupt:
            self._stop(child)
            raise
        return code

    def _stop(self, child: subprocess.Popen[bytes]) -> None:
        """End the whole process group; another interrupt sends the next signal at once."""
        for number, patience in (*_GRACE_S, (signal.SIGKILL, 1.0)):
            limit = time.monotonic() + patience
            with suppress(KeyboardInterrupt):
                try:
                    os.killpg(child.pid, number)
                    while time.monotonic() < limit:
                        time.sleep(_LOOKS_EVERY_S)
                        child.poll()
                        os.killpg(child.pid, 0)
                except ProcessLookupError:
                    break
        child.wait()
        self.write(f"{time.strftime('%H:%M:%S')} interrupted")

    def _failure(self, step: Step, code: int, last: Iterable[str]) -> BuildError:
        ended = f"exit code {code}" if code > 0 else f"signal {-code}"
        lines = "".join(f"\n  {line.rstrip()}" for line in last)
        return BuildError(
            f"`{join(step.argv[:4])}{' …' if len(step.argv) > 4 else ''}` failed with {ended}"
            f"{'; its last lines:' if lines else ''}{lines}",
            hint=f"all output is in {self._file}; fix the cause, then run the same command "
            "again: it continues where it stopped",
        )


_BUILD_LOCK = "builds/sources"
"""The lock of one build against all others: builds share the sources and the processors."""

_DISK_BYTES = 30_000_000_000
"""Disk space for sources, object files and libraries of a real build."""

_JOB_BYTES = 5_300_000_000
"""Memory for one compiler of an attention kernel: https://github.com/pytorch/pytorch/pull/130443."""


def installed(request: Request, store: Store) -> Variant | None:
    """The variant, if an earlier call built exactly this request."""
    if not store.is_installed(request.id):
        return None
    variant = store.get(request.id)
    same = variant.facts.get("torch") == request.torch
    archs = recorded(variant.facts.get("archs", ""))
    return variant if same and archs == request.archs else None


def execute(plan: BuildPlan, store: Store, cuda: str = CONTAINER_CUDA) -> Variant:
    """Build, verify and install a variant with a version of CUDA, without activating it.

    Raises:
        BuildError: A command failed, or the result lacks a requested architecture. Compiled files
            are kept, and the next call continues with them.
        LibtorchError: The variant cannot be written.
        KeyboardInterrupt: The user interrupted; compiled files are kept too.
    """
    # SIGTERM, and the end of the terminal, have the effect of Ctrl-C.
    with handled(("SIGTERM", "SIGHUP"), interrupt), store.lock(_BUILD_LOCK):
        _prepare(plan, cuda)
        with Journal(plan.log) as journal:
            journal.write(
                f"== {time.strftime('%Y-%m-%d')} {plan.request.id}, torch {plan.request.torch}"
            )
            try:
                for phase in plan.phases:
                    _enter(phase, plan, journal)
                variant = _install(plan, store, cuda)
            except KeyboardInterrupt:
                note("stopped; what is compiled is kept: run the same command again to continue")
                raise
            journal.write(f"installed {variant.path}")
    if plan.back_end == "docker":
        shutil.rmtree(plan.result, ignore_errors=True)
    else:
        note(f"{plan.tree} may be deleted: it is of use only for building this again")
    return variant


def remarks(plan: BuildPlan, store: Store) -> list[str]:
    """Warnings about too little disk space or memory, in words for the user."""
    found = []
    folder = store.root
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if plan.back_end == "native" and free < _DISK_BYTES:
        found.append(
            f"a build takes about {size_text(_DISK_BYTES)} of disk, and {folder} has "
            f"{size_text(free)} left"
        )
    memory = main_memory(Path("/"))
    if memory and plan.request.jobs * _JOB_BYTES > memory:
        found.append(
            f"{plan.request.jobs} compilers at a time take up to "
            f"{size_text(plan.request.jobs * _JOB_BYTES)} of memory, and this machine has "
            f"{size_text(memory)}: --jobs {max(1, memory // _JOB_BYTES)} is safer"
        )
    return found


def _prepare(plan: BuildPlan, cuda: str) -> None:
    """Prepare the build tree, without object files of other settings."""
    request = plan.request
    settings = f"{request.repository} v{request.torch} {request.arch_list} CUDA {cuda}\n"
    mark = plan.tree / "settings"
    try:
        continues = text_of(mark) == settings
        if plan.tree.exists() and not continues:
            shutil.rmtree(plan.tree)
        plan.tree.mkdir(parents=True, exist_ok=True)
        put(mark, settings.encode())
        if plan.back_end == "docker":
            # `docker cp` would add to the libraries of an earlier call.
            shutil.rmtree(plan.result, ignore_errors=True)
        else:
            # A killed git leaves its lock files; no other process works there while we hold ours.
            for lock in list((plan.sources / ".git").rglob("*.lock")):
                lock.unlink()
    except OSError as problem:
        raise BuildError(
            f"cannot write {problem.filename or plan.tree}: {problem.strerror}",
            hint=_OTHER_STORE,
        ) from None
    if continues:
        note(f"continuing the build of {request.id} that an earlier call has begun")


def _enter(phase: Phase, plan: BuildPlan, journal: Journal) -> None:
    if phase.is_done():
        return
    if phase.mark is not None:
        # From here on, the mark would be wrong until the phase is finished.
        phase.mark.unlink(missing_ok=True)
    note(f"{phase.title} (log: {plan.log})")
    for step in phase.steps:
        if _applies(step):
            _run(step, plan, journal)
    if phase.mark is not None:
        put(phase.mark, phase.settings.encode())


def _applies(step: Step) -> bool:
    there = step.if_there is None or step.if_there.exists()
    return there and not (step.if_missing is not None and step.if_missing.exists())


def _run(step: Step, plan: BuildPlan, journal: Journal) -> None:
    if not step.counts:
        journal.run(step)
        return
    label = f"libtorch {plan.request.torch} {plan.request.name}"
    with Progress(label, unit="steps") as progress:
        counter = Counter(progress)
        journal.run(step, counter)
        counter.finish()


def _install(plan: BuildPlan, store: Store, cuda: str) -> Variant:
    request = plan.request
    facts = {
        "cuda": cuda,
        "torch": request.torch,
        "archs": " ".join(map(str, request.archs)),
        "source": "compiled",
    }
    with store.lock(request.id), store.staging() as staging:
        staged = staging / "libtorch"
        _collect(plan, staged)
        verify(staged, request.archs, plan.log)
        version = f"{request.torch}+cu{cuda.replace('.', '')}\n"
        (staged / "build-version").write_text(version, encoding="utf-8")
        return store.commit(staged, request.id, facts)


def _collect(plan: BuildPlan, staged: Path) -> None:
    """Copy the built files; of the native ``lib``, leave out the sources inside it."""
    lib = plan.result / "lib"

    def leave_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(folder) == lib and (lib / name).is_dir()]

    for name in RESULTS:
        source = plan.result / name
        if not source.is_dir():
            raise BuildError(
                f"the build has left no {source}",
                hint=f"look for the reason in {plan.log}",
            )
        try:
            shutil.copytree(source, staged / name, symlinks=True, ignore=leave_out)
        except (OSError, shutil.Error) as problem:
            raise BuildError(
                f"cannot copy {source}: {problem}",
                hint="free some space, then run the same command again: nothing is compiled twice",
            ) from None


def verify(folder: Path, archs: Sequence[Architecture], log: Path) -> None:
    """Check from the libraries that a variant runs on every GPU it was built for.

    Raises:
        BuildError: Code for an architecture is missing; the message names the log of the build.
        LibtorchError: There are no libraries.
    """
    # Reading libraries imports a parser that no other part of a build needs.
    from fdl.libtorch.prove import facts_of

    facts = facts_of(folder)
    missing = [str(arch) for arch in archs if not _is_served(arch, facts)]
    if missing:
        found = " ".join(map(str, facts.architectures)) or "the processor alone"
        raise BuildError(
            f"what was built has no code for {', '.join(missing)}; it has code for {found}",
            hint=f"look in {log} for the reason; nothing was installed",
        )


def _is_served(arch: Architecture, facts: Facts) -> bool:
    """Whether all libraries with GPU code have machine code, and PTX if it was requested."""
    from fdl.libtorch.prove.facts import tally

    if not facts.carriers:
        return False
    compiled = all(tally(one, arch.capability).native for one in facts.carriers)
    served = all(tally(one, arch.capability).served for one in facts.carriers)
    ptx = {image.architecture.capability for image in facts.images if image.form == "ptx"}
    return compiled and served and (not arch.ptx or arch.capability in ptx)
