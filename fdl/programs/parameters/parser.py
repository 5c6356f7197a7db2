"""argv and environment -> values, each with the place it came from.

Imported by every built-in command: nothing beyond our own light modules.
"""

from __future__ import annotations

from fdl.base.errors import UsageError
from fdl.base.layout import Row
from fdl.base.secrets import REDACTED
from fdl.base.units import counted
from fdl.manifest.words import ALL_GROUPS, RESERVED_LONG
from fdl.programs.parameters.contract import spellings
from fdl.programs.parameters.parameter import UNSET, choice_text, group_word, groups_of, is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from typing import Any

    from fdl.programs.parameters.parameter import Parameter

    Where = int | str | None
    """Where a value comes from: the place of its token in argv, a variable, or the declaration."""
    Stack = list[tuple[Any, Where]]
    """The values of a parameter, strongest first."""

_VALUE_WORDS = {"string": "TEXT", "int": "INT", "float": "FLOAT", "path": "PATH", "bool": "BOOL"}


def argument_rows(parameters: Iterable[Parameter]) -> list[Row]:
    """The positionals, in their order."""
    return [
        Row(f"<{one.name}>", one.help, notes=notes(one)) for one in parameters if one.kind == "arg"
    ]


def _option_rows(parameters: Iterable[Parameter]) -> list[Row]:
    """The options, in their order."""
    return [
        Row(label(one), one.help, notes=notes(one)) for one in parameters if one.kind == "option"
    ]


def option_tables(
    parameters: Sequence[Parameter],
    collapsed: Mapping[str, str],
    common: Sequence[Row],
    wanted: str = "",
) -> list[tuple[str, list[Row]]]:
    """The options of a program as tables: heading and rows of each group.

    The ``common`` rows follow the general options. ``wanted`` is a group to show alone, or ``all``.

    Raises:
        UsageError: No option has the wanted group.
    """
    groups = groups_of(parameters)
    general = _option_rows(groups.pop("", []))
    purposes = {group_word(group): text for group, text in collapsed.items()}
    if wanted not in ("", ALL_GROUPS):
        word = group_word(wanted)
        if word not in groups:
            raise _unknown(wanted, groups)
        return [_group(groups[word], purposes.get(word))]
    shown = [word for word in groups if wanted or word not in purposes]
    more = [
        Row(f"--help {word}", _summary(groups[word], purposes[word]))
        for word in groups
        if word not in shown
    ]
    page = "Show this page; `--help all` shows every option" if more else "Show this page"
    return [
        ("Options", [*general, Row("-h, --help", page), *common]),
        *(_group(groups[word], purposes.get(word)) for word in shown),
        ("More options", more),
    ]


def _unknown(wanted: str, groups: Iterable[str]) -> UsageError:
    from fdl.base.suggest import did_you_mean

    words = [*groups, ALL_GROUPS]
    return UsageError(
        f"no group of options is called `{wanted}`; groups: {', '.join(words)}",
        hint=did_you_mean(wanted, words, typed="--help {}"),
    )


def _group(options: list[Parameter], purpose: str | None) -> tuple[str, list[Row]]:
    group = options[0].group
    heading = group[:1].upper() + group[1:]
    return f"{heading} ({purpose})" if purpose else heading, _option_rows(options)


def _summary(options: list[Parameter], purpose: str) -> str:
    count = counted(len(options), "option")
    return f"{count} for {purpose}" if purpose else count


def slots(parameters: Iterable[Parameter]) -> list[str]:
    """The positionals on a usage line: ``<data>``, ``[<shell>]``, ``[<file>...]``."""
    words = []
    for one in parameters:
        if one.kind == "arg":
            word = f"<{one.name}>{'...' if one.variadic else ''}"
            words.append(word if one.required else f"[{word}]")
    return words


def label(one: Parameter) -> str:
    """An option's left column: ``-n, --dry-run``, ``--lr FLOAT``, ``--report [PATH]``."""
    letters = [word for word in one.spellings if len(word) == 2 and word != one.flag]
    short = f"{letters[0]}, " if letters else "    "
    value = "" if one.shape == "flag" else f" {_VALUE_WORDS[one.type]}"
    if one.shape == "optional" and one.default is not UNSET:
        value = f" [{value.strip()}]"
    off = f" / {one.negatives[0]}" if one.negatives else ""
    return f"{short}{one.flag}{value}{off}"


def notes(one: Parameter) -> str:
    """What may stand for an argument, behind the sentence that says what it is for."""
    words = []
    default = _default(one)
    if one.required and one.kind == "option":
        words.append("[required]")
    if "default" in one.computed:
        words.append("[default: computed by the program]")
    if default:
        bare = one.shape == "optional" and one.kind == "option"
        words.append(f"[{'without a value' if bare else 'default'}: {default}]")
    if one.choices:
        words.append(f"[possible: {', '.join(one.choice_texts())}]")
    if one.env:
        words.append(f"[env: {one.env}]")
    if one.shape == "list" and one.kind == "option":
        several = "repeatable, or separated by commas" if one.commas else "several values"
        several = f"{one.nargs} values" if isinstance(one.nargs, int) else several
        words.append(f"[{several}]")
    return " ".join(words)


def _default(one: Parameter) -> str:
    """The default as text; empty where showing it would tell nothing or too much."""
    value = one.default
    if value is UNSET or value is None or value is False or value in ("", []):
        return ""
    if one.hides(value):
        return REDACTED
    if isinstance(value, list | tuple):
        return ",".join(map(choice_text, value))
    return str(value).lower() if isinstance(value, bool) else choice_text(value)


def typed_values(
    tokens: Sequence[str], options: Mapping[str, Parameter], switches: Collection[str]
) -> dict[str, list[object]]:
    """Flag -> the values given to it, in order; a bare flag counts as true.

    An undeclared flag takes the next word as its value, as most flags do. Words after ``--`` are
    ignored. ``options`` are declared ones by long name, ``switches`` more flags without a value.
    """
    found: dict[str, list[object]] = {}
    declared = spellings(options.values())
    words = list(tokens[: tokens.index("--")] if "--" in tokens else tokens)
    while words:
        token = words.pop(0)
        if len(token) < 2 or token[0] != "-" or is_number(token):
            continue
        flag, equals, text = token.partition("=")
        one = declared.get(flag)
        if one is None and not flag.startswith("--"):
            # The last letter of a cluster takes the value.
            one = declared.get(f"-{flag[-1]}")
        if one is not None and flag in one.negatives:
            found.setdefault(one.display, []).append(False)
            continue
        flag = one.display if one else flag
        value: object = text
        if not equals:
            bare = flag in switches or (one is not None and one.shape == "flag")
            follows = bool(words) and (words[0][:1] != "-" or is_number(words[0]))
            value = words.pop(0) if follows and not bare else True
        found.setdefault(flag, []).append(value if value is True else typed(str(value), one))
    return found


def typed(text: str, option: Parameter | None) -> object:
    """Convert a word to its value: of the declared type, else a number if it is one."""
    if option is None:
        return _number(text)
    parts = text.split(",") if option.shape == "list" else [text]
    try:
        values = [_plain(option.convert(part.strip())) for part in parts]
    except ValueError:
        return text
    return values if option.shape == "list" else values[0]


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float) else str(value)


def _number(text: str) -> object:
    if not is_number(text):
        return text
    try:
        return int(text)
    except ValueError:
        return float(text)


class RefusedError(ValueError):
    """Arguments that do not fit; the text is for the user.

    Attributes:
        where: Where the offending value stands, when it is one value that is wrong.
        surplus: The argument that is one too many, or nothing.
        unknown: The option that does not exist, as it was typed, or nothing.
    """

    def __init__(
        self, message: str, where: Where = None, surplus: str = "", unknown: str = ""
    ) -> None:
        super().__init__(message)
        self.where = where
        self.surplus = surplus
        self.unknown = unknown


def read_words(
    parameters: Sequence[Parameter],
    argv: Sequence[str],
    environ: Mapping[str, str],
    generated: Collection[int] = (),
) -> dict[str, Stack]:
    """Read an argument vector: field -> its values.

    Of several values for one parameter the strongest counts: what was typed, then the environment,
    then tokens that nobody typed, then the default. Among tokens of one kind the last counts;
    those of a list add up.

    Args:
        parameters: What may be given.
        argv: The tokens.
        environ: The environment.
        generated: The places in ``argv`` of tokens that come out of a manifest.

    Raises:
        RefusedError: The tokens, or a variable, do not fit the parameters.
    """
    given = _Reading(parameters).read(argv)
    found: dict[str, Stack] = {}
    for one in sorted(parameters, key=lambda one: one.kind == "arg"):
        stack = _ranked(one, given.get(one.field, []), environ, generated)
        if not stack:
            allowed = f" -- allowed: {', '.join(one.choice_texts())}" if one.choices else ""
            raise RefusedError(f"missing required argument {one.display}{allowed}")
        found[one.field] = stack
    return found


def _ranked(
    one: Parameter,
    given: list[tuple[Any, int]],
    environ: Mapping[str, str],
    generated: Collection[int],
) -> Stack:
    """All values of a parameter."""
    stack = _of_tokens(one, [found for found in given if found[1] not in generated])
    text = environ.get(one.env, "") if one.env else ""
    if text:
        stack.append((_read(one, text, one.env), one.env))
    stack += _of_tokens(one, [found for found in given if found[1] in generated])
    if not one.required:
        stack.append((one.absent(), None))
    return stack


def _read(one: Parameter, text: str, where: Where) -> Any:
    try:
        return one.split(text) if one.shape == "list" else one.convert(text)
    except ValueError as problem:
        raise RefusedError(str(problem), where) from None


def _of_tokens(one: Parameter, given: list[tuple[Any, int]]) -> Stack:
    if one.shape == "list" and given:
        return [([item for value, _ in given for item in value], given[-1][1])]
    return [*reversed(given)]


class _Reading:
    """One pass over an argument vector."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._options = {one.name: one for one in parameters if one.kind == "option"}
        self._shorts = {one.short: one for one in self._options.values() if one.short}
        self._positionals = [one for one in parameters if one.kind == "arg"]
        self._given: dict[str, list[tuple[Any, int]]] = {}

    def read(self, argv: Sequence[str]) -> dict[str, list[tuple[Any, int]]]:
        """Field -> its values with the positions of their tokens, in the order of argv."""
        words: list[tuple[int, str]] = []
        index = 0
        while index < len(argv):
            token = argv[index]
            if token == "--":
                words += list(enumerate(argv))[index + 1 :]
                break
            if token.startswith("--"):
                index = self._read_long(argv, index)
            elif token.startswith("-") and token != "-" and not self._negative_positional(token):
                index = self._read_cluster(argv, index)
            else:
                words.append((index, token))
                index += 1
        self._place(words)
        return self._given

    def _negative_positional(self, token: str) -> bool:
        return is_number(token) and any(one.numeric for one in self._positionals)

    def _read_long(self, argv: Sequence[str], index: int) -> int:
        name, equals, text = argv[index][2:].partition("=")
        one = self._options.get(name)
        if one is None:
            from fdl.base.suggest import did_you_mean

            guess = did_you_mean(name, [*self._options, *RESERVED_LONG], typed="--{}")
            said = f"unknown option `--{name}`{guess and f', {guess}'}"
            raise RefusedError(said, index, unknown=f"--{name}")
        return self._take(one, argv, index, text if equals else None)

    def _read_cluster(self, argv: Sequence[str], index: int) -> int:
        letters, equals, text = argv[index][1:].partition("=")
        for position, letter in enumerate(letters):
            one = self._shorts.get(letter)
            if one is None:
                said = f"unknown option `-{letter}`"
                raise RefusedError(said, index, unknown=f"-{letter}")
            if position == len(letters) - 1:
                return self._take(one, argv, index, text if equals else None)
            if one.shape != "flag":
                raise RefusedError(
                    f"`-{letter}` requires a value and so must come last in its cluster; "
                    f"a value is written `-{letter} VALUE` or `-{letter}=VALUE`"
                )
            self._store(one, True, index)
        raise RefusedError("unknown option `-`")

    def _take(self, one: Parameter, argv: Sequence[str], index: int, attached: str | None) -> int:
        """Store the value of an option at argv[index]; return the index of the next token."""
        end = index + 1
        if one.shape == "flag":
            if attached is not None:
                raise RefusedError(f"`{one.display}` takes no value", index)
            value = True
        elif attached is not None:
            value = _read(one, attached, index)
        elif end < len(argv) and one.may_take(argv[end]):
            value = _read(one, argv[end], index)
            end += 1
        # The default of `T` is for the absent option. Without a value, a slip of the fingers would
        # silently replace what the manifest says.
        elif one.shape != "optional" or one.default is UNSET:
            raise RefusedError(f"`{one.display}` requires a value", index)
        else:
            value = one.default
        self._store(one, value, index)
        return end

    def _store(self, one: Parameter, value: Any, index: int) -> None:
        self._given.setdefault(one.field, []).append((value, index))

    def _place(self, words: list[tuple[int, str]]) -> None:
        for one in self._positionals:
            if not words:
                return
            count = len(words) if one.variadic else 1
            for index, text in words[:count]:
                try:
                    value = one.convert(text)
                except ValueError as problem:
                    raise RefusedError(str(problem), index) from None
                self._store(one, [value] if one.shape == "list" else value, index)
            del words[:count]
        if words:
            index, word = words[0]
            raise RefusedError(f"unexpected argument `{word}`", index, surplus=word)
