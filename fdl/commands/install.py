"""``fdl install``: put fdl on the PATH of this user, or upgrade it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fdl import output
from fdl.commands.verb import Call, DryRun, Group, Verb
from fdl.errors import UsageError
from fdl.self_install import Place, link, look, newest, path_hint, release, upgrade, write
from fdl.setup.questions import Questions
from fdl.terminal import is_set
from fdl.update import OPT_OUT
from fdl.version import __version__

verbs = Group()


@verbs.command("install", cls=Verb)
def install(
    ctx: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the installed version with the newest one")
    ] = False,
    dev: Annotated[
        bool, typer.Option("--dev", help="Link to this fdl, to work on fdl itself")
    ] = False,
    dry_run: DryRun = False,
) -> int:
    """Put fdl on your PATH, or upgrade it.

    Raises:
        FdlError: What stands there is not ours, or cannot be replaced, or the upgrade fails.
    """
    if check and dev:
        raise UsageError("`--check` only looks and `--dev` makes a link: choose one")
    place = look()
    if check:
        return _check(place)
    if dev:
        _link(place, dry_run=dry_run)
    else:
        _write(place, dry_run=dry_run)
    hint = path_hint(place, os.environ)
    if hint:
        output.write(sys.stdout, f"{hint}\n")
    if not dev:
        _offer_upgrade(ctx.obj, dry_run=dry_run)
    return 0


def _write(place: Place, *, dry_run: bool) -> None:
    before = place.version()
    if not write(place, dry_run=dry_run):
        output.write(sys.stdout, f"fdl {__version__} is installed in {place.shown} already.\n")
        return
    verb = "Would write" if dry_run else "Wrote"
    was = f", in the place of {before}" if before and before != __version__ else ""
    was = f", in the place of a link to {place.target}" if place.kind == "link" else was
    line = f"{verb} {place.shown}, which starts fdl {__version__} with {sys.executable}{was}."
    output.write(sys.stdout, f"{line}\n")


def _link(place: Place, *, dry_run: bool) -> None:
    source = link(place, dry_run=dry_run)
    if source is None:
        output.write(sys.stdout, f"{place.shown} is a link to {place.target} already.\n")
        return
    output.write(
        sys.stdout, f"{'Would link' if dry_run else 'Linked'} {place.shown} to {source}.\n"
    )


def _check(place: Place) -> int:
    """Print what is installed beside what there is; says so when that cannot be found out."""
    found = place.version()
    where = (
        f"in {place.shown}" if found else f"not in {place.shown}; this one runs from {sys.prefix}"
    )
    rows = [("Installed", f"{found or __version__}, {where}")]
    if place.kind == "link":
        rows.append(("Mode", f"dev, a link to {place.target}"))
    state = newest()
    rows += [("Latest", state.latest or "could not check"), ("Verdict", state.verdict)]
    output.write(sys.stdout, "".join(f"{name + ':':<11}{text}\n" for name, text in rows))
    return 0


def _offer_upgrade(call: Call, *, dry_run: bool) -> None:
    """Ask about a newer release, where somebody can answer or has said yes beforehand."""
    questions = Questions()
    if is_set(os.environ, OPT_OUT) or not (call.yes or questions.on):
        return
    state = newest()
    if not state.is_newer:
        return
    typed = release.command()
    about = f"flodl {state.latest} is available; {state.installed} is installed."
    if dry_run:
        output.write(sys.stdout, f"{about}\nWould run: {typed}\n")
        return
    question = f"{about} Run `{typed}`?"
    if call.yes or questions.confirm(question, default=True, unanswered=False):
        # The upgrade replaces our files, so what runs after it is loaded before.
        import fdl.update.at_exit  # noqa: F401

        upgrade()
    else:
        output.write(sys.stdout, f"To upgrade later: {typed}\n")
