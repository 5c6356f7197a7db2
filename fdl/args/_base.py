"""The class users derive their arguments from."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from fdl.args import _help
from fdl.args._fields import Parameter, check_together, parameter
from fdl.args._parser import Parser, Source
from fdl.errors import FdlError


class FdlArgsError(FdlError):
    """An argument vector that does not fit the class; exit code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)


class FdlArgs(BaseModel):
    """Base of typed arguments: every field is declared with ``option(...)`` or ``arg(...)``.

    The class docstring is the program's description. A class attribute ``version`` annotated as
    ``ClassVar[str]`` adds ``--version``. Subclasses are pydantic models, so validators work.

    Raises:
        TypeError: When the class is created with a declaration that cannot work; names the field.
    """

    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), frozen=True
    )

    _parameters: ClassVar[tuple[Parameter, ...]] = ()
    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)
    _argv: tuple[str, ...] = PrivateAttr(default=())

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
            cls.model_fields[one.field].default = one.absent()
        cls.model_rebuild(force=True)

    @classmethod
    def try_parse_from(cls, argv: Sequence[str]) -> Self:
        """Parse an argument vector (without the program name).

        Raises:
            FdlArgsError: The vector does not fit; the message is for the user.
        """
        try:
            values, sources = Parser(cls._parameters).parse(argv, os.environ)
        except ValueError as error:
            raise FdlArgsError(str(error)) from None
        try:
            made = cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]).replace("_", "-") if first["loc"] else ""
            message = str(first["msg"]).removeprefix("Value error, ")
            raise FdlArgsError(f"`--{name}`: {message}" if name else message) from None
        made._sources = sources
        made._argv = tuple(argv)
        return made

    @classmethod
    def parse_or_schema(cls, argv: Sequence[str] | None = None) -> Self:
        """Parse ``sys.argv``; answer ``--help``, ``--version`` and ``--fdl-schema`` and exit.

        Exits 0 after requested output, 2 with the message and the help on stderr for bad arguments.
        """
        words = list(sys.argv[1:] if argv is None else argv)
        flags = words[: words.index("--")] if "--" in words else words
        if "--fdl-schema" in flags:
            _print_and_exit(json.dumps(cls.schema(), indent=2, ensure_ascii=False) + "\n")
        if "--help" in flags or "-h" in flags:
            _print_and_exit(cls.render_help())
        version = getattr(cls, "version", None)
        if isinstance(version, str) and ("--version" in flags or "-V" in flags):
            _print_and_exit(f"{_program()} {version}\n")
        try:
            return cls.try_parse_from(words)
        except FdlArgsError as error:
            sys.stderr.write(f"error: {error.message}\n\n{cls.render_help()}")
            sys.exit(error.exit_code)

    @classmethod
    def schema(cls) -> dict[str, Any]:  # type: ignore[override]  # pydantic's own is deprecated
        """The document ``--fdl-schema`` prints: ``{description?, args?, options?, strict}``."""
        return _help.schema(cls._description(), cls._parameters)

    @classmethod
    def render_help(cls) -> str:
        """The ``--help`` page, wrapped to the terminal."""
        return _help.render(_program(), cls._description(), cls._parameters)

    @classmethod
    def _description(cls) -> str:
        return "" if cls is FdlArgs else " ".join((cls.__doc__ or "").split())

    def resolved(self) -> dict[str, dict[str, Any]]:
        """Every value with the place it came from, as JSON data for a run's record.

        The origin is ``file:line:column`` for a value out of ``fdl.yml`` (``fdl`` hands it over in
        ``FDL_PLAN``), ``command line``, ``env NAME`` or ``default``.
        """
        origins = _manifest_origins(self._argv)
        return {
            name: {"value": value, "origin": _origin(self._sources.get(name, Source()), origins)}
            for name, value in self.model_dump(mode="json").items()
        }


def _print_and_exit(text: str) -> NoReturn:
    sys.stdout.write(text)
    sys.stdout.flush()
    sys.exit(0)


def _plan() -> dict[str, Any]:
    """What ``fdl`` said about this process, or nothing when it was started by hand."""
    try:
        plan = json.loads(os.environ.get("FDL_PLAN", ""))
    except ValueError:
        return {}
    return plan if isinstance(plan, dict) else {}


def _program() -> str:
    command = _plan().get("command")
    if isinstance(command, list) and command:
        return " ".join(["fdl", *map(str, command)])
    return Path(sys.argv[0]).name or "python"


def _manifest_origins(argv: Sequence[str]) -> dict[int, str]:
    """Index in argv -> manifest place of the generated flag that stands there."""
    plan = _plan()
    planned = plan.get("argv", [])
    offset = len(planned) - len(argv)
    # A launcher in between may have changed the arguments: then the indices mean nothing.
    if offset < 0 or planned[offset:] != list(argv):
        return {}
    return {flag["index"] - offset: flag["origin"] for flag in plan.get("flags", [])}


def _origin(source: Source, manifest: dict[int, str]) -> str:
    if source.index is not None:
        return manifest.get(source.index, "command line")
    return f"env {source.variable}" if source.variable else "default"
