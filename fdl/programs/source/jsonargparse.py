"""jsonargparse: options with type hints, whose lists and mappings are JSON."""

from __future__ import annotations

import ast

from fdl.programs.source.interpret import Definition, Thing
from fdl.programs.source.parsers import Parser
from fdl.programs.source.records import annotation, taken
from fdl.programs.source.rows import COMPUTED, Program
from fdl.programs.source.source import given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.programs.source.interpret import Call, Interpreter
    from fdl.programs.source.records import Annotation, Said
    from fdl.programs.source.source import Module

_DEEPEST = 6


class TypedParser(Parser):
    """A ``jsonargparse.ArgumentParser``.

    Args:
        interpreter: Knows classes and values.
        positional: Whether parameters without a default are arguments.
    """

    def __init__(self, interpreter: Interpreter, *, positional: bool = False) -> None:
        super().__init__(Program())
        self._positional = positional
        self.program.style = "snake"
        self._interpreter = interpreter

    def do_add_argument(self, call: Call, group: object = "") -> object:
        """Declare one argument; a type is a type hint, except beside ``nargs``."""
        flags = [one for one in call.arguments if isinstance(one, str)]
        node, action = given(call.node, "type"), given(call.node, "action")
        words = [one for one in flags if one.startswith("--")]
        if action is not None and ast.unparse(action).startswith("ActionYesNo"):
            off = [f"--no_{one[2:]}" for one in words]
            self.program.option(flags, type="bool", place=call.place, negatives=off)
            return COMPUTED
        if call.named.get("action") in ("config", "parser") or ast.unparse(
            action or ast.Constant("")
        ).endswith("ActionConfigFile"):
            self.program.option(flags, type="path", place=call.place)
            return COMPUTED
        if node is None or "nargs" in call.named or not words:
            return super().do_add_argument(call, group)
        said = {
            "default": call.named.get("default", ...),
            "help": call.named.get("help", ""),
            "required": call.named.get("required", False),
            "group": group,
            "place": call.place,
        }
        self._option(words[0].removeprefix("--"), flags, node, call.module, said, 0)
        return COMPUTED

    def do_add_class_arguments(self, call: Call) -> object:
        """The fields, or the parameters of the constructor, of a class or function."""
        node = next(iter(call.node.args), None)
        prefix = call.get(1, "nested_key")
        found = self._interpreter.definition(node, call.module) if node is not None else None
        if found is None or (prefix is not None and not isinstance(prefix, str)):
            self.program.strict = False
        else:
            self.declare(found, f"{prefix}." if prefix else "", 0)
        return COMPUTED

    do_add_function_arguments = do_add_class_arguments
    do_add_dataclass_arguments = do_add_class_arguments
    do_add_method_arguments = do_add_class_arguments

    def do_add_subclass_arguments(self, call: Call) -> object:
        """A class is chosen by its name; its own options depend on it."""
        name = call.get(1, "nested_key")
        self.program.strict = False
        if isinstance(name, str):
            self._open(name, call.place)
        return COMPUTED

    def do_add_subcommands(self, _: Call) -> Thing:
        """The place of the subcommands."""
        return _Subcommands(self.program)

    def declare(self, found: Definition, prefix: str, depth: int, *, bound: int = 0) -> None:
        """Add the fields of a dataclass, or the parameters of a function or constructor.

        Args:
            found: The class or function.
            prefix: In front of each name: ``optimizer.``.
            depth: How many dataclasses are around it.
            bound: How many of its first parameters are given: ``self``.
        """
        node = found.node
        if isinstance(node, ast.ClassDef) and not _is_record(node):
            bodies = [one for one in node.body if isinstance(one, ast.FunctionDef)]
            constructor = next((one for one in bodies if one.name == "__init__"), None)
            # A base class may take more.
            self.program.strict = self.program.strict and not node.bases
            if constructor is None:
                return
            found, bound = Definition(constructor, found.module), 1
        for last, one, module, said in taken(found, self._interpreter, self.program, bound):
            name = f"{prefix}{last}"
            if one.annotation is None:
                self._open(name, said["place"])
            else:
                self._option(name, [f"--{name}"], one.annotation, module, said, depth)

    def _open(self, name: str, place: str) -> None:
        """An option whose values, and options below it, are not known."""
        self.program.option(
            [f"--{name}"], place=place, doubtful=True, literal="yaml", words={"null": "null"}
        )

    def _option(
        self, name: str, flags: list[str], node: ast.expr, module: Module, said: Said, depth: int
    ) -> None:
        """One option by its type hint; a dataclass has options of its own."""
        kind = annotation(node, module, self._interpreter)
        found = self._interpreter.definition(kind.inner, module) if kind.inner else None
        if found is not None and not kind.choices and isinstance(found.node, ast.ClassDef):
            if _is_record(found.node) and depth < _DEEPEST:
                self.declare(found, f"{name}.", depth + 1)
            else:
                self.program.strict = False
            self._open(name, said["place"])
            return
        said |= _written(said, kind)
        text = ast.unparse(node)
        if any(one in text for one in ("dict", "Dict", "Mapping", "Any")):
            said["mapping"] = "literal"
        # `--x+` adds to the list of `x`.
        self.program.strict = self.program.strict and not kind.many
        if self._positional and said["required"] and depth == 0:
            self.program.argument(name, **said)
            return
        self.program.option(flags, **said)


class _Subcommands(Thing):
    """The subcommands of a parser."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def do_add_subcommand(self, call: Call) -> object:
        """Take a parser as a subcommand."""
        name, parser = call.get(0, "name"), call.get(1, "parser")
        if isinstance(name, str) and isinstance(parser, Parser):
            parser.rank = 0
            self._program.commands[name] = parser.program
        else:
            self._program.strict = False
        return COMPUTED


def cli(call: Call, interpreter: Interpreter) -> Program | None:
    """``auto_cli(main)``: a function, a class with methods, or several functions."""
    positional = call.named.get("as_positional") is not False

    def made(found: Definition, bound: int = 0) -> Program:
        parser = TypedParser(interpreter, positional=positional)
        parser.declare(found, "", 0, bound=bound)
        # `--config` and `--print_config` are there too.
        parser.program.strict = False
        return parser.program

    node = given(call.node, "components", 0)
    if isinstance(node, ast.List):
        program = TypedParser(interpreter).program
        listed = (interpreter.definition(one, call.module) for one in node.elts)
        program.commands = {one.node.name: made(one) for one in listed if one}
        return program if program.commands else None
    found = interpreter.definition(node, call.module) if node is not None else None
    if found is None:
        return None
    program = made(found)
    for item in found.node.body if isinstance(found.node, ast.ClassDef) else ():
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
            program.commands[item.name] = made(Definition(item, found.module), bound=1)
    return program


def _is_record(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(one) for one in node.decorator_list)


def _written(said: Said, kind: Annotation) -> Said:
    """How a value of a type hint is written: scalars as words, the rest as JSON."""
    has_default = said["default"] is not ...
    made: Said = {
        "required": said.get("required") is True or not (has_default or kind.optional),
        "words": {"null": "null"},
        "literal": "yaml",
    }
    if kind.many:
        return {**made, "many": True, "once": True, "doubtful": True}
    choices = list(kind.names or (kind.choices if isinstance(kind.choices, list) else ()))
    if kind.type == "bool":
        choices = ["true", "false"]
    if not choices:
        return {**made, "type": kind.type, "doubtful": kind.doubtful}
    doubtful = kind.doubtful and kind.type != "bool"
    null = ["null"] if kind.optional else []
    return {**made, "choices": [*map(str, choices), *null], "doubtful": doubtful}
