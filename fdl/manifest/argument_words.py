"""The words of `args:` and `options:`: types, spellings, and names that no argument can have."""

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
