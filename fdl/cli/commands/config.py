"""``fdl config``: what the manifest says and where each value was written, and changing one.

``fdl why`` prints what :func:`explained` makes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import UsageError
from fdl.base.masking import redacted_script
from fdl.base.shell_words import join
from fdl.base.suggest import nearest
from fdl.cli.commands.verb import Call, Complete, Context, DryRun, Group, Json, Open, Verb
from fdl.manifest.builtins import RESERVED
from fdl.manifest.inspect.document import (
    explanation,
    explanation_json,
    listing,
    records,
    terminal_columns,
)
from fdl.manifest.inspect.field import Report, parse
from fdl.manifest.select.unknown import set_below
from fdl.manifest.source import shown
from fdl.plan.inspect import resolved
from fdl.runs import resolved as record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.manifest.inspect.field import Field
    from fdl.manifest.load import Manifest
    from fdl.manifest.select.project import Project

verbs = Group("config", "Show the manifest's values with their origins, or change one.")


@verbs.command("show", cls=Open)
def show(
    ctx: Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="An environment, or a command as you type it: `train quick`"),
        Complete("first-environments"),
    ] = None,
    json: Json = False,
) -> int:
    """Print the merged manifest as YAML with the file and line of every value.

    With a command: the values that its program gets.

    Raises:
        FdlError: There is no manifest, it is broken, or the command does not exist.
    """
    output.write(sys.stdout, config_show(ctx.obj, command or [], as_json=json))
    return 0


@verbs.command("set", cls=Verb)
def set_(
    ctx: Context,
    field: Annotated[
        str,
        typer.Argument(help="Dotted path: `training.lr`, `commands.t.run`"),
        Complete("fields"),
    ],
    value: Annotated[str, typer.Argument(help="New value, as YAML: 0.01, true, a word")],
    for_: Annotated[
        str | None,
        typer.Option("--for", help="Change it for this command: `train quick`"),
        Complete("command-line"),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            help="File to change: a path, an environment, or `base` (default: the one that wins)"
        ),
        Complete("layers"),
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Change one value where it takes effect.

    Comments and layout of the file stay as they are.

    Raises:
        FdlError: The change would not take effect, would break the manifest, or cannot be made
            without touching anything else; nothing is written then.
    """
    # It loads yaml and pydantic, which `config show` does not need.
    from fdl.plan.edit import prepare, words_of

    project, words = ctx.obj.behind_environment(words_of(for_ or ""))
    asked = None if for_ is None else words
    change = prepare(project, field, value, where=where, words=asked, place=ctx.obj.here())
    if dry_run:
        output.write(sys.stdout, change.diff())
    else:
        change.write()
        output.write(sys.stdout, change.report())
    return 0


def config_show(call: Call, words: Sequence[str], *, as_json: bool) -> str:
    """The merged manifest, or all values that one command runs with, as text or JSON.

    The words are an environment, a command as it is typed, both, or nothing.

    Raises:
        FdlError: There is no manifest, it is broken, or the words name nothing that runs.
    """
    project, words = call.behind_environment(words)
    if words:
        command = resolved(project, words, call.here())
        output.warnings(command.warnings)
        tree, fields = command.page()
        if as_json:
            return output.json_text({**command.as_dict(), "fields": records(command.fields)})
    else:
        report = _report(project)
        tree, fields = report.tree, report.fields
        project.require_readers(project.level(), warn=True)
        output.warnings([*project.warnings, *_unreachable(project.root)])
        if as_json:
            return output.json_text(records(fields))
    width = terminal_columns()
    palette = output.Palette(on=False) if width is None else output.palette(sys.stdout)
    return listing(tree, fields, project.directory, palette, width)


def explained(call: Call, asked: str, words: Sequence[str], *, as_json: bool) -> str:
    """Every place that sets one value, strongest first, as text or JSON.

    ``asked`` is a manifest path, a flag of the command, or ``RUN_OR_CHECKPOINT:FIELD``. The words
    are those of :func:`config_show`.

    Raises:
        FdlError: Nothing sets the value, or its place cannot be read.
    """
    split = record.split(asked)
    if split is not None:
        found = record.explain(*split)
    else:
        project, words = call.behind_environment(words)
        found = _of_command(call, project, asked, words) if words else _of_manifest(project, asked)
    if as_json:
        return output.json_text(explanation_json(found))
    return explanation(found, output.palette(sys.stdout), terminal_columns())


def _of_manifest(project: Project, asked: str) -> list[Field]:
    path, report = parse(asked), _report(project)
    project.require_readers(project.level(), warn=True)
    output.warnings(project.warnings)
    found = report.explain(path)
    if found:
        return found
    where = f"nothing in {', '.join(map(shown, reversed(project.root.layers)))} sets `{asked}`"
    names = [one.name for one in report.fields]
    field, command = ("", "") if _close(asked, names) else set_below(project, asked)
    if command:
        raise UsageError(where, hint=f"did you mean `fdl why {field} {command}`?")
    raise _unset(where, asked, names, "")


def _of_command(call: Call, project: Project, asked: str, words: Sequence[str]) -> list[Field]:
    command = resolved(project, words, call.here())
    output.warnings(command.warnings)
    found = command.find(asked)
    if found:
        return found
    typed = f" {redacted_script(join(words))}"
    names = [one.name for one in command.fields]
    raise _unset(f"nothing sets `{asked}` for `{command.typed}`", asked, names, typed)


def _report(project: Project) -> Report:
    """The project's own manifest.

    Raises:
        FdlError: It is broken, or has no overlay of the environment.
    """
    report = Report(project.root)
    project.require_overlay_for("the project's own manifest")
    return report


def _close(asked: str, names: Sequence[str]) -> str | None:
    """The name that is nearest as a whole, or by its last part."""
    last = asked.rpartition(".")[2]
    namesakes = [name for name in names if name.rpartition(".")[2] == last]
    if close := nearest(asked, names) or (namesakes[0] if namesakes else None):
        return close
    ends = {name.rpartition(".")[2]: name for name in reversed(names)}
    end = nearest(last, ends)
    return ends[end] if end else None


def _unset(problem: str, asked: str, names: Sequence[str], typed: str) -> UsageError:
    close = _close(asked, names)
    all_of_them = f"`fdl config show{typed}` lists every value that is set"
    return UsageError(
        problem, hint=f"did you mean `fdl why {close}{typed}`?" if close else all_of_them
    )


def _unreachable(manifest: Manifest) -> list[str]:
    """Warnings about commands that a built-in of the same name hides."""
    commands = manifest.node.get("commands")
    return [
        f"command `{name}` cannot be reached: fdl has a built-in of that name; rename it"
        for name in (commands.mapping if commands else ())
        if name in RESERVED
    ]
