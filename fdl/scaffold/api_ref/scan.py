"""From the files of a package to its reference; griffe reads them."""

from __future__ import annotations

import os
import re
import textwrap
import tokenize
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdl.base.errors import FdlError, UsageError
from fdl.base.files import text_of
from fdl.base.venv import project_prefix, site_packages

if TYPE_CHECKING:
    from griffe import Attribute, Class, Module, Object

FUNCTIONS = " (functions)"


@dataclass(frozen=True, slots=True)
class Signature:
    """One thing that can be called, or read off an object.

    Attributes:
        name: Its name alone: ``through``.
        sig: How it is used: ``through(module: ModuleLike) -> Self``; constructors stand behind
            the name of their class, properties have no parentheses.
        doc: First line of its docstring; empty without one.
        docstring: The whole docstring.
    """

    name: str
    sig: str
    doc: str = ""
    docstring: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A public class, or the public functions of one module.

    Attributes:
        name: Name of the class, or the module and :data:`FUNCTIONS`.
        category: Its topic: ``graph``, ``optimizers``; ``other`` if its path tells none.
        module: The shortest module to import it from.
        file: File that defines it, relative to the folder that holds the package.
        line: Line of the definition.
        doc: First line of the docstring; empty without one.
        traits: Public base classes.
        constructors: Ways to make one: the call of the class, class methods that return one, the
            members of an enum.
        builder_methods: Names of the methods that finish or configure a builder: ``build``,
            ``done``, ``with_…``; they are among the methods too.
        methods: Public methods and properties, or the functions of the module. Those of bases in
            the same package follow the class's own.
        examples: Code of the docstrings.
        docstring: The whole docstring of the class, or of the module.
    """

    name: str
    category: str
    module: str
    file: str
    line: int
    doc: str
    traits: tuple[str, ...] = ()
    constructors: tuple[Signature, ...] = ()
    builder_methods: tuple[str, ...] = ()
    methods: tuple[Signature, ...] = ()
    examples: tuple[str, ...] = ()
    docstring: str = ""

    @property
    def is_class(self) -> bool:
        """Whether it is a class and not the functions of a module."""
        return not self.name.endswith(FUNCTIONS)


@dataclass(frozen=True, slots=True)
class Reference:
    """All entries of a package.

    Attributes:
        package: The package's name.
        version: The package's version; ``unknown`` when it does not say.
        entries: Sorted by category, then name, then file.
        problems: Files that could not be read, as ``FILE:LINE: reason``.
    """

    package: str
    version: str
    entries: tuple[Entry, ...]
    problems: tuple[str, ...] = ()


OWN_NAME = "flodl"
LEVELS = 5
"""How many folders above the working directory may be the checkout."""


def find(path: Path | None, start: Path, environ: Mapping[str, str]) -> Path:
    """The folder of the package to describe: that in ``path``, which the user has named.

    Without a path, the nearest checkout counts, then what the environment of the project around
    has installed, then what came along with this fdl.

    Raises:
        UsageError: The named folder is neither.
        FdlError: flodl is not there.
    """
    if path is not None:
        return _named(path.expanduser().absolute())
    found = [folder for folder in [start, *start.parents][: LEVELS + 1] if _is_checkout(folder)]
    found += map(Path, site_packages(project_prefix(str(start), environ)))
    for folder in (*found, Path(__file__).parents[3]):
        if _is_package(folder / OWN_NAME):
            return folder / OWN_NAME
    raise FdlError(
        "the source of flodl is neither in a checkout around here nor installed",
        hint="name a folder that holds it: fdl api-ref --path DIR",
    )


def _named(path: Path) -> Path:
    problem = ": it has no Python package" if path.is_dir() else ": there is no such folder"
    hint = "name a project folder, or a folder with an __init__.py"
    for one in (path / OWN_NAME, path / "src" / OWN_NAME, path):
        if _is_package(one):
            return one
    for folder in (path / "src", path):
        found = [one for one in sorted(folder.glob("*")) if _is_package(one)]
        found = [one for one in found if one.name not in ("test", "tests")]
        if len(found) == 1:
            return found[0]
        if found:
            problem = f" has several packages: {', '.join(one.name for one in found)}"
            hint = f"name one: fdl api-ref --path {found[0]}"
            break
    raise UsageError(f"--path {path}{problem}", hint=hint)


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _is_checkout(folder: Path) -> bool:
    try:
        document = tomllib.loads(text_of(folder / "pyproject.toml"))
        return bool(document["project"]["name"] == OWN_NAME)
    except (ValueError, LookupError, TypeError):
        return False


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
_HIDDEN = re.compile(r"[_.].*|test_.*|.*_test\.py|tests?|conftest\.py")
_ENUM = re.compile(r"(.*\.)?(Int|Str|Repr)?(Enum|Flag)")
_CODE = re.compile(
    r"^( *)```[^\n]*\n(.*?)^\1```|^ *>>> [^\n]*(?:\n(?! *$)[^\n]*)*", re.DOTALL | re.MULTILINE
)
_FLUENT = re.compile(r".*Callable\[Concatenate\[(\w+), .*\], \1\]")
"""What a decorator returns that makes a method return its object."""


def scan(package: Path) -> Reference:
    """Read every public module of a package.

    Modules, folders and names that begin with an underscore are left out, and so are tests.

    Raises:
        FdlError: griffe is not installed.
    """
    modules: dict[str, Module] = {}
    problems: list[str] = []
    for file in _files(package):
        shown = file.relative_to(package.parent).as_posix()
        try:
            modules[shown] = _read(file, module_of(shown))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = getattr(error, "msg", None) or getattr(error, "strerror", None) or str(error)
            line = getattr(error, "lineno", None) or 1
            problems.append(f"{shown}:{line}: {reason or type(error).__name__}")
    places = _places(modules, package.name)
    entries = [
        entry
        for file, module in modules.items()
        if not file.endswith("/__init__.pyi")
        for entry in _entries(file, module, places)
        if entry.doc or entry.constructors or entry.methods or entry.examples
    ]
    named = Counter(one.name for one in entries)
    classes = {one.name: one for one in entries if one.is_class and named[one.name] == 1}
    entries = [_with_inherited(one, classes) for one in entries]
    entries.sort(key=lambda one: (one.category, one.name, one.file, one.line))
    version = _version(modules.get(f"{package.name}/__init__.py"))
    return Reference(package.name, version, tuple(entries), tuple(problems))


def module_of(file: str) -> str:
    """The module that a file makes: ``flodl.graph`` for ``flodl/graph/__init__.py``."""
    return file.removesuffix("i").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def category(file: str) -> str:
    """The category of what a file defines: ``flodl/graph/builder.py`` is ``graph``."""
    _, *folders, name = file.removesuffix("i").removesuffix(".py").split("/")
    for folder in folders:
        if folder in _FOLDERS:
            return folder
    if name in _OF_FILE and folders[:1] in ([], ["nn"], ["train"]):
        return _OF_FILE[name]
    return "modules" if folders[:1] == ["nn"] else "other"


def _files(package: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(package):
        names[:] = sorted(name for name in names if not _HIDDEN.fullmatch(name))
        for name in sorted(files):
            if name.startswith("__init__.py"):
                yield Path(folder, name)
            elif name.endswith(".py") and not _HIDDEN.fullmatch(name):
                # The stub of a module shows what the module makes when it is imported.
                yield Path(folder, f"{name}i" if f"{name}i" in files else name)


def _read(file: Path, name: str) -> Module:
    try:
        from griffe import DataclassesExtension, ModulesCollection, visit
    except ImportError:
        raise FdlError(
            "`fdl api-ref` needs griffe, which is not installed",
            hint="pip install 'flodl[api-ref]'",
        ) from None
    with tokenize.open(file) as stream, warnings.catch_warnings():
        # About the described code, which is not ours to mend here.
        warnings.simplefilter("ignore")
        # In a collection of its own: the constructor of a data class shows its own fields.
        module = visit(name, file, stream.read(), modules_collection=ModulesCollection())
    for one in _members(module):
        for attribute in _members(one) if one.is_class else ():
            if attribute.is_attribute:
                show_default(attribute)
    DataclassesExtension().on_package(pkg=module)
    return module


def show_default(attribute: Attribute) -> None:
    """Give a field that ``setting(…)`` or ``switch(…)`` of flodl makes the value of its default."""
    found = re.match(r"(setting|switch)\(", str(attribute.value or ""))
    if found is not None:
        given = getattr(attribute.value, "arguments", [])
        plain = [one for one in given[:1] if not hasattr(one, "function") and "=" not in str(one)]
        attribute.value = (plain or ["False" if found[1] == "switch" else None])[0]


def _version(module: Module | None) -> str:
    own = {one.name: one for one in _members(module)} if module else {}
    text = str(getattr(own.get("__version__"), "value", ""))
    return text[1:-1] if text.startswith(("'", '"')) else "unknown"


def _members(one: Class | Module) -> list[Any]:
    """What a class or a module defines itself."""
    return [each for each in one.members.values() if not each.is_alias]


def _public(one: Class | Module, *labels: str) -> list[Any]:
    """The public functions of a module or a class, or what has one of some labels."""
    return [
        each
        for each in _members(one)
        if not each.name.startswith("_") and (each.is_function or each.labels.intersection(labels))
    ]


def _places(modules: Mapping[str, Module], package: str) -> dict[str, str]:
    """Path of each definition that a package exports -> the shortest module to import it from.

    Only packages export: what a module imports is for its own use. The stub of a package lists the
    names that it imports at their first use. Another name would be another thing to the reader.
    """
    exports = {
        f"{module.path}.{name}": target
        for file, module in modules.items()
        if "/__init__.py" in file
        for name, target in module.imports.items()
        if not name.startswith("_") and re.fullmatch(rf"{package}\.(.*\.)?{name}", target)
    }
    places: dict[str, str] = {}
    for place in sorted(exports, key=lambda path: (path.count("."), path)):
        path = place
        # Each name on the way is nearer to its definition, unless two packages import in a circle.
        for _ in exports:
            path = exports.get(path, path)
        places.setdefault(path, place.rpartition(".")[0])
    return places


def _entries(file: str, module: Module, places: Mapping[str, str]) -> Iterator[Entry]:
    where: dict[str, Any] = {"category": category(file), "file": file}
    own = _members(module)
    fluent = {one.name for one in own if one.is_function and _FLUENT.match(str(one.annotation))}
    for one in own:
        if one.is_class and not one.name.startswith("_"):
            yield _class(one, fluent, module=places.get(one.path, module.path), **where)
    if functions := _public(module):
        yield Entry(
            name=f"{module.path}{FUNCTIONS}",
            module=module.path,
            line=functions[0].lineno or 1,
            methods=tuple(_signature(one, places.get(one.path, "")) for one in functions),
            examples=tuple(_examples([module, *functions])),
            **_texts(module),
            **where,
        )


def _class(one: Class, fluent: set[str], **where: Any) -> Entry:
    bases = [base for base in map(str, one.bases) if not base.rpartition(".")[2].startswith("_")]
    public = _public(one, "property")
    makers = [
        each.name
        for each in public
        if "classmethod" in each.labels
        and re.match(rf"\W*({one.name}|Self)\b", str(each.annotation))
    ]
    shown = {each.name: _signature(each, one.name, fluent) for each in public}
    made = [shown.pop(name) for name in makers]
    return Entry(
        name=one.name,
        line=one.lineno or 1,
        traits=tuple(base for base in bases if base != "object"),
        constructors=(*_own_constructor(one, bases), *made),
        builder_methods=tuple(
            each.name for each in public if re.match(r"(build|done)$|with_", each.name)
        ),
        methods=tuple(shown.values()),
        examples=tuple(_examples([one, *public])),
        **_texts(one),
        **where,
    )


def _own_constructor(one: Class, bases: Iterable[str]) -> Iterator[Signature]:
    """The call of the class itself, or the members of an enum."""
    attributes = [each for each in _members(one) if each.is_attribute]
    init: Any = one.members.get("__init__")
    if any(map(_ENUM.fullmatch, bases)):
        for each in attributes:
            if "class-attribute" in each.labels and each.value and each.name[0] != "_":
                yield Signature(each.name, f"{one.name}.{each.name}")
    elif init is not None and init.is_function:
        sig = init.signature(name=one.name, return_type=False)
        yield Signature("__init__", sig, **_texts(init))
    elif any(base.endswith("NamedTuple") for base in bases):
        fields = (
            f"{each.name}: {each.annotation}" + (f" = {each.value}" if each.value else "")
            for each in attributes
            if each.annotation and "property" not in each.labels
        )
        yield Signature("__init__", f"{one.name}({', '.join(fields)})")


def _signature(one: Any, owner: str, fluent: Iterable[str] = ()) -> Signature:
    """A function, behind the class or module that it is called on where that matters."""
    is_called_on = not one.parent.is_class or {"staticmethod", "classmethod"} & one.labels
    name = f"{owner}.{one.name}" if owner and is_called_on else one.name
    if "property" in one.labels:
        sig = f"{one.name}: {one.annotation}" if one.annotation else one.name
    elif set(fluent).intersection(str(each.value) for each in one.decorators):
        sig = f"{one.signature(name=name, return_type=False)} -> Self"
    else:
        sig = one.signature(name=name)
    return Signature(one.name, f"{'async ' * ('async' in one.labels)}{sig}", **_texts(one))


def _with_inherited(entry: Entry, classes: Mapping[str, Entry], below: Iterable[str] = ()) -> Entry:
    """The entry with the methods of its bases in this package, the nearest first."""
    constructors = [one.name for one in entry.constructors]
    methods = {one.name: one for one in entry.methods}
    for trait in entry.traits:
        base = classes.get(trait.partition("[")[0].rpartition(".")[2])
        if base is not None and base.name not in (*below, entry.name):
            for one in _with_inherited(base, classes, (*below, entry.name)).methods:
                if one.name not in constructors:
                    methods.setdefault(one.name, one)
    return replace(entry, methods=tuple(methods.values()))


def _texts(one: Object) -> dict[str, Any]:
    """A docstring and its first line."""
    text = one.docstring.value if one.docstring else ""
    return {"doc": text.partition("\n")[0].strip(), "docstring": text}


def _examples(definitions: Iterable[Object]) -> Iterator[str]:
    """Doctests and fenced blocks, in the order they stand in."""
    for one in definitions:
        for match in _CODE.finditer(_texts(one)["docstring"]):
            yield textwrap.dedent(match[2] or match[0]).strip("\n")
