"""When a command with ``inputs`` runs, and when its last run still counts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from fdl.base import output
from fdl.base.files import read_text
from fdl.base.light_record import Record
from fdl.plan.ranks import SETTINGS_VARIABLE
from fdl.plan.value import Plan
from fdl.run.freshness.digests import Digests
from fdl.run.freshness.folder import state_file, write
from fdl.run.freshness.patterns import VARIABLE, Patterns

_FORMAT = 1


class Verdict(Record):
    """Whether a command runs, and why; ``reason`` completes the sentence ``it runs: …``."""

    runs: bool
    reason: str


class Rule:
    """The inputs and outputs of one command line, and how its last run left them.

    Args:
        plan: What would run.
        inputs: What it reads; None for a command without this key.
        outputs: What it writes.
        digests: Computes digests of files.
    """

    def __init__(
        self, plan: Plan, inputs: Patterns | None, outputs: Patterns, digests: Digests
    ) -> None:
        self._plan = plan
        self._inputs = inputs
        self._outputs = outputs
        self._digests = digests
        self._file = state_file(plan.root, _name(plan))
        self._now: dict[str, Any] = {}

    @property
    def watches(self) -> bool:
        """Whether the command has inputs, so that it may be skipped."""
        return self._inputs is not None

    def judge(self, *, forced: bool = False) -> Verdict:
        """Compare the files with those of the last success.

        Raises:
            FdlError: A pattern of the inputs matches no file, or a file cannot be read.
        """
        if self._inputs is None:
            return Verdict(True, "it has no inputs")
        self._now = self._measured(self._inputs)
        before = _read(self._file)
        if forced:
            return Verdict(True, "--force")
        if before is None:
            typed = " with these arguments" if self._plan.typed or self._plan.given else ""
            return Verdict(True, f"it has not run here{typed} yet")
        if not before["finished"]:
            return Verdict(True, "its last run did not succeed")
        reason = self._change(before)
        if reason:
            return Verdict(True, reason)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(before["when"]))
        return Verdict(False, f"inputs unchanged since {when}")

    def begin(self) -> None:
        """Note that a run has begun, so that only its success makes the next one unnecessary."""
        before = _read(self._file) if self._inputs else None
        if before:
            self._write({**before, "finished": False})

    def finish(self) -> list[str]:
        """Keep what a successful run has read and written.

        Returns:
            Patterns of the outputs that match no file.
        """
        if self._inputs is None:
            return []
        written = {file: self._digests.of(file) for file in self._outputs.files()}
        self._digests.save()
        self._write({**self._now, "outputs": written, "finished": True, "when": time.time()})
        return self._outputs.missing()

    def _measured(self, inputs: Patterns) -> dict[str, Any]:
        # What the command writes itself is not an input, also where a pattern covers both.
        written = set(self._outputs.files())
        files = [file for file in inputs.required(_typed(self._plan)) if file not in written]
        variables = {**os.environ, **self._plan.env}
        return {
            "format": _FORMAT,
            "command": _digest(_identity(self._plan, self._outputs)),
            "variables": {name: _digest(variables.get(name)) for name in inputs.variables},
            "inputs": {file: self._digests.of(file) for file in files},
        }

    def _change(self, before: Mapping[str, Any]) -> str:
        """The first difference to the last success; empty without one."""
        now = self._now
        if now["command"] != before["command"]:
            return "the command changed"
        variables = [
            f"{VARIABLE}{name}"
            for name, digest in now["variables"].items()
            if before["variables"].get(name) != digest
        ]
        changes = [f"{name} changed" for name in variables]
        changes += _differences(before["inputs"], now["inputs"])
        if not changes:
            there = set(self._outputs.files())
            written = before["outputs"]
            found = {file: self._digests.of(file) for file in written if file in there}
            changes = _differences(written, found, gone="is missing")
        more = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
        return f"{changes[0]}{more}" if changes else ""

    def _write(self, record: Mapping[str, object]) -> None:
        try:
            write(self._file, record)
        except OSError as problem:
            output.warning(
                f"{self._file} cannot be written: {problem.strerror}",
                "the next run of the command cannot be skipped",
            )


def _differences(
    before: Mapping[str, str], now: Mapping[str, str], gone: str = "is gone"
) -> list[str]:
    changed = [f"{file} changed" for file in now if before.get(file, now[file]) != now[file]]
    new = [f"{file} is new" for file in now if file not in before]
    return [*changed, *new, *(f"{file} {gone}" for file in before if file not in now)]


def _identity(plan: Plan, outputs: Patterns) -> object:
    """What makes a command another one: what runs, where, and the variables of the manifest."""
    # The values of declared arguments are in the name of the record.
    given = {one.partition("=")[0] for one in plan.given}
    declared = {
        one.name: one.value
        for one in plan.variables
        if one.name not in given
        and (one.origin == "shell" or ":" in one.origin or one.name == SETTINGS_VARIABLE)
    }
    place = plan.launch[-1] if plan.service else os.path.relpath(plan.cwd, plan.root)
    return [plan.kind, plan.argv, plan.service, place, sorted(declared.items()), outputs.texts]


def _name(plan: Plan) -> str:
    """The name of the state: readable, and another one for other arguments or overlays."""
    words = "-".join(plan.command)
    safe = "".join(char if char.isalnum() or char in "-_" else "_" for char in words)
    told = [plan.command, plan.typed, plan.environment, *plan.given]
    return f"{safe[:64]}.{_digest(told)[:12]}"


def _typed(plan: Plan) -> str:
    return " ".join(["fdl", *plan.command])


def _digest(value: object) -> str:
    import blake3

    return blake3.blake3(json.dumps(value).encode()).hexdigest(length=16)


def _read(file: str) -> dict[str, Any] | None:
    """The record of the last run; None if there is none, or none that this fdl understands."""
    try:
        record = json.loads(read_text(file))
        sound = record["format"] == _FORMAT and {"when", "finished", "command"} <= record.keys()
        parts = [record[name] for name in ("variables", "inputs", "outputs")]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return record if sound and all(isinstance(one, dict) for one in parts) else None
