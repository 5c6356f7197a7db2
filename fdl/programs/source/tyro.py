"""tyro: fields of classes and parameters of functions, markers, and unions as subcommands."""

from __future__ import annotations

import ast
import re

from fdl.base.light_record import Record
from fdl.programs.source.records import alternatives, members, parsed, taken
from fdl.programs.source.rows import COMPUTED, Program
from fdl.programs.source.source import given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from fdl.programs.source.interpret import Call, Definition, Interpreter
    from fdl.programs.source.records import Said
    from fdl.programs.source.source import Module

WORDS = {"true": "True", "false": "False", "null": "None"}

_TYPES = {"str": "string", "int": "int", "float": "float", "Path": "path"}
_ONE_WORD = ("date", "datetime", "time", "UUID", "bytes", "Any", "PurePath", "complex")
_LISTS = ("list", "List", "Sequence", "set", "Set", "frozenset", "deque", "Iterable")
_MAPPINGS = ("dict", "Dict", "Mapping", "MutableMapping")
_BOOLS = ["True", "False"]
_RECORDS = ("NamedTuple", "TypedDict", "BaseModel", "Struct")
_HARMLESS = ("Suppress", "HelptextFromCommentsOff", "SuppressFixed", "Fixed", "AvoidSubcommands")
_UNDERSTOOD = (
    "Positional", "FlagConversionOff", "FlagCreatePairsOff", "UseAppendAction",
    "UseCounterAction", "EnumChoicesFromValues", "OmitArgPrefixes", "OmitSubcommandPrefixes",
    *_HARMLESS,
)  # fmt: skip
_DEEPEST = 6


class Kind(Record):
    """What an annotation says.

    Attributes:
        type: Of one word.
        nargs: The words of a value: None for one, a number, ``*``, or ``COMPUTED``.
        choices: The allowed words, if these are all.
        doubtful: Whether the type is the program's own.
        bool: Whether it is ``bool`` alone.
        mapping: How a mapping is written.
    """

    type: str = "string"
    nargs: object = None
    choices: Sequence[object] = ()
    doubtful: bool = False
    bool: bool = False
    mapping: str = ""


class _Marked(Record):
    """An annotation without its markers.

    Attributes:
        node: What is left.
        marks: Names of the markers.
        said: Keywords of ``tyro.conf.arg`` and ``tyro.conf.subcommand``.
    """

    node: ast.expr
    marks: frozenset[str]
    said: dict[str, Any]


def cli(call: Call, interpreter: Interpreter) -> Program | None:
    """``tyro.cli(Config)``: a class, a function, or a union of classes."""
    node = next(iter(call.node.args), None)
    return _Reader(interpreter, call).read(node) if node is not None else None


def commands(call: Call, interpreter: Interpreter) -> Program | None:
    """``{"train": train}``, or ``{"small": ("…", Config())}``: a subcommand for each key."""
    program, reader = Program(), _Reader(interpreter, call)
    table = next(iter(call.node.args), None)
    if isinstance(table, ast.Name):
        table = call.module.constants.get(table.id)
    for key, one in (
        zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ()
    ):
        name = interpreter.value(key, {}, call.module)
        node = one.elts[-1] if isinstance(one, ast.Tuple) and one.elts else one
        if not isinstance(name, str):
            program.strict = False
        elif inner := reader.read(node.func if isinstance(node, ast.Call) else node):
            program.commands[name] = inner
    return program if program.commands else None


class _Reader:
    """Reads what one call of tyro declares.

    Args:
        interpreter: Knows classes and values.
        call: The call.
    """

    def __init__(self, interpreter: Interpreter, call: Call) -> None:
        self._interpreter = interpreter
        self._module = call.module
        marks = getattr(given(call.node, "config"), "elts", ())
        self._marks = frozenset(call.module.origin(one).rpartition(".")[2] for one in marks)

    def read(self, node: ast.expr) -> Program | None:
        """What a class, a function or a union of classes declares; None for anything else."""
        program = Program()
        marked = self._unmarked(node, self._module, self._marks, program)
        classes = self._classes(marked, self._module, program)
        for word, found in classes.items():
            program.commands[word] = inner = Program()
            self._declare(inner, found, "", marked.marks, 0)
        if classes:
            return program
        known = self._interpreter.definition(marked.node, self._module)
        if known is None:
            return None
        self._declare(program, known, "", marked.marks, 0)
        return program

    def _declare(
        self,
        program: Program,
        found: Definition | None,
        prefix: str,
        marks: frozenset[str],
        depth: int,
    ) -> None:
        """Add the fields of a class, or the parameters of a function."""
        if found is None:
            return
        node = found.node
        positional = node.args.posonlyargs if isinstance(node, ast.FunctionDef) else []
        for name, one, module, said in taken(found, self._interpreter, program):
            if one.annotation is None:
                program.strict = False
                continue
            inner = marks | {"Positional"} if one in positional else marks
            self._field(program, f"{prefix}{name}", one.annotation, module, said, inner, depth)

    def _field(
        self,
        program: Program,
        name: str,
        annotation: ast.expr,
        module: Module,
        said: Said,
        marks: frozenset[str],
        depth: int,
    ) -> None:
        marked = self._unmarked(annotation, module, marks, program)
        classes = self._classes(marked, module, program)
        if classes:
            self._union(program, name, classes, marked, depth)
            return
        nested = self._nested(marked.node, module)
        if nested is not None and depth < _DEEPEST:
            prefix = "" if "OmitArgPrefixes" in marked.marks else f"{name}."
            self._declare(program, nested, prefix, marked.marks, depth + 1)
            return
        kind = self._kind(marked.node, module, marked.marks, program)
        default = said["default"]
        if kind.mapping and default not in (..., None, {}):
            # The keys of a default become options of their own.
            keys = list(default) if isinstance(default, dict) else []
            program.strict = program.strict and bool(keys)
            for key in keys:
                flags = _spellings(f"{name}.{key}", {})
                program.option(flags, place=said["place"], words=WORDS, doubtful=True)
            return
        _add(program, name, kind, said, marked)

    def _union(
        self,
        program: Program,
        name: str,
        classes: dict[str, Definition | None],
        marked: _Marked,
        depth: int,
    ) -> None:
        """Add a subcommand for each class. That of a second union stands behind the first one's."""
        short = "OmitSubcommandPrefixes" in marked.marks
        outer = [program]
        while any(one.commands for one in outer):
            outer = [inner for one in outer for inner in one.commands.values()]
        for one in outer:
            for word, found in classes.items():
                inner = Program()
                self._declare(inner, found, "" if short else f"{name}.", marked.marks, depth + 1)
                one.commands[word if short else f"{name.replace('_', '-')}:{word}"] = inner

    def _classes(
        self, marked: _Marked, module: Module, program: Program
    ) -> dict[str, Definition | None]:
        """The classes of a union, by the words that choose them; empty for another annotation."""
        found: dict[str, Definition | None] = {}
        for one in alternatives(marked.node, module):
            inner = self._unmarked(one, module, marked.marks, program)
            nested = self._nested(inner.node, module)
            if nested is None and not _is_none(inner.node):
                return {}
            word = inner.said.get("name")
            usual = _hyphenated(nested.node.name) if nested else "none"
            found[word if isinstance(word, str) else usual] = nested
        return found if any(found.values()) and len(found) > 1 else {}

    def _nested(self, node: ast.expr, module: Module) -> Definition | None:
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        found = self._interpreter.definition(node, module)
        if found is None or not isinstance(found.node, ast.ClassDef):
            return None
        bases = [found.module.origin(one).rpartition(".")[2] for one in found.node.bases]
        decorators = [ast.unparse(one) for one in found.node.decorator_list]
        is_record = any("dataclass" in one or "define" in one for one in decorators)
        return found if is_record or any(one in _RECORDS for one in bases) else None

    def _unmarked(
        self, node: ast.expr, module: Module, marks: frozenset[str], program: Program
    ) -> _Marked:
        """Take the markers off: ``Positional[int]``, ``Annotated[int, arg(name="n")]``."""
        said: dict[str, Any] = {}
        own: set[str] = set()
        node = parsed(node)
        while isinstance(node, ast.Subscript):
            origin = module.origin(node.value)
            if origin.startswith("tyro."):
                own.add(origin.rpartition(".")[2])
                node = node.slice
                continue
            if not origin.endswith("Annotated") or not isinstance(node.slice, ast.Tuple):
                break
            node, *others = node.slice.elts
            for one in others:
                if isinstance(one, ast.Call):
                    call = self._interpreter.evaluated(one, {}, module)
                    said |= {**dict(zip(("name",), call.arguments, strict=False)), **call.named}
                elif module.origin(one).startswith("tyro."):
                    own.add(module.origin(one).rpartition(".")[2])
        if own.difference(_UNDERSTOOD) or said.get("name") is COMPUTED:
            program.strict = False
        return _Marked(node, marks | own, said)

    def _kind(
        self, node: ast.expr, module: Module, marks: frozenset[str], program: Program
    ) -> Kind:
        """The words of a value."""
        node = parsed(node)
        parts = alternatives(node, module)
        if len(parts) > 1:
            return _either([self._kind(one, module, marks, program) for one in parts])
        if _is_none(node):
            return Kind(choices=["None"])
        if isinstance(node, ast.Subscript):
            return self._generic(node, module, marks, program)
        name = module.origin(node).rpartition(".")[2]
        if name == "bool":
            return Kind(choices=_BOOLS, bool=True)
        if name in _TYPES or name in _ONE_WORD:
            return Kind(_TYPES.get(name, "string"), doubtful=name not in _TYPES)
        if name in _LISTS or name in ("tuple", "Tuple"):
            return Kind(nargs="*")
        if name in _MAPPINGS:
            return Kind(nargs="*", mapping="words")
        found = members(node, module, self._interpreter)
        if found:
            by_value = "EnumChoicesFromValues" in marks
            return Kind(choices=[str(value) if by_value else word for word, value in found])
        # A class that was not found may have fields, which are options.
        program.strict = False
        return Kind(doubtful=True)

    def _generic(
        self, node: ast.Subscript, module: Module, marks: frozenset[str], program: Program
    ) -> Kind:
        base = module.origin(node.value).rpartition(".")[2]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if base == "Literal":
            values = [one.value if isinstance(one, ast.Constant) else COMPUTED for one in inner]
            if any(one is COMPUTED for one in values):
                return Kind(doubtful=True)
            if all(type(one) is int for one in values):
                return Kind("int", choices=values)
            return Kind(choices=[str(one) for one in values])
        if base in _MAPPINGS:
            return Kind(nargs="*", mapping="words", doubtful=True)
        several = [one for one in inner if ast.unparse(one) != "..."]
        kinds = [
            self._kind(self._unmarked(one, module, marks, program).node, module, marks, program)
            for one in several
        ]
        first = kinds[0]
        if base in ("tuple", "Tuple") and len(several) == len(inner):
            counts = [one.nargs or 1 for one in kinds]
            total = sum(one for one in counts if isinstance(one, int))
            known = all(isinstance(one, int) for one in counts)
            return _shared(kinds, total if known else "*")
        if base in (*_LISTS, "tuple", "Tuple"):
            return Kind(
                first.type, nargs="*", choices=() if first.nargs else first.choices,
                doubtful=first.doubtful,
            )  # fmt: skip
        program.strict = False
        return Kind(doubtful=True)


def _shared(kinds: Sequence[Kind], nargs: object) -> Kind:
    """Several values of an option, one behind the other."""
    same = len({(one.type, tuple(one.choices)) for one in kinds}) == 1
    first = kinds[0]
    if not same:
        return Kind(nargs=nargs, doubtful=True)
    return Kind(first.type, nargs=nargs, choices=first.choices, doubtful=first.doubtful)


def _either(kinds: Sequence[Kind]) -> Kind:
    """One of several kinds: ``int | None``, ``float | Literal["auto"]``."""
    if all(one.choices and not one.nargs for one in kinds):
        return Kind(choices=[str(word) for one in kinds for word in one.choices])
    values = [one for one in kinds if one.choices != ["None"]]
    several = any(one.nargs for one in kinds)
    counts = {one.nargs for one in values}
    only = values[0] if len(values) == 1 else None
    return Kind(
        only.type if only and not only.choices else "string",
        nargs=(counts.pop() if len(counts) == 1 else "*") if several else None,
        choices=[*map(str, only.choices), "None"] if only and only.choices else (),
        doubtful=only is None or only.doubtful,
        mapping=next((one.mapping for one in kinds if one.mapping), ""),
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _hyphenated(name: str) -> str:
    """The name of a class as it is typed: ``adam-w`` for ``AdamW``, ``sgd`` for ``SGD``."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", re.sub(r"(.)([A-Z][a-z]+)", r"\1-\2", name))
    return words.lower().replace("_", "-")


def _spellings(name: str, said: dict[str, Any]) -> list[str]:
    """The flags of a field; words may be joined by dashes or by underscores."""
    renamed, aliases = said.get("name"), said.get("aliases")
    if isinstance(renamed, str):
        name = ".".join([*name.split(".")[:-1], renamed])
    found = [f"--{name.replace('_', '-')}", f"--{name}"]
    return [*dict.fromkeys(found), *(aliases if isinstance(aliases, list) else ())]


def _add(program: Program, name: str, kind: Kind, said: Said, marked: _Marked) -> None:
    """Add an option or a positional argument."""
    flags = _spellings(name, marked.said)
    has_default, many = said["default"] is not ..., False
    positional = "Positional" in marked.marks
    said |= {"required": not has_default, "words": WORDS}
    if "UseCounterAction" in marked.marks:
        said |= {"type": "bool", "counted": True, "default": None, "words": {}}
    elif kind.bool and has_default and not positional and "FlagConversionOff" not in marked.marks:
        head, dot, last = flags[0].removeprefix("--").rpartition(".")
        said |= {"type": "bool", "negatives": [f"--{head}{dot}no-{last}"]}
        if "FlagCreatePairsOff" in marked.marks and said["default"] is not True:
            del said["negatives"]
    else:
        many, once = kind.nargs is not None, "UseAppendAction" not in marked.marks
        said |= {"type": kind.type, "choices": kind.choices, "doubtful": kind.doubtful}
        said |= {"many": many, "once": many and once, "nargs": kind.nargs if once else None}
        said |= {"mapping": "words" if many and once else ""}
    if positional:
        program.argument(name.replace("_", "-"), variadic=many, **said)
        return
    program.option([one for one in flags if isinstance(one, str)], **said)
