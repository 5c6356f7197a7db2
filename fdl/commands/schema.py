"""``fdl schema``: what fdl knows about the arguments of programs, and of its own manifest."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from fdl import output
from fdl.dispatch.compose import join
from fdl.errors import FdlError
from fdl.manifest.node import relative
from fdl.schema.cache import fetch, location
from fdl.schema.catalog import Cached, cached, delete, matches, programs
from fdl.schema.consent import invites
from fdl.schema.contract import Schema
from fdl.schema.probe import question
from fdl.schema.probe import refresh as asked
from fdl.secrets import redact_tokens

if TYPE_CHECKING:
    from fdl.app import Call
    from fdl.dispatch.planner import Surroundings
    from fdl.dispatch.walk import Level
    from fdl.project import Project


def list_(call: Call) -> int:
    """Print every cached schema with its state.

    Raises:
        ManifestError: There is no manifest, or the project's own is broken.
    """
    project = call.project()
    found = cached(project.level(), project.child)
    rows = [(one.name, one.status, relative(one.path, project.directory)) for one in found]
    if call.args.json:
        records = [{"name": name, "path": path, "status": state} for name, state, path in rows]
        output.write(sys.stdout, json.dumps(records, indent=2, ensure_ascii=False) + "\n")
        return 0
    if not rows:
        output.note("no schema is cached; `fdl schema refresh` asks the project's programs")
    width = max((len(name) for name, _, _ in rows), default=0)
    for name, state, path in rows:
        output.write(sys.stdout, f"{name:<{width}}  {state:<6}  {path}\n")
    return 0


def clear(call: Call) -> int:
    """Delete cached schemas: of one command, or all.

    Raises:
        FdlError: There is no readable manifest, or a file cannot be deleted.
    """
    project = call.project()
    wanted = " ".join(call.args.cmd)
    found = cached(project.level(), project.child)
    chosen = [one for one in found if not wanted or matches(one.name, one.path, wanted)]
    if not chosen:
        output.note(f"no schema is cached{f' for `{wanted}`' if wanted else ''}")
    for one in chosen:
        _clear_one(one, project, dry_run=call.dry_run)
    return 0


def _clear_one(one: Cached, project: Project, *, dry_run: bool) -> None:
    shown = relative(one.path, project.directory)
    if not dry_run:
        try:
            delete(one.path)
        except OSError as problem:
            raise FdlError(
                f"{shown}: cannot be deleted: {problem.strerror}",
                hint="check the permissions of its folder",
            ) from None
    output.write(sys.stdout, f"{'would delete' if dry_run else 'deleted'} {shown}\n")


def refresh(call: Call) -> int:
    """Ask programs for their schemas, whatever is cached.

    A command that is named is asked in any case. Without a name those are asked that can be
    expected to answer: a program that does not know the question might begin its work instead.

    Raises:
        ManifestError: There is no manifest, or the project's own is broken.
    """
    project = call.project()
    wanted = " ".join(call.args.cmd)
    chosen = [
        one
        for one in programs(project.level(), project.child)
        if not wanted or matches(one.name, location(one.level) if one.level else "", wanted)
    ]
    if not chosen:
        output.note(f"no program to ask{f': `{wanted}` names none' if wanted else ''}")
    code = 0
    for one in chosen:
        try:
            if one.level is None:
                raise one.problem or FdlError(one.name)
            if not wanted and not _expected_to_answer(one.level):
                output.note(
                    f"{one.name}: not asked, because its program does not mention `FdlArgs`; "
                    f"`fdl schema refresh {one.name}` asks it all the same"
                )
                continue
            refresh_one(one.level, call.surroundings, dry_run=call.dry_run)
        except FdlError as problem:
            output.error(problem.message, problem.hint)
            code = 1
    return code


def _expected_to_answer(level: Level) -> bool:
    """Whether the program says so itself, or has answered and has not changed since."""
    record = fetch(level)
    return invites(level) or (record is not None and record.schema is not None)


def refresh_one(level: Level, surroundings: Surroundings | None, *, dry_run: bool) -> int:
    """Ask one program and print what came of it; this is ``fdl train --refresh-schema``.

    Raises:
        SchemaError: The program does not answer.
        ManifestError: Its entry cannot be turned into a plan.
    """
    if dry_run:
        plan = question(level, surroundings)
        asking = join(redact_tokens(plan.launch))
        output.write(sys.stdout, f"would run, in {plan.cwd}: {asking}\n")
        return 0
    schema = asked(level, surroundings, patient=True)
    output.write(sys.stdout, f"{level.typed()}: {_summary(schema)}\n")
    return 0


def _summary(schema: Schema) -> str:
    arguments, options = len(schema.arguments), len(schema.options)
    return (
        f"{arguments} argument{'' if arguments == 1 else 's'}, "
        f"{options} option{'' if options == 1 else 's'}"
    )


def manifest(_call: Call) -> int:
    """Print the JSON Schema of ``fdl.yml``."""
    from fdl.schema.manifest import as_json

    output.write(sys.stdout, as_json())
    return 0
