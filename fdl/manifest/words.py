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

_SHARED_KEYS = {
    "type": ("", "Type of one value, or of each value of a list"),
    "description": ("text", "One sentence for the help page"),
    "default": ("", "Value when it is not given"),
    "choices": ("", "Allowed values"),
    "ignore_case": ("switch", "Whether choices may be typed in upper and lower case"),
    "once": ("switch", "Whether only the last occurrence of a list counts"),
    "literal": (
        "",
        "How the program evaluates a word: as a Python literal (`python` or true), "
        "as data, which may be a mapping (`json`, or `eval` for an expression of Python), or "
        "lists and mappings alone as JSON (`yaml`)",
    ),
    "mapping": ("", "How a mapping is written: as a literal, or as its keys and values in turn"),
    "words": ("", "How true, false and null are written"),
    "completer": ("text", "Shell snippet that prints one completion candidate per line"),
    "place": ("text", "`file:line` of the declaration"),
    "computed": ("words", "Keys whose value only the running program knows"),
}
OPTION_KEYS = {
    **_SHARED_KEYS,
    "bare": ("switch", "Whether the default is what the option means without a value"),
    "commas": (
        "switch",
        "Whether one word may hold several values of a list, split at commas",
    ),
    "short": ("", "Letter of the short form"),
    "env": ("text", "Environment variable the program reads when the option is not given"),
    "group": ("text", "Heading of the option on a help page"),
    "flags": ("flags", "Every spelling with its dashes; the first long one is used"),
    "negatives": ("flags", "The spellings that turn a flag off"),
    "nargs": ("", "Words that one option takes: a number, `*`, `+` or `?`"),
    "separator": ("text", "What joins the values of a list, if one word must hold all of them"),
    "counted": ("switch", "Whether the flag may be repeated and its number counts"),
    "required": ("switch", "Whether the program refuses to start without it"),
}
ARGUMENT_KEYS = {
    "name": ("", "What the help page calls it"),
    **_SHARED_KEYS,
    "required": ("switch", "Whether it must be given"),
    "variadic": ("switch", "Whether it takes all that remains; the last one only"),
}
DOCUMENT_KEYS = {
    "description": ("text", "What the program is for"),
    "args": ("", "Positional arguments, in order"),
    "options": ("", "Long name, without dashes in front -> option"),
    "commands": ("", "Subcommand -> its arguments"),
    "style": ("", "How settings are written if an option declares no spelling"),
    "collapsed": ("", "Group that a help page shows as one line -> what it is for"),
    "strict": ("switch", "Whether a flag that is not declared is a mistake"),
    "origins": ("switch", "Whether the program itself lets its variables beat the manifest"),
}
"""Key of the document about arguments -> kind of its value, and what it says.

A key without a kind has values of its own. Documents have their keys in this order.
"""


BACKENDS = ("nccl", "cpu")
_AVERAGING = ("sync", "cadence", "async")
POLICIES = (*_AVERAGING, "auto")
NAMED_MODES = (
    "auto",
    "sync",
    *(f"{backend}-{policy}" for backend in BACKENDS for policy in _AVERAGING),
)
RIVALS = {"mode": ("policy", "backend"), "policy": ("mode",), "backend": ("mode",)}
"""Field of ``ddp`` -> the fields that it replaces, because both set the same thing."""
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
