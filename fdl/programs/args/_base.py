"""The class users derive their arguments from."""

from __future__ import annotations

import os
import re
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TextIO

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fdl.base import output
from fdl.base.errors import FdlError, UsageError
from fdl.base.layout import Page, Row, terminal_width
from fdl.base.shell_words import program_words
from fdl.manifest.words import ALL_GROUPS
from fdl.programs.args._fields import check_together, is_marked, parameter
from fdl.programs.args._record import DEFAULT, PROGRAM, TYPED, Handover, Place, record, trail
from fdl.programs.parameters import document
from fdl.programs.parameters.document import plain
from fdl.programs.parameters.parameter import Parameter, collapsed_last, help_word
from fdl.programs.parameters.parser import (
    RefusedError,
    argument_rows,
    option_tables,
    read_words,
    slots,
)

if TYPE_CHECKING:
    from fdl.programs.parameters.parser import Stack, Where


def usage(program: str, parameters: Sequence[Parameter]) -> str:
    """How a program is called: ``python main.py [OPTIONS] <data>``."""
    return " ".join([program, "[OPTIONS]", *slots(parameters)])


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

# A field of this name would hide what FdlArgs itself keeps there.
_OWN_NAMES = ("collapsed", "resolved")


class FdlArgsError(FdlError):
    """An argument vector that does not fit the class; exit code 2."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint=hint, exit_code=2)


class _Declarations(ModelMetaclass):
    """Checks what has to be known before pydantic looks at the class."""

    def __new__(
        mcs, name: str, bases: tuple[type[Any], ...], namespace: dict[str, Any], **kwargs: Any
    ) -> type:
        annotations = namespace.get("__annotations__", {})
        for field, value in namespace.items():
            if is_marked(value) and field not in annotations:
                raise TypeError(f"{name}.{field}: give the field a type: `{field}: int = …`")
            if is_marked(value) and field.startswith("_"):
                raise TypeError(f"{name}.{field}: a field cannot begin with an underscore")
        for field in _OWN_NAMES:
            if is_marked(namespace.get(field)):
                raise TypeError(f"{name}.{field}: FdlArgs itself has an attribute of this name")
        with warnings.catch_warnings():
            # A field `json` or `copy` hides a method that pydantic itself has given up.
            warnings.filterwarnings("ignore", r'Field name "\w+" in ".*" shadows', UserWarning)
            return super().__new__(mcs, name, bases, namespace, **kwargs)


class FdlArgs(BaseModel, metaclass=_Declarations):
    """Base of typed arguments: every field is declared with ``option(...)`` or ``arg(...)``.

    The class docstring is the program's description. A class attribute ``version`` annotated as
    ``ClassVar[str]`` adds ``--version``. Subclasses are pydantic models, so validators work; they
    see what was given, not the defaults.

    Attributes:
        collapsed: Groups that ``--help`` shows as one line -> what their options are for. A
            subclass adds to those of its bases. ``--help GROUP`` and ``--help all`` show the
            options.

    Raises:
        TypeError: When the class is created with a declaration that cannot work; names the field.
    """

    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), frozen=True
    )

    collapsed: ClassVar[Mapping[str, str]] = {}

    _parameters: ClassVar[tuple[Parameter, ...]] = ()
    _collapsed: ClassVar[dict[str, str]] = {}
    _stacks: dict[str, Any] = PrivateAttr(default_factory=dict)
    _parsed: dict[str, Any] = PrivateAttr(default_factory=dict)
    _handover: Handover = PrivateAttr(default_factory=lambda: Handover({}))

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Check the declarations and keep them as parameters."""
        super().__pydantic_init_subclass__(**kwargs)
        cls._parameters = tuple(
            parameter(cls.__name__, name, info) for name, info in cls.model_fields.items()
        )
        check_together(cls.__name__, cls._parameters)
        cls._collapsed = {
            group: text
            for base in reversed(cls.__mro__)
            for group, text in vars(base).get("collapsed", {}).items()
        }
        for group in cls._collapsed.keys() - {one.group for one in cls._parameters}:
            raise TypeError(f"{cls.__name__}.collapsed: no option has the group `{group}`")
        cls._parameters = collapsed_last(cls._parameters, cls._collapsed)
        for one in cls._parameters:
            # What the class yields when constructed without argv is what an empty argv yields.
            info: FieldInfo = cls.model_fields[one.field]
            info.default = PydanticUndefined if one.required else one.absent()
        cls.model_rebuild(force=True)

    @classmethod
    def try_parse_from(cls, argv: Sequence[str]) -> Self:
        """Parse an argument vector (without the program name).

        What was typed wins, then environment variables, then what ``fdl`` has generated from the
        manifest, then defaults.

        Raises:
            FdlArgsError: The vector does not fit; the message is for the user.
        """
        handover = Handover(os.environ, argv)
        try:
            stacks = read_words(cls._parameters, argv, os.environ, handover.generated)
        except RefusedError as problem:
            said, hint = str(problem), ""
            if problem.surplus:
                options = {one.name: one.flag for one in cls._parameters if one.kind == "option"}
                hint = handover.meant_by_argument(problem.surplus, options)
            elif problem.unknown and (hint := handover.meant_by_option(problem.unknown)):
                # This is certain, so the guess in the message is not needed.
                said = f"unknown option `{problem.unknown}`"
            where = _whereabouts(handover, problem.where)
            raise FdlArgsError(f"{said}{where}", hint=hint) from None
        strongest = {name: stack[0] for name, stack in stacks.items()}
        given = {name: value for name, (value, place) in strongest.items() if place is not None}
        try:
            made = cls(**given)
        except ValidationError as problem:
            raise cls._refused(problem, stacks, handover) from None
        made._stacks = stacks
        made._parsed = dict(made.__dict__)
        made._handover = handover
        return made

    @classmethod
    def _refused(
        cls,
        problem: ValidationError,
        stacks: dict[str, Stack],
        handover: Handover,
    ) -> FdlArgsError:
        """The error for what a validator has refused."""
        first = problem.errors(include_url=False, include_input=False)[0]
        reason = str(first["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        field = first["loc"][0] if first["loc"] else None
        for one in cls._parameters:
            if one.field == field:
                value, where = stacks[one.field][0]
                refusal = one.refusal(plain(value), reason)
                return FdlArgsError(refusal + _whereabouts(handover, where))
        return FdlArgsError(reason)

    @classmethod
    def parse_or_schema(cls, argv: Sequence[str] | None = None) -> Self:
        """Parse ``sys.argv``; answer ``--help``, ``--version`` and ``--fdl-schema`` and exit.

        In a notebook, nothing is parsed: the arguments are those of its kernel.

        Exits 0 after requested output. For bad arguments exits 2, with the error, the usage and the
        command for help on stderr.
        """
        words = program_words() if argv is None else list(argv)
        flags = words[: words.index("--")] if "--" in words else words
        if document.is_asked(words):
            document.answer(cls.schema())
        version = cls._version()
        try:
            if "--help" in flags or "-h" in flags:
                _print_and_exit(cls._render(_typed(words)[0], sys.stdout, help_word(flags)))
            if version and ("--version" in flags or "-V" in flags):
                _print_and_exit(f"{Path(sys.argv[0]).name} {version}\n")
            return cls.try_parse_from(words)
        except FdlArgsError as error:
            from fdl.base import output

            program, explained = _typed(words)
            output.error(error.message, error.hint)
            output.see(usage(program, cls._parameters), explained)
            sys.exit(error.exit_code)

    @classmethod
    def schema(cls) -> dict[str, Any]:  # type: ignore[override]  # pydantic's own is deprecated
        """The document of ``--fdl-schema``: description, args, options, strict and origins."""
        return document.document(
            " ".join(cls._description().split()),
            cls._parameters,
            collapsed=cls._collapsed,
            origins=True,
        )

    @classmethod
    def render_help(cls, stream: TextIO | None = None, group: str = "") -> str:
        """The ``--help`` page.

        Args:
            stream: Where it will go, which decides width and colour; 80 plain columns when omitted.
            group: Show only this group of options; ``all`` shows every group in full.

        Raises:
            FdlArgsError: No option has this group; the message lists the groups.
        """
        return cls._render(_typed()[0], stream, group)

    @classmethod
    def _render(cls, program: str, stream: TextIO | None, group: str) -> str:
        """One page: usage, description, arguments, options."""
        page = Page(
            output.palette(stream) if stream else output.Palette(False),
            terminal_width(stream) if stream else 80,
        )
        page.usage(usage(program, cls._parameters))
        if group in ("", ALL_GROUPS):
            for paragraph in filter(str.strip, re.split(r"\n\s*\n", cls._description())):
                page.prose(paragraph)
            page.table("Arguments", argument_rows(cls._parameters))
        common = [Row("-V, --version", "Show the version")] if cls._version() else []
        try:
            tables = option_tables(cls._parameters, cls._collapsed, common, group)
        except UsageError as problem:
            raise FdlArgsError(problem.message, problem.hint) from None
        for heading, rows in tables:
            page.table(heading, rows)
        return page.render()

    @classmethod
    def _description(cls) -> str:
        """The docstring of the class, or of the nearest class of arguments that has one."""
        for base in cls.__mro__[: cls.__mro__.index(FdlArgs)]:
            if issubclass(base, FdlArgs) and base.__doc__:
                return base.__doc__
        return ""

    @classmethod
    def _version(cls) -> str:
        version = getattr(cls, "version", None)
        return version if isinstance(version, str) else ""

    def resolved(self) -> dict[str, dict[str, Any]]:
        """Every value with the place it came from, as JSON data for a run's record.

        ``{"lr": {"value": 0.1, "origin": "command line", "overrides": [{"value": 0.01, "origin":
        "train/fdl.yml:9:7", "field": "training.lr"}, {"value": 0.003, "origin": "default"}]}}``

        The origin is ``file:line:column`` for a value out of a manifest (``field`` is its path
        there), ``command line``, ``env NAME``, ``default``, or ``program`` for what the program
        has set itself. ``overrides`` are the values it has beaten, strongest first. Secrets are
        blanked out.
        """
        values = BaseModel.model_dump(self, mode="json")
        return {
            one.field: record(one, self._trail(one, plain(values[one.field])))
            for one in self._parameters
        }

    def _trail(self, one: Parameter, value: Any) -> list[tuple[Any, Place]]:
        """Every value of a field, strongest first; what the program changed later is its own."""
        found: Stack | None = self._stacks.get(one.field)
        if found is None:
            given = one.field in self.model_fields_set
            return [(value, Place(PROGRAM if given else DEFAULT))]
        current, parsed = self.__dict__[one.field], self._parsed[one.field]
        if current is parsed or current == parsed:
            return trail(one, value, found, self._handover)
        return [(value, Place(PROGRAM)), *trail(one, parsed, found, self._handover)]


def _print_and_exit(text: str) -> NoReturn:
    output.write(sys.stdout, text)
    sys.stdout.flush()
    sys.exit(0)


def _typed(argv: Sequence[str] = ()) -> tuple[str, str]:
    """What starts this program, and what shows its help page when ``--help`` follows.

    The words before ``argv`` name a command of the program.
    """
    handover = Handover(os.environ)
    if handover.command:
        # The page of a preset shows its settings, and not the options of the program.
        end = -1 if handover.command[-1] == handover.preset else None
        return " ".join(["fdl", *handover.command]), " ".join(["fdl", *handover.command[:end]])
    words = program_words()
    command = words[: len(words) - len(argv)] if argv and words[-len(argv) :] == argv else []
    program = " ".join([_program(), *command])
    return program, program


def _program() -> str:
    """The command of a program that fdl has not started."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return f"python -m {spec.name.removesuffix('.__main__')}"
    script = sys.argv[0]
    if not script.endswith(".py"):
        return Path(script).name or "python"
    if Path(script).is_relative_to(Path.cwd()):
        script = str(Path(script).relative_to(Path.cwd()))
    return f"python {shlex.quote(script)}"


def _whereabouts(handover: Handover, where: Where) -> str:
    """Where a refused value stands, unless it was typed a moment ago."""
    if where is None:
        return ""
    place = handover.place(where)
    return "" if place.origin == TYPED else f" ({place.origin})"
