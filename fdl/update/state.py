"""``config.json`` of the user: whether to check for updates, and what earlier checks found.

The file belongs to the user as much as to us: what else stands in it is kept.
Imported when a command ends on a terminal.
"""

# pathlib would cost every command its start-up time.
# ruff: noqa: PTH105, PTH111, PTH113, PTH117, PTH118, PTH123
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SECTION = "update_check"


def location(variables: Mapping[str, str], platform: str = sys.platform) -> str | None:
    """Path of the file by the conventions of the system; None where the user has no home."""
    # With an empty HOME, `~` would be the root of the file system.
    home = os.path.expanduser("~") if variables.get("HOME", "~") else ""
    if platform == "win32":
        folder = variables.get("APPDATA", "")
    elif platform == "darwin":
        folder = os.path.join(home, "Library", "Application Support")
    else:
        chosen = variables.get("XDG_CONFIG_HOME", "")
        folder = chosen if os.path.isabs(chosen) else os.path.join(home, ".config")
    return os.path.join(folder, "flodl", "config.json") if os.path.isabs(folder) else None


class State:
    """What is remembered from one command to the next.

    Attributes:
        enabled: Whether checks are wanted; anything but true in the file means no.
        first_run_seen: Whether the user has been told that there are checks.
        last_check: When the last check was started, in seconds since 1970.
        latest_known: Package -> newest stable version that a check found.
        nudged: Package -> version and time of the last nudge.
    """

    __slots__ = ("enabled", "first_run_seen", "last_check", "latest_known", "nudged")

    def __init__(self, section: Mapping[str, Any]) -> None:
        latest, nudged = section.get("latest_known"), section.get("nudged")
        self.enabled: bool = section.get("enabled", True) is True
        self.first_run_seen: bool = section.get("first_run_seen") is True
        self.last_check: float = _time(section.get("last_check"))
        self.latest_known: dict[str, str] = {
            name: version
            for name, version in (latest.items() if isinstance(latest, dict) else ())
            if isinstance(version, str)
        }
        self.nudged: dict[str, tuple[str, float]] = {
            name: (str(entry.get("version")), _time(entry.get("time")))
            for name, entry in (nudged.items() if isinstance(nudged, dict) else ())
            if isinstance(entry, dict)
        }

    def section(self) -> dict[str, object]:
        """The state as the file holds it."""
        return {
            "enabled": self.enabled,
            "last_check": int(self.last_check),
            "latest_known": self.latest_known,
            "first_run_seen": self.first_run_seen,
            "nudged": {
                name: {"version": version, "time": int(when)}
                for name, (version, when) in self.nudged.items()
            },
        }


def read(file: str) -> State:
    """The state in ``file``; the defaults where there is none, or nothing that can be read."""
    section = (_document(file) or {}).get(SECTION)
    return State(section if isinstance(section, dict) else {})


def write(file: str, state: State) -> bool:
    """Put the state into ``file`` beside whatever else stands there; False when that fails.

    A file that cannot be read is kept beside the new one as ``config.json.broken``.
    """
    import json

    from fdl.rewrite import put

    target = os.path.realpath(file)
    document = _document(target)
    section = (document or {}).get(SECTION)
    ours = {**(section if isinstance(section, dict) else {}), **state.section()}
    try:
        text = json.dumps({**(document or {}), SECTION: ours}, indent=2)
        if document is None and os.path.isfile(target):
            os.replace(target, f"{target}.broken")
        put(target, f"{text}\n".encode())
    except (OSError, ValueError, RecursionError):
        return False
    return True


def _document(file: str) -> dict[str, Any] | None:
    """The mapping in ``file``; None where it is missing or holds anything else."""
    from fdl.light_json import parse

    try:
        with open(file, encoding="utf-8") as stream:
            document = parse(stream.read().strip())
    except Exception:
        # Unreadable, not UTF-8, truncated, nested too deeply: all the same to us.
        return None
    return document if isinstance(document, dict) else None


def _time(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 2**63 else 0.0  # type: ignore[operator,arg-type]
