"""simple-parsing: fields of inner classes have short flags, as long as no two of them are alike."""

from __future__ import annotations

from fdl.programs.source.parsers import Parser, new_parser
from fdl.programs.source.records import SIMPLE, declare
from fdl.programs.source.rows import COMPUTED, Program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.programs.source.interpret import Call, Definition, Interpreter


class SimpleParser(Parser):
    """A ``simple_parsing.ArgumentParser``."""

    def __init__(self, call: Call, interpreter: Interpreter) -> None:
        made = new_parser(call)
        super().__init__(made.program, made.rank)
        self._interpreter = interpreter
        self._whole = Program()
        self._added: list[str] = []

    def do_add_arguments(self, call: Call) -> object:
        """Declare the fields of a class: ``add_arguments(Config, dest="config")``."""
        named = {one.arg: one.value for one in call.node.keywords}
        node = next(iter(call.node.args), named.get("dataclass"))
        found = self._interpreter.definition(node, call.module) if node is not None else None
        if found is None:
            self.program.strict = False
            return COMPUTED
        declare(self._whole, found, self._interpreter, SIMPLE, f"{call.get(1, 'dest', '')}.")
        for name in self._added:
            self.program.options.pop(name, None)
        self._added = _take(self.program, self._whole)
        return COMPUTED


def declare_simple(program: Program, found: Definition, interpreter: Interpreter) -> None:
    """Add the fields of a dataclass and of the classes inside it."""
    whole = Program()
    declare(whole, found, interpreter, SIMPLE)
    _take(program, whole)


def _take(program: Program, whole: Program) -> list[str]:
    """Add options under their short names; returns these names."""
    short = _short_names(list(whole.options))
    for name, row in whole.options.items():
        flags = [f"--{short[name]}"]
        negatives = [f"--no{short[name]}"] if row.get("negatives") else []
        made = {**row, "flags": flags, **({"negatives": negatives} if negatives else {})}
        program.options[short[name]] = made
    program.commands.update(whole.commands)
    program.strict = program.strict and whole.strict
    return list(short.values())


def _short_names(names: list[str]) -> dict[str, str]:
    """The shortest ends of dotted names that differ from each other."""
    made: dict[str, str] = {}
    for name in names:
        words = name.split(".")
        alike = [one.split(".") for one in names if one != name]
        counts = range(1, len(words) + 1)
        count = next(
            (n for n in counts if words[-n:] not in [one[-n:] for one in alike]), len(words)
        )
        made[name] = ".".join(words[-count:])
    return made
