"""What one class, or the functions of one module, offer."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from fdl.api_ref.entries import FUNCTIONS, Entry, Signature
from fdl.api_ref.exports import Exports
from fdl.api_ref.signatures import (
    Function,
    annotation,
    decorators,
    makes_fluent,
    parameter,
    parameters,
    returned,
)

_ENUMS = ("Enum", "Flag", "IntEnum", "IntFlag", "StrEnum", "ReprEnum")
_FINISHERS = ("build", "done")
_FENCED = re.compile(r"^( *)```[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_DOCTEST = re.compile(r"^ *>>> .*(?:\n(?! *$).*)*", re.MULTILINE)


def public_definitions(tree: ast.Module) -> tuple[list[ast.ClassDef], list[Function]]:
    """The public classes and functions at the top of a module, also below ``if`` and ``try``."""
    classes, functions = [], []
    for one in _statements(tree.body):
        if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
            classes.append(one)
        elif isinstance(one, Function) and _is_method(one):
            functions.append(one)
    return classes, functions


def class_entry(
    definition: ast.ClassDef, tree: ast.Module, file: str, category: str, exports: Exports
) -> Entry:
    """The entry of a class; ``tree`` is the module around it."""
    owner = f"{definition.name}."
    members = [one for one in _statements(definition.body) if isinstance(one, Function)]
    public = [one for one in members if _is_method(one)]
    makers = [one for one in public if _makes_one(one, definition.name)]
    fluent = frozenset(
        one.name
        for one in _statements(tree.body)
        if isinstance(one, Function) and makes_fluent(one)
    )
    return Entry(
        name=definition.name,
        category=category,
        module=exports.shortest(exports.module_of(file), definition.name),
        file=file,
        line=definition.lineno,
        doc=_first_line(definition),
        docstring=_docstring(definition),
        traits=tuple(_bases(definition)),
        constructors=(
            *_own_constructor(definition, members),
            *(_method(one, owner, fluent) for one in makers),
        ),
        builder_methods=tuple(one.name for one in public if _builds(one.name)),
        methods=tuple(_method(one, owner, fluent) for one in public if one not in makers),
        examples=tuple(_examples([definition, *public])),
    )


def functions_entry(
    functions: Sequence[Function], tree: ast.Module, file: str, category: str, exports: Exports
) -> Entry:
    """The entry of a module's functions; see :func:`class_entry`."""
    module = exports.module_of(file)
    return Entry(
        name=f"{module}{FUNCTIONS}",
        category=category,
        module=module,
        file=file,
        line=functions[0].lineno,
        doc=_first_line(tree),
        docstring=_docstring(tree),
        methods=tuple(_function(one, module, exports) for one in functions),
        examples=tuple(_examples([tree, *functions])),
    )


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for one in body:
        if isinstance(one, ast.If):
            yield from _statements([*one.body, *one.orelse])
        elif isinstance(one, ast.Try):
            handled = [line for handler in one.handlers for line in handler.body]
            yield from _statements([*one.body, *handled, *one.orelse])
        else:
            yield one


def _is_method(function: Function) -> bool:
    """Whether it is public, and neither one case of an overload nor a property's setter."""
    return not function.name.startswith("_") and not {"overload", "setter", "deleter"}.intersection(
        decorators(function)
    )


def _builds(name: str) -> bool:
    return name in _FINISHERS or name.startswith("with_")


def _makes_one(function: Function, name: str) -> bool:
    """Whether it is a class method that returns an object of the class."""
    known = re.findall(r"\w+", returned(function))
    return "classmethod" in decorators(function) and known[:1] in ([name], ["Self"])


def _own_constructor(definition: ast.ClassDef, members: Iterable[Function]) -> Iterator[Signature]:
    """The call of the class itself, or the members of an enum."""
    if any(base in _ENUMS for base in _last_names(definition)):
        assigned = (one for one in definition.body if isinstance(one, ast.Assign))
        for target in (target for one in assigned for target in one.targets):
            if isinstance(target, ast.Name) and not target.id.startswith("_"):
                yield Signature(target.id, f"{definition.name}.{target.id}")
        return
    for one in members:
        if one.name == "__init__":
            sig = f"{definition.name}({parameters(one, bound=True)})"
            yield Signature("__init__", sig, _first_line(one), _docstring(one))
            return
    named_tuple = "NamedTuple" in _last_names(definition)
    if named_tuple or "dataclass" in decorators(definition):
        yield Signature("__init__", f"{definition.name}({', '.join(_fields(definition))})")


def _fields(definition: ast.ClassDef) -> Iterator[str]:
    """The parameters that a data class takes; those of its bases stand with these."""
    calls = (one for one in definition.decorator_list if isinstance(one, ast.Call))
    options = (option for call in calls for option in call.keywords)
    if any(one.arg == "kw_only" and _is(one.value, True) for one in options):
        yield "*"
    for one in definition.body:
        if not (isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)):
            continue
        kind = annotation(one.annotation)
        if kind.rpartition(".")[2] == "KW_ONLY":
            yield "*"
        elif "ClassVar" not in kind:
            yield from _field(one.target.id, one.annotation, one.value)


def _field(name: str, kind: ast.expr, value: ast.expr | None) -> Iterator[str]:
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
        given = {one.arg: one.value for one in value.keywords}
        if _is(given.get("init"), False):
            return
        value = given.get("default")
        if "default_factory" in given:
            value = ast.Call(given["default_factory"], [], [])
    yield parameter(name, kind, value)


def _is(expression: ast.expr | None, value: object) -> bool:
    return isinstance(expression, ast.Constant) and expression.value is value


def _bases(definition: ast.ClassDef) -> Iterator[str]:
    for base in definition.bases:
        shown = ast.unparse(base)
        if not shown.rpartition(".")[2].startswith("_") and shown != "object":
            yield shown


def _last_names(definition: ast.ClassDef) -> list[str]:
    return [base.rpartition(".")[2] for base in _bases(definition)]


def _method(function: Function, owner: str, fluent: frozenset[str]) -> Signature:
    result = returned(function, fluent)
    known = decorators(function)
    if "property" in known or "cached_property" in known:
        sig = f"{function.name}: {result}" if result else function.name
    else:
        on_class = "staticmethod" in known or "classmethod" in known
        taken = parameters(function, bound="staticmethod" not in known)
        sig = _call(f"{owner if on_class else ''}{function.name}", taken, result)
    return _signature(function, sig)


def _function(function: Function, module: str, exports: Exports) -> Signature:
    """A function, behind the module to import it from where that is not its own."""
    place = exports.shortest(module, function.name)
    name = function.name if place == module else f"{place}.{function.name}"
    sig = _call(name, parameters(function, bound=False), returned(function))
    return _signature(function, sig)


def _call(name: str, taken: str, result: str) -> str:
    return f"{name}({taken}) -> {result}" if result else f"{name}({taken})"


def _signature(function: Function, sig: str) -> Signature:
    sig = f"async {sig}" if isinstance(function, ast.AsyncFunctionDef) else sig
    return Signature(function.name, sig, _first_line(function), _docstring(function))


def _first_line(definition: Function | ast.ClassDef | ast.Module) -> str:
    return _docstring(definition).partition("\n")[0].strip()


def _docstring(definition: Function | ast.ClassDef | ast.Module) -> str:
    return ast.get_docstring(definition) or ""


def _examples(definitions: Iterable[Function | ast.ClassDef | ast.Module]) -> Iterator[str]:
    """Doctests and fenced blocks, in the order they stand in."""
    for one in definitions:
        text = _docstring(one)
        found = [(match.start(), match[2]) for match in _FENCED.finditer(text)]
        outside = _FENCED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        found += [(match.start(), match[0]) for match in _DOCTEST.finditer(outside)]
        for _, code in sorted(found):
            yield textwrap.dedent(code).strip("\n")
