"""``fdl runs tag``, ``note``, ``tell`` and ``import``: what people add to runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError, UsageError
from fdl.base.units import counted, printable
from fdl.cli.commands.runs import OneRun, chosen, project_folders
from fdl.cli.commands.verb import Complete, Context, DryRun, Group, Json, Verb, print_json
from fdl.runs.find import choose, search, shortened, stands_for_a_run
from fdl.runs.follow import parse, tell as tell_run
from fdl.runs.importing.foreign import UnreadableRunError
from fdl.runs.importing.write import Target
from fdl.runs.run import change, require_tag

if TYPE_CHECKING:
    from fdl.runs.importing.foreign import Foreign
    from fdl.runs.run import Notes, Run


verbs = Group()


@verbs.command("tag", cls=Verb)
def tag(
    ctx: Context,
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
    names = {name for run in search(places) for name in (run.name, run.title)}
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
    ctx: Context,
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


@verbs.command("tell", cls=Verb)
def tell(
    ctx: Context,
    run: OneRun,
    act: Annotated[
        list[str] | None,
        typer.Argument(help="lr=RATE, set KEY=VALUE, checkpoint, pause, continue or stop"),
        Complete("run-acts"),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the end of a step", metavar="SECONDS")
    ] = 60.0,
    json: Json = False,
) -> int:
    """Act on a training while it runs: change a setting, save, pause or stop.

    The training acts between two steps, with several ranks after the same step, and records it in
    acts.jsonl. The exit code is 0 if it did, else 1. `stop` ends as Ctrl-C does, with a checkpoint.

    Raises:
        FdlError: The run is over or cannot be reached, it refuses, or no step has ended in time.
    """
    if not timeout > 0:
        raise UsageError(f"--timeout takes more than 0 seconds, not {timeout:g}")
    meant = parse(act or ())
    found = chosen(ctx.obj, run)
    answer = tell_run(found, meant, timeout)
    if json:
        return print_json({"run": found.name, "path": str(found.path), **answer})
    output.write(sys.stdout, f"{shortened(found.path)}: {answer.get('text', 'done')}\n")
    return 0


@verbs.command("import", cls=Verb)
def import_(
    ctx: Context,
    path: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of TensorBoard, MLflow, W&B or Lightning CSV logs"),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(help="Folder that receives the runs (default: `imported` in the runs folder)"),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Convert runs of TensorBoard, MLflow, W&B and Lightning to run directories.

    The files that are read stay as they are. A second import updates the same run directories;
    your tags and notes stay. A run is found by its path, one of MLflow by its id.

    Returns:
        0; 1 when a run could not be read.

    Raises:
        FdlError: A path holds no run of a known format, or the folder cannot be written.
    """
    from fdl.runs.importing.detect import runs

    if not path:
        raise UsageError("no path is named", hint="fdl runs import PATH")
    target = Target(into or project_folders(ctx.obj)[0] / "imported")
    done: list[tuple[Foreign, Path, str]] = []
    problems: list[FdlError] = []
    for one in runs(path):
        if isinstance(one, UnreadableRunError):
            problems.append(one)
            continue
        done.append((one, *target.put(one, dry_run=dry_run)))
        # The curves of thousands of runs need not stay in memory.
        one.curves = {}
    for run, _, _ in done:
        for warning in run.warnings:
            output.warning(warning)
    for problem in problems:
        output.error(problem.message, problem.hint)
    if json:
        print_json({"runs": [_document(*one) for one in done]})
    else:
        _print(done, dry_run=dry_run)
    return 1 if problems else 0


def _document(run: Foreign, path: Path, what: str) -> dict[str, object]:
    return {
        "name": path.name,
        "path": str(path),
        "format": run.format,
        "imported_from": str(run.path),
        "result": what,
    }


def _print(done: list[tuple[Foreign, Path, str]], *, dry_run: bool) -> None:
    from fdl.base.tables import table

    if not done:
        return
    rows = [
        (
            what,
            printable(str(shortened(path))),
            run.format,
            printable(str(shortened(run.path))),
        )
        for run, path, what in done
    ]
    output.show(table(rows))
    sys.stdout.flush()
    counts = {what: sum(one[2] == what for one in done) for what in ("new", "updated", "unchanged")}
    text = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    untouched = "; nothing was written" if dry_run else ""
    output.note(f"{counted(len(done), 'run')}: {text}{untouched}")
