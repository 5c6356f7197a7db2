"""``fdl runs tag`` and ``note``: what people write about runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import UsageError
from fdl.cli.commands.runs_group import OneRun, chosen, print_json, project_folders
from fdl.cli.commands.verb import Complete, Group, Json, Verb
from fdl.runs.find import choose, search, shortened, stands_for_a_run
from fdl.runs.run import change, require_tag

if TYPE_CHECKING:
    from pathlib import Path

    from fdl.runs.run import Notes, Run


verbs = Group()


@verbs.command("tag", cls=Verb)
def tag(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(help="One or more runs, then the tags"),
        Complete("runs-then-tags"),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", "-r", help="Remove these tags instead of adding them")
    ] = False,
    json: Json = False,
) -> int:
    """Add tags to runs, or remove them; without a tag, print those that the runs have.

    The first word is a run, named as in `fdl runs show`. Each further word is a run if it is the
    whole name or the path of one; all words after it are tags.

    Raises:
        FdlError: The first word means no run, or a tag has other characters than are allowed.
    """
    if not words:
        raise UsageError("no run is named", hint="fdl runs tag RUN TAG")
    runs, tags = _runs_and_tags(words, project_folders(ctx.obj))
    if remove and not tags:
        raise UsageError("no tag is named", hint=f"fdl runs tag {words[0]} TAG --remove")
    return _report(
        [
            (run, change(run.path, remove=tags) if remove else change(run.path, add=tags))
            for run in runs
        ],
        json,
    )


def _runs_and_tags(words: list[str], places: list[Path]) -> tuple[list[Run], list[str]]:
    """The runs that the first words mean, and the tags after them."""
    runs = [choose(words[0], places)]
    names = {run.name for run in search(places)}
    place = 1
    while place < len(words) and (words[place] in names or stands_for_a_run(words[place])):
        runs.append(choose(words[place], places))
        place += 1
    return runs, [require_tag(word) for word in words[place:]]


def _report(found: list[tuple[Run, Notes]], as_json: bool) -> int:
    if as_json:
        documents = [
            {"name": run.name, "path": str(run.path), "tags": list(notes.tags), "note": notes.note}
            for run, notes in found
        ]
        return print_json({"runs": documents})
    for run, notes in found:
        tags = ",".join(notes.tags) or "no tags"
        output.write(sys.stdout, f"{shortened(run.path)}  {tags}\n")
    return 0


@verbs.command("note", cls=Verb)
def note(
    ctx: typer.Context,
    run: OneRun,
    text: Annotated[
        str | None, typer.Argument(help="The note; '' removes it (default: print the note)")
    ] = None,
    json: Json = False,
) -> int:
    """Write a note about a run, which replaces the one before.

    Raises:
        FdlError: The word means no run, or the note cannot be written.
    """
    found = chosen(ctx.obj, run)
    notes = change(found.path, note=text) if text is not None else found.notes
    if json:
        return _report([(found, notes)], as_json=True)
    if text is None and notes.note:
        output.write(sys.stdout, f"{notes.note}\n")
    elif text is None:
        output.note(f"{shortened(found.path)} has no note")
    else:
        output.note(f"{shortened(found.path)}: the note is {'written' if text else 'removed'}")
    return 0
