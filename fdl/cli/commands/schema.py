"""``fdl self schema``: what fdl knows about the arguments of programs, and of its own manifest."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.base.secrets import redact_tokens
from fdl.base.shell_words import join
from fdl.base.units import counted, duration
from fdl.cli.commands.verb import Complete, Context, DryRun, Group, Json, Verb
from fdl.manifest.node import relative
from fdl.plan.probe import agree, invites
from fdl.plan.probe.question import question, refresh as asked
from fdl.programs.parameters.contract import Schema
from fdl.programs.schema.cache import FOLDER, SOURCES, fetch, location
from fdl.programs.schema.catalog import Known, delete, matches, name_of, origins, programs

if TYPE_CHECKING:
    from fdl.manifest.select.level import Level
    from fdl.manifest.select.project import Project
    from fdl.plan.planner import Host

verbs = Group("schema", "Manage cached argument schemas of your programs.")

_ORIGINS = {
    "program": "program answered",
    "source": "read from source",
    "manifest": "written in the manifest",
}


@verbs.command("list", cls=Verb)
def list_(ctx: Context, json: Json = False) -> int:
    """List the known schemas of programs: fresh or stale, origin, age and file.

    Raises:
        ManifestError: There is no manifest, or the project's own is broken.
    """
    project = ctx.obj.project()
    found = [
        one._replace(path=relative(one.path, project.directory))
        for one in origins(project.level(), project.child)
    ]
    if json:
        output.print_json([one._asdict() for one in found])
        return 0
    if not found:
        output.note("no schema is known; `fdl self schema refresh` asks the project's programs")
    else:
        from fdl.base.tables import table

        rows = [
            (one.name, one.status, _ORIGINS[one.source], f"{duration(one.age_s)} ago", one.path)
            for one in found
        ]
        output.show(table(rows, styles=("cyan",)))
    return 0


@verbs.command("clear", cls=Verb)
def clear(
    ctx: Context,
    cmd: Annotated[
        list[str] | None,
        typer.Argument(help="Only this command, as you type it: `tools report`"),
        Complete("schemas"),
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Delete cached schemas.

    Raises:
        FdlError: There is no readable manifest, or a file cannot be deleted.
    """
    project = ctx.obj.project()
    wanted = " ".join(cmd or ())
    known = origins(project.level(), project.child)
    found = [one for one in known if one.source != "manifest"]
    chosen = [one for one in found if not wanted or matches(one.name, one.path, wanted)]
    if not chosen:
        output.note(f"no schema is cached{f' for `{wanted}`' if wanted else ''}")
    for one in chosen:
        _clear_one(one, project, dry_run=dry_run)
    return 0


def _clear_one(one: Known, project: Project, *, dry_run: bool) -> None:
    if not os.path.isfile(one.path):  # noqa: PTH113 - the paths of a Level are strings
        # It was read from the source, and went with the answer of the program.
        return
    shown = relative(one.path, project.directory)
    if not dry_run:
        try:
            delete(one.path)
            source = one.path.replace(FOLDER, SOURCES)
            if os.path.isfile(source):  # noqa: PTH113 - the paths of a Level are strings
                delete(source)
        except OSError as problem:
            raise FdlError(
                f"{shown}: cannot be deleted: {problem.strerror}",
                hint="check the permissions of its folder",
            ) from None
    output.write(sys.stdout, f"{'would delete' if dry_run else 'deleted'} {shown}\n")


@verbs.command("refresh", cls=Verb)
def refresh(
    ctx: Context,
    cmd: Annotated[
        list[str] | None,
        typer.Argument(help="Only this command, as you type it: `tools report`"),
        Complete("programs"),
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Ask programs for their schemas again.

    Without a command: ask every program that mentions `FdlArgs` or has answered before. Another
    program might start its work when it is asked.

    Raises:
        ManifestError: There is no manifest, or the project's own is broken.
    """
    project = ctx.obj.project()
    wanted = " ".join(cmd or ())
    chosen = [
        (name, one)
        for one in programs(project.level(), project.child)
        for name in (name_of(one),)
        if not wanted or matches(name, location(one.level) if one.level else "", wanted)
    ]
    if not chosen:
        output.note(f"no program to ask{f': `{wanted}` names none' if wanted else ''}")
    code = 0
    for name, one in chosen:
        try:
            if one.level is None:
                raise one.problem or FdlError(name)
            if not wanted and not _expected_to_answer(one.level):
                output.note(
                    f"{name}: not asked, because its program does not mention `FdlArgs`; "
                    f"`fdl self schema refresh {name}` asks it anyway"
                )
                continue
            refresh_one(one.level, ctx.obj.host, dry_run=dry_run)
        except FdlError as problem:
            output.error(problem.message, problem.hint)
            code = 1
    return code


def _expected_to_answer(level: Level) -> bool:
    """Whether the program says so itself, or has answered and has not changed since."""
    record = fetch(level)
    return invites(level) or (record is not None and record.schema is not None)


def refresh_one(level: Level, host: Host | None, *, dry_run: bool) -> int:
    """Ask one program and print what came of it; this is ``fdl train --refresh-schema``.

    Raises:
        SchemaError: The program does not answer.
        ManifestError: Its entry cannot be turned into a plan.
    """
    if dry_run:
        plan = question(level, host)
        asking = join(redact_tokens(plan.launch))
        output.write(sys.stdout, f"would run, in {plan.cwd}: {asking}\n")
        return 0
    agree(level)
    schema = asked(level, host, patient=True)
    output.write(sys.stdout, f"{level.typed()}: {_summary(schema)}\n")
    return 0


def _summary(schema: Schema) -> str:
    arguments = counted(len(schema.arguments), "argument")
    return f"{arguments}, {counted(len(schema.options), 'option')}"


@verbs.command("manifest", cls=Verb)
def manifest() -> int:
    """Print the JSON Schema of fdl.yml, for editors."""
    from fdl.manifest.json_schema import as_json

    output.write(sys.stdout, as_json())
    return 0
