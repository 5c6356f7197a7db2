"""Programs with ``@hydra.main``: their configuration file is what they take."""

# The paths of a Level are strings.
# ruff: noqa: PTH113, PTH118, PTH120
from __future__ import annotations

import ast
import os

from fdl.base.errors import FdlError
from fdl.programs.source.rows import COMPUTED, Program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fdl.manifest.node import Node
    from fdl.programs.source.interpret import Definition, Interpreter

_TYPES = {bool: "bool", int: "int", float: "float"}
_MOST_FILES = 40


def program_of(found: Definition, interpreter: Interpreter) -> tuple[Program, list[str]] | None:
    """The settings of a decorated function, and the files they come from; None without any."""
    for decorator in getattr(found.node, "decorator_list", []):
        if not isinstance(decorator, ast.Call):
            continue
        if found.module.origin(decorator.func) not in ("hydra.main", "hydra.main.main"):
            continue
        call = interpreter.evaluated(decorator, {}, found.module)
        folder, name = call.get(0, "config_path"), call.get(1, "config_name")
        if not isinstance(name, str) or folder is COMPUTED:
            return _open(Program()), []
        base = os.path.join(os.path.dirname(found.module.file), folder or "")
        # A store may hold choices of a group that no file has.
        stores = any(name == "ConfigStore" for _, name in found.module.imports.values())
        reader = _Reader(os.path.normpath(base), is_open=stores)
        program = _open(Program(ast.get_docstring(found.node) or ""))
        reader.add(program, name.removesuffix(".yaml"), "")
        return program, reader.files
    return None


def _open(program: Program) -> Program:
    # Hydra's own settings and `+key` are always allowed, so an unknown key is not a mistake.
    program.style, program.strict = "hydra", False
    return program


class _Reader:
    """Reads a configuration and the files that its defaults list names.

    Args:
        folder: Where the files are.
        is_open: Whether groups may have choices besides the files.
    """

    def __init__(self, folder: str, *, is_open: bool) -> None:
        self._folder = folder
        self._is_open = is_open
        self.files: list[str] = []

    def add(self, program: Program, name: str, package: str) -> None:
        node = self._read(name)
        if node is None:
            return
        for key, child in node.mapping.items():
            if key == "defaults" and isinstance(child.value, list):
                self._defaults(program, child.value, os.path.dirname(name), package)
            elif key != "hydra":
                self._setting(program, f"{package}{key}", child)

    def _defaults(self, program: Program, listed: list[Node], group: str, package: str) -> None:
        for item in listed:
            if isinstance(item.value, str) and item.value != "_self_":
                above = os.path.dirname(item.value).strip("/").replace("/", ".")
                inner = f"{package}{above}." if above else package
                self.add(program, os.path.join(group, item.value), inner)
            for key, chosen in item.mapping.items():
                words = key.split()
                name, _, where = words[-1].partition("@")
                if words[0] == "override" or name.startswith("hydra"):
                    continue
                place = os.path.join(group, name).lstrip("/")
                if not where:
                    # `a.b=…` would be a value in the place of the group.
                    program.setting(
                        place.replace("/", "."),
                        flags=[place] if "/" in place else (),
                        default=chosen.value,
                        choices=self._options(place),
                        place=self._place(chosen),
                    )
                if isinstance(chosen.value, str):
                    inner = f"{package}{(where or name).strip('/').replace('/', '.')}."
                    inner = {"_global_": "", "_here_": package}.get(where, inner)
                    self.add(program, os.path.join(place, chosen.value), inner)

    def _setting(self, program: Program, name: str, node: Node) -> None:
        if isinstance(node.value, dict):
            for key, child in node.mapping.items():
                self._setting(program, f"{name}.{key}", child)
            return
        value: Any = node.plain()
        many = isinstance(value, list)
        kinds = {_TYPES.get(type(one), "string") for one in (value if many else [value])}
        kind = kinds.pop() if len(kinds) == 1 else "string"
        computed = isinstance(value, str) and ("${" in value or value == "???")
        program.setting(
            name,
            type=kind,
            default=COMPUTED if computed else value,
            many=many,
            required=value == "???",
            place=self._place(node),
            # Only a structured configuration refuses a value of another type.
            doubtful=True,
        )

    def _options(self, place: str) -> object:
        if self._is_open:
            return COMPUTED
        folder = os.path.join(self._folder, place)
        found: list[str] = []
        for above, _, names in os.walk(folder):
            inside = os.path.relpath(above, folder)
            files = [one.removesuffix(".yaml") for one in names if one.endswith(".yaml")]
            found += [os.path.normpath(os.path.join(inside, one)) for one in files]
        return sorted(found)

    def _read(self, name: str) -> Node | None:
        file = os.path.normpath(os.path.join(self._folder, f"{name.lstrip('/')}.yaml"))
        if file in self.files or len(self.files) >= _MOST_FILES or not os.path.isfile(file):
            return None
        self.files.append(file)
        # Other programs do not pay for the import of yaml.
        from fdl.manifest.read import read

        try:
            return read(file)
        except FdlError:
            return None

    def _place(self, node: Node) -> str:
        return f"{os.path.relpath(node.file, self._folder)}:{node.line}"
