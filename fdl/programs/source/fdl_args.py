"""Classes of FdlArgs: the parameters that the class makes of itself, and so the same document."""

# pathlib is imported for the one default that is a path.
# ruff: noqa: PTH118
from __future__ import annotations

import ast
import os
from pathlib import PurePath

from fdl.base.light_record import Record
from fdl.programs.parameters.parameter import UNSET, Parameter, collapsed_last
from fdl.programs.source.interpret import Interpreter
from fdl.programs.source.records import annotation, lineage, members
from fdl.programs.source.rows import COMPUTED, Program, fitting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fdl.programs.parameters.parameter import Shape
    from fdl.programs.source.interpret import Call, Definition, Scope
    from fdl.programs.source.records import Annotation
    from fdl.programs.source.source import Library, Module

_HOME = os.path.join("fdl", "programs", "args", "")
_DECIDING = frozenset(
    ("__init_subclass__", "__pydantic_init_subclass__", "_description", "model_config",
     "parse_or_schema", "schema")
)  # fmt: skip
"""What makes a class say something else than its fields."""
_KEYS = {
    "option": ("default", "short", "help", "choices", "env", "completer", "group"),
    "arg": ("default", "help", "choices", "variadic", "completer"),
}
_WORDS = {str: "string", int: "int", float: "float"}
_PATHS = tuple(f"{module}{name}" for module in ("", "pathlib.") for name in ("Path", "PurePath"))


class Field(Record):
    """A field of a class: its statement, the text below it, and where it stands."""

    node: ast.AnnAssign
    text: str
    module: Module


class _Base:
    """Stands for FdlArgs in the order of the classes."""


def read(call: Call, interpreter: Interpreter) -> Program | None:
    """What the class of ``Args.parse_or_schema()`` declares; None if the class is not known."""
    owner = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
    found = interpreter.definition(owner, call.module) if owner is not None else None
    if found is None or not isinstance(found.node, ast.ClassDef):
        return None
    made = _Reader(interpreter).read(found)
    words = [ast.unparse(one) for one in (*call.node.args, *call.node.keywords)]
    given = call.get(0, "argv")
    made.strict = made.strict and (given is None or words == ["sys.argv[1:]"])
    return made


class _Reader:
    """Reads one class with its base classes. ``whole`` is false if that is not all."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._values = _Values(interpreter.library)
        self._whole = True
        self._fields: dict[str, Field] = {}
        self._collapsed: dict[str, str] = {}

    def read(self, found: Definition) -> Program:
        made = Program()
        kinds = lineage(found, self._interpreter, made, _is_base, _Base)
        order = [(vars(one)["found"], issubclass(one, _Base)) for one in kinds]
        texts = [ast.get_docstring(one.node) for one, is_model in order if is_model]
        made.description = " ".join(next(filter(None, texts), "").split())
        made.origins = True
        for one, is_model in reversed(order):
            is_plain = not (one.node.decorator_list or one.node.keywords)
            # Below `if` and `try`, another class may have the name.
            self._whole = self._whole and is_plain and one.node in one.module.tree.body
            self._body(one, is_model=is_model)
        parameters = [self._parameter(name, one) for name, one in self._fields.items()]
        known = [one for one in parameters if one is not None]
        made.arguments = [one for one in known if one.kind == "arg"]
        shown = collapsed_last(known, self._collapsed)
        made.options = {one.name: one for one in shown if one.kind == "option"}
        made.collapsed = self._collapsed
        is_ours = all(is_model for _, is_model in order[:1])
        made.strict = made.strict and self._whole and is_ours
        return made

    def _body(self, found: Definition, *, is_model: bool) -> None:
        statements = found.node.body
        for place, node in enumerate(statements):
            targets = node.targets if isinstance(node, ast.Assign) else []
            target = node.target if isinstance(node, ast.AnnAssign) else next(iter(targets), None)
            name = target.id if isinstance(target, ast.Name) else getattr(node, "name", "")
            known = (ast.AnnAssign, ast.Assign, ast.FunctionDef, ast.ClassDef, ast.Pass, ast.Expr)
            if not isinstance(node, known) or name in _DECIDING:
                self._whole = False
            elif name == "collapsed" and isinstance(node, ast.AnnAssign | ast.Assign):
                self._add_collapsed(self._value(node.value, found.module))
            elif isinstance(node, ast.AnnAssign) and not _is_private(name, node):
                self._whole = self._whole and is_model
                text = _text(statements[place + 1]) if len(statements) > place + 1 else ""
                self._fields[name] = Field(node, text, found.module)

    def _add_collapsed(self, value: object) -> None:
        if isinstance(value, dict) and all(isinstance(one, str) for one in value.values()):
            self._collapsed.update(value)
        else:
            self._whole = False

    def _parameter(self, name: str, field: Field) -> Parameter | None:
        declared = self._marks(field.node.value, field.module)
        if declared is None or not declared[1].keys() <= {*_KEYS[declared[0]]}:
            self._whole = False
            return None
        kind, marks = declared
        said = self._described(field)
        type_, choices = _choices(said, marks.get("choices"))
        computed = ["type"] if said.doubtful else []
        default = _default(said, type_, marks.get("default", UNSET), is_chosen=bool(choices))
        help_ = marks.get("help") or field.text
        for key, value in (("default", default), ("choices", choices), ("help", help_)):
            computed += [key] if value is COMPUTED else []
        for key in ("short", "env", "completer", "group", "variadic"):
            if marks.get(key) is COMPUTED:
                self._whole = False
                del marks[key]
        return Parameter(
            name.replace("_", "-"),
            kind="arg" if kind == "arg" else "option",
            type=type_,
            shape=_shape(said),
            default=UNSET if default is COMPUTED else default,
            short=marks.get("short"),
            choices=() if choices is COMPUTED else choices,
            env=marks.get("env"),
            variadic=bool(marks.get("variadic")),
            required=False if kind == "arg" and default is COMPUTED else None,
            completer=marks.get("completer"),
            help=" ".join(help_.split()) if isinstance(help_, str) else "",
            group=" ".join(str(marks.get("group", "")).split()),
            computed=computed,
        )

    def _described(self, field: Field) -> Annotation:
        node = field.node.annotation
        if field.module.origin(node) == "list":
            node = ast.Subscript(node, ast.Name("str"), ast.Load())
        return annotation(node, field.module, self._interpreter)

    def _marks(self, node: ast.expr | None, module: Module) -> tuple[str, dict[str, Any]] | None:
        """``option`` or ``arg``, and what the call says; None for another expression."""
        if not isinstance(node, ast.Call):
            return None
        said = self._marker(node.func, module)
        if said is None or node.args:
            return None
        return said[0], {**said[1], **self._named(node, module)}

    def _marker(self, node: ast.expr, module: Module) -> tuple[str, dict[str, Any]] | None:
        """The same for what is called, which may be ``partial(option, group="Data")``."""
        for kind in _KEYS:
            found = self._interpreter.definition(node, module)
            if found is not None and _is_of_fdl(found, kind):
                return kind, {}
        made, home = self._interpreter.constant(node, module) or (None, module)
        if not isinstance(made, ast.Call):
            return None
        if home.origin(made.func) != "functools.partial" or len(made.args) != 1:
            return None
        said = self._marker(made.args[0], home)
        return (said[0], {**said[1], **self._named(made, home)}) if said else None

    def _named(self, node: ast.Call, module: Module) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for one in node.keywords:
            value = self._value(one.value, module)
            if one.arg is not None:
                named[one.arg] = value
            elif isinstance(value, dict):
                named.update(value)
            else:
                self._whole = False
        return named

    def _value(self, node: ast.expr | None, module: Module) -> Any:
        return self._values.value(node, {}, module)


class _Values(Interpreter):
    """Knows members of enumerations, and paths, as they are typed."""

    def __init__(self, library: Library) -> None:
        super().__init__(library, {}, lambda *_: None)

    def value(self, node: ast.expr | None, scope: Scope, module: Module) -> Any:
        if isinstance(node, ast.Attribute):
            for name, value in members(node.value, module, self):
                if name == node.attr:
                    return value
            if named := self.constant(node, module):
                return self.value(named[0], {}, named[1])
        elif isinstance(node, ast.Call) and module.origin(node.func) in _PATHS:
            parts = [self.value(one, scope, module) for one in node.args]
            return _path(*parts) if all(isinstance(one, str) for one in parts) else COMPUTED
        return super().value(node, scope, module)


def _is_base(found: Definition) -> bool:
    return _is_of_fdl(found, "FdlArgs")


def _is_of_fdl(found: Definition, name: str) -> bool:
    return found.node.name == name and _HOME in found.module.file


def _is_private(name: str, node: ast.AnnAssign) -> bool:
    """Whether an annotated name is no field."""
    return not name or name.startswith("_") or "ClassVar" in ast.unparse(node.annotation)


def _text(node: ast.stmt) -> str:
    """The text that stands below a field."""
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _path(*parts: str) -> str:
    return str(PurePath(*parts))


def _shape(said: Annotation) -> Shape:
    if said.many:
        return "list"
    if said.type == "bool":
        return "flag"
    return "optional" if said.optional else "value"


def _choices(said: Annotation, given: object) -> tuple[str, Any]:
    """The type of one value and the choices, or ``COMPUTED`` in place of the choices."""
    if isinstance(given, dict | list):
        # What is empty where it is written is filled elsewhere.
        known = given and not any(one is COMPUTED for one in given)
        return said.type, list(given) if known else COMPUTED
    own = list(said.choices) if isinstance(said.choices, list) else []
    if given is COMPUTED or any(one is COMPUTED for one in own):
        return said.type, COMPUTED
    kinds = {type(one) for one in own}
    return _WORDS.get(kinds.pop(), "string") if len(kinds) == 1 else said.type, own


def _default(said: Annotation, type_: str, value: Any, *, is_chosen: bool) -> Any:
    """A default as a value of its type; ``COMPUTED`` for what cannot be one."""
    if value is UNSET or value is None:
        return UNSET
    fits = fitting(value, type_, many=said.many)
    if fits is COMPUTED:
        return COMPUTED
    kind: Any = {"path": _path, "float": float}.get(type_)
    if kind is None or is_chosen:
        return fits
    return [kind(one) for one in fits] if said.many else kind(fits)
