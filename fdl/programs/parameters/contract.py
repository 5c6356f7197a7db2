"""The JSON document by which a program describes its arguments -> Schema.

    {"description": "…", "strict": true,
     "args": [{"name": "data", "type": "path", "required": true}],
     "options": {"epochs": {"type": "int", "default": 10, "short": "n"}},
     "commands": {"fit": {"options": {"max_epochs": {"type": "int", "flags": ["--max_epochs"]}}}}}

Imported on the warm path: loads only fdl's own light modules.
"""

from __future__ import annotations

from fdl.base.light_record import Record
from fdl.manifest.node import dotted, text as spelled
from fdl.manifest.words import (
    ARGUMENT_KEYS,
    DOCUMENT_KEYS,
    IN_WORDS,
    LIST_TYPES,
    LITERALS,
    MAPPINGS,
    OPTION_KEYS,
    RESERVED_LONG,
    RESERVED_SHORT,
    STYLES,
    TYPES,
    VALUES,
)
from fdl.programs.parameters.parameter import (
    UNSET,
    Parameter,
    converted,
    is_flag_name,
    is_group,
    is_letter,
    is_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from fdl.manifest.node import Node
    from fdl.programs.parameters.parameter import Shape

    Path = tuple[str | int, ...]
    Row = dict[str, Any]

FLAG = "--fdl-schema"
"""The flag that asks a program for its document."""

PROBE_VARIABLE = "FDL_SCHEMA_PROBE"
"""Tells the program, and every fdl that it starts, that this call only asks for the schema."""


class ContractError(ValueError):
    """A document that is not a description of arguments.

    Attributes:
        path: The keys and indices that lead to the mistake.
        problem: What is wrong, as the rest of a sentence about that place.
    """

    def __init__(self, path: Path, problem: str) -> None:
        subject = f"`{dotted(path)}`" if path else "the document"
        super().__init__(f"{subject} {problem}")
        self.path = path
        self.problem = problem

    def find(self, node: Node) -> Node:
        """The node of the mistake, if the document is in a manifest under ``node``."""
        for step in self.path:
            found = node.find(step)
            if found is None:
                break
            node = found
        return node


class Schema(Record):
    """The arguments of one program.

    Attributes:
        description: The purpose of the program; may be empty.
        parameters: Positional arguments in order, then options.
        strict: Whether an undeclared flag is a mistake.
        origins: Whether the program itself can tell typed arguments from generated ones. Its
            variables then win over generated arguments.
        collapsed: Groups that a help page shows as one line -> what their options are for.
        commands: Subcommand -> its arguments. The options above are those before its name.
        style: How settings are written if options declare no spelling; one of :data:`STYLES`, or
            empty. ``hydra`` and ``keyvalue`` programs have options without dashes.
        source: Where it comes from: ``program`` (its own answer), ``source`` (read from its source,
            nothing was run), or ``manifest`` (``schema:``).
    """

    description: str
    parameters: tuple[Parameter, ...]
    strict: bool
    origins: bool = False
    collapsed: Mapping[str, str] = {}
    commands: Mapping[str, Schema] = {}
    style: str = ""
    source: str = "program"

    @property
    def foreign(self) -> bool:
        """Whether it was read from a program that was not written for fdl."""
        return self.source == "source" and not self.origins

    @property
    def whole(self) -> bool:
        """Whether the program itself would say the same, so that it need not be asked."""
        return self.origins and self.strict and not any(one.computed for one in self.parameters)

    @property
    def arguments(self) -> list[Parameter]:
        """The positional arguments, in order."""
        return [one for one in self.parameters if one.kind == "arg"]

    @property
    def options(self) -> dict[str, Parameter]:
        """Long name -> option."""
        return {one.name: one for one in self.parameters if one.kind == "option"}

    @property
    def spellings(self) -> dict[str, Parameter]:
        """Every word that names an option on a command line -> the option."""
        return spellings(self.options.values())


def spellings(options: Iterable[Parameter]) -> dict[str, Parameter]:
    """Every word that names one of some options on a command line -> the option."""
    return {word: one for one in options for word in (*one.spellings, *one.negatives)}


def parse(document: object, *, closed: bool = False, source: str = "program") -> Schema:
    """Check a document and turn it into parameters.

    Args:
        document: JSON data. A null counts as absent. A default or choice may be given as text.
        closed: Whether an unknown key is a mistake. It is not in a program's own document: the
            program may be newer than this fdl.
        source: Where the document comes from, see :class:`Schema`. A program whose source was read
            may declare flags that fdl itself has: settings of a manifest reach it all the same.

    Raises:
        ContractError: The document is wrong. The message has the place and the remedy.
    """
    return _document(document, (), closed, source)


def _document(document: object, path: Path, closed: bool, source: str) -> Schema:
    """The schema of a program or of one of its subcommands, which stands at ``path``."""
    row = _row(document, path, DOCUMENT_KEYS if closed else ())
    rows = row.get("args", [])
    if not isinstance(rows, list):
        raise ContractError((*path, "args"), "must be a list of arguments, one mapping each")
    options = _mapping(row, "options", path, "long names to options")
    commands = _mapping(row, "commands", path, "subcommands to their documents")
    collapsed = _row(row.get("collapsed", {}), (*path, "collapsed"), ())
    parameters = [_argument(one, (*path, "args", place), closed) for place, one in enumerate(rows)]
    _check_order(parameters, path)
    parameters += [
        _option(name, one, (*path, "options", name), closed, reserved=source != "source")
        for name, one in options.items()
    ]
    _check_shorts(parameters, path)
    style = _one_of(row, "style", path, STYLES)
    return Schema(
        _text(row, "description", path),
        tuple(parameters),
        strict=_switch(row, "strict", path),
        origins=_switch(row, "origins", path),
        collapsed={group: _text(collapsed, group, (*path, "collapsed")) for group in collapsed},
        commands={
            name: _document(one, (*path, "commands", name), closed, source)
            for name, one in commands.items()
        },
        style=style,
        source=source,
    )


def _mapping(row: Row, key: str, path: Path, what: str) -> Row:
    value = row.get(key, {})
    if not isinstance(value, dict):
        raise ContractError((*path, key), f"must be a mapping of {what}")
    return value


def _argument(document: object, path: Path, closed: bool) -> Parameter:
    row = _row(document, path, ARGUMENT_KEYS if closed else ())
    name = _text(row, "name", path)
    if not name:
        raise ContractError(path, "needs a `name`")
    type_, many = _type(row, path)
    said = _said(row, ARGUMENT_KEYS, path)
    default = _default(row, path, type_, many or said.get("variadic", False))
    if default is not UNSET and said.get("required"):
        raise ContractError(
            (*path, "required"), "cannot be true beside a `default`: remove one of the two"
        )
    said.setdefault("required", default is UNSET)
    shape: Shape = "value" if said["required"] or default is not UNSET else "optional"
    if many or said.get("variadic"):
        shape = "list"
    return Parameter(
        name,
        kind="arg",
        type=type_,
        shape=shape,
        default=default,
        choices=_choices(row, path, type_),
        **said,
    )


def _option(
    name: object, document: object, path: Path, closed: bool, *, reserved: bool
) -> Parameter:
    """One option. With ``reserved``, names and letters of fdl's own flags are refused."""
    if not isinstance(name, str) or not is_flag_name(name):
        raise ContractError(path, "is not a long name: use letters, digits and `-`, without `--`")
    if reserved and name in RESERVED_LONG:
        raise ContractError(path, f"cannot be declared: fdl itself answers to `--{name}`")
    row = _row(document, path, OPTION_KEYS if closed else ())
    type_, many = _type(row, path)
    default = _default(row, path, type_, many)
    said = _said(row, OPTION_KEYS, path)
    # The default of such an option is the value of the bare option, as in `--report`.
    bare = said.pop("bare", False)
    shape: Shape = "optional" if default is UNSET or bare else "value"
    if type_ == "bool":
        shape = "flag"
    return Parameter(
        name,
        type=type_,
        shape="list" if many else shape,
        default=default,
        short=_short(row, path, reserved=reserved),
        choices=_choices(row, path, type_),
        nargs=_nargs(row, path),
        **said,
    )


def _said(row: Row, keys: Mapping[str, tuple[str, str]], path: Path) -> Row:
    """Attribute of a parameter -> its value, for the keys that the kind alone explains."""
    said = {
        "help" if key == "description" else key: _READERS[kind](row, key, path)
        for key, (kind, _) in keys.items()
        if kind and key in row
    }
    words = _row(row.get("words", {}), (*path, "words"), VALUES)
    return {
        **said,
        "literal": _literal(row, path),
        "mapping": _one_of(row, "mapping", path, MAPPINGS),
        "words": {one: _text(words, one, (*path, "words")) for one in words},
    }


def _literal(row: Row, path: Path) -> str:
    """How words are evaluated; true is the word of the first version."""
    said = row.get("literal", False)
    if isinstance(said, bool):
        return "python" if said else ""
    if said not in LITERALS:
        raise ContractError((*path, "literal"), f"must be true, or one of {', '.join(LITERALS)}")
    return str(said)


def _words(row: Row, key: str, path: Path) -> list[str]:
    words = row.get(key, [])
    if not isinstance(words, list) or not all(isinstance(one, str) and one for one in words):
        raise ContractError((*path, key), "must be a list of words")
    return words


def _spellings(row: Row, key: str, path: Path) -> list[str]:
    """Flags as a command line has them, dashes included; a group of Hydra is ``model/encoder``."""
    words = _words(row, key, path)
    for place, one in enumerate(words):
        is_flag = one.startswith(("-", "+")) or is_group(one)
        if not is_flag or not one.strip("-+") or any(map(str.isspace, one)):
            raise ContractError((*path, key, place), f"is `{one}`, which is not a flag: `--name`")
    return words


def _nargs(row: Row, path: Path) -> Any:
    nargs = row.get("nargs")
    whole = isinstance(nargs, int) and not isinstance(nargs, bool) and nargs >= 1
    if nargs is None or whole or nargs in ("*", "+", "?"):
        return nargs
    raise ContractError((*path, "nargs"), "must be a number of words, `*`, `+` or `?`")


def _row(document: object, path: Path, known: Iterable[str]) -> Row:
    """A mapping without its nulls. If ``known`` is not empty, other keys are refused."""
    if not isinstance(document, dict):
        raise ContractError(path, "must be a mapping")
    for key in document:
        if known and key not in known:
            from fdl.base.suggest import did_you_mean

            guess = did_you_mean(str(key), known, f"known here: {', '.join(known)}")
            raise ContractError((*path, str(key)), f"is unknown; {guess}")
    return {key: value for key, value in document.items() if value is not None}


def _type(row: Row, path: Path) -> tuple[str, bool]:
    """The type of one value, and whether the argument takes several."""
    written = row.get("type")
    if written in TYPES:
        return written, False
    if written in LIST_TYPES:
        return written[len("list[") : -1], True
    allowed = ", ".join((*TYPES, *LIST_TYPES))
    if written is None:
        raise ContractError(path, f"needs a `type`: one of {allowed}")
    raise ContractError((*path, "type"), f"is `{written}`, which is not one of {allowed}")


def _text(row: Row, key: str, path: Path) -> str:
    text = row.get(key, "")
    if not isinstance(text, str):
        raise ContractError((*path, key), "must be text")
    return " ".join(text.split()) if key == "description" else text


def _one_of(row: Row, key: str, path: Path, allowed: Iterable[str]) -> str:
    word = _text(row, key, path)
    if word and word not in allowed:
        raise ContractError((*path, key), f"is `{word}`, which is not one of {', '.join(allowed)}")
    return word


def _switch(row: Row, key: str, path: Path) -> bool:
    value = row.get(key, False)
    if not isinstance(value, bool):
        raise ContractError((*path, key), "must be true or false")
    return value


_READERS: dict[str, Callable[[Row, str, Path], Any]] = {
    "text": _text, "switch": _switch, "words": _words, "flags": _spellings
}  # fmt: skip


def _short(row: Row, path: Path, *, reserved: bool) -> str | None:
    short = row.get("short")
    if short is None:
        return None
    if not isinstance(short, str) or not is_letter(short):
        raise ContractError((*path, "short"), "must be one character")
    if reserved and short in RESERVED_SHORT:
        raise ContractError((*path, "short"), f"cannot be `{short}`: fdl answers to `-{short}`")
    return short


def _default(row: Row, path: Path, type_: str, many: bool) -> Any:
    if "default" not in row:
        return UNSET
    value, place = row["default"], (*path, "default")
    if not many:
        return _typed(value, type_, place)
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list):
        raise ContractError(place, "must be a list")
    return [_typed(item, type_, (*place, index)) for index, item in enumerate(value)]


def _choices(row: Row, path: Path, type_: str) -> list[Any]:
    choices, place = row.get("choices", []), (*path, "choices")
    if not isinstance(choices, list):
        raise ContractError(place, "must be a list")
    return [_typed(choice, type_, (*place, index)) for index, choice in enumerate(choices)]


def _typed(value: object, type_: str, path: Path) -> Any:
    """A value of its declared type, converted from text if it is text."""
    if isinstance(value, str):
        try:
            # A path stays text: only the program knows where it starts.
            text = value.lower() if type_ == "bool" else value
            return converted(text, "string" if type_ == "path" else type_)
        except ValueError:
            raise ContractError(path, f"is `{value}`, which is not {IN_WORDS[type_]}") from None
    is_text = type_ in ("string", "path")
    if not (isinstance(value, int | float | bool) if is_text else is_of(value, type_)):
        raise ContractError(path, f"must be of type {type_}")
    # A value declared as text may be written as a number: `choices: [1, 2]`.
    return spelled(value) if is_text else value


def _check_order(arguments: list[Parameter], above: Path) -> None:
    """Check the rules that concern all positional arguments together."""
    seen: set[str] = set()
    optional = variadic = ""
    for place, one in enumerate(arguments):
        path = (*above, "args", place)
        if one.name in seen:
            raise ContractError((*path, "name"), f"repeats `{one.name}`")
        seen.add(one.name)
        if variadic:
            raise ContractError(path, f"cannot follow `{variadic}`, which takes all that remains")
        if one.required and optional:
            raise ContractError(
                path, f"is required, so it cannot follow `{optional}`, which may be left out"
            )
        optional = optional if one.required else one.name
        variadic = one.name if one.variadic else ""


def _check_shorts(parameters: list[Parameter], path: Path) -> None:
    owners: dict[str, str] = {}
    for one in parameters:
        if one.short and one.short in owners:
            owner = owners[one.short]
            raise ContractError(
                (*path, "options", one.name, "short"),
                f"is `{one.short}`, which `--{owner}` has already",
            )
        if one.short:
            owners[one.short] = one.name
