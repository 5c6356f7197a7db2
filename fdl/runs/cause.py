"""A difference between two runs that may be why they part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Cause:
    """Something that differs between two runs and may be why they part.

    Attributes:
        kind: acts, seed, data, optimizer, model, computation, threads, ranks, code, packages,
            content for data that was changed, or files for what has no effect: settings that name
            files, runs and lengths, later acts.
        name: The setting, the file or the package.
        left: The value of the first run; None if it has none.
        right: That of the second run.
        left_origin: ``file:line:column`` of the setting, or where else it came from; or empty.
        right_origin: The same of the second run.
        lines: Changed lines of code or samples, or what guards said about their acts.
    """

    kind: str
    name: str
    left: str | None
    right: str | None
    left_origin: str = ""
    right_origin: str = ""
    lines: tuple[str, ...] = ()

    def sentence(self) -> str:
        """``seed 42 (train/fdl.yml:11:9) against 43 (command line)``."""
        sides = [
            f"{value if value is not None else 'absent'}{f' ({origin})' if origin else ''}"
            for value, origin in ((self.left, self.left_origin), (self.right, self.right_origin))
        ]
        if sides == ["absent", "absent"]:
            return f"{self.name} was changed"
        return f"{self.name} {sides[0]} against {sides[1]}"
