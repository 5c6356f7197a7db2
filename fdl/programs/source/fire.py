"""Fire: parameters of functions, tables of functions, and classes with their methods."""

from __future__ import annotations

import ast

from fdl.programs.source.interpret import Definition
from fdl.programs.source.records import parameters
from fdl.programs.source.rows import Program, Row
from fdl.programs.source.source import given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.programs.source.interpret import Call, Interpreter


def read(program: Program, call: Call, interpreter: Interpreter) -> bool:
    """``fire.Fire(fit)``: whether anything is known of what it takes."""
    component = given(call.node, "component", 0)
    if component is None:
        for name, node in call.module.definitions.items():
            _add(program, name, Definition(node, call.module), interpreter)
        return bool(program.commands)
    if isinstance(component, ast.Dict):
        for key, value in zip(component.keys, component.values, strict=True):
            word = interpreter.value(key, {}, call.module)
            if isinstance(word, str):
                _add(program, word, interpreter.definition(value, call.module), interpreter)
        return bool(program.commands)
    found = interpreter.definition(component, call.module)
    if found is None:
        return False
    _component(program, found, interpreter)
    return bool(isinstance(found.node, ast.FunctionDef) or program.options or program.commands)


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
    if not isinstance(found.node, ast.FunctionDef):
        return
    for one, default in parameters(found.node, bound):
        value = interpreter.value(default, {}, found.module) if default is not None else None
        kind = {bool: "bool", int: "int", float: "float"}.get(type(value), "string")
        # Fire takes any value for any parameter, so the type is only a guess from the default.
        row = Row(
            type=kind,
            default=value,
            required=default is None,
            negatives=[f"--no{one.arg}"] if kind == "bool" else (),
            place=found.module.place(one),
            doubtful=True,
            literal="python",
            mapping="literal",
        )
        program.option([f"--{one.arg}", f"--{one.arg.replace('_', '-')}"], row)
    if found.node.args.kwarg or found.node.args.vararg:
        program.strict = False
