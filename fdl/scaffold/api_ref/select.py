"""Find the public names of a reference, and the ones that a user has typed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby

from fdl.base.errors import UsageError
from fdl.base.output import Palette, versioned
from fdl.base.suggest import nearest
from fdl.scaffold.api_ref.scan import Entry, Reference, Signature, module_of


@dataclass(frozen=True, slots=True)
class Name:
    """One class, function or method of a reference.

    Attributes:
        path: The shortest dotted path: ``flodl.Trainer``, ``flodl.Trainer.builder``.
        home: The path in the module that defines it: ``flodl.train.trainer.Trainer``.
        entry: The entry that describes it.
        signature: The function or method; None for a class.
    """

    path: str
    home: str
    entry: Entry
    signature: Signature | None = None

    @property
    def doc(self) -> str:
        """First line of its docstring."""
        return (self.signature or self.entry).doc

    @property
    def is_public(self) -> bool:
        """Whether the package, or a package directly in it, exports it."""
        is_exported = self.path != self.home or self.entry.file.endswith("/__init__.py")
        return is_exported and self.path.count(".") <= 2

    @property
    def alone(self) -> Entry:
        """The entry without what does not belong to this name."""
        if self.signature is None:
            return self.entry
        one = (self.signature,)
        return replace(self.entry, constructors=(), builder_methods=(), methods=one, examples=())

    def answers(self, typed: str) -> bool:
        """Whether one of its paths has the words of a name in their order, and the same end."""
        words = r"\.(.+\.)?".join(map(re.escape, typed.split(".")))
        return any(re.fullmatch(rf"(.+\.)?{words}", path) for path in (self.path, self.home))


def public(reference: Reference) -> list[Name]:
    """The public names; all names of a package that exports none."""
    names = list(_names(reference))
    return [one for one in names if one.is_public] or names


def select(reference: Reference, typed: str) -> list[Name]:
    """What a name means: public names, else others, else all of a module, else members.

    It may be ``Trainer``, ``flodl.nn.Adam``, ``Trainer.builder``, or a module: ``flodl.nn``. A
    method alone, ``early_stop``, means those of all public classes.

    Raises:
        UsageError: There is nothing of this name.
    """
    names, shown = list(_names(reference)), public(reference)
    for found in (
        [one for one in shown if one.answers(typed)],
        [one for one in names if one.answers(typed)],
        [one for one in shown if one.home.startswith(f"{typed}.")],
        [one for one in _members(shown) if one.answers(typed)],
        [one for one in _members(names) if one.answers(typed)],
    ):
        if found:
            return found
    owner, dot, name = typed.rpartition(".")
    known = _members(one for one in names if dot and one.answers(owner))
    near = nearest(name, [one.path.rpartition(".")[2] for one in known or shown])
    raise UsageError(
        f"there is no `{typed}` in {reference.package} {reference.version}",
        hint=f"fdl api-ref {owner + dot if known else ''}{near}"
        if near
        else "`fdl api-ref` lists the public names",
    )


def _names(reference: Reference) -> Iterator[Name]:
    for entry in reference.entries:
        module = module_of(entry.file)
        if entry.is_class:
            yield Name(f"{entry.module}.{entry.name}", f"{module}.{entry.name}", entry)
            continue
        for one in entry.methods:
            # A function that another module exports has that module before its name.
            path = one.sig.removeprefix("async ").partition("(")[0]
            path = path if "." in path else f"{module}.{path}"
            yield Name(path, f"{module}.{one.name}", entry, one)


def _members(names: Iterable[Name]) -> list[Name]:
    """The members of the classes among some names."""
    return [
        Name(f"{one.path}.{member.name}", f"{one.home}.{member.name}", one.entry, member)
        for one in names
        if one.signature is None
        for member in (*one.entry.constructors, *one.entry.methods)
    ]


def as_json(version: str, entries: Iterable[Entry]) -> str:
    """One document: ``schema_version``, ``version`` and ``types``, an object per entry."""
    return versioned({"version": version, "types": [asdict(entry) for entry in entries]})


def as_list(names: Sequence[Name], palette: Palette) -> str:
    """One line per name, below their categories."""
    width = max((len(one.path) for one in names), default=0)
    lines = []
    for category, group in groupby(names, key=lambda one: one.entry.category):
        lines += ["", palette.bold(category)]
        lines += [f"  {palette.cyan(f'{one.path:<{width}}')}  {one.doc}".rstrip() for one in group]
    return "\n".join(lines) + "\n"


def as_text(name: Name, palette: Palette) -> str:
    """All about one name."""
    entry, one = name.entry, name.signature
    place = palette.dim(f"{entry.file}:{entry.line}")
    if one is not None:
        call = one.sig[one.sig.find(one.name) + len(one.name) :]
        text = textwrap.indent(one.docstring, "    ")
        return f"{palette.cyan(name.path)}{call}  {place}\n" + (f"\n{text}\n" if text else "")
    bases = f"({', '.join(entry.traits)})" if entry.traits else ""
    lines = [f"{palette.cyan(name.path)}{bases}  {place}", ""]
    lines += [textwrap.indent(entry.docstring, "    "), ""] if entry.docstring else []
    for member in (*entry.constructors, *entry.methods):
        lines.append(f"    {member.sig}")
        lines += [palette.dim(f"        {member.doc}")] if member.doc else []
    return "\n".join(lines) + "\n"
