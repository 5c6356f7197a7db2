"""The steps of a setup, as values that can be shown before they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fdl.base.shell_words import join


@dataclass(frozen=True, slots=True)
class Install:
    """Install a libtorch variant.

    Attributes:
        variant: ``cpu``, ``cu128`` …, or ``auto``.
        activate: Whether to activate it; only ``cpu`` is ever installed without activation.
        source: ``archive``, or ``wheel`` if there are no archives.
    """

    variant: str
    activate: bool
    source: str = "archive"

    @property
    def typed(self) -> str:
        """The command that does the same."""
        if not self.activate:
            return f"fdl libtorch download --{self.variant} --no-activate"
        source = "" if self.source == "archive" else f" --source {self.source}"
        return f"fdl libtorch install {self.variant}{source}"


@dataclass(frozen=True, slots=True)
class Activate:
    """Activate an installed variant."""

    id: str

    @property
    def typed(self) -> str:
        """The command that does the same."""
        return f"fdl libtorch activate {self.id}"


@dataclass(frozen=True, slots=True)
class Program:
    """Run a program.

    Attributes:
        argv: The program and its arguments.
        cwd: The working directory.
        images: Whether it builds images, and so needs the variables of the compose file.
        optional: Whether its failure is only a warning.
        consequence: What its failure means, for that warning.
    """

    argv: tuple[str, ...]
    cwd: Path
    images: bool = False
    optional: bool = False
    consequence: str = ""

    @property
    def typed(self) -> str:
        """The command line, from :attr:`cwd`."""
        return join(list(self.argv))


Step = Install | Activate | Program
