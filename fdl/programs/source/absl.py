"""Flags of absl: ``flags.DEFINE_…`` anywhere in the program."""

from __future__ import annotations

from fdl.programs.source.rows import COMPUTED, Program
from fdl.programs.source.source import given

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Callable

    from fdl.programs.source.interpret import Call
    from fdl.programs.source.source import Module

    Members = Callable[[ast.expr, Module], list[str]]
    """The names of an enumeration."""

KINDS = {
    "string": "string", "integer": "int", "float": "float", "bool": "bool", "boolean": "bool",
    "enum": "string", "enum_class": "string", "list": "string", "spaceseplist": "string",
    "multi_string": "string", "multi_integer": "int", "multi_float": "float",
    "multi_enum": "string", "multi_enum_class": "string",
}  # fmt: skip
"""What stands behind ``DEFINE_`` -> the type of one value."""

OTHERS = ("DEFINE", "DEFINE_flag", "DEFINE_multi", "DEFINE_alias")
"""Definitions whose parser is the program's own."""

_SEPARATORS = {"list": ",", "spaceseplist": " "}


class Flags:
    """The flags that a program defines."""

    def __init__(self) -> None:
        self.program = Program()
        # absl has flags of its own, such as `--verbosity`; so may every imported module.
        self.program.strict = False

    def define(self, kind: str, members: Members, call: Call) -> object:
        """``DEFINE_integer("steps", 10, "Steps.")``."""
        flag = call.get(0, "name")
        if not isinstance(flag, str):
            return COMPUTED
        is_enum = "enum" in kind
        of_class = kind.endswith("enum_class")
        choices = call.get(2, "enum_values", ()) if is_enum else ()
        if of_class:
            node = given(call.node, "enum_class", 2)
            choices = members(node, call.module) if node is not None else COMPUTED
        self.program.option(
            [f"--{flag}"],
            type=KINDS[kind],
            default=COMPUTED if of_class else call.get(1, "default"),
            choices=choices,
            help=call.get(3 if is_enum else 2, "help", ""),
            many=kind.startswith("multi") or kind in _SEPARATORS,
            negatives=[f"--no{flag}"] if KINDS[kind] == "bool" else (),
            place=call.place,
            separator=_SEPARATORS.get(kind, ""),
            # Members of a class may be typed in any case unless it says otherwise.
            ignore_case=call.named.get("case_sensitive", not of_class) is False,
        )
        return COMPUTED

    def define_other(self, call: Call) -> object:
        """A flag with a parser of its own: ``DEFINE(parser, name, …)``."""
        texts = (one for one in call.arguments if isinstance(one, str))
        flag = call.named.get("name") or next(texts, None)
        if isinstance(flag, str):
            self.program.option([f"--{flag}"], place=call.place, default=COMPUTED, doubtful=True)
        return COMPUTED
