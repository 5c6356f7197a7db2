"""Find the names of a reference that a user has typed, and print them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from fdl.base.errors import UsageError
from fdl.base.output import Palette, versioned
from fdl.base.suggest import nearest
from fdl.scaffold.api_ref.scan import (
    ENUM_MEMBER,
    Name,
    Reference,
    category,
    file_of,
    group,
    makes,
    members,
)

_CODE = re.compile(
    r"^( *)```[^\n]*\n(.*?)^\1```|^ *>>> [^\n]*(?:\n(?! *$)[^\n]*)*", re.DOTALL | re.MULTILINE
)


def public(reference: Reference) -> list[Name]:
    """What the package, or a package directly in it, exports; all names where none does."""
    return [
        one
        for one in reference.names
        if (one.is_alias or one.parent.is_init_module) and one.path.count(".") <= 2
    ] or reference.names


def select(reference: Reference, typed: str) -> list[Name]:
    """What a name means: public names, else others, else all of a module, else members.

    It may be ``Trainer``, ``flodl.nn.Adam``, ``Trainer.builder``, or a module: ``flodl.nn``. A
    method alone, ``early_stop``, means those of all public classes.

    Raises:
        UsageError: There is nothing of this name.
    """
    names, shown = reference.names, public(reference)
    if found := next(filter(None, _meanings(typed, names, shown)), None):
        return found
    owner, dot, name = typed.rpartition(".")
    known = _members(_named(owner, names)) if dot else []
    near = nearest(name, [one.name for one in known or shown])
    raise UsageError(
        f"there is no `{typed}` in {reference.package} {reference.version}",
        hint=f"fdl api-ref {owner + dot if known else ''}{near}"
        if near
        else "`fdl api-ref` lists the public names",
    )


def _meanings(typed: str, names: list[Name], shown: list[Name]) -> Iterator[list[Name]]:
    yield _named(typed, shown)
    yield _named(typed, names)
    yield [one for one in shown if one.canonical_path.startswith(f"{typed}.")]
    yield _named(typed, _members(shown))
    yield _named(typed, _members(names))


def _named(typed: str, names: Iterable[Name]) -> list[Name]:
    """Those of which a path has the words of a name in their order, and the same end."""
    words = re.compile(r"(.+\.)?" + r"\.(.+\.)?".join(map(re.escape, typed.split("."))))
    return [
        one for one in names if words.fullmatch(one.path) or words.fullmatch(one.canonical_path)
    ]


def _members(names: Iterable[Name]) -> list[Name]:
    """The members of the classes among some names."""
    return [member for one in names if one.is_class for member in members(one)]


def as_json(reference: Reference, names: Iterable[Name] | None = None) -> str:
    """One document: ``schema_version``, ``version`` and ``types``, an object per entry.

    An entry is a class, the functions of a module, or one name alone if names are given.
    """
    groups = groupby(reference.names, key=lambda one: (group(one), file_of(one)))
    listed = [list(found) for _, found in groups] if names is None else [[one] for one in names]
    types = [_entry(found, is_whole=names is None) for found in listed]
    return versioned({"version": reference.version, "types": types})


def _entry(names: Sequence[Name], *, is_whole: bool) -> dict[str, object]:
    """A class with its members, or some functions or members with what they belong to."""
    first = names[0]
    is_class = first.is_class
    home = first if is_class else first.parent if first.parent.is_class else first.module
    shown = members(first) if is_class else names
    made = [one for one in shown if is_class and makes(one)]
    texts = [home, *shown] if is_class or is_whole else []
    return {
        "name": group(home),
        "category": category(file_of(home)),
        "module": home.path.rpartition(".")[0] if home.is_class else home.path,
        "file": file_of(home),
        "line": home.lineno or first.lineno,
        "traits": traits(home) if home.is_class else [],
        "constructors": [_usage(one) for one in made],
        "builder_methods": [
            one.name for one in shown if is_class and re.match(r"(build|done)$|with_", one.name)
        ],
        "methods": [_usage(one) for one in shown if one not in made],
        "examples": [
            textwrap.dedent(code[2] or code[0]).strip("\n")
            for one in texts
            for code in _CODE.finditer(_docstring(one))
        ],
        "doc": doc(home),
        "docstring": _docstring(home),
    }


def _usage(one: Name) -> dict[str, str]:
    return {"name": one.name, "sig": sig(one), "doc": doc(one), "docstring": _docstring(one)}


def sig(one: Name) -> str:
    """How something is used: ``through(module: ModuleLike) -> Self``, ``Builder.of(name: str)``."""
    owner, name = one.canonical_path.split(".")[-2:]
    if name == "__init__":
        name = owner
    elif {"staticmethod", "classmethod", ENUM_MEMBER} & one.labels:
        name = f"{owner}.{name}"
    elif one.parent.is_module and one.is_alias:
        name = one.path
    return f"{'async ' * ('async' in one.labels)}{name}{_call(one)}"


def _call(one: Name) -> str:
    """What stands behind the name where it is used: arguments and result, or a type."""
    if one.is_attribute:
        return f": {one.annotation}" if one.annotation else ""
    return str(one.signature(return_type=one.name != "__init__").removeprefix(one.name))


def doc(one: Name) -> str:
    """First line of a docstring; empty without one."""
    return _docstring(one).partition("\n")[0].strip()


def _docstring(one: Name) -> str:
    return one.docstring.value if one.docstring else ""


def traits(one: Name) -> list[str]:
    """The public base classes."""
    return [base for base in map(str, one.bases) if not re.match(r"(.*\.)?_|object$", base)]


def as_list(names: Sequence[Name], palette: Palette) -> str:
    """One line per name, below their categories."""
    width = max((len(one.path) for one in names), default=0)
    lines = []
    for topic, found in groupby(names, key=lambda one: category(file_of(one))):
        lines += ["", palette.bold(topic)]
        lines += [f"  {palette.cyan(f'{one.path:<{width}}')}  {doc(one)}".rstrip() for one in found]
    return "\n".join(lines) + "\n"


def as_text(one: Name, palette: Palette) -> str:
    """All about one name."""
    # The constructor of a data class stands where the class does.
    place = palette.dim(f"{file_of(one)}:{one.lineno or one.parent.lineno}")
    text = textwrap.indent(_docstring(one), "    ")
    if not one.is_class:
        return f"{palette.cyan(one.path)}{_call(one)}  {place}\n" + (f"\n{text}\n" if text else "")
    bases = f"({', '.join(traits(one))})" if traits(one) else ""
    lines = [f"{palette.cyan(one.path)}{bases}  {place}", ""]
    lines += [text, ""] if text else []
    for member in members(one):
        lines.append(f"    {sig(member)}")
        lines += [palette.dim(f"        {doc(member)}")] if doc(member) else []
    return "\n".join(lines) + "\n"
