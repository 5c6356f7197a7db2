"""What the reference consists of."""

from __future__ import annotations

from dataclasses import dataclass

CATEGORIES = (
    "autograd",
    "data",
    "distributed",
    "graph",
    "losses",
    "modules",
    "optimizers",
    "schedulers",
    "tensor",
    "other",
)
"""The categories; entries are sorted by their names."""

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
        category: One of :data:`CATEGORIES`.
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

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to say about it but its name."""
        return not (self.doc or self.constructors or self.methods or self.examples)


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
