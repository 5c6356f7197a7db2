"""jsonargparse: options with type hints, whose lists and mappings are JSON."""

from __future__ import annotations

import ast

from fdl.programs.source.interpret import Definition, Thing
from fdl.programs.source.parsers import Parser
from fdl.programs.source.records import annotation, parameters, settable
from fdl.programs.source.rows import COMPUTED, Program, Row
from fdl.programs.source.source import given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.programs.source.interpret import Call, Interpreter
    from fdl.programs.source.records import Annotation
    from fdl.programs.source.source import Module

_DEEPEST = 6


class TypedParser(Parser):
    """A ``jsonargparse.ArgumentParser``.

    Args:
        interpreter: Knows classes and values.
        rank: How surely it is the program's own.
        positional: Whether parameters without a default are arguments.
    """

    def __init__(
        self, interpreter: Interpreter, rank: int = 1, *, positional: bool = False
    ) -> None:
        super().__init__(Program(), rank)
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
            self.program.option(flags, Row(type="bool", place=call.place, negatives=off))
            return COMPUTED
        if call.named.get("action") in ("config", "parser") or ast.unparse(
            action or ast.Constant("")
        ).endswith("ActionConfigFile"):
            self.program.option(flags, Row(type="path", place=call.place))
            return COMPUTED
        if node is None or "nargs" in call.named or not words:
            return super().do_add_argument(call, group)
        row = Row(
            default=call.named.get("default", ...),
            help=call.named.get("help", ""),
            required=call.named.get("required", False),
            group=group,
            place=call.place,
        )
        self._option(words[0].removeprefix("--"), flags, node, call.module, row, 0)
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
        interpreter = self._interpreter
        node = found.node
        if isinstance(node, ast.ClassDef) and _is_record(node):
            for name, field, module, row in settable(found, interpreter, self.program):
                self._named(f"{prefix}{name}", field.annotation, module, row, depth)
            return
        if isinstance(node, ast.ClassDef):
            bodies = [one for one in node.body if isinstance(one, ast.FunctionDef)]
            constructor = next((one for one in bodies if one.name == "__init__"), None)
            # A base class may take more.
            self.program.strict = self.program.strict and not node.bases
            if constructor is None:
                return
            node, bound = constructor, 1
        for one, default in parameters(node, bound):
            value = ... if default is None else interpreter.value(default, {}, found.module)
            row = Row(default=value, place=found.module.place(one))
            self._named(f"{prefix}{one.arg}", one.annotation, found.module, row, depth)
        if node.args.vararg or node.args.kwarg:
            self.program.strict = False

    def _named(
        self, name: str, node: ast.expr | None, module: Module, row: Row, depth: int
    ) -> None:
        if node is None:
            self._open(name, row.place)
        else:
            self._option(name, [f"--{name}"], node, module, row, depth)

    def _open(self, name: str, place: str) -> None:
        """An option whose values, and options below it, are not known."""
        row = Row(place=place, doubtful=True, literal="yaml", words={"null": "null"})
        self.program.option([f"--{name}"], row)

    def _option(
        self, name: str, flags: list[str], node: ast.expr, module: Module, row: Row, depth: int
    ) -> None:
        """One option by its type hint; a dataclass has options of its own."""
        said = annotation(node, module, self._interpreter)
        found = self._interpreter.definition(said.inner, module) if said.inner else None
        if found is not None and not said.choices and isinstance(found.node, ast.ClassDef):
            if _is_record(found.node) and depth < _DEEPEST:
                self.declare(found, f"{name}.", depth + 1)
            else:
                self.program.strict = False
            self._open(name, row.place)
            return
        _fill(row, said)
        text = ast.unparse(node)
        if any(one in text for one in ("dict", "Dict", "Mapping", "Any")):
            row.mapping = "literal"
        # `--x+` adds to the list of `x`.
        self.program.strict = self.program.strict and not row.many
        if self._positional and row.required and depth == 0:
            self.program.argument(name, row, required=True)
            return
        self.program.option(flags, row)


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


def cli(call: Call, interpreter: Interpreter) -> TypedParser | None:
    """``auto_cli(main)``: a function, a class with methods, or several functions."""
    node = given(call.node, "components", 0)
    positional = call.named.get("as_positional") is not False
    parser = TypedParser(interpreter, rank=2, positional=positional)
    if isinstance(node, ast.List):
        for one in node.elts:
            found = interpreter.definition(one, call.module)
            if found is not None:
                inner = TypedParser(interpreter, rank=0, positional=positional)
                inner.declare(found, "", 0)
                inner.program.strict = False
                parser.program.commands[found.node.name] = inner.program
        return parser if parser.program.commands else None
    found = interpreter.definition(node, call.module) if node is not None else None
    if found is None:
        return None
    parser.declare(found, "", 0)
    # `--config` and `--print_config` are there too.
    parser.program.strict = False
    for item in found.node.body if isinstance(found.node, ast.ClassDef) else ():
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
            inner = TypedParser(interpreter, rank=0, positional=positional)
            inner.declare(Definition(item, found.module), "", 0, bound=1)
            inner.program.strict = False
            parser.program.commands[item.name] = inner.program
    return parser


def _is_record(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(one) for one in node.decorator_list)


def _fill(row: Row, said: Annotation) -> None:
    """How a value of a type hint is written: scalars as words, the rest as JSON."""
    has_default = row.default is not ...
    row.default = row.default if has_default else None
    row.required = row.required is True or not (has_default or said.optional)
    row.words = {"null": "null"}
    row.literal = "yaml"
    choices = list(said.names or (said.choices if isinstance(said.choices, list) else ()))
    if said.type == "bool" and not said.many:
        row.choices = ["true", "false"]
    else:
        row.type, row.many, row.doubtful = said.type, said.many, said.doubtful
        row.choices = [str(one) for one in choices]
    if row.many:
        row.type, row.choices, row.doubtful = "string", (), True
    if row.choices:
        row.type = "string"
        row.choices = [*row.choices, *(["null"] if said.optional else [])]
