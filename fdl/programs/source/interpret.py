"""Follows the statements of a script as far as they declare arguments.

Objects of libraries are stand-ins (``Thing``) whose methods record what is declared. Literals and
simple expressions of them have their values; everything else is ``COMPUTED``. Both branches of an
``if`` are followed if the source does not decide it. Loops over literals are unrolled. A function
is followed if a parser is passed to it or may come back from it.
"""

from __future__ import annotations

import ast
import operator

from fdl.base.light_record import Record
from fdl.programs.source.rows import COMPUTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fdl.programs.source.source import Library, Module

    Scope = dict[str, Any]

_DEEPEST = 8
_MOST_TURNS = 64
_MOST_STEPS = 20_000
_LONGEST = 10_000
"""Characters of the text or of the written list that an operation may make."""
_LONGEST_FORM = 4
"""Characters of the format of a value, such as ``03d``; a long one may ask for a huge text."""


def _product(left: Any, right: Any) -> Any:
    """``left * right``, unless that repeats a text or a list very often.

    Raises:
        OverflowError: It does.
    """
    for one, times in ((left, right), (right, left)):
        if isinstance(one, str | list) and len(one) * times > _LONGEST:
            raise OverflowError
    return left * right


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _product,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Call(Record):
    """A call with evaluated arguments.

    Attributes:
        arguments: The positional ones.
        named: The named ones.
        place: ``file:line``.
        whole: Whether all arguments are known; ``*args`` and ``**kwargs`` are not.
        module: Where it stands.
        node: The call itself.
    """

    arguments: Sequence[Any]
    named: dict[str, Any]
    place: str
    whole: bool
    module: Module
    node: ast.Call

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by its position or name."""
        if len(self.arguments) > position:
            return self.arguments[position]
        return self.named.get(name, default)


class Thing:
    """A stand-in for an object of a library; its methods are ``do_NAME(call)``."""

    def call(self, name: str, call: Call) -> Any:
        """Call a method; an unknown one returns nothing that is known."""
        method = getattr(self, f"do_{name}", None)
        return method(call) if method else COMPUTED


class Definition(Record):
    """A function or class of the source, and its module."""

    node: ast.FunctionDef | ast.ClassDef
    module: Module


class Interpreter:
    """Follows one program.

    Args:
        library: Opens modules.
        known: Dotted name of a library's function or class -> its stand-in, called with the call.
        decorated: Called for each function with decorators and the names known before it; what it
            returns is the function's stand-in.
    """

    def __init__(
        self,
        library: Library,
        known: dict[str, Callable[[Call], Any]],
        decorated: Callable[[Definition, Interpreter, Scope], Thing | None],
    ) -> None:
        self.library = library
        self._known = known
        self._decorated = decorated
        self._scopes: dict[str, Scope] = {}
        self._depth = 0
        self._steps = 0

    def run(self, module: Module, function: str = "") -> None:
        """Follow a module, then one of its functions if it is the entry point."""
        scope = self._followed(module)
        found = self.definition(ast.Name(function), module) if function else None
        if found is not None and found.module is not module:
            self.run(found.module, function)
        elif found is not None and isinstance(found.node, ast.FunctionDef):
            self._block(found.node.body, dict(scope), module)

    def _followed(self, module: Module) -> Scope:
        """What the names of a module stand for at its end; it is followed once."""
        if module.file not in self._scopes:
            self._scopes[module.file] = {}
            self._block(module.tree.body, self._scopes[module.file], module)
        return self._scopes[module.file]

    def at_end(self, name: ast.expr, module: Module) -> Any:
        """What a name stands for when its module has run: in this file, or where it comes from."""
        home = self._named(name, module)
        return self._followed(home[0]).get(home[1], COMPUTED) if home else COMPUTED

    def constant(self, name: ast.expr, module: Module) -> tuple[ast.expr, Module] | None:
        """The only expression that a name at the top of a file stands for, and the file."""
        home = self._named(name, module)
        if home is None or home[1] not in home[0].constants or home[1] in home[0].changing:
            return None
        return home[0].constants[home[1]], home[0]

    def definition(self, name: ast.expr, module: Module) -> Definition | None:
        """The function or class that an expression names, in the project or in a package."""
        if isinstance(name, ast.Name) and name.id in module.definitions:
            return Definition(module.definitions[name.id], module)
        # `a.b.C` may also be a class in a module that `a/__init__.py` imports.
        home = self._named(name, module)
        found = home[0].definitions.get(home[1]) if home else None
        return Definition(found, home[0]) if home and found else None

    def _named(self, name: ast.expr, module: Module) -> tuple[Module, str] | None:
        """The module that defines what an expression names, and its name there."""
        parent, last = _apart(module.origin(name))
        found = self.library.find(parent, module) if parent else module
        return self._home(found, last, set()) if found else None

    def _home(self, module: Module, name: str, seen: set[str]) -> tuple[Module, str] | None:
        """The module that defines what a name of another one stands for, and its name there."""
        if module.file in seen:
            return None
        seen.add(module.file)
        if name in module.definitions or name in module.constants:
            return module, name
        source, original = module.imports.get(name, ("", ""))
        found = self.library.find(source, module) if source and original else None
        return self._home(found, original, seen) if found else None

    def value(self, node: ast.expr | None, scope: Scope, module: Module) -> Any:
        """The value of an expression, a stand-in, or ``COMPUTED``."""
        self._steps += 1
        if node is None or self._steps > _MOST_STEPS:
            return COMPUTED
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._name(node, scope, module)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return self._listed(node.elts, scope, module)
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return self._comprehended(node, node.generators, dict(scope), module)
        if isinstance(node, ast.Subscript):
            return self._item(node, scope, module)
        if isinstance(node, ast.Dict):
            keys = [self.value(key, scope, module) for key in node.keys]
            texts = all(isinstance(key, str | int | float) for key in keys)
            values = [self.value(one, scope, module) for one in node.values]
            return dict(zip(keys, values, strict=True)) if texts else COMPUTED
        if isinstance(node, ast.UnaryOp):
            inner = self.value(node.operand, scope, module)
            if isinstance(node.op, ast.USub) and isinstance(inner, int | float):
                return -inner
            return (
                not inner if isinstance(node.op, ast.Not) and isinstance(inner, bool) else COMPUTED
            )
        if isinstance(node, ast.BinOp | ast.JoinedStr):
            return self._combined(node, scope, module)
        if isinstance(node, ast.Call):
            return self._call(node, scope, module)
        if isinstance(node, ast.NamedExpr):
            return self._bind(node.target, self.value(node.value, scope, module), scope)
        if isinstance(node, ast.Attribute | ast.IfExp | ast.BoolOp | ast.Compare | ast.Await):
            for one in ast.iter_child_nodes(node):
                # A call inside may declare something.
                self.value(one if isinstance(one, ast.expr) else None, scope, module)
        return COMPUTED

    def _name(self, node: ast.Name, scope: Scope, module: Module) -> Any:
        if node.id in scope:
            return scope[node.id]
        if node.id in module.constants:
            # A constant that refers to itself has no value.
            scope[node.id] = COMPUTED
            if node.id not in module.changing:
                scope[node.id] = self.value(module.constants[node.id], scope, module)
            return scope[node.id]
        found = self.constant(node, module) if node.id in module.imports else None
        return self.value(found[0], {}, found[1]) if found else COMPUTED

    def _listed(self, nodes: Sequence[ast.expr], scope: Scope, module: Module) -> Any:
        items: list[Any] = []
        for one in nodes:
            if not isinstance(one, ast.Starred):
                items.append(self.value(one, scope, module))
                continue
            several = self.value(one.value, scope, module)
            if not isinstance(several, list | dict):
                return COMPUTED
            items += several
        return items

    def _comprehended(
        self,
        node: ast.ListComp | ast.GeneratorExp,
        loops: Sequence[ast.comprehension],
        scope: Scope,
        module: Module,
    ) -> Any:
        """The items of ``[f"resnet{n}" for n in (18, 50)]``; one with a condition is computed."""
        if not loops:
            return [self.value(node.elt, scope, module)]
        values = self.value(loops[0].iter, scope, module)
        is_known = isinstance(values, list | dict) and len(values) <= _MOST_TURNS
        if not is_known or loops[0].ifs:
            return COMPUTED
        items: list[Any] = []
        for value in values:
            self._bind(loops[0].target, value, scope)
            made = self._comprehended(node, loops[1:], scope, module)
            if made is COMPUTED:
                return COMPUTED
            items += made
        return items

    def _item(self, node: ast.Subscript, scope: Scope, module: Module) -> Any:
        """``DEPTHS["small"]`` and ``SIZES[0]``."""
        holder = self.value(node.value, scope, module)
        key = self.value(node.slice, scope, module)
        if isinstance(holder, list | dict) and isinstance(key, str | int):
            return _tried(operator.getitem, holder, key)
        return COMPUTED

    def _combined(self, node: ast.BinOp | ast.JoinedStr, scope: Scope, module: Module) -> Any:
        if isinstance(node, ast.JoinedStr):
            return _joined("", [self._formatted(one, scope, module) for one in node.values])
        left = self.value(node.left, scope, module)
        right = self.value(node.right, scope, module)
        operation = _OPERATORS.get(type(node.op))
        simple = (str, int, float, list)
        if operation is None or not (isinstance(left, simple) and isinstance(right, simple)):
            return COMPUTED
        if isinstance(left, str) and isinstance(right, list):
            if COMPUTED in right:
                return COMPUTED
            # The values of a tuple are those of the text; a list is one value.
            right = tuple(right) if isinstance(node.right, ast.Tuple) else right
        made = _tried(operation, left, right)
        # A very long number cannot be written as text.
        text = _tried(str, made)
        return made if text is not COMPUTED and len(text) < _LONGEST else COMPUTED

    def _formatted(self, node: ast.expr, scope: Scope, module: Module) -> Any:
        """A part of an f-string as text."""
        if not isinstance(node, ast.FormattedValue):
            return self.value(node, scope, module)
        value = self.value(node.value, scope, module)
        form = self.value(node.format_spec, scope, module) if node.format_spec else ""
        is_known = isinstance(value, str | int | float) and isinstance(form, str)
        if not is_known or node.conversion >= 0 or len(form) > _LONGEST_FORM:
            return COMPUTED
        return _tried(format, value, form)

    def _call(self, node: ast.Call, scope: Scope, module: Module) -> Any:
        call = self.evaluated(node, scope, module)
        dotted = module.origin(node.func)
        last = dotted.rpartition(".")[2]
        # Classes that derive from one of these are usually called after it.
        kind = next((one for one in ("ArgumentParser", "Typer") if last.endswith(one)), "")
        for name in (dotted, f"*.{last}", f"*.{kind}"):
            if name in self._known:
                return self._known[name](call)
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value, scope, module)
            if isinstance(owner, Thing):
                return owner.call(node.func.attr, call)
            if isinstance(owner, str) and node.func.attr == "join" and call.arguments:
                return _joined(owner, call.arguments[0])
        elif isinstance(node.func, ast.Name) and isinstance(scope.get(node.func.id), Thing):
            return scope[node.func.id].call("call", call)
        elif isinstance(node.func, ast.Call):  # `app.command()(fit)`
            self.value(node.func, scope, module)
        is_plain = len(call.arguments) == 1 and not call.named
        if dotted in ("list", "tuple", "sorted", "set") and is_plain:
            only = call.arguments[0]
            if not isinstance(only, list | dict):
                return COMPUTED
            return _tried(sorted if dotted == "sorted" else list, only)
        if dotted == "range" and call.whole:
            return _tried(_short_range, *call.arguments)
        return self._follow(node, call, scope, module)

    def evaluated(self, node: ast.Call, scope: Scope, module: Module) -> Call:
        """A call with the values of its arguments."""
        arguments: list[Any] = []
        whole = True
        for one in node.args:
            if isinstance(one, ast.Starred):
                several = self.value(one.value, scope, module)
                whole = whole and isinstance(several, list)
                arguments += several if isinstance(several, list) else []
            else:
                arguments.append(self.value(one, scope, module))
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, scope, module)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, dict):
                named.update({str(key): one for key, one in value.items()})
            else:
                whole = False
        return Call(arguments, named, module.place(node), whole, module, node)

    def _follow(self, node: ast.Call, call: Call, scope: Scope, module: Module) -> Any:
        """Follow a function of the project, with its parameters bound to the arguments."""
        found = self.definition(node.func, module) or self._method(node.func, module)
        if found is None or not isinstance(found.node, ast.FunctionDef) or self._depth >= _DEEPEST:
            return COMPUTED
        # Only what a parser reaches, or what may make one, declares anything.
        things = any(isinstance(one, Thing) for one in (*call.arguments, *call.named.values()))
        if not things and found.module is not module and not _makes_parser(found.node):
            return COMPUTED
        names = [one.arg for one in (*found.node.args.posonlyargs, *found.node.args.args)]
        if names[:1] in (["self"], ["cls"]):
            names = names[1:]
        inner: Scope = dict.fromkeys(names, COMPUTED)
        defaults = found.node.args.defaults
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=False):
            inner[name] = self.value(default, {}, found.module)
        inner.update(zip(names, call.arguments, strict=False))
        inner.update(call.named)
        outer = scope if found.module is module and not found.node.args.args else {}
        self._depth += 1
        returned = self._block(found.node.body, {**outer, **inner}, found.module)
        self._depth -= 1
        return COMPUTED if returned is None else returned

    def _method(self, node: ast.expr, module: Module) -> Definition | None:
        """A static or class method: ``Model.add_arguments(parser)``."""
        if not isinstance(node, ast.Attribute):
            return None
        owner = self.definition(node.value, module)
        for item in owner.node.body if owner else ():
            if isinstance(item, ast.FunctionDef) and item.name == node.attr and owner:
                return Definition(item, owner.module)
        return None

    def _block(self, body: Sequence[ast.stmt], scope: Scope, module: Module) -> Any:
        """Follow statements; returns the last returned stand-in or value."""
        returned: Any = None
        for node in body:
            result = self._statement(node, scope, module)
            # Of several returns the one with a parser counts.
            if result is not None and not isinstance(returned, Thing):
                returned = result
        return returned

    def _statement(self, node: ast.stmt, scope: Scope, module: Module) -> Any:
        if isinstance(node, ast.Assign):
            value = self.value(node.value, scope, module)
            for target in node.targets:
                self._bind(target, value, scope)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, self.value(node.value, scope, module), scope)
        elif isinstance(node, ast.Expr):
            self.value(node.value, scope, module)
        elif isinstance(node, ast.Raise):
            self.value(node.exc, scope, module)
        elif isinstance(node, ast.Return):
            return self.value(node.value, scope, module) if node.value else None
        elif isinstance(node, ast.FunctionDef):
            if node.decorator_list:
                made = self._decorated(Definition(node, module), self, scope)
                scope[node.name] = made or COMPUTED
        elif isinstance(node, ast.If | ast.With | ast.Try | ast.While):
            blocks = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
            if isinstance(node, ast.If):
                decided = self._decided(node.test, scope, module)
                blocks = blocks[:2] if decided is None else [blocks[0 if decided else 1]]
            blocks += [handler.body for handler in getattr(node, "handlers", [])]
            results = [self._block(block, scope, module) for block in blocks]
            return next((one for one in results if one is not None), None)
        elif isinstance(node, ast.For):
            return self._loop(node, scope, module)
        return None

    def _decided(self, test: ast.expr, scope: Scope, module: Module) -> bool | None:
        """Whether a condition holds, if the source tells: ``parser is None``, a literal."""
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            value = self.value(test.left, scope, module)
            other = test.comparators[0]
            none = isinstance(other, ast.Constant) and other.value is None
            if none and (value is None or isinstance(value, Thing)):
                is_none = value is None
                if isinstance(test.ops[0], ast.Is):
                    return is_none
                return not is_none if isinstance(test.ops[0], ast.IsNot) else None
            return None
        value = self.value(test, scope, module)
        return bool(value) if isinstance(value, bool | Thing) else None

    def _loop(self, node: ast.For, scope: Scope, module: Module) -> Any:
        values = self.value(node.iter, scope, module)
        turns = list(values)[:_MOST_TURNS] if isinstance(values, list | dict) else [COMPUTED]
        returned = None
        for value in turns:
            self._bind(node.target, value, scope)
            returned = self._block(node.body, scope, module) or returned
        return returned

    def _bind(self, target: ast.expr, value: Any, scope: Scope) -> Any:
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            several = value if isinstance(value, list) else [COMPUTED] * len(target.elts)
            for one, part in zip(target.elts, several, strict=False):
                self._bind(one, part, scope)
        return value


def _apart(dotted: str) -> tuple[str, str]:
    """The module and the last name of a dotted one; the dots of a relative import stay."""
    rest = dotted.lstrip(".")
    parent, _, last = rest.rpartition(".")
    return dotted[: len(dotted) - len(rest)] + parent, last


def _joined(separator: str, parts: object) -> object:
    known = isinstance(parts, list) and all(isinstance(one, str) for one in parts)
    return separator.join(parts) if known and isinstance(parts, list) else COMPUTED


def _tried(operation: Callable[..., Any], *values: Any) -> Any:
    """What an operation makes of values; ``COMPUTED`` where it would end the program."""
    try:
        return operation(*values)
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return COMPUTED


def _short_range(*numbers: Any) -> object:
    found = range(*numbers)
    return list(found) if len(found) <= _MOST_TURNS else COMPUTED


def _makes_parser(node: ast.FunctionDef) -> bool:
    """Whether the body of a function mentions a parser."""
    names = (
        one.id if isinstance(one, ast.Name) else one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Name | ast.Attribute)
    )
    return any("ArgumentParser" in name or name == "parse_or_schema" for name in names)
