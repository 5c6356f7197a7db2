"""What a program logs to MLflow or W&B, put into the folder of its run while it runs.

The tracker writes its own offline files below the folder, as its public settings ask for. They are
read as ``fdl runs import`` reads them.
"""

# The paths of a Plan are strings.
# ruff: noqa: PTH118
from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.runs.importing.detect import below
from fdl.runs.importing.foreign import Foreign
from fdl.runs.importing.write import Target, add_to

if TYPE_CHECKING:
    from typing import Any

    from fdl.plan.value import Recording

_PAUSE_S = 2.0
_SHARE = 20
"""Between two readings lies this many times what the last one took."""

_PLACES = {"mlflow": "mlruns", "wandb": "wandb"}


def variables(kind: str, folder: str) -> dict[str, str]:
    """Settings that make a tracker write below a folder, without a network.

    Args:
        kind: ``mlflow`` or ``wandb``.
        folder: The folder as the program sees it.
    """
    if kind == "wandb":
        return {"WANDB_MODE": "offline", "WANDB_DIR": folder}
    # The file store needs no database and can be read while it is written. MLflow 3.17
    # asks for the second setting before it writes one.
    store = f"file://{quote(folder, safe='/=,+')}/{_PLACES[kind]}"
    return {"MLFLOW_TRACKING_URI": store, "MLFLOW_ALLOW_FILE_STORE": "true"}


class Tracker:
    """Puts what a tracker writes into the folder of a run, every few seconds and at its end.

    The run that began first becomes the run of the folder; each further one becomes a run directory
    beside it. In a sweep, a point has one run, so further ones stay in the tracker's own files.
    Where the folder is used again, runs of an earlier start count as further ones.

    Args:
        recording: What is recorded, with ``track``.
        folder: The folder of the run.
    """

    def __init__(self, recording: Recording, folder: str) -> None:
        self._kind = recording.track
        self._folder = Path(folder)
        self._source = self._folder / _PLACES[self._kind]
        self._runs = "" if recording.folder else recording.runs
        self._order: dict[str, None] = {}
        self._earlier: set[str] = set()
        self._earlier = {one.identity for one in self._read()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        """Begin to follow the program."""
        self._thread.start()

    def finish(self, *, here: bool) -> dict[str, Any]:
        """Stop, and read everything once more.

        Args:
            here: Whether the run is in the folder; a training of flodl may have taken it elsewhere.

        Returns:
            Entries for the record of the run.
        """
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if not here:
            return {}
        try:
            found = self._read()
            if not found:
                output.warning(
                    f"`track: {self._kind}` found no run: the program logged nothing, or it names "
                    "a server or a folder itself",
                    "remove that setting from the program, or `track` from the manifest",
                )
                return {}
            entries = self._put(found[0])
            if self._runs:
                target = Target(Path(self._runs))
                for run in found[1:]:
                    run.name = f"{self._folder.name}-{run.name}"
                    target.put(run)
        except (OSError, FdlError) as problem:
            output.warning(f"what the program logged to {self._kind} is not recorded: {problem}")
            return {}
        return entries

    def _follow(self) -> None:
        pause = _PAUSE_S
        size = -1
        while not self._over.wait(pause):
            began = time.monotonic()
            now = _size(self._source)
            if now == size:
                continue
            size = now
            try:
                found = self._read()
                if found:
                    self._put(found[0])
            except (OSError, FdlError):
                continue  # its end is read again, and says what is wrong
            pause = max(_PAUSE_S, _SHARE * (time.monotonic() - began))

    def _read(self) -> list[Foreign]:
        if not self._source.is_dir():
            return []
        found = [one for one in below(self._source) if isinstance(one, Foreign)]
        return sorted(
            found, key=lambda one: (one.identity in self._earlier, one.started, one.identity)
        )

    def _put(self, run: Foreign) -> dict[str, Any]:
        # A metric that comes later must not take the files of another one.
        self._order |= dict.fromkeys(run.curves)
        run.curves = {name: run.curves[name] for name in self._order if name in run.curves}
        return add_to(self._folder, run)


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            # The tracker removes files meanwhile, and links may lead to files that come later.
            with suppress(OSError):
                total += os.path.getsize(os.path.join(place, name))  # noqa: PTH202
    return total
