"""Dataclasses whose fields become options of HfArgumentParser, and what annotations say."""

from __future__ import annotations

import ast

from fdl.base.light_record import Record
from fdl.programs.source.rows import COMPUTED, Program
from fdl.programs.source.source import given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from fdl.programs.source.interpret import Definition, Interpreter
    from fdl.programs.source.source import Module

    Said = dict[str, Any]
    """What is said about a parameter, as :func:`fdl.programs.source.rows.declared` takes it."""

_TYPES = {"str": "string", "int": "int", "float": "float", "bool": "bool", "Path": "path",
    "PurePath": "path", "PurePosixPath": "path",
}  # fmt: skip
_LISTS = ("list", "List", "Sequence", "tuple", "Tuple", "set", "Set")
_FIELDS = ("field", "HfArg", "arg", "Field")
_SILENT = ("object", "ABC", "Generic", "Protocol")


class Annotation(Record):
    """What an annotation says about a field.

    Attributes:
        type: Of one value.
        many: Whether it is a list.
        choices: Members of a literal, or values of an enumeration.
        optional: Whether it may be None.
        doubtful: Whether the type is the program's own.
        names: Names of the members of an enumeration.
        nargs: The number of values of a tuple; None for any number.
        inner: The class that it names.
    """

    type: str = "string"
    many: bool = False
    choices: object = ()
    optional: bool = False
    doubtful: bool = False
    names: Sequence[str] = ()
    inner: ast.expr | None = None
    nargs: int | None = None


def declare(program: Program, found: Definition, interpreter: Interpreter) -> None:
    """Add the fields of a dataclass and of its base classes as options of HfArgumentParser."""
    for name, node, module, said in settable(found, interpreter, program):
        kind = annotation(node.annotation, module, interpreter)
        dashed, default = name.replace("_", "-"), said["default"]
        spellings = list(dict.fromkeys((f"--{name}", f"--{dashed}")))
        is_flag = kind.type == "bool" and not kind.many
        # HfArgumentParser takes a word for such an option, and true without a word.
        by_word = is_flag and kind.optional
        said |= {
            "type": "string" if by_word else kind.type,
            "choices": kind.choices,
            "required": default is ... and not kind.optional,
            "many": kind.many,
            "once": kind.many,
            "doubtful": kind.doubtful,
            "nargs": "?" if by_word else (kind.nargs or "+" if kind.many else None),
            "words": {"false": "false"} if by_word else {},
        }
        if is_flag and default is True:
            said["negatives"] = [f"--no_{name}", f"--no-{dashed}"][: len(spellings)]
        program.option([*spellings, *_aliases(node.value, module, interpreter)], **said)


def annotation(node: ast.expr, module: Module, interpreter: Interpreter) -> Annotation:
    """Read an annotation."""
    node = parsed(node)
    parts = alternatives(node, module)
    if parts != [node]:
        return _union(parts, module, interpreter)
    if isinstance(node, ast.Subscript):
        base = module.origin(node.value).rpartition(".")[2]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if base in ("Annotated", "Required"):
            return annotation(inner[0], module, interpreter)
        if base == "Literal":
            values = [one.value if isinstance(one, ast.Constant) else COMPUTED for one in inner]
            same = {type(one).__name__ for one in values if one is not None}
            kind = _TYPES.get(same.pop(), "string") if len(same) == 1 else "string"
            given = [one for one in values if one is not None]
            # A word means any of several types.
            mixed = len({type(one) for one in given}) > 1 and COMPUTED not in given
            return Annotation(kind, choices=[str(one) for one in given] if mixed else given)
        several = [one for one in inner if ast.unparse(one) != "..."]
        if base in ("tuple", "Tuple") and len(several) == len(inner) > 1:
            said = [annotation(one, module, interpreter) for one in inner]
            is_mixed = len({one.type for one in said}) > 1
            kind = "string" if is_mixed else said[0].type
            return Annotation(kind, True, doubtful=is_mixed, nargs=len(inner))
        if base in _LISTS:
            one = annotation(inner[0], module, interpreter)
            return Annotation(one.type, True, one.choices, doubtful=one.doubtful, names=one.names)
        return Annotation(doubtful=True)
    name = module.origin(node).rpartition(".")[2]
    if name in _TYPES:
        return Annotation(_TYPES[name])
    found = members(node, module, interpreter)
    if not found and (named := interpreter.constant(node, module)) is not None:
        # A class that it names is searched in another module.
        return Annotation(**{**vars(annotation(*named, interpreter)), "inner": None})
    return Annotation(
        choices=[value for _, value in found],
        doubtful=not found,
        inner=node,
        names=[name for name, _ in found],
    )


def parsed(node: ast.expr) -> ast.expr:
    """An annotation that may be written as text; text that is not an expression stays text."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return node
    try:
        return ast.parse(node.value, mode="eval").body
    except SyntaxError:
        return node


def alternatives(node: ast.expr, module: Module) -> list[ast.expr]:
    """The parts of ``A | B``, ``Optional[A]`` and ``Union[A, B]``; the node itself otherwise."""
    if isinstance(node, ast.BinOp):
        return [*alternatives(node.left, module), *alternatives(node.right, module)]
    if isinstance(node, ast.Subscript):
        base = module.origin(node.value).rpartition(".")[2]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if base in ("Optional", "Union"):
            return [*inner, *([ast.Constant(None)] if base == "Optional" else [])]
    return [node]


def _union(parts: list[ast.expr], module: Module, interpreter: Interpreter) -> Annotation:
    nothing = [one for one in parts if isinstance(one, ast.Constant) and one.value is None]
    said = [annotation(one, module, interpreter) for one in parts if one not in nothing]
    if not said:
        return Annotation(doubtful=True)
    first = said[0]
    # Text as one of several takes every word; two other kinds decide at run time.
    doubtful = first.doubtful or len(said) > 1
    kind = first.type if len(said) == 1 else "string"
    choices = first.choices if len(said) == 1 else ()
    return Annotation(kind, first.many, choices, bool(nothing), doubtful, first.names, first.inner)


def members(node: ast.expr, module: Module, interpreter: Interpreter) -> list[tuple[str, object]]:
    """The names and values of an enumeration."""
    found = interpreter.definition(node, module)
    if found is None or not isinstance(found.node, ast.ClassDef):
        return []
    bases = [found.module.origin(base).rpartition(".")[2] for base in found.node.bases]
    if not any(base.endswith("Enum") for base in bases):
        return []
    return [
        (target.id, interpreter.value(item.value, {}, found.module))
        for item in found.node.body
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name)
    ]


def lineage(
    found: Definition,
    interpreter: Interpreter,
    program: Program,
    is_top: Callable[[Definition], bool] = lambda _: False,
    top: type = object,
) -> list[type]:
    """Stand-ins for a class and its base classes, in the order in which Python asks them.

    Each has its definition as ``found``. A program with a base class that is not known is open.

    Args:
        found: The class.
        interpreter: Knows the classes.
        program: What the class belongs to.
        is_top: Whether a base class is the last one to look at.
        top: What stands for it.
    """
    made: dict[tuple[str, str], type] = {}

    def mirrored(one: Definition) -> type:
        key = one.module.file, one.node.name
        if key in made or is_top(one):
            program.strict = program.strict and made.get(key) is not object
            return made.get(key, top)
        # A class that names itself as its base ends here.
        made[key] = object
        bases: list[type] = []
        for base in one.node.bases if isinstance(one.node, ast.ClassDef) else ():
            bare = base.value if isinstance(base, ast.Subscript) else base
            if one.module.origin(bare).rpartition(".")[2] in _SILENT:
                continue
            above = interpreter.definition(bare, one.module)
            if above is not None and isinstance(above.node, ast.ClassDef):
                bases.append(mirrored(above))
            else:
                program.strict = False
        try:
            made[key] = type(one.node.name, tuple(bases), {"found": one})
        except TypeError:
            # Python refuses the class, too.
            program.strict = False
            made[key] = type(one.node.name, (), {"found": one})
        return made[key]

    return [one for one in mirrored(found).__mro__ if "found" in vars(one)]


def _fields(
    found: Definition, interpreter: Interpreter, program: Program
) -> Iterator[tuple[ast.AnnAssign, Module]]:
    """The annotated fields, those of base classes first; a later one replaces an earlier one."""
    made: dict[str, tuple[ast.AnnAssign, Module]] = {}
    program.strict = program.strict and isinstance(found.node, ast.ClassDef)
    for kind in reversed(lineage(found, interpreter, program)):
        one: Definition = vars(kind)["found"]
        for item in one.node.body if isinstance(one.node, ast.ClassDef) else ():
            if isinstance(item, ast.AnnAssign):
                made[ast.unparse(item.target)] = (item, one.module)
    yield from made.values()


def settable(
    found: Definition, interpreter: Interpreter, program: Program
) -> Iterator[tuple[str, ast.AnnAssign, Module, Said]]:
    """The fields that the constructor takes, each with its default, help and place.

    A field without a default has ``...``.
    """
    for node, module in _fields(found, interpreter, program):
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        text = ast.unparse(node.annotation)
        value, help_, init = _default_of(node.value, module, interpreter)
        if name and "ClassVar" not in text and "InitVar" not in text and init is not False:
            yield name, node, module, {"default": value, "help": help_, "place": module.place(node)}


def taken(
    found: Definition, interpreter: Interpreter, program: Program, bound: int = 0
) -> Iterator[tuple[str, ast.AnnAssign | ast.arg, Module, Said]]:
    """The same for a class or a function, whose first ``bound`` parameters are given."""
    node, module = found.node, found.module
    if isinstance(node, ast.ClassDef):
        yield from settable(found, interpreter, program)
        return
    for one, default in parameters(node, bound):
        value = ... if default is None else interpreter.value(default, {}, module)
        yield one.arg, one, module, {"default": value, "place": module.place(one)}
    if node.args.vararg or node.args.kwarg:
        program.strict = False


def parameters(node: ast.FunctionDef, bound: int = 0) -> list[tuple[ast.arg, ast.expr | None]]:
    """The parameters of a function, each with its default; the first ``bound`` are given."""
    names = [*node.args.posonlyargs, *node.args.args]
    defaults: list[ast.expr | None] = [None] * (len(names) - len(node.args.defaults))
    pairs = [*zip(names, [*defaults, *node.args.defaults], strict=True)]
    return [*pairs[bound:], *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]


def _default_of(
    node: ast.expr | None, module: Module, interpreter: Interpreter
) -> tuple[Any, object, object]:
    """The default (``...`` for none), the help text, and whether it is set by the constructor."""
    if node is None:
        return ..., "", True
    if not (isinstance(node, ast.Call) and module.origin(node.func).rpartition(".")[2] in _FIELDS):
        return interpreter.value(node, {}, module), "", True
    said = {one.arg: one.value for one in node.keywords if one.arg}
    value: Any = ...
    if "default" in said:
        value = interpreter.value(said["default"], {}, module)
    elif "default_factory" in said or node.args:
        factory = said.get("default_factory")
        lambda_ = factory.body if isinstance(factory, ast.Lambda) else None
        empty: dict[str, object] = {"list": [], "dict": {}, "tuple": []}
        name = factory.id if isinstance(factory, ast.Name) else ""
        value = empty[name] if name in empty else interpreter.value(lambda_, {}, module)
    metadata = interpreter.value(said.get("metadata"), {}, module)
    help_ = metadata.get("help", "") if isinstance(metadata, dict) else ""
    if "help" in said:
        help_ = interpreter.value(said["help"], {}, module)
    init = interpreter.value(said["init"], {}, module) if "init" in said else True
    return value, help_, init


def _aliases(node: ast.expr | None, module: Module, interpreter: Interpreter) -> list[str]:
    """Further spellings of a field: ``HfArg(aliases=["--size"])``."""
    said = given(node, "aliases") or given(node, "alias")
    value = interpreter.value(said, {}, module)
    listed = value if isinstance(value, list) else [value]
    return [one for one in listed if isinstance(one, str) and one.startswith("-")]
