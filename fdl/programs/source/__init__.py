"""What a program declares, read from its source. Nothing is imported and nothing is run.

``read`` follows the statements of the script as far as they declare arguments (``interpret``).
Values that only the running program knows are marked as computed. Each reader knows one library.
"""

# The paths of a Level are strings.
# ruff: noqa: PTH112, PTH118, PTH120
from __future__ import annotations

import ast
import os
import sys
from functools import partial

from fdl.base.venv import site_packages
from fdl.programs.schema.program import script_of
from fdl.programs.source import absl, commands, fdl_args, fire, hydra, jsonargparse, records, tyro
from fdl.programs.source.interpret import Interpreter, Thing
from fdl.programs.source.parsers import Parser, new_parser
from fdl.programs.source.rows import COMPUTED, Program
from fdl.programs.source.source import Library, given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fdl.manifest.select.level import Level
    from fdl.programs.source.interpret import Call, Definition, Scope
    from fdl.programs.source.source import Module

    Read = Callable[[Call, Interpreter], Program | None]

__all__ = ["read"]


def read(level: Level) -> tuple[dict[str, Any] | None, list[str]]:
    """The document that the source of a level's entry declares, and the files that were read.

    The document is None if the source declares nothing that is understood.
    """
    packages = _packages(level)
    file, function = script_of(level, packages)
    if file is None:
        return None, []
    folders = [level.start_folder(), level.root]
    folders += [os.path.join(one, "src") for one in folders]
    # The base classes of FdlArgs are read, too.
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    library = Library(level.root, folders, [*packages, own])
    module = library.open(file)
    if module is None:
        return None, [file]
    found = _Reader(library)
    program = found.read(module, function)
    files = [*library.files, *found.files]
    return (program.document() if program is not None else None), files


class _Reader:
    """Reads one program with all readers: a class of FdlArgs wins, then what surely parses."""

    def __init__(self, library: Library) -> None:
        self.files: list[str] = []
        self._parsers: list[Parser] = []
        self._decorated = commands.Decorated()
        self._flags = absl.Flags()
        self._own: dict[str, Program | None] = {}
        self._interpreter = Interpreter(library, self._known(), self._take)

    def read(self, module: Module, function: str) -> Program | None:
        try:
            self._interpreter.run(module, function)
        except RecursionError:
            return None
        if self._own:
            # Of several classes, only the program knows which one it takes.
            (*_, last) = self._own.values()
            return last if len(self._own) == 1 else None
        if self._flags.program.options:
            return self._flags.program
        apps = self._commands(module, function)
        found = [*self._parsers, *(Parser(one.settled(), rank=2) for one in apps)]
        declaring = [one.program for one in sorted(found, key=lambda one: -one.rank)]
        return next((one for one in declaring if one.declares), None)

    def _commands(self, module: Module, function: str) -> list[commands.App]:
        """The app that is the entry point, else all of them."""
        named = self._interpreter.at_end(ast.Name(function), module) if function else None
        return [named] if isinstance(named, commands.App) else self._decorated.apps

    def _take(
        self, found: Definition, interpreter: Interpreter, scope: Scope
    ) -> commands.App | None:
        settings = hydra.program_of(found, interpreter)
        if settings is None:
            return self._decorated.take(found, interpreter, scope)
        self._parsers.append(Parser(settings[0], rank=3))
        self.files += settings[1]
        return None

    def _known(self) -> dict[str, Any]:
        known: dict[str, Any] = {
            "*.parse_or_schema": self._fdl_args,
            "*.ArgumentParser": self._parser,
            "jsonargparse.ArgumentParser": self._typed,
            "*.HfArgumentParser": self._of_classes,
            "*.TrlParser": self._of_classes,
            "*.Typer": self._typer,
        }
        for name, read in _CALLS.items():
            known[name] = partial(self._whole, read)
        for name in absl.KINDS:
            known[f"*.DEFINE_{name}"] = partial(self._flags.define, name, self._members)
        for name in absl.OTHERS:
            known[f"*.{name}"] = self._flags.define_other
        return known

    def _members(self, node: ast.expr, module: Module) -> list[str]:
        return [name for name, _ in records.members(node, module, self._interpreter)]

    def _keep(self, parser: Parser) -> Parser:
        self._parsers.append(parser)
        return parser

    def _parser(self, call: Call) -> Thing:
        return self._keep(new_parser(call))

    def _fdl_args(self, call: Call) -> object:
        self._own[ast.unparse(call.node.func)] = fdl_args.read(call, self._interpreter)
        return COMPUTED

    def _typed(self, _: Call) -> Thing:
        return self._keep(jsonargparse.TypedParser(self._interpreter))

    def _whole(self, read: Read, call: Call) -> object:
        """Take what one call declares and parses."""
        program = read(call, self._interpreter)
        if program is not None:
            self._keep(Parser(program, rank=1 if program.style == "keyvalue" else 2))
        return COMPUTED

    def _of_classes(self, call: Call) -> Thing:
        parser = self._keep(new_parser(call))
        node = given(call.node, "dataclass_types", 0)
        nodes = getattr(node, "elts", [node] if node is not None else [])
        for one in nodes:
            found = self._interpreter.definition(one, call.module)
            if found is None:
                parser.program.strict = False
            else:
                records.declare(parser.program, found, self._interpreter)
        return parser

    def _typer(self, call: Call) -> Thing:
        return self._decorated.make_typer(self._interpreter.at_end, call)


def _lightning(call: Call, _: Interpreter) -> Program | None:
    """Its subcommands are known; what each takes depends on the model's class."""
    program = Program()
    if call.named.get("run") is False:
        return None
    for name in ("fit", "validate", "test", "predict"):
        program.commands[name] = Program()
        program.commands[name].strict = False
    return program


def _key_value(_: Call, __: Interpreter) -> Program:
    program = Program()
    program.style, program.strict = "keyvalue", False
    return program


_CALLS: dict[str, Read] = {
    **dict.fromkeys(("jsonargparse.CLI", "jsonargparse.auto_cli"), jsonargparse.cli),
    "tyro.cli": tyro.cli,
    "tyro.extras.subcommand_cli_from_dict": tyro.commands,
    "tyro.extras.overridable_config_cli": tyro.commands,
    "fire.Fire": fire.read,
    "typer.run": commands.run,
    "*.LightningCLI": _lightning,
    "omegaconf.OmegaConf.from_cli": _key_value,
}
"""Function of a library that declares and parses in one call -> what reads such a call."""


def _packages(level: Level) -> list[str]:
    """The folders of installed packages: in the project's ``.venv``, else of this interpreter."""
    folders = site_packages(os.path.join(level.root, ".venv"))
    found = [folder for folder in folders if os.path.isdir(folder)]
    return found or [one for one in sys.path if one.endswith("site-packages")]
