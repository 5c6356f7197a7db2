"""A notebook in a folder of its own, and the kernel that executes its cells."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests import typed


@dataclass
class Shown:
    """What stands below a cell after it was executed.

    Attributes:
        out: What it printed.
        data: The forms of its last expression.
        replaced: The forms of the outputs that are replaced in place, as they are at the end.
        error: The name and the text of its error.
    """

    out: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    replaced: list[dict[str, Any]] = field(default_factory=list)
    error: tuple[str, str] | None = None


class Notebook:
    """Executes cells as nbclient does.

    Args:
        folder: Where the kernel starts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = NotebookClient(
            nbformat.v4.new_notebook(),
            timeout=300,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
        )

    def open(self) -> Iterator[Notebook]:
        """Start the kernel, and end it."""
        with self.client.setup_kernel(env=_environment()):
            yield self

    def restart(self) -> None:
        """Restart the kernel: all names are lost."""
        run_sync(self.client.km.restart_kernel)(now=True)
        run_sync(self.client.kc.wait_for_ready)(timeout=60)

    def interrupt(self) -> None:
        """Press the button that interrupts; from any thread."""
        os.kill(self.client.km.provisioner.pid, signal.SIGINT)

    def __call__(self, source: str, *, person: bool = False) -> Shown:
        """Execute a cell.

        Args:
            source: Its text.
            person: Whether it is executed as by a person, who can answer questions.
        """
        cell = nbformat.v4.new_code_cell(source)
        self.client.nb.cells.append(cell)
        typed.note(source, self.folder, os.environ, lambda: _ended(cell))
        self.client.kc.allow_stdin = person
        try:
            self.client.execute_cell(cell, len(self.client.nb.cells) - 1)
        except CellExecutionError:
            pass
        finally:
            self.client.kc.allow_stdin = False
        return _shown(cell)


def _ended(cell: Any) -> tuple[int, str]:
    """As a command would have ended: with 1 after an error, whose text comes last."""
    shown = _shown(cell)
    return int(shown.error is not None), "\n".join([shown.out, *(shown.error or ())])


def _shown(cell: Any) -> Shown:
    shown = Shown()
    for one in cell.outputs:
        if one.output_type == "stream":
            shown.out += one.text
        elif one.output_type == "error":
            shown.error = one.ename, one.evalue
        elif one.output_type == "execute_result":
            shown.data = dict(one.data)
        else:
            shown.replaced.append(dict(one.data))
    return shown


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "CUDA_VISIBLE_DEVICES": "", "JUPYTER_PLATFORM_DIRS": "1"}
