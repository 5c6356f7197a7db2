"""``fdl why``: every place that has a say in one value, and which one wins."""

from __future__ import annotations

import sys

from fdl import output
from fdl.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fdl.app import Call
    from fdl.inspect.field import Field


def why(call: Call) -> int:
    """Explain one value.

    Raises:
        FdlError: Nothing sets it, or what it stands in cannot be read.
    """
    from fdl.inspect import record
    from fdl.inspect.document import explanation, explanation_json

    asked = call.args.field
    split = record.split(asked)
    if split is not None:
        found = record.explain(*split)
    elif call.args.command is not None:
        found = _of_command(call, asked)
    else:
        found = _of_manifest(call, asked)
    if call.args.json:
        import json

        text = json.dumps(explanation_json(found), indent=2, ensure_ascii=False) + "\n"
    else:
        text = explanation(found, output.palette(sys.stdout))
    output.write(sys.stdout, text)
    return 0


def _of_manifest(call: Call, asked: str) -> list[Field]:
    from fdl.inspect.manifest import Report
    from fdl.inspect.path import parse

    path = parse(asked)
    manifest = call.project().root
    for text in manifest.warnings:
        output.warning(text)
    report = Report(manifest)
    found = report.explain(path)
    if found:
        return found
    where = f"nothing in {', '.join(map(_file, reversed(manifest.layers)))} sets `{asked}`"
    raise _unset(where, asked, (one.name for one in report.fields), "")


def _of_command(call: Call, asked: str) -> list[Field]:
    from fdl.inspect.command import look_at
    from fdl.inspect.secrecy import script

    line = call.args.command
    command = look_at(call, line)
    for text in command.warnings:
        output.warning(text)
    found = [one for one in command.fields if one.name == asked or one.name.startswith(f"{asked}.")]
    if not found:
        flag = "--" + asked.removeprefix("--").replace("_", "-")
        found = [one for one in command.fields if one.flag == flag]
    if not found:
        found = command.removed(asked)
    if found:
        return found
    where = f"nothing sets `{asked}` for `fdl {' '.join(command.target.plan.command)}`"
    raise _unset(
        where, asked, (one.name for one in command.fields), f' --command "{script(line, ())}"'
    )


def _file(path: str) -> str:
    from fdl.manifest.source import shown

    return shown(path)


def _unset(problem: str, asked: str, known: Iterable[str], options: str) -> UsageError:
    from fdl.suggest import nearest

    names = list(known)
    last = asked.rpartition(".")[2]
    namesakes = [name for name in names if name.rpartition(".")[2] == last]
    close = nearest(asked, names) or (namesakes[0] if namesakes else None)
    if close is None:
        ends = {name.rpartition(".")[2]: name for name in reversed(names)}
        end = nearest(last, ends)
        close = ends[end] if end else None
    return UsageError(
        problem,
        hint=f"did you mean `fdl why {close}{options}`?"
        if close
        else "`fdl config show` lists every value that is set",
    )
