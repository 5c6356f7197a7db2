"""The page of a training in a process of its own: ``python -m fdl.runs.pages FOLDER HOST PORT``.

The training starts it, so that readers cost the training nothing. Its first line of output is JSON:
the address, and why it is another one than was asked for. Further lines are questions of readers.
Its input tells it what people can change in the training, answers, and that it should end. When
the input ends, so does the training: readers get a moment to see its last state.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fdl.base.errors import FdlError
from fdl.runs.pages.one import RunPage
from fdl.runs.pages.server import ADDRESS, PageServer, page_token

_GOODBYE_SECONDS = 2.0
_ANSWER_SECONDS = 60.0
_READ_EVERY = 2.0
"""Seconds between two notes to the training that somebody reads."""


class Training:
    """The training at the other end of input and output."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._answers: dict[int, str] = {}
        self._changed = threading.Condition()
        self._noted = 0.0
        self._output = threading.Lock()

    def note_reader(self) -> None:
        """Tell it that somebody reads."""
        now = time.monotonic()
        if now - self._noted >= _READ_EVERY:
            self._noted = now
            self._tell({"read": True})

    def follow(self, page: RunPage) -> bool:
        """Take what it says until it ends; return whether it asked the page to end at once."""
        for line in sys.stdin:
            said = json.loads(line)
            if "close" in said:
                return True
            with self._changed:
                if "acts" in said:
                    page.acts = {**page.acts, **said["acts"]}
                if "to" in said:
                    self._answers[said["to"]] = said["problem"]
                    self._changed.notify_all()
        return False

    def ask(self, body: str) -> str:
        """Ask it for what a reader wants; return why it is refused, or nothing."""
        with self._changed:
            number = next(self._numbers)
            self._tell({"id": number, "post": body})
            self._changed.wait_for(lambda: number in self._answers, _ANSWER_SECONDS)
            return self._answers.pop(number, "the training does not answer")

    def _tell(self, said: dict[str, Any]) -> None:
        # If the training is gone, the end of the input will say so.
        with self._output, suppress(OSError, ValueError):
            _say(said)


def main(folder: str, host: str, port: str, *words: str) -> None:
    """Serve the page of a folder."""
    training, buttons = Training(), "buttons" in words
    page = RunPage(Path(folder), training.ask if buttons else None, training.note_reader)
    token, reason = page_token(), ""
    wanted = f"{host}:{port}"
    # The last choice is visible only on this machine, so it never has more readers than requested.
    for place, number in dict.fromkeys([(host, int(port)), (host, 0), (ADDRESS, 0)]):
        try:
            server = PageServer(page, number, host=place, token=token, acts=buttons)
        except FdlError as problem:
            reason = reason or str(problem).rpartition(": ")[2]
            continue
        break
    else:
        _say({"error": reason})
        return
    told = {"url": server.url, "token": token}
    if reason:
        told["warning"] = (
            f"the live page cannot use {wanted} ({reason}); it uses {place}:{server.server_port}"
        )
    _say(told)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    if not training.follow(page):
        time.sleep(_GOODBYE_SECONDS)
        if "temporary" in words:
            shutil.rmtree(folder, ignore_errors=True)
    server.server_close()


def _say(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
