"""argv and environment -> values, each with the place it came from.

Imported by every built-in command: nothing beyond our own light modules.
"""

from __future__ import annotations

from fdl.base.errors import UsageError
from fdl.base.layout import Row
from fdl.base.light_record import Record
from fdl.base.secrets import REDACTED
from fdl.base.units import counted
from fdl.manifest.words import ALL_GROUPS, RESERVED_LONG
from fdl.programs.parameters.contract import Schema
from fdl.programs.parameters.parameter import (
    UNSET,
    choice_text,
    group_word,
    groups_of,
    is_number,
    may_be_value,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from fdl.programs.parameters.parameter import Parameter

    Where = int | str | None
    """Where a value comes from: the place of its token in argv, a variable, or the declaration."""
    Stack = list[tuple[Any, Where]]
    """The values of a parameter, strongest first."""

_VALUE_WORDS = {"string": "TEXT", "int": "INT", "float": "FLOAT", "path": "PATH", "bool": "BOOL"}
_INFINITY = float("inf")


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


class Said(Record):
    """One option or argument among typed words.

    Attributes:
        flag: The flag, written out if its beginning was typed; empty for an argument.
        option: What the flag names, or None.
        words: The value: the words behind the flag, or what is attached to it; or the argument.
        start: The position of its first word.
        end: The position behind its last one.
    """

    flag: str
    option: Parameter | None
    words: Sequence[str]
    start: int
    end: int


def typed_words(
    tokens: Sequence[str],
    schema: Schema | None,
    more: Mapping[str, Parameter] = {},
    switches: Collection[str] = (),
) -> Iterator[Said]:
    """What was typed, up to the first ``--``, as most programs read it; nothing is refused.

    Args:
        tokens: The typed words.
        schema: What the program takes, or None.
        more: Spellings of further options -> the option.
        switches: Further flags without a value. Any other unknown flag takes the next word.
    """
    own = schema.spellings if schema else {}
    options = {**more, **own}
    is_ours = schema is not None and schema.origins
    end = tokens.index("--") if "--" in tokens else len(tokens)
    place = 0
    while place < end:
        token = tokens[place]
        start, place = place, place + 1
        if len(token) < 2 or token[0] != "-" or (is_number(token) and token not in options):
            yield Said("", None, [token], start, place)
            continue
        for word, attached in _flags(token, options):
            is_short = schema is not None and schema.foreign and word not in options
            flag = _written_out(word, own) if is_short else word
            one = options.get(flag)
            words = [] if attached is None else [attached]
            most = 0 if words or flag in switches else _most_words(one, end)
            # Most parsers take a number with a sign for the value of any option.
            numeric = one.numeric if one and is_ours else True
            while len(words) < most and place < end and may_be_value(tokens[place], numeric):
                words.append(tokens[place])
                place += 1
            yield Said(flag, one, words, start, place)


def _flags(token: str, options: Mapping[str, Parameter]) -> Iterator[tuple[str, str | None]]:
    """The flags in one word, each with the value attached to it: ``-vb8`` may be v and b."""
    flag, equals, text = token.partition("=")
    attached = text if equals else None
    if _is_whole(flag, options):
        yield flag, attached
        return
    for place, letter in enumerate(flag[1:-1], 2):
        one = options.get(f"-{letter}")
        if one is None or one.shape != "flag":
            yield f"-{letter}", token[place:] if one else attached
            return
        yield f"-{letter}", None
    yield f"-{flag[-1]}", attached


def _is_whole(flag: str, options: Collection[str]) -> bool:
    """Whether a flag is one word, and not a cluster of letters: ``-iter`` of some programs."""
    letters = [word for word in options if len(word) == 2]
    if flag.startswith("--") or len(flag) <= 2 or flag in options or not letters:
        return True
    if all(f"-{letter}" in letters for letter in flag[1:]):
        return False
    return any(len(word) > 2 and word[1] != "-" for word in options)


def _written_out(beginning: str, options: Mapping[str, Parameter]) -> str:
    """The whole flag for the beginning of one, which argparse accepts if it is the only one."""
    found = {id(one): word for word, one in options.items() if word.startswith(beginning)}
    return next(iter(found.values())) if len(found) == 1 else beginning


def _most_words(one: Parameter | None, most: int) -> int:
    """How many words may stand behind a flag; ``most`` for any number."""
    if one is None:
        return 1
    if one.nargs in ("*", "+"):
        return most
    return one.nargs if isinstance(one.nargs, int) else int(one.shape != "flag")


def typed_values(
    tokens: Sequence[str], schema: Schema | None, switches: Collection[str] = ()
) -> dict[str, list[object]]:
    """Flag -> the values given to it, in order; a bare flag counts as true.

    The items of a list are one value. ``switches`` are more flags without a value.
    """
    found: dict[str, list[object]] = {}
    for said in typed_words(tokens, schema, switches=switches):
        if not said.flag:
            continue
        one = said.option
        values = found.setdefault(one.display if one else said.flag, [])
        value = bare(said.flag, one)
        if said.words and value is not False:
            value = valued(said.words, one)
        values.append(added(values.pop(), value) if one and one.adds_up and values else value)
    return found


def bare(flag: str, option: Parameter | None) -> object:
    """What a flag means without a value: true, or false for one that turns another one off."""
    if option is None:
        return True
    if option.counted:
        return 1
    if option.shape == "list":
        return []
    if option.shape == "optional" and option.default is not UNSET:
        return _plain(option.default)
    return flag not in option.negatives


def added(before: object, value: object) -> object:
    """What two occurrences of an option mean together, if each one adds to those before it."""
    if isinstance(before, list) and isinstance(value, list):
        return [*before, *value]
    if isinstance(before, int) and isinstance(value, int):
        return before + value
    return value


def valued(words: Sequence[str], option: Parameter | None) -> object:
    """The value that some words give to an option: all items of a list, else that of each word."""
    values = [typed(word, option) for word in words]
    if option is not None and option.shape == "list":
        return [item for one in values for item in (one if isinstance(one, list) else [one])]
    return values[0] if len(values) == 1 else values


def typed(text: str, option: Parameter | None) -> object:
    """Convert a word to its value: of the declared type, else a number if it is one."""
    if option is None:
        return _number(text)
    parts = option.parts(text) if option.shape == "list" else [text]
    try:
        # A path is recorded as it was typed: only the program knows what it makes of it.
        values = [one if option.type == "path" else _plain(option.convert(one)) for one in parts]
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
        number = float(text)
    # The words `nan` and `infinity`, or a digest with an `e` in it.
    return number if -_INFINITY < number < _INFINITY else text


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
    given = _given(parameters, argv)
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


def _read(one: Parameter, text: str, where: Where, *, splits: bool = True) -> Any:
    try:
        return one.split(text) if splits and one.shape == "list" else one.convert(text)
    except ValueError as problem:
        raise RefusedError(str(problem), where) from None


def _of_tokens(one: Parameter, given: list[tuple[Any, int]]) -> Stack:
    if one.shape == "list" and given:
        return [([item for value, _ in given for item in value], given[-1][1])]
    return [*reversed(given)]


def _given(
    parameters: Sequence[Parameter], argv: Sequence[str]
) -> dict[str, list[tuple[Any, int]]]:
    """Field -> its values with the positions of their tokens, in the order of argv."""
    given: dict[str, list[tuple[Any, int]]] = {}
    positionals = [one for one in parameters if one.kind == "arg"]
    takes_number = any(one.numeric for one in positionals)
    words: list[tuple[int, str]] = []
    for said in typed_words(argv, Schema("", tuple(parameters), strict=True, origins=True)):
        word = "" if said.flag else said.words[0]
        if said.option is not None:
            value = _value_of(said, said.option, argv[said.start])
            given.setdefault(said.option.field, []).append((value, said.start))
        elif said.flag or (word[:1] == "-" and word != "-" and not takes_number):
            raise _unknown_option(said.flag or word, parameters, said.start)
        else:
            words.append((said.start, word))
    if "--" in argv:
        words += [*enumerate(argv)][argv.index("--") + 1 :]
    for one in positionals if words else ():
        count = len(words) if one.variadic else 1
        for index, text in words[:count]:
            value = _read(one, text, index, splits=False)
            value = [value] if one.shape == "list" else value
            given.setdefault(one.field, []).append((value, index))
        del words[:count]
    if words:
        index, word = words[0]
        raise RefusedError(f"unexpected argument `{word}`", index, surplus=word)
    return given


def _unknown_option(flag: str, parameters: Sequence[Parameter], where: int) -> RefusedError:
    if not flag.startswith("--"):
        return RefusedError(f"unknown option `{flag}`", where, unknown=flag)
    from fdl.base.suggest import did_you_mean

    name = flag[2:]
    names = [one.name for one in parameters if one.kind == "option"]
    guess = did_you_mean(name, [*names, *RESERVED_LONG], typed="--{}")
    said = f"unknown option `--{name}`{guess and f', {guess}'}"
    return RefusedError(said, where, unknown=flag)


def _value_of(said: Said, one: Parameter, token: str) -> Any:
    """The value of an option whose flag stands in a token."""
    if one.shape == "flag":
        if said.words:
            raise RefusedError(f"`{one.display}` takes no value", said.start)
        return said.flag not in one.negatives
    if not said.words:
        # The default of `T` is for the absent option. Without a value, a slip of the fingers would
        # silently replace what the manifest says.
        if one.shape == "optional" and one.default is not UNSET:
            return one.default
        raise RefusedError(f"`{one.display}` requires a value", said.start)
    text = said.words[0]
    if said.end == said.start + 1 and not token.endswith(f"={text}"):
        raise RefusedError(
            f"`{said.flag}` requires a value and so must come last in its cluster; "
            f"a value is written `{said.flag} VALUE` or `{said.flag}=VALUE`"
        )
    return _read(one, text, said.start)
