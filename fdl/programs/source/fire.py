"""Fire: parameters of functions, tables of functions, and classes with their methods."""

from __future__ import annotations

import ast

from fdl.programs.source.interpret import Definition
from fdl.programs.source.records import taken
from fdl.programs.source.rows import Program
from fdl.programs.source.source import given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.programs.source.interpret import Call, Interpreter


def read(call: Call, interpreter: Interpreter) -> Program | None:
    """``fire.Fire(fit)``: what it takes; None if nothing is known."""
    program = Program()
    component = given(call.node, "component", 0)
    if component is None:
        for name, node in call.module.definitions.items():
            _add(program, name, Definition(node, call.module), interpreter)
        return program if program.commands else None
    if isinstance(component, ast.Dict):
        for key, value in zip(component.keys, component.values, strict=True):
            word = interpreter.value(key, {}, call.module)
            if isinstance(word, str):
                _add(program, word, interpreter.definition(value, call.module), interpreter)
        return program if program.commands else None
    found = interpreter.definition(component, call.module)
    if found is None:
        return None
    _component(program, found, interpreter)
    is_function = isinstance(found.node, ast.FunctionDef)
    return program if is_function or program.options or program.commands else None


def _add(program: Program, name: str, found: Definition | None, interpreter: Interpreter) -> None:
    program.style, program.commands[name] = "fire", Program()
    if found is None:
        _open(program.commands[name])
    else:
        _component(program.commands[name], found, interpreter)


def _open(program: Program) -> None:
    program.style, program.strict = "fire", False


def _component(program: Program, found: Definition, interpreter: Interpreter) -> None:
    """A function, or a class: the parameters of its constructor, and its methods."""
    program.style = "fire"
    if isinstance(found.node, ast.FunctionDef):
        _parameters(program, found, interpreter)
        return
    program.strict = False
    for node in found.node.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        inner = Definition(node, found.module)
        if node.name == "__init__":
            _parameters(program, inner, interpreter, bound=1)
        elif not node.name.startswith("_"):
            program.commands[node.name] = method = Program()
            method.style = "fire"
            is_static = any("static" in ast.unparse(one) for one in node.decorator_list)
            _parameters(method, inner, interpreter, bound=0 if is_static else 1)


def _parameters(
    program: Program, found: Definition, interpreter: Interpreter, bound: int = 0
) -> None:
    """Each parameter is a flag, also one without a default."""
    for name, _, _, said in taken(found, interpreter, program, bound):
        default = said["default"]
        kind = {bool: "bool", int: "int", float: "float"}.get(type(default), "string")
        # Fire takes any value for any parameter, so the type is only a guess from the default.
        program.option(
            [f"--{name}", f"--{name.replace('_', '-')}"],
            type=kind,
            required=default is ...,
            negatives=[f"--no{name}"] if kind == "bool" else (),
            doubtful=True,
            literal="python",
            mapping="literal",
            **said,
        )
