"""Python files as syntax trees, and where the names in them come from."""

# The paths of a Level are strings.
# ruff: noqa: PTH118, PTH119, PTH120, PTH123
from __future__ import annotations

import ast
import os
from functools import cached_property

from fdl.base.light_record import Record
from fdl.base.venv import module_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_BYTES = 2 << 20
_MOST_FILES = 60

_CHANGES = frozenset(
    ("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse",
     "setdefault", "sort", "update")
)  # fmt: skip
"""Methods that change a list, a mapping or a set."""


class Module(Record):
    """One Python file.

    Attributes:
        file: Its path.
        name: How places call it: relative to the project, or to the folder of packages.
        tree: Its syntax tree.
    """

    file: str
    name: str
    tree: ast.Module

    @cached_property
    def definitions(self) -> dict[str, ast.FunctionDef | ast.ClassDef]:
        """Name -> function or class at the top of the file, also below ``if`` and ``try``."""
        return {
            node.name: node
            for node in _statements(self.tree.body)
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Name -> the value of an assignment at the top of the file, the last one."""
        found: dict[str, ast.expr] = {}
        for node in _statements(self.tree.body):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                if isinstance(target, ast.Name):
                    found[target.id] = node.value
            elif (
                isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
            ):
                found[node.target.id] = node.value
        return found

    @cached_property
    def changing(self) -> set[str]:
        """Names of constants that may have another value than that of their assignment."""
        found: set[str] = set()
        assigned: set[str] = set()
        for node in _statements(self.tree.body):
            targets = node.targets if isinstance(node, ast.Assign) else [_target(node)]
            for one in targets:
                if isinstance(one, ast.Name):
                    (found if one.id in assigned else assigned).add(one.id)
        for inner in ast.walk(self.tree):
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                if inner.func.attr in _CHANGES:
                    found.add(getattr(inner.func.value, "id", ""))
            elif isinstance(inner, ast.Subscript) and not isinstance(inner.ctx, ast.Load):
                found.add(getattr(inner.value, "id", ""))
            elif isinstance(inner, ast.Global):
                found.update(inner.names)
        return found

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Name -> module and name in it (empty for the module itself), for every import."""
        found: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    found[bound] = (alias.name if alias.asname else bound, "")
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                for alias in node.names:
                    found[alias.asname or alias.name] = (module, alias.name)
        return found

    def place(self, node: ast.AST) -> str:
        """``file:line`` of a node."""
        return f"{self.name}:{getattr(node, 'lineno', 1)}"

    def origin(self, node: ast.expr) -> str:
        """The dotted name of an expression, imports resolved: ``argparse.ArgumentParser``."""
        words: list[str] = []
        while isinstance(node, ast.Attribute):
            words.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        module, name = self.imports.get(node.id, ("", node.id))
        dotted = ".".join(part for part in (module.rstrip("."), name, *words) if part)
        # `from . import a` is `.a`; `from .a import b` has its dots in front already.
        return dotted if module.strip(".") else module + dotted


class Library(Record):
    """Reads files once, and remembers which ones.

    Attributes:
        project: Directory of the project.
        folders: Folders of the project that hold modules.
        packages: Folders with installed packages.
    """

    project: str
    folders: Sequence[str]
    packages: Sequence[str] = ()

    def settle(self) -> None:
        """Begin with no file read."""
        self._known: dict[str, Module | None] = {}

    @property
    def files(self) -> list[str]:
        """Every file that was read."""
        return [file for file, module in self._known.items() if module]

    def open(self, file: str) -> Module | None:
        """The module of a file; None if it cannot be parsed."""
        if file not in self._known:
            full = len(self._known) >= _MOST_FILES
            self._known[file] = None if full else self._parse(file)
        return self._known[file]

    def find(self, name: str, beside: Module) -> Module | None:
        """A module by its name, as ``beside`` would import it."""
        last = name.lstrip(".")
        folders = [os.path.dirname(beside.file)]
        if last == name:
            folders += [*self.folders, *self.packages]
        for _ in range(len(name) - len(last) - 1):
            folders = [os.path.dirname(folders[0])]
        file = module_file(folders, last)
        return self.open(file) if file else None

    def _parse(self, file: str) -> Module | None:
        try:
            with open(file, "rb") as stream:
                text = stream.read(_MOST_BYTES)
            return Module(file, self._shown(file), ast.parse(text))
        # The limits of the parser count too.
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def _shown(self, file: str) -> str:
        inside = os.path.join(self.project, "")
        for folder in self.packages:
            if file.startswith(os.path.join(folder, "")):
                return os.path.relpath(file, folder)
        return os.path.relpath(file, inside) if file.startswith(inside) else os.path.basename(file)


def given(node: ast.AST | None, name: str, position: int | None = None) -> ast.expr | None:
    """The expression that a call has for a parameter; None if it has none, or is not a call."""
    if not isinstance(node, ast.Call):
        return None
    if position is not None and len(node.args) > position:
        return node.args[position]
    return next((one.value for one in node.keywords if one.arg == name), None)


def _target(node: ast.stmt) -> ast.expr | None:
    """What a statement with one target assigns."""
    is_bound = isinstance(node, ast.AnnAssign) and node.value is not None
    return getattr(node, "target", None) if is_bound or isinstance(node, ast.AugAssign) else None


def _statements(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Statements of a block, with those inside ``if``, ``try`` and ``with``."""
    found: list[ast.stmt] = []
    for node in body:
        found.append(node)
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                found += _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                found += _statements(handler.body)
    return found
