"""Runs one cell in each column, and writes what happened into a page."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import yaml

from tests import fork_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from tests.conftest import Fdl, Project, Session
    from tests.fdl.conformance.cell import Cell

COLUMNS = ("manifest", "preset", "typed", "sweep")
_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_NOTICE = "not checked: "


class Driver:
    """Drives programs by hand and through fdl, in a folder of its own per cell.

    In ``by_hand``, words such as ``LR=1`` in front are variables. ``None`` in ``options`` is
    ``!null``. The sweep varies the first key of ``options``; the others keep their values.

    Attributes:
        heard: What fdl and the programs wrote to stderr, by column.
    """

    def __init__(self, project: Project, fdl: Fdl, folder: Path) -> None:
        self._project = project
        self._fdl = fdl
        self._folder = folder
        self.heard: dict[str, str] = {}

    def run(
        self, cell: Cell, name: str = "cell", beside: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Column -> what happened: ``yes``, ``refused``, ``unchecked``, or what is wrong.

        ``beside`` are files that stand beside the program.
        """
        words = shlex.split(cell.by_hand)
        variables: dict[str, str] = {}
        while words and (match := _VARIABLE.fullmatch(words[0])):
            variables[match[1]] = match[2]
            words = words[1:]
        self._write(cell, name, beside or {})
        env = {**os.environ, **variables}
        free = self._folder / name / "free"
        by_hand = fork_server.python("main.py", *words, cwd=free, env=env, abrupt=True)
        assert by_hand.returncode == 0, f"{cell.kind}: {by_hand.stderr}"
        first = next(iter(cell.options), "")
        columns = {"manifest": ["set"], "preset": ["free", "p"], "typed": ["free", *words]}
        if cell.sweep is not None:
            columns["sweep"] = ["swept", "--each", f"{first}={cell.sweep}"]
        seen: dict[str, str] = {}
        for column, line in columns.items():
            session = self._fdl(*line, cwd=name, env=variables)
            seen[column] = _judged(session, by_hand.stdout, column == "sweep")
            self.heard[f"{cell.kind}, {column}"] = session.err
        return seen

    def _write(self, cell: Cell, name: str, beside: Mapping[str, str]) -> None:
        rest = yaml.safe_load(cell.rest) or {}
        entry = {"entry": "python main.py"}
        others = dict(list(cell.options.items())[1:])
        manifests = {
            "set": {**entry, **rest, "options": cell.options},
            "free": {**entry, "commands": {"p": {**rest, "options": cell.options}}},
            "swept": {**entry, **rest, **({"options": others} if others else {})},
        }
        files = {f"{name}/fdl.yml": "commands: {set: , free: , swept: }\n"}
        for folder, manifest in manifests.items():
            files[f"{name}/{folder}/fdl.yml"] = as_yaml(manifest) + "\n"
            files[f"{name}/{folder}/main.py"] = cell.program
            files.update({f"{name}/{folder}/{path}": text for path, text in beside.items()})
        self._project(files)


def as_yaml(value: Any) -> str:
    """A value in one line of YAML; None is the program's own null."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{as_yaml(key)}: {as_yaml(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_yaml, value))}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    return "!null " if value is None else json.dumps(value)


def _judged(session: Session, expected: str, swept: bool) -> str:
    out = session.out
    if swept:
        # Each line has the name of its run in front; the table of the runs follows.
        lines = [line.partition(" | ")[2] for line in out.splitlines() if " | " in line]
        out = "".join(f"{line}\n" for line in lines)
    told = _NOTICE in session.err
    if session.exit != 0:
        return "refused" if session.err.strip() else "failed without a word"
    if out == expected:
        return "unchecked" if told else "yes"
    return "told" if told else f"printed {out!r} and not {expected!r}; {session.err.strip()}"


def fault(cell: Cell, seen: dict[str, str]) -> str:
    """What is wrong with a cell; empty if it works, or if its reason is true."""
    wrong = {
        key: one for key, one in seen.items() if one not in ("yes", "unchecked", "refused", "told")
    }
    if wrong:
        return f"{cell.kind}: {wrong}"
    works = all(one == "yes" for one in seen.values())
    if works and cell.reason:
        return f"{cell.kind}: works in each column, so it needs no reason"
    return "" if works or cell.reason else f"{cell.kind}: {seen}"


def table(rows: list[tuple[Cell, dict[str, str]]]) -> str:
    """The section of a library."""
    lines = ["| kind | by hand | `options` | result | sweep | remark |"]
    lines.append("|---|---|---|---|---|---|")
    for cell, seen in rows:
        settings = as_yaml(cell.options)[1:-1]
        texts = [cell.kind, _code(cell.by_hand), _code(settings), _result(seen)]
        lines.append(f"| {' | '.join([*texts, seen.get('sweep', ''), cell.reason])} |")
    return "\n".join(lines)


def _result(seen: dict[str, str]) -> str:
    """What the manifest gives, and each way beside a sweep that gives something else."""
    first = COLUMNS[0]
    others = [name for name in COLUMNS[1:-1] if seen[name] != seen[first]]
    return "; ".join([seen[first], *(f"{name}: {seen[name]}" for name in others)])


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`" if text else ""
