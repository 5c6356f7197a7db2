"""click and Typer commands, from decorators and signatures."""

from __future__ import annotations

import ast

from fdl.programs.source.interpret import Thing
from fdl.programs.source.parsers import literal_of
from fdl.programs.source.records import Annotation, annotation, members, parameters
from fdl.programs.source.rows import COMPUTED, Program
from fdl.programs.source.source import given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fdl.programs.source.interpret import Call, Definition, Interpreter, Scope
    from fdl.programs.source.source import Module

    Find = Callable[[ast.expr, Module], Any]
    """What a name stands for where its module ends."""

_CLICK_TYPES = {"INT": "int", "FLOAT": "float", "IntRange": "int", "FloatRange": "float",
                "Path": "path", "File": "path", "STRING": "string", "BOOL": "string"}  # fmt: skip


class App(Thing):
    """A click command or group, or a ``typer.Typer``.

    Attributes:
        program: What it takes; it holds the commands.
        name: What it is called below another one.
        single: Whether one command alone is the whole program: a ``Typer`` without a callback.
        typer: Whether it is a ``Typer``; the rest belongs to click.
        part: Whether it hangs below another one.
        prefix: How the variables of its options begin; None if they have none.
    """

    def __init__(self, program: Program, find: Find, *, name: object = None, typer: bool) -> None:
        self.program = program
        self.name = name
        self.typer = self.single = typer
        self.part = False
        self._find = find
        self.prefix: object = None

    def do_add_typer(self, call: Call) -> object:
        """Hang another app below this one; one without a name adds its commands to those here."""
        self.single = False
        other = self._other(call, "typer_instance")
        name = call.named.get("name", other.name if other else COMPUTED)
        if other and name is None:
            # Commands that it gets later are not seen; without a name this app is open for them.
            self.program.commands.update(other.program.commands)
        self._hang(other, name)
        return COMPUTED

    def do_add_command(self, call: Call) -> object:
        """Hang a click command below this group."""
        other = self._other(call, "cmd")
        self._hang(other, call.get(1, "name", other.name if other else COMPUTED))
        return COMPUTED

    def _hang(self, other: App | None, name: object) -> None:
        """Take another app as a command; this one is open if app or name is not known."""
        if other and isinstance(name, str):
            self.program.commands[name] = other.program
        else:
            self.program.strict = False

    def do_call(self, call: Call) -> object:
        """Start it; a prefix names the variables of its options."""
        self.prefix = call.named.get("auto_envvar_prefix", self.prefix)
        return COMPUTED

    do_main = do_call

    def do_command(self, _: Call) -> object:
        """A command that no decorator declares: ``app.command()(fit)``. Its function is unknown."""
        self.single = self.program.strict = False
        return COMPUTED

    do_callback = do_command

    def _other(self, call: Call, name: str) -> App | None:
        """The app that is an argument; it is no program of its own any more."""
        node = given(call.node, name, 0)
        # An app of another file has its commands when that file has been followed.
        other = self._find(node, call.module) if node is not None else None
        if not isinstance(other, App):
            other = call.get(0, name)
        if not isinstance(other, App):
            return None
        other.part = True
        return other

    def settled(self) -> Program:
        """The program: a ``Typer`` with one command is that command."""
        commands = self.program.commands
        if isinstance(self.prefix, str):
            _name_variables(self.program, self.prefix)
        return next(iter(commands.values())) if self.single and len(commands) == 1 else self.program


def _name_variables(program: Program, prefix: str) -> None:
    """Give each option without a variable the one that click derives from a prefix."""
    for name, one in program.options.items():
        own = f"{prefix}_{program.fields.get(name, name)}".upper().replace("-", "_")
        one.env = one.env or own
    for name, inner in program.commands.items():
        _name_variables(inner, f"{prefix}_{name}".upper().replace("-", "_"))


class Decorated:
    """Collects the apps that a program makes, and the commands that decorators declare."""

    def __init__(self) -> None:
        self._made: dict[str, App] = {}

    @property
    def apps(self) -> list[App]:
        """Those that hang below no other, the one with the most commands first."""
        tops = [one for one in self._made.values() if not one.part]
        return sorted(tops, key=lambda one: -len(one.program.commands))

    def make_typer(self, find: Find, call: Call) -> App:
        """``typer.Typer()``; the same call makes the same app each time it is looked at."""
        name = call.named.get("name")
        made = App(Program(call.named.get("help")), find, name=name, typer=True)
        return self._made.setdefault(call.place, made)

    def take(self, found: Definition, interpreter: Interpreter, scope: Scope) -> App | None:
        """Read a decorated function; a click command stands for itself afterwards."""
        if not isinstance(found.node, ast.FunctionDef):
            return None
        node, module = found.node, found.module
        for decorator in node.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            kind = module.origin(target).rpartition(".")[2]
            if kind not in ("command", "group", "callback"):
                continue
            owner = self._owner(target, found, interpreter, scope)
            is_typer = owner is not None and owner.typer
            program = self._program(found, interpreter, typer=is_typer)
            if kind == "callback" and owner is not None:
                owner.single = False
                owner.program.options.update(program.options)
                return None
            name = _command_name(decorator, node, interpreter, found)
            settings = interpreter.value(given(decorator, "context_settings"), {}, module)
            settings = settings if isinstance(settings, dict) else {}
            if settings.get("ignore_unknown_options"):
                program.strict = False
            if owner is not None:
                owner.program.commands[name] = program
            if is_typer:
                return None
            app = App(program, interpreter.at_end, name=name, typer=False)
            app.prefix = settings.get("auto_envvar_prefix")
            app.part = owner is not None
            self._made[module.place(node)] = app
            return app
        return None

    def _owner(
        self, target: ast.expr, found: Definition, interpreter: Interpreter, scope: Scope
    ) -> App | None:
        """The app whose ``command`` or ``callback`` a decorator is."""
        if not isinstance(target, ast.Attribute):
            return None
        value = interpreter.value(target.value, scope, found.module)
        if not isinstance(value, App):
            value = interpreter.at_end(target.value, found.module)
        return value if isinstance(value, App) else None

    def _program(self, found: Definition, interpreter: Interpreter, *, typer: bool) -> Program:
        node = found.node
        program = Program((ast.get_docstring(node) or "").split("\n\n")[0])
        if typer:
            _signature(program, found, interpreter)
            return program
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call):
                kind = found.module.origin(decorator.func).rpartition(".")[2]
                if kind in ("option", "argument"):
                    _click(program, decorator, found, interpreter, kind)
                    continue
            if ast.unparse(decorator).rpartition(".")[2].split("(")[0] not in (
                "command", "group", "pass_context", "version_option", "help_option",
            ):  # fmt: skip
                # A decorator of the project may add options.
                program.strict = False
        return program


def run(call: Call, interpreter: Interpreter) -> Program | None:
    """``typer.run(main)``: what the function takes."""
    node = next(iter(call.node.args), None)
    found = interpreter.definition(node, call.module) if node is not None else None
    if found is None:
        return None
    program = Program()
    _signature(program, found, interpreter)
    return program


def _signature(program: Program, found: Definition, interpreter: Interpreter) -> None:
    """Add the parameters of a function as Typer reads them."""
    node = found.node
    if not isinstance(node, ast.FunctionDef):
        return
    for one, default in parameters(node):
        _typer(program, one, default, found, interpreter)


def _typer(
    program: Program,
    one: ast.arg,
    default: ast.expr | None,
    found: Definition,
    interpreter: Interpreter,
) -> None:
    module = found.module
    note = one.annotation
    info: ast.Call | None = None
    if isinstance(note, ast.Subscript) and module.origin(note.value).endswith("Annotated"):
        parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
        note = parts[0]
        info = next((part for part in parts[1:] if isinstance(part, ast.Call)), None)
    if isinstance(default, ast.Call) and module.origin(default.func).startswith("typer."):
        info, default = default, (default.args[0] if default.args else None)
        info = ast.Call(info.func, info.args[1:], info.keywords)
    kind = module.origin(info.func).rpartition(".")[2] if info else ""
    value = interpreter.value(default, {}, module) if default is not None else ...
    required = value is ... or (isinstance(default, ast.Constant) and default.value is ...)
    said = annotation(note, module, interpreter) if note is not None else Annotation()
    if said.inner is not None and ast.unparse(said.inner).endswith("Context"):
        return
    call = interpreter.evaluated(info, {}, module) if info else None
    keywords = call.named if call else {}
    row: dict[str, Any] = {
        "type": said.type,
        "default": None if required else value,
        "choices": said.choices,
        "help": keywords.get("help", ""),
        "many": said.many,
        "once": said.many and said.nargs is not None,
        "nargs": said.nargs,
        "counted": keywords.get("count") is True,
        "required": required,
        "group": keywords.get("rich_help_panel", ""),
        "place": module.place(one),
        "doubtful": said.doubtful,
        "ignore_case": keywords.get("case_sensitive") is False,
        "env": _variable(keywords),
        "literal": literal_of(given(info, "parser"), module),
    }
    name = one.arg.replace("_", "-")
    if kind == "Argument" or (kind == "" and required and said.type != "bool"):
        program.argument(name, variadic=said.many, **row)
        return
    flags = [word for word in call.arguments if isinstance(word, str)] if call else []
    on = [flag.partition("/")[0] for flag in flags]
    off = [flag.partition("/")[2] for flag in flags if "/" in flag]
    if said.type == "bool" and not flags:
        off = [f"--no-{name}"]
    if row["counted"]:
        row["type"] = "bool"
    if row["type"] == "bool":
        row["negatives"] = [flag for flag in off if flag]
    program.option(on or [f"--{name}"], **row)


def _click(
    program: Program, node: ast.Call, found: Definition, interpreter: Interpreter, kind: str
) -> None:
    module = found.module
    call = interpreter.evaluated(node, {}, module)
    words, keywords = call.arguments, call.named
    if any(not isinstance(word, str) for word in words):
        program.strict = False
        return
    flags = [word for word in words if word.startswith("-")]
    type_node = given(node, "type")
    type_, choices, doubtful = _click_type(type_node, keywords, found, interpreter)
    off = [flag.partition("/")[2].strip() for flag in flags if "/" in flag]
    has_value = "flag_value" in keywords
    is_flag = bool(off) or keywords.get("is_flag", has_value) is True or bool(keywords.get("count"))
    nargs = keywords.get("nargs")
    parts = getattr(type_node, "elts", None)
    if parts is not None:
        nargs = len(parts)
    elif has_value and not is_flag:
        nargs = "?"
    is_repeated, several = keywords.get("multiple") is True, nargs not in (None, 1, "?")
    said = {
        "type": "bool" if is_flag else type_,
        "default": None if is_flag and not off else keywords.get("default"),
        "choices": () if is_flag else choices,
        "help": keywords.get("help", ""),
        "many": is_repeated or several,
        "once": several and not is_repeated,
        "nargs": nargs if nargs == "?" or (isinstance(nargs, int) and nargs > 1) else None,
        "counted": keywords.get("count") is True,
        "required": keywords.get("required", False),
        "env": _variable(keywords),
        "literal": literal_of(type_node, module),
        "negatives": [flag for flag in off if flag],
        "place": module.place(node),
        "doubtful": doubtful and not is_flag,
        "ignore_case": _ignores_case(type_node, found, interpreter),
    }
    if kind == "option":
        name = program.option([flag.partition("/")[0].strip() for flag in flags], **said)
        program.fields[name] = next((word for word in words if word[:1] != "-"), name)
    elif words:
        required = keywords.get("required", nargs != -1 and "default" not in keywords)
        said |= {"required": required is True, "variadic": nargs == -1}
        program.argument(words[0].replace("_", "-"), **said)


def _click_type(
    node: ast.expr | None, keywords: dict[str, Any], found: Definition, interpreter: Interpreter
) -> tuple[str, object, bool]:
    if node is None:
        kind = type(keywords.get("default")).__name__
        return {"int": "int", "float": "float"}.get(kind, "string"), (), False
    target = node.func if isinstance(node, ast.Call) else node
    name = found.module.origin(target).rpartition(".")[2]
    if name == "Choice" and isinstance(node, ast.Call) and node.args:
        names = [one for one, _ in members(node.args[0], found.module, interpreter)]
        return "string", names or interpreter.value(node.args[0], {}, found.module), False
    known = {**_CLICK_TYPES, "str": "string", "int": "int", "float": "float", "bool": "string"}
    return known.get(name, "string"), (), name not in known


def _ignores_case(node: ast.expr | None, found: Definition, interpreter: Interpreter) -> bool:
    """Whether a ``click.Choice`` takes its words in upper and lower case."""
    return interpreter.value(given(node, "case_sensitive", 1), {}, found.module) is False


def _variable(keywords: dict[str, Any]) -> str:
    """The variable that an option reads; the first of several."""
    said = keywords.get("envvar")
    said = said[0] if isinstance(said, list) and said else said
    return said if isinstance(said, str) else ""


def _command_name(
    decorator: ast.expr, node: ast.FunctionDef, interpreter: Interpreter, found: Definition
) -> str:
    value = interpreter.value(given(decorator, "name", 0), {}, found.module)
    return value if isinstance(value, str) else node.name.lower().replace("_", "-")
