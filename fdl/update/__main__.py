"""The check itself: ``python -m fdl.update FILE SECONDS NAME…``, started in the background.

It asks the index that the user's pip is configured for, with its proxy and its certificates, in
one request per package.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from fdl.fetch.client import Client
from fdl.fetch.options import Options
from fdl.update.index import versions, versions_in
from fdl.update.pip_settings import read as read_settings
from fdl.update.state import read, write
from fdl.update.versions import newest_stable


def main(arguments: list[str]) -> int:
    """Ask for the newest versions and remember what came in time.

    The arguments are the state file, a budget in seconds, and names of packages.
    """
    file, seconds, *names = arguments
    found = latest(names, float(seconds))
    if found:
        # Read again: commands have ended in the meantime and remembered what they said.
        state = read(file)
        state.latest_known.update(found)
        write(file, state)
    return 0


def latest(names: list[str], seconds: float) -> dict[str, str]:
    """The newest stable version of each package, as far as known after ``seconds`` for all.

    All packages are asked for at once; requests that are not answered in time are given up. A proxy
    of pip's settings becomes that of this process.
    """
    limit = time.monotonic() + seconds
    settings = read_settings(os.environ)
    if settings.proxy:
        # The HTTP client takes proxies from its own process's environment.
        os.environ.update(dict.fromkeys(("http_proxy", "https_proxy"), settings.proxy))
    named = {"SSL_CERT_FILE": settings.certificates} if settings.certificates else {}
    patience = Options(connect_timeout=seconds, stall_timeout=seconds)
    client = Client({**os.environ, **named}, patience)
    listed: dict[str, list[str]] = {
        name: [one for folder in settings.folders for one in versions_in(folder, name)]
        for name in names
    }

    def ask(index: str, name: str) -> None:
        listed[name].extend(versions(client, index, name))

    # A thread that waits for a name server can only be left behind.
    threads = [
        threading.Thread(target=ask, args=(index, name), daemon=True)
        for index in settings.indexes
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(limit - time.monotonic(), 0))
    newest = {name: newest_stable(list(known)) for name, known in listed.items()}
    client.hang_up()
    return {name: version for name, version in newest.items() if version is not None}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
