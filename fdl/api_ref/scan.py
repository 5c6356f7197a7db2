"""From the files of a package to its reference."""

from __future__ import annotations

import ast
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from fdl.api_ref.classes import class_entry, functions_entry, public_definitions
from fdl.api_ref.entries import CATEGORIES, Entry, Reference, Signature
from fdl.api_ref.exports import Exports

_FOLDERS = ("autograd", "data", "distributed", "graph", "tensor")
_OF_FILE = {
    "autograd": "autograd",
    "losses": "losses",
    "loss": "losses",
    "optim": "optimizers",
    "optimizers": "optimizers",
    "learning_rate": "schedulers",
    "schedule": "schedulers",
    "schedulers": "schedulers",
    "tensor": "tensor",
}


def scan(package: Path) -> Reference:
    """Read every public module of a package.

    Modules, folders and names that begin with an underscore are left out, and so are tests.
    """
    trees: dict[str, ast.Module] = {}
    problems: list[str] = []
    for file in _files(package):
        shown = file.relative_to(package.parent).as_posix()
        try:
            trees[shown] = _parse(file)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            problems.append(_problem(shown, error))
    exports = Exports(trees, package.name)
    entries = [
        entry
        for file, tree in trees.items()
        if file.endswith(".py")
        for entry in _entries(file, tree, exports)
        if not entry.is_empty
    ]
    classes = _classes(entries)
    entries = [_with_inherited(one, classes) for one in entries]
    entries.sort(key=lambda one: (one.category, one.name, one.file, one.line))
    version = _version(trees.get(f"{package.name}/__init__.py"))
    return Reference(package.name, version, tuple(entries), tuple(problems))


def _classes(entries: Iterable[Entry]) -> dict[str, Entry]:
    """The classes by name; a name that several classes have is left out."""
    named = Counter(one.name for one in entries)
    return {one.name: one for one in entries if one.is_class and named[one.name] == 1}


def _inherited(
    entry: Entry, classes: Mapping[str, Entry], below: tuple[str, ...] = ()
) -> Iterator[Signature]:
    """Methods of the bases that are classes of this package, nearest first."""
    below = (*below, entry.name)
    for base in entry.traits:
        found = classes.get(base.partition("[")[0].rpartition(".")[2])
        if found is not None and found.name not in below:
            yield from found.methods
            yield from _inherited(found, classes, below)


def _with_inherited(entry: Entry, classes: Mapping[str, Entry]) -> Entry:
    named = {one.name for one in (*entry.constructors, *entry.methods)}
    added = {one.name: one for one in reversed([*_inherited(entry, classes)])}
    more = [one for name, one in reversed(added.items()) if name not in named]
    return replace(entry, methods=(*entry.methods, *more))


def category(file: str) -> str:
    """The category of what a file defines: ``flodl/graph/builder.py`` is ``graph``."""
    _, *folders, name = file.removesuffix(".py").split("/")
    for folder in folders:
        if folder in _FOLDERS:
            return folder
    if name in _OF_FILE and folders[:1] in ([], ["nn"], ["train"]):
        return _OF_FILE[name]
    if folders[:1] == ["nn"]:
        return "modules"
    return CATEGORIES[-1]


def _entries(file: str, tree: ast.Module, exports: Exports) -> Iterator[Entry]:
    classes, functions = public_definitions(tree)
    for one in classes:
        yield class_entry(one, tree, file, category(file), exports)
    if functions:
        yield functions_entry(functions, tree, file, category(file), exports)


def _files(package: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(package):
        names[:] = sorted(
            name for name in names if name[0] not in "_." and name not in ("test", "tests")
        )
        for name in sorted(files):
            if name.startswith("__init__.py") or (name.endswith(".py") and not _is_hidden(name)):
                yield Path(folder, name)


def _is_hidden(name: str) -> bool:
    return (
        name[0] in "_."
        or name.startswith("test_")
        or name.endswith("_test.py")
        or name == "conftest.py"
    )


def _parse(file: Path) -> ast.Module:
    with warnings.catch_warnings():
        # About the described code, which is not ours to mend here.
        warnings.simplefilter("ignore")
        return ast.parse(file.read_bytes(), filename=str(file))


def _problem(file: str, error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{file}:{error.lineno or 1}: {error.msg}"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"{file}:1: {reason or type(error).__name__}"


def _version(tree: ast.Module | None) -> str:
    for statement in tree.body if tree else ():
        match statement:
            case ast.Assign(
                targets=[ast.Name(id="__version__")], value=ast.Constant(value=str(version))
            ):
                return version
    return "unknown"
