"""From the files of a package to its classes and functions, as griffe reads them."""

from __future__ import annotations

import ast
import logging
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdl.base.errors import FdlError

if TYPE_CHECKING:
    from griffe import Attribute, Class, Module

Name = Any
"""A class, a function or a member of a class, as griffe has read it. What a package exports is an
alias: its ``path`` is the one to import, its ``canonical_path`` that of the definition."""

ENUM_MEMBER = "enum member"
"""A label of attributes that griffe lacks."""


@dataclass(frozen=True, slots=True)
class Reference:
    """All classes and functions of a package.

    Attributes:
        package: The package's name.
        version: The package's version; ``unknown`` when it does not say.
        names: Sorted by category, then name; the functions of a module follow each other.
        problems: Files that could not be read, as ``FILE:LINE: reason``.
    """

    package: str
    version: str
    names: list[Name]
    problems: list[str]


_FOLDERS = ("autograd", "data", "distributed", "graph", "tensor")
_FILES = ("autograd", "losses", "optimizers", "schedulers", "tensor")
_OTHER_FILES = {
    "loss": "losses",
    "optim": "optimizers",
    "learning_rate": "schedulers",
    "schedule": "schedulers",
}
_HIDDEN = re.compile(r"(?!__init__\.)[_.].*|(test_.*|.*_test|conftest)(\.py)?|tests?")
_FLUENT = re.compile(r".*Callable\[Concatenate\[(\w+), .*\], \1\]")
"""What a decorator returns that makes a method return its object."""


def scan(package: Path) -> Reference:
    """Read every public module of a package.

    Modules, folders and names that begin with an underscore are left out, and so are tests.

    Raises:
        FdlError: griffe is not installed, or the package itself cannot be read.
    """
    try:
        import griffe
    except ImportError:
        raise FdlError(
            "`fdl api-ref` needs griffe, which is not installed",
            hint="pip install 'flodl[api-ref]'",
        ) from None
    package = package.resolve()
    # The extension for data classes runs when more is known.
    loader = griffe.GriffeLoader(
        extensions=griffe.Extensions(), search_paths=[package.parent], allow_inspection=False
    )
    # What it reports, it also raises.
    logging.getLogger("griffe").addHandler(logging.NullHandler())
    with warnings.catch_warnings():
        # About the described code, which is not ours to mend here.
        warnings.simplefilter("ignore")
        try:
            root: Any = loader.load(package.name, try_relative_path=False)
        except (griffe.LoadingError, RecursionError) as error:
            raise FdlError(f"{package} cannot be read: {error}") from None
        modules = [root, *_modules(root)]
        unread = sorted({*package.rglob("*.py")} - {module.filepath for module in modules})
        problems = [problem for file in unread if (problem := _problem(file, package))]
    for module in modules:
        _complete(module)
    griffe.DataclassesExtension().on_package(pkg=root)
    loader.resolve_aliases(implicit=True, external=False)
    found = [one for module in modules for one in _own(module, "class", "function")]
    names = [
        _exported(one)
        for one in found
        if not one.name.startswith("_") and (one.is_function or one.docstring or members(one))
    ]
    names.sort(key=lambda one: (category(file_of(one)), group(one), file_of(one), one.lineno))
    version = str(getattr(root.members.get("__version__"), "value", ""))
    version = version[1:-1] if version.startswith(("'", '"')) else "unknown"
    return Reference(package.name, version, names, problems)


def category(file: str) -> str:
    """The category of what a file defines: ``flodl/graph/builder.py`` is ``graph``."""
    _, *folders, name = file.removesuffix(".py").split("/")
    for folder in folders:
        if folder in _FOLDERS:
            return folder
    topic = _OTHER_FILES.get(name, name)
    if topic in _FILES and folders[:1] in ([], ["nn"], ["train"]):
        return topic
    return "modules" if folders[:1] == ["nn"] else "other"


def file_of(one: Name) -> str:
    """The file that defines something, relative to the folder that holds the package."""
    return Path(one.relative_package_filepath).as_posix()


def group(one: Name) -> str:
    """What something is listed as: a class, or the functions of its module."""
    return one.name if one.is_class else f"{one.module.path} (functions)"


def members(one: Class) -> list[Name]:
    """What readers use of a class: constructors, then its own before what it inherits."""
    from griffe import Alias

    found = {name: each for name, each in one.members.items() if _is_member(each)}
    for base in _bases(one):
        for name, each in base.members.items():
            if name != "__init__" and _is_member(each):
                found.setdefault(name, Alias(name, each, parent=one))
    return sorted(found.values(), key=lambda each: (not makes(each), each.name != "__init__"))


def makes(one: Name) -> bool:
    """Whether a member makes an object: a call, a class method, or one of an enum's."""
    if "classmethod" in one.labels:
        return bool(re.match(rf"\W*({one.parent.name}|Self)\b", str(one.annotation)))
    return one.name == "__init__" or ENUM_MEMBER in one.labels


def show_default(attribute: Attribute) -> None:
    """Give a field that ``setting(…)`` or ``switch(…)`` of flodl makes the value of its default."""
    found = re.match(r"(setting|switch)\(", str(attribute.value or ""))
    if found is not None:
        given = getattr(attribute.value, "arguments", [])
        plain = [one for one in given[:1] if not hasattr(one, "function") and "=" not in str(one)]
        attribute.value = (plain or ["False" if found[1] == "switch" else None])[0]


def _problem(file: Path, package: Path) -> str:
    """Why a file was not read; empty for those that are not asked for."""
    shown = file.relative_to(package)
    if any(map(_HIDDEN.fullmatch, shown.parts)):
        return ""
    line, reason = 1, "its folder cannot be imported"
    try:
        ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or getattr(error, "strerror", None) or str(error)
    return f"{package.name}/{shown.as_posix()}:{line}: {reason}"


def _own(one: Class | Module, *kinds: str) -> list[Any]:
    """What a class or a module defines itself."""
    return [each for each in one.members.values() if not each.is_alias and each.kind.value in kinds]


def _modules(one: Module) -> Iterator[Module]:
    """The public modules below a module."""
    for module in _own(one, "module"):
        if not _HIDDEN.fullmatch(module.name):
            yield module
            yield from _modules(module)


def _complete(module: Module) -> None:
    """Tell griffe of named tuples, enums, settings of flodl, and methods that return the object."""
    from griffe import Decorator, ExprName

    fluent = {one.name for one in _own(module, "function") if _FLUENT.match(str(one.returns))}
    for one in _own(module, "class"):
        bases = [getattr(base, "canonical_path", "") for base in one.bases]
        if "typing.NamedTuple" in bases:
            # It is called as a data class is.
            dataclass = ExprName("dataclasses.dataclass")
            one.decorators.append(Decorator(dataclass, lineno=None, endlineno=None))
        is_enum = any(base.startswith("enum.") for base in bases)
        for each in _own(one, "attribute"):
            show_default(each)
            if is_enum and "class-attribute" in each.labels:
                each.labels.add(ENUM_MEMBER)
        if is_enum:
            # What makes its members is not called.
            one.members.pop("__init__", None)
        for each in _own(one, "function"):
            if fluent.intersection(str(decorator.value) for decorator in each.decorators):
                each.returns = "Self"


def _exported(one: Name) -> Name:
    """A definition under the shortest name by which a package exports it, if one does.

    Only packages export: what a module imports is for its own use. Another name would be another
    thing to the reader.
    """
    aliases = [
        alias
        for alias in one.aliases.values()
        if alias.name == one.name and alias.parent.is_init_module
    ]
    return min(aliases, key=lambda alias: (alias.path.count("."), alias.path), default=one)


def _bases(one: Name, below: Iterable[Name] = ()) -> Iterator[Name]:
    """The bases of a class in its package, the nearest first."""
    for base in one.resolved_bases:
        if base.is_class and base not in below:
            yield base
            yield from _bases(base, (*below, base))


def _is_member(one: Name) -> bool:
    """Whether readers use what a class defines."""
    if one.name.startswith("_") and one.name != "__init__":
        return False
    return one.kind.value == "function" or (
        one.kind.value == "attribute" and bool(one.labels & {"property", ENUM_MEMBER})
    )
