"""The class users derive their arguments from."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TextIO

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fdl.args import document
from fdl.args._fields import check_together, is_marked, parameter
from fdl.args._record import DEFAULT, PROGRAM, TYPED, Handover, Place, record, trail
from fdl.args.document import plain
from fdl.args.parameter import Parameter
from fdl.args.parser import Parser, RefusedError, Source
from fdl.errors import FdlError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

# A field of this name would stand in front of what the program calls on its arguments.
_OWN_METHODS = ("resolved",)


class FdlArgsError(FdlError):
    """An argument vector that does not fit the class; exit code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)


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
        for field in _OWN_METHODS:
            if field in annotations:
                raise TypeError(f"{name}.{field}: FdlArgs has a method of this name")
        with warnings.catch_warnings():
            # A field `json` or `copy` hides a method that pydantic itself has given up.
            warnings.filterwarnings("ignore", r'Field name "\w+" in ".*" shadows', UserWarning)
            return super().__new__(mcs, name, bases, namespace, **kwargs)


class FdlArgs(BaseModel, metaclass=_Declarations):
    """Base of typed arguments: every field is declared with ``option(...)`` or ``arg(...)``.

    The class docstring is the program's description. A class attribute ``version`` annotated as
    ``ClassVar[str]`` adds ``--version``. Subclasses are pydantic models, so validators work; they
    see what was given, not the defaults.

    Raises:
        TypeError: When the class is created with a declaration that cannot work; names the field.
    """

    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), frozen=True
    )

    _parameters: ClassVar[tuple[Parameter, ...]] = ()
    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)
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
            values, sources = Parser(cls._parameters).parse(argv, os.environ, handover.generated)
        except RefusedError as problem:
            raise FdlArgsError(f"{problem}{_whereabouts(handover, problem.source)}") from None
        given = {
            name: value
            for name, value in values.items()
            if sources[name].index is not None or sources[name].variable is not None
        }
        try:
            made = cls(**given)
        except ValidationError as problem:
            raise cls._refused(problem, values, sources, handover) from None
        made._sources = sources
        made._parsed = dict(made.__dict__)
        made._handover = handover
        return made

    @classmethod
    def _refused(
        cls,
        problem: ValidationError,
        values: dict[str, Any],
        sources: dict[str, Source],
        handover: Handover,
    ) -> FdlArgsError:
        """The error for what a validator has refused."""
        first = problem.errors(include_url=False, include_input=False)[0]
        reason = str(first["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        field = first["loc"][0] if first["loc"] else None
        for one in cls._parameters:
            if one.field == field:
                where = _whereabouts(handover, sources[one.field])
                return FdlArgsError(one.refusal(plain(values[one.field]), reason) + where)
        return FdlArgsError(reason)

    @classmethod
    def parse_or_schema(cls, argv: Sequence[str] | None = None) -> Self:
        """Parse ``sys.argv``; answer ``--help``, ``--version`` and ``--fdl-schema`` and exit.

        Exits 0 after requested output, 2 with the message and the help on stderr for bad arguments.
        """
        words = list(sys.argv[1:] if argv is None else argv)
        flags = words[: words.index("--")] if "--" in words else words
        if document.is_asked(words):
            document.answer(cls.schema())
        if "--help" in flags or "-h" in flags:
            _print_and_exit(cls.render_help(sys.stdout))
        version = cls._version()
        if version and ("--version" in flags or "-V" in flags):
            _print_and_exit(f"{_program()} {version}\n")
        try:
            return cls.try_parse_from(words)
        except FdlArgsError as error:
            from fdl import output

            output.error(error.message)
            output.write(sys.stderr, f"\n{cls.render_help(sys.stderr)}")
            sys.exit(error.exit_code)

    @classmethod
    def schema(cls) -> dict[str, Any]:  # type: ignore[override]  # pydantic's own is deprecated
        """The document of ``--fdl-schema``: description, args, options, strict and origins."""
        return document.document(
            " ".join(cls._description().split()), cls._parameters, origins=True
        )

    @classmethod
    def render_help(cls, stream: TextIO | None = None) -> str:
        """The ``--help`` page.

        Args:
            stream: Where it will go, which decides width and colour; 80 plain columns when omitted.
        """
        from fdl import output
        from fdl.help.layout import terminal_width
        from fdl.help.program import render

        return render(
            _program(),
            cls._description(),
            cls._parameters,
            version=bool(cls._version()),
            palette=output.palette(stream) if stream else output.Palette(False),
            width=terminal_width(stream) if stream else 80,
        )

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
        found = self._sources.get(one.field)
        if found is None:
            given = one.field in self.model_fields_set
            return [(value, Place(PROGRAM if given else DEFAULT))]
        current, parsed = self.__dict__[one.field], self._parsed[one.field]
        if current is parsed or current == parsed:
            return trail(one, value, found, self._handover)
        return [(value, Place(PROGRAM)), *trail(one, parsed, found, self._handover)]


def _print_and_exit(text: str) -> NoReturn:
    from fdl import output

    output.write(sys.stdout, text)
    sys.stdout.flush()
    sys.exit(0)


def _program() -> str:
    command = Handover(os.environ).command
    return " ".join(["fdl", *command]) if command else Path(sys.argv[0]).name or "python"


def _whereabouts(handover: Handover, source: Source | None) -> str:
    """Where a refused value stands, unless it was typed a moment ago."""
    if source is None:
        return ""
    place = handover.place(source)
    return "" if place.origin == TYPED else f" ({place.origin})"
