"""Whether a command has to run again: its inputs and outputs by content, since the last success."""

# pathlib would add to the start of a command.
# ruff: noqa: PTH110, PTH112, PTH113, PTH116, PTH118, PTH120, PTH123, PTH206, PTH207, PTH208
from __future__ import annotations

import glob
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from fdl.base import output
from fdl.base.errors import ManifestError, failing
from fdl.base.files import read_text
from fdl.base.own_files import put_own
from fdl.base.suggest import did_you_mean
from fdl.manifest.cache import make_folder
from fdl.manifest.node import Node, origin
from fdl.plan.ranks import SETTINGS_VARIABLE
from fdl.plan.value import Plan


def _state_file(root: str, name: str) -> str:
    """A file of the project's state."""
    return os.path.join(root, ".fdl", "state", f"{name}.json")


def write(file: str, document: object) -> None:
    """Replace a file of the state as a whole. Its folder is hidden from git.

    Raises:
        OSError: It cannot be written; it has its old content.
    """
    folder = os.path.dirname(os.path.dirname(file))
    make_folder(folder)
    # Digests of short secrets can be guessed, so only the owner reads them.
    put_own(
        os.path.dirname(folder), file, json.dumps(document, separators=(",", ":")).encode(), 0o600
    )


# The coarsest clock tick of the supported file systems. A file that changes again within one tick
# keeps its stamp. So content that was read that soon after a change is read again.
_TICK_NS = 10_000_000


class Digests:
    """Reads each file once, until its times, size or inode change.

    Args:
        root: Directory of the project. Paths are relative to it.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._file = _state_file(root, "files")
        self._known: dict[str, list[object]] = _digests_in(self._file)
        self._fresh: dict[str, list[object]] = {}

    def of(self, path: str) -> str:
        """The digest of a file, a link being what it leads to.

        Raises:
            FdlError: It cannot be read.
        """
        file, now = os.path.join(self._root, path), time.time_ns()
        hint = "it is an input or an output of a command, so make it readable"
        with failing(f"{path} cannot be read", hint):
            status = os.stat(file)
            stamp = [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]
            known = self._fresh.get(path) or self._known.get(path)
            if known and known[:4] == stamp:
                return str(known[4])
            digest = _hashed(file)
        if max(stamp[:2]) < now - _TICK_NS:
            self._fresh[path] = [*stamp, digest]
        return digest

    def save(self) -> None:
        """Keep what has been read, for the next call. Where that is impossible, do nothing."""
        if not self._fresh:
            return
        # Another fdl may have written meanwhile. What one of them loses is only read again.
        known = {**_digests_in(self._file), **self._fresh}
        there = {
            path: entry
            for path, entry in known.items()
            if path in self._fresh or os.path.exists(os.path.join(self._root, path))
        }
        with suppress(OSError):
            write(self._file, there)
        self._known, self._fresh = there, {}


def _hashed(file: str) -> str:
    import hashlib

    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digests_in(file: str) -> dict[str, list[object]]:
    try:
        content = json.loads(read_text(file))
        sound = all(isinstance(one, list) and len(one) == 5 for one in content.values())
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    return content if sound else {}


VARIABLE = "env:"
"""Begins an input that is an environment variable: ``env:HF_HOME``."""

_PASSED_OVER = frozenset((".fdl", ".git", "__pycache__"))
"""Folders of tools. They change although nobody has changed an input."""


class Patterns:
    """Some patterns of one command.

    Args:
        nodes: The patterns.
        folder: Where they start: the folder of the manifest.
        root: Directory of the project. Found files are relative to it.
    """

    def __init__(self, nodes: list[Node], folder: str, root: str) -> None:
        self.variables = [
            str(node.value).removeprefix(VARIABLE)
            for node in nodes
            if str(node.value).startswith(VARIABLE)
        ]
        self.texts = [str(node.value) for node in nodes]
        self._nodes = [node for node in nodes if not str(node.value).startswith(VARIABLE)]
        self._folder = folder
        self._root = root

    def files(self) -> list[str]:
        """The files that are there now, sorted."""
        return sorted({file for node in self._nodes for file in self._files(str(node.value))})

    def required(self, command: str) -> list[str]:
        """The same, where every pattern must match something.

        Raises:
            ManifestError: One matches nothing. The message has its place.
        """
        for node in self._nodes:
            if not any(map(os.path.exists, self._matches(str(node.value)))):
                raise ManifestError(
                    f"{origin(node, self._root)}: input `{node.value}` of `{command}` matches no "
                    "file",
                    hint=self._hint(str(node.value)),
                )
        return self.files()

    def missing(self) -> list[str]:
        """The patterns that match nothing."""
        texts = (str(node.value) for node in self._nodes)
        return [text for text in texts if not any(map(os.path.exists, self._matches(text)))]

    def _matches(self, text: str) -> Iterator[str]:
        whole = os.path.join(self._folder, text)
        if os.path.lexists(whole):
            # A name may hold characters that mean something in a pattern.
            return iter((whole,))
        found = glob.iglob(text, root_dir=self._folder, recursive=True, include_hidden=True)
        return (os.path.join(self._folder, one) for one in found)

    def _files(self, text: str) -> Iterator[str]:
        entered: set[str] = set()
        for match in self._matches(text):
            for file in _below(match, entered) if os.path.isdir(match) else (match,):
                name = self._named(file)
                if os.path.isfile(file) and _PASSED_OVER.isdisjoint(name.split(os.sep)):
                    yield name

    def _named(self, file: str) -> str:
        return os.path.relpath(file, self._root)

    def _hint(self, text: str) -> str:
        """The nearest name, at the first part of the path that does not exist."""
        parent, name = os.path.split(text.rstrip("/"))
        while parent and not os.path.isdir(os.path.join(self._folder, parent)):
            parent, name = os.path.split(parent)
        folder = os.path.join(self._folder, parent)
        return did_you_mean(
            name,
            sorted(os.listdir(folder)) if os.path.isdir(folder) else (),
            f"patterns start at {self._folder}; `**` stands for folders of any depth",
            typed=os.path.join(parent, "{}"),
        )


def _below(folder: str, entered: set[str]) -> Iterator[str]:
    """Every file below a folder; a folder is entered once, also through links."""
    for here, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        folders[:] = [name for name in folders if name not in _PASSED_OVER]
        for name in names:
            yield os.path.join(here, name)


_FORMAT = 1


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
        self._file = _state_file(plan.root, _name(plan))
        self._now: dict[str, Any] = {}

    @property
    def watches(self) -> bool:
        """Whether the command has inputs, so that it may be skipped."""
        return self._inputs is not None

    def judge(self, *, forced: bool = False) -> tuple[bool, str]:
        """Compare the files with those of the last success.

        Returns:
            Whether the command runs, and why.

        Raises:
            FdlError: A pattern of the inputs matches no file, or a file cannot be read.
        """
        if self._inputs is None:
            return True, "it has no inputs"
        self._now = self._measured(self._inputs)
        before = _read(self._file)
        if forced:
            return True, "--force"
        if before is None:
            typed = " with these arguments" if self._plan.typed or self._plan.given else ""
            return True, f"it has not run here{typed} yet"
        if not before["finished"]:
            return True, "its last run did not succeed"
        reason = self._change(before)
        if reason:
            return True, reason
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(before["when"]))
        return False, f"inputs unchanged since {when}"

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
        command = " ".join(["fdl", *self._plan.command])
        files = [file for file in inputs.required(command) if file not in written]
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
            # One that no run has written is not among them.
            changes = changes or [f"{one} is missing" for one in self._outputs.missing()]
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


def _digest(value: object) -> str:
    import hashlib

    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _read(file: str) -> dict[str, Any] | None:
    """The record of the last run; None if there is none, or none that this fdl understands."""
    try:
        record = json.loads(read_text(file))
        sound = record["format"] == _FORMAT and {"when", "finished", "command"} <= record.keys()
        parts = [record[name] for name in ("variables", "inputs", "outputs")]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return record if sound and all(isinstance(one, dict) for one in parts) else None
