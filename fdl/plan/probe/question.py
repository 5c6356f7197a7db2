"""Asking a program for its schema: ``<entry> --fdl-schema``, within limits.

The program gets no input, a few seconds of time and a limit on its output. At the end its whole
process group is ended, with everything that it has started.
"""

# The paths of a Plan are strings.
# ruff: noqa: PTH113, PTH118, PTH120
from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, cast

from fdl.base.compose_file import COMPOSE_FILES
from fdl.base.errors import SchemaError
from fdl.base.masking import KNOWN
from fdl.base.secrets import redact_tokens
from fdl.base.shell_words import join
from fdl.manifest.node import origin
from fdl.manifest.select.level import SECTIONS, Level
from fdl.plan.arguments import arguments
from fdl.plan.planner import Host, Planner, here
from fdl.plan.redaction import know_secrets
from fdl.plan.value import Plan
from fdl.programs.parameters.contract import FLAG, PROBE_VARIABLE, ContractError, Schema, parse
from fdl.programs.schema import cache
from fdl.programs.schema.program import sources

LIMIT_SECONDS = 5.0
LIMIT_VARIABLE = "FDL_SCHEMA_SECONDS"
# For users who asked only for the schema: a first import of torch may take more than five seconds.
_PATIENT_LIMIT_SECONDS = 60.0
_CONTAINER_LIMIT_SECONDS = 60.0
# Between the request to end and the kill. The request also stops a container.
GRACE_SECONDS = 1.0
_CONTAINER_GRACE_SECONDS = 10.0

_MOST_OUTPUT = 1 << 20
_LAST_LINES = 4


def refresh(level: Level, host: Host | None = None, *, patient: bool = False) -> Schema:
    """Ask the program of a level, and store the answer or the failure.

    Args:
        level: The command.
        host: Where the program would run; those of this process when omitted.
        patient: Whether the user waits for this answer itself, not for a help page.

    Raises:
        SchemaError: The program cannot be started, fails, takes too long, or gives an invalid
            answer. Or the limit in the environment is not a valid number.
        ManifestError: The entry cannot be turned into a plan.
    """
    around = host or here()
    limit = _limit(around.variables, patient=patient)
    # Stamp before asking the program: an edit in between leaves a stale record.
    files = cache.stamps(level, sources(level))
    try:
        document, schema = _answer(question(level, around), limit)
    except SchemaError as problem:
        # A temporary failure must not replace a known schema that has not changed since.
        known = cache.fetch(level)
        # A machine that was busy may answer in time when it is asked again.
        if not problem.passing and (known is None or known.schema is None):
            _remember(level, None, problem.message, files)
        raise
    _remember(level, document, "", files)
    return schema


def question(level: Level, host: Host | None = None) -> Plan:
    """The plan that asks the program: the entry without generated arguments, started as in a run.

    Raises:
        SchemaError: The entry runs in a container, but there is no compose file.
        ManifestError: The entry is empty, does not split into words, or is outside the project.
    """
    around = host or here()
    service = level.manifest.node.text("docker")
    contained = bool(service) and not around.in_container
    root = _compose_folder(level) if contained else level.root
    unattended = around.replaced(terminal=False, exported={PROBE_VARIABLE: "1"}, append=True)
    bare = _bare(level)
    return Planner(root, unattended).entry(bare, None, arguments(bare, tail=[FLAG]))


def _bare(level: Level) -> Level:
    """The level without the sections that become generated arguments."""
    bare = copy.copy(level)
    bare.manifest = copy.copy(level.manifest)
    node = level.manifest.node
    kept = {key: child for key, child in node.mapping.items() if key not in (*SECTIONS, "options")}
    bare.manifest.node = node.at(kept)
    return bare


def _compose_folder(level: Level) -> str:
    """The nearest folder with a compose file: the command's folder or one above it."""
    folder = level.manifest.directory
    while True:
        if any(os.path.isfile(os.path.join(folder, name)) for name in COMPOSE_FILES):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            node = level.manifest.node
            raise SchemaError(
                f"{origin(node.get('docker') or node, level.root)}: the entry runs in docker "
                f"service `{node.text('docker')}`, and no compose file is here or above",
                hint="add compose.yaml, or drop `docker`",
            )
        folder = parent


def _remember(level: Level, document: object, problem: str, files: list[list[str | int]]) -> None:
    # While an example is used in place of the manifest, nothing is written beside it.
    if not level.manifest.found.is_example:
        cache.store(level, document, problem, files)


def _limit(variables: Mapping[str, str], *, patient: bool) -> float:
    """The time limit in seconds outside of containers; a first import of torch can be slow."""
    least = _PATIENT_LIMIT_SECONDS if patient else 0.0
    text = variables.get(LIMIT_VARIABLE, "")
    if not text:
        return max(LIMIT_SECONDS, least)
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0 < limit < threading.TIMEOUT_MAX:
        raise SchemaError(
            f"{LIMIT_VARIABLE}={text} is not a number of seconds", hint=f"{LIMIT_VARIABLE}=30"
        )
    return max(limit, least)


def _answer(plan: Plan, limit: float) -> tuple[object, Schema]:
    if plan.service:
        limit = _CONTAINER_LIMIT_SECONDS
    out, err, code = _run(plan, limit)
    problem = ""
    if code is None:
        problem = f"did not answer within {limit:g} seconds"
    elif len(out) > _MOST_OUTPUT:
        problem = f"printed more than {_MOST_OUTPUT >> 20} MiB"
    elif code:
        problem = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    else:
        text = out.decode("utf-8", "replace")
        start = text.find("{")
        try:
            document, _ = json.JSONDecoder().raw_decode(text, start) if start >= 0 else (None, 0)
            if document is not None:
                return document, parse(document)
            problem = "printed no JSON"
        except ContractError as mistake:
            problem = f"printed JSON in which {mistake}"
        except (ValueError, RecursionError) as mistake:
            problem = f"printed broken JSON: {mistake}"
    failure = _failure(plan, problem + _last_lines(err))
    failure.passing = code is None
    raise failure


def _failure(plan: Plan, problem: str) -> SchemaError:
    """The error for a program that does not answer, without secrets that it may have printed."""
    know_secrets(plan)
    asked = join(redact_tokens(plan.argv))
    return SchemaError(
        KNOWN.text(f"{plan.origin}: `{asked}` {problem}"),
        hint=f"`{FLAG}` must make the program print its schema as JSON, as `fdl.FdlArgs` does",
    )


def _run(plan: Plan, limit: float) -> tuple[bytes, bytes, int | None]:
    """Output, the end of stderr, and the exit code; None if the time ran out."""
    windows = os.name == "nt"
    try:
        child = subprocess.Popen(
            plan.launch,
            cwd=plan.cwd,
            env={**os.environ, **plan.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A separate group, so that everything the program starts can be ended with it.
            start_new_session=not windows,
        )
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise _failure(plan, f"cannot be started: {reason}") from None
    enough = threading.Event()
    out = _Listener(cast("IO[bytes]", child.stdout), enough, first=_MOST_OUTPUT)
    err = _Listener(cast("IO[bytes]", child.stderr), enough, last=_MOST_OUTPUT >> 4)
    code: int | None = None
    try:
        code = _wait(child, enough, limit)
    finally:
        _end(child, _CONTAINER_GRACE_SECONDS if plan.service else GRACE_SECONDS)
        for listener in (out, err):
            listener.join(GRACE_SECONDS)
    return bytes(out.data), bytes(err.data), code


def _wait(child: subprocess.Popen[bytes], enough: threading.Event, limit: float) -> int | None:
    """The exit code; None if the time ran out; 0 if it was stopped for printing too much."""

    def announce() -> None:
        child.wait()
        enough.set()

    threading.Thread(target=announce, daemon=True).start()
    if not enough.wait(limit):
        return None
    return child.poll() or 0


class _Listener(threading.Thread):
    """Reads a pipe to its end and keeps the ``first`` or the ``last`` bytes of it.

    More than ``first`` is too much, and sets ``enough``.
    """

    def __init__(
        self, pipe: IO[bytes], enough: threading.Event, *, first: int = 0, last: int = 0
    ) -> None:
        super().__init__(daemon=True)
        self.data = bytearray()
        self._pipe = pipe
        self._enough = enough
        self._first = first
        self._last = last
        self.start()

    def run(self) -> None:
        """Read until the other end is closed."""
        with self._pipe as pipe:
            while chunk := os.read(pipe.fileno(), 1 << 16):
                if self._last or len(self.data) <= self._first:
                    self.data += chunk
                if self._last:
                    del self.data[: -self._last]
                elif len(self.data) > self._first:
                    self._enough.set()


def _end(child: subprocess.Popen[bytes], grace: float) -> None:
    """End the whole group, by force if needed. A group that has already ended is fine."""
    if os.name == "nt":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(child.pid)], check=False)
    else:
        _signal_group(child, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace)
        _signal_group(child, signal.SIGKILL)
    child.wait()


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    # On macOS this is a permission error if the group holds only ended processes.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _last_lines(data: bytes) -> str:
    lines = [line.rstrip() for line in data.decode("utf-8", "replace").splitlines()]
    kept = [line for line in lines if line][-_LAST_LINES:]
    return "".join(f"\n  {line}" for line in kept)
