"""``fdl runs ui``: the page of many runs, served on this machine; and that page as one file."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.base.files import put
from fdl.cli.commands.runs_group import Places, places
from fdl.cli.commands.verb import Group, Verb
from fdl.runs.find import shortened
from fdl.runs.follow import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.runs.run import Run


verbs = Group()


@verbs.command("ui", cls=Verb)
def ui(
    ctx: typer.Context,
    path: Places = None,
    port: Annotated[int, typer.Option(help="Port of the page; 0 takes a free one")] = 0,
    open: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser")
    ] = True,
    token: Annotated[
        bool,
        typer.Option(
            "--token/--no-token",
            help="Let only those read who know the address; without, every user of this machine",
        ),
    ] = True,
) -> int:
    """Show many runs on one page in the browser, until Ctrl-C.

    The page is for this machine only and changes no run. Runs that are training are updated. The
    address contains a token, which is kept in a file that only you can read.

    Raises:
        FdlError: The manifest is broken, a folder is missing, or the port cannot be used.
    """
    from fdl.runs.pages.catalog import Catalog
    from fdl.runs.pages.many import RunsPage
    from fdl.runs.pages.server import PageServer
    from fdl.runs.pages.token import page_token

    searched = places(ctx.obj, path)
    title = ", ".join(str(shortened(place)) for place in searched)
    catalog = Catalog.of_places(searched)
    page = RunsPage(catalog, title)
    with PageServer(page, port, token=page_token() if token else "") as server:
        # The browser needs longer to start than most runs need to be read.
        catalog.start()
        output.write(sys.stdout, f"{server.url}\n")
        sys.stdout.flush()
        if not token:
            output.note("without a token, every user and program of this machine can read the runs")
        output.note("Ctrl-C ends the page")
        if open:
            # The program may wait until its browser is closed, and the page is served meanwhile.
            threading.Thread(target=show, args=(server.url, os.environ), daemon=True).start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def write_page(runs: Sequence[Run], file: Path) -> None:
    """Write the page of some runs as one file.

    Raises:
        FdlError: The file cannot be written.
    """
    from fdl.runs.pages.catalog import Catalog
    from fdl.runs.pages.document import whole

    entries = Catalog(lambda: runs).entries()
    text = whole(f"Comparison of {len(entries)} runs", entries, file.absolute())
    try:
        put(file, text.encode(), 0o666)
    except OSError as problem:
        raise FdlError(f"{file} cannot be written: {problem.strerror}") from None
    output.note(f"wrote {shortened(file)}")
