"""The words of values: types of arguments, modes of ``ddp``, times of SLURM."""

from __future__ import annotations

IN_WORDS = {
    "string": "a text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "path": "a path",
}
"""Type in a schema -> type in a message."""

TYPES = tuple(IN_WORDS)

ALL_GROUPS = "all"
"""The word for every group of options: ``--help all``."""

RESERVED_LONG = frozenset(
    (
        "help", "version", "quiet", "env",
        "ansi", "no-ansi", "no-append", "fdl-schema", "refresh-schema",
    )
)  # fmt: skip
"""Long names that ``fdl`` itself answers to."""

RESERVED_SHORT = frozenset("hVqve")

LIST_TYPES = tuple(f"list[{one}]" for one in TYPES if one != "bool")
LITERALS = ("python", "json", "eval", "yaml")
"""How a program may evaluate a word."""
MAPPINGS = ("literal", "words")
VALUES = ("true", "false", "null")
"""The values whose words a program may choose."""
STYLES = ("kebab", "snake", "keyvalue", "hydra", "fire")
"""How a program without declared spellings takes its settings: ``--batch-size 8``,
``--batch_size 8``, ``batch_size=8``, ``key=value`` in Hydra's grammar, and flags with literals
of Python, as Fire reads them."""


BACKENDS = ("nccl", "cpu")
_AVERAGING = ("sync", "cadence", "async")
POLICIES = (*_AVERAGING, "auto")
NAMED_MODES = (
    "auto",
    "sync",
    *(f"{backend}-{policy}" for backend in BACKENDS for policy in _AVERAGING),
)
_SOLO = "solo-"


def solo_device(mode: str) -> int | None:
    """The number N of the one device in ``solo-N``; None for every other mode."""
    device = mode.removeprefix(_SOLO)
    # `isdigit` alone accepts the digits of every script. No machine has a million devices.
    fits = device != mode and device.isascii() and device.isdigit() and len(device) <= 6
    return int(device) if fits else None


def node_range(text: str) -> tuple[int, int] | None:
    """The minimum and maximum in ``2`` or ``1:2``; None for other texts."""
    parts = text.split(":")
    # No job has a million machines, and long numbers are slow to convert.
    if len(parts) > 2 or not all(one.isascii() and one.isdigit() for one in parts):
        return None
    if any(len(one) > 6 or one.startswith("0") for one in parts):
        return None
    least, most = int(parts[0]), int(parts[-1])
    return (least, most) if least <= most else None


def is_endpoint(text: str) -> bool:
    """Whether a text is a host and a port from 1 to 65535."""
    host, _, port = text.rpartition(":")
    if not host or any(char.isspace() for char in host):
        return False
    # A longer number is not a port and would take long to convert.
    return port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535


def minutes(value: object) -> float | None:
    """The minutes that SLURM reads in a time: ``90``, ``1:30:00``, ``2-12``; None if it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if value >= 1 else None
    if not isinstance(value, str) or len(value) > 20:
        return None
    days, dash, rest = value.rpartition("-")
    parts = rest.split(":")
    if not all(one.isascii() and one.isdigit() for one in (*parts, *([days] if dash else []))):
        return None
    if len(parts) > 3:
        return None
    numbers = [int(one) for one in parts]
    if dash:
        hours, mins, seconds = [*numbers, 0, 0][:3]
        found = int(days) * 1440 + hours * 60 + mins + seconds / 60
    elif len(numbers) == 3:
        found = numbers[0] * 60 + numbers[1] + numbers[2] / 60
    else:
        found = numbers[0] + (numbers[1] / 60 if len(numbers) == 2 else 0)
    return found or None
