"""How a function or class is called, as one line of text."""

from __future__ import annotations

import ast

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters(function: Function, *, bound: bool) -> str:
    """The parameters of a definition; without the first, which the call supplies, if ``bound``."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    shown = []
    for place, one in enumerate(positional):
        default = arguments.defaults[place - first_default] if place >= first_default else None
        shown.append(parameter(one.arg, one.annotation, default))
        if place + 1 == len(arguments.posonlyargs):
            shown.append("/")
    if bound:
        # A lone `/` behind a left-out `self` says nothing any more.
        shown = shown[2:] if shown[1:2] == ["/"] else shown[1:]
    if arguments.vararg:
        shown.append(parameter(f"*{arguments.vararg.arg}", arguments.vararg.annotation, None))
    elif arguments.kwonlyargs:
        shown.append("*")
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        shown.append(parameter(one.arg, one.annotation, default))
    if arguments.kwarg:
        shown.append(parameter(f"**{arguments.kwarg.arg}", arguments.kwarg.annotation, None))
    return ", ".join(shown)


def parameter(name: str, kind: ast.expr | None, default: ast.expr | None) -> str:
    """One parameter: ``name: str = "x"``."""
    if kind is None:
        return name if default is None else f"{name}={ast.unparse(default)}"
    shown = f"{name}: {annotation(kind)}"
    return shown if default is None else f"{shown} = {ast.unparse(default)}"


def returned(function: Function, fluent: frozenset[str] = frozenset()) -> str:
    """The annotated result, or empty; ``fluent`` decorators make a method return its object."""
    if fluent.intersection(decorators(function)):
        return "Self"
    return "" if function.returns is None else annotation(function.returns)


def decorators(definition: Function | ast.ClassDef) -> list[str]:
    """The last names of the decorators: ``dataclass`` for ``@dataclasses.dataclass(...)``."""
    bare = [one.func if isinstance(one, ast.Call) else one for one in definition.decorator_list]
    return [ast.unparse(one).rpartition(".")[2] for one in bare]


def makes_fluent(decorator: Function) -> bool:
    """Whether a decorator turns a method into one that returns its object.

    Its annotation says so: it returns ``Callable[Concatenate[T, P], T]``.
    """
    match decorator.returns:
        case ast.Subscript(
            slice=ast.Tuple(
                elts=[
                    ast.Subscript(slice=ast.Tuple(elts=[ast.Name(id=taken), *_])),
                    ast.Name(id=given),
                ]
            )
        ):
            return taken == given
    return False


def annotation(expression: ast.expr) -> str:
    """An annotation as source, without the quotes that keep it from being evaluated."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        return expression.value
    return ast.unparse(expression)
