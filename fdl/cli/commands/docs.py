"""``fdl docs``: the documentation site, served on this machine."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.cli.commands.verb import Group, Verb
from fdl.runs.follow import show

ADDRESS = "127.0.0.1"

verbs = Group()


@verbs.command("docs", cls=Verb)
def docs(
    path: Annotated[
        Path | None,
        typer.Argument(help="Folder of a built site (default: `site` of the checkout of fdl)"),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the site; 0 takes a free one")] = 0,
    open: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the site in the browser")
    ] = True,
) -> int:
    """Serve the documentation on this machine, until Ctrl-C.

    `bash scripts/docs.sh` in a checkout of flodl builds it. Its search needs no network.

    Raises:
        FdlError: The site is not built, the folder has no site, or the port cannot be used.
    """
    with serve(path or _of_checkout(), port) as server:
        url = f"http://{ADDRESS}:{server.server_port}/"
        return until_interrupted(server, url, "the site", opens=open)


def until_interrupted(
    server: ThreadingHTTPServer, url: str, what: str, *, opens: bool, warning: str = ""
) -> int:
    """Print the address of a server, perhaps open it in the browser, and serve until Ctrl-C."""
    output.write(sys.stdout, f"{url}\n")
    sys.stdout.flush()
    if warning:
        output.note(warning)
    output.note(f"Ctrl-C ends {what}")
    if opens:
        # The program may wait until its browser is closed, and the page is served meanwhile.
        threading.Thread(target=show, args=(url, os.environ), daemon=True).start()
    with suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


def serve(site: Path, port: int) -> ThreadingHTTPServer:
    """A server of a built site, for browsers of this machine.

    Args:
        site: The folder of the site.
        port: The port; 0 takes a free one.

    Raises:
        FdlError: The folder has no site, or the port cannot be used.
    """
    if not (site / "index.html").is_file():
        raise FdlError(
            f"{site} has no index.html",
            hint="bash scripts/docs.sh  # in a checkout of flodl: builds the folder `site`",
        )
    try:
        return ThreadingHTTPServer((ADDRESS, port), partial(_Handler, directory=str(site)))
    except (OSError, OverflowError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise FdlError(
            f"port {port} of this machine cannot be used: {reason}",
            hint="fdl docs takes a free port without --port",
        ) from None


def _of_checkout() -> Path:
    """The site of the checkout that this package is part of."""
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "site/index.html").is_file():
        return checkout / "site"
    if (checkout / "mkdocs.yml").is_file():
        raise FdlError(
            f"the documentation in {checkout / 'docs'} is not built",
            hint=f"bash {checkout / 'scripts/docs.sh'}",
        )
    raise FdlError(
        "this installation of fdl does not contain the documentation",
        hint="build it in a checkout of flodl with `bash scripts/docs.sh`, then type "
        "`fdl docs PATH/site`; `fdl --help all` and `fdl api-ref` work here",
    )


class _Handler(SimpleHTTPRequestHandler):
    """Sends the files of the site."""

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal is the user's."""
