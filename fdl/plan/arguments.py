"""The whole argument vector of an entry: its words, subcommands, and the generated arguments.

Imported on the warm path of entries.
"""

from __future__ import annotations

from fdl.base.errors import ManifestError, UsageError
from fdl.base.light_record import Record
from fdl.manifest.node import origin
from fdl.plan.generate import flag_of, groups, present, settings
from fdl.plan.spelling import AS_WRITTEN, Spelling
from fdl.programs.parameters.parser import typed_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level
    from fdl.plan.generate import Group
    from fdl.plan.value import Flag
    from fdl.programs.parameters.contract import Schema


class Arguments(Record):
    """What an entry is started with.

    Attributes:
        argv: The words of the entry, its subcommands, and the generated arguments.
        flags: Origin of each generated argument.
        tail: The typed arguments that follow. Names of subcommands have moved into ``argv``.
        words: How many tokens of ``argv`` come from the entry alone.
        schema: What the program, or the chosen subcommand, takes; None if that is not known.
        subcommand: Names of the known subcommands that are chosen, outermost first.
        filled: The positional arguments that have a value, as ``<data>``; typed ones follow them.
    """

    argv: list[str]
    flags: list[Flag]
    tail: list[str]
    words: int
    schema: Schema | None
    subcommand: list[str]
    filled: set[str]


def arguments(
    level: Level, preset: str | None = None, tail: Sequence[str] = (), schema: Schema | None = None
) -> Arguments:
    """The arguments of a level's entry.

    Options that only the program itself declares go before its subcommand, all others behind it.

    Args:
        level: Where the entry is.
        preset: Name of the preset, or None.
        tail: The arguments that were typed.
        schema: The known arguments of the program, or None.

    Raises:
        ManifestError: ``entry`` is empty or does not split into words, or a list would take the
            name of a subcommand.
        UsageError: A list would take a typed argument.
    """
    tokens = _entry_tokens(level.entry, level.root)
    spec = level.commands[preset] if preset else None
    named = (spec.text("subcommand") if spec else None) or level.subcommand
    segments, moved, path = _segments(tokens, (named or "").split(), tail, schema)
    before: Mapping[str, int] = {}
    if schema is not None and path:
        from fdl.programs.schema import select

        schema, before = select(schema, path)
    spelling = Spelling(schema, level.style)
    generated: list[tuple[list[str], list[Group]]] = [(segment, []) for segment in segments]
    made_by: dict[object, Group] = {}
    merged = settings(level.manifest.node, spec)
    _require_spelling(merged["options"], spelling, level.root)
    for group in groups(merged, spelling):
        first = _first(made_by, group)
        if first is not None and _wins(spec, first) == _wins(spec, group):
            raise _twice(first, group, level.root)
        if first is not None and _wins(spec, first):
            continue
        for _, others in generated if first is not None else ():
            others[:] = [one for one in others if one is not first]
        place = before.get(group.declared.name, -1) if group.declared else -1
        generated[place][1].append(group)
    filled = _filled(segments, made_by, schema, level.root)
    argv: list[str] = []
    flags: list[Flag] = []
    for number, (segment, made) in enumerate(generated, 1):
        argv += segment
        if number < len(generated):
            made = _before_subcommand(made, generated[number][0][0], level.root)  # noqa: PLW2901
        else:
            made = _before_words(made, tail[moved:], level.root)  # noqa: PLW2901
        for group in made:
            flags.append(flag_of(group, len(argv), level.root))
            argv += group.tokens
    return Arguments(argv, flags, list(tail[moved:]), len(tokens), schema, path, filled)


def _require_spelling(options: Mapping[str, Node], spelling: Spelling, root: str) -> None:
    """Refuse a list that the program takes in an unknown way."""
    for key, node in options.items():
        if surplus := spelling.surplus(key, node):
            raise ManifestError(
                f"{origin(node, root)}: `{key}` lists {surplus}, and fdl does not know how "
                f"the program takes that",
                hint="write the list as the text that you would type",
            )


def _first(made_by: dict[object, Group], group: Group) -> Group | None:
    """The setting before this one that sets the same option under another name."""
    option: object = id(group.declared) if group.declared else group.name
    first = made_by.setdefault(option, group)
    if first.field == group.field or (group.declared and group.declared.kind == "arg"):
        return None
    if first.name.startswith(AS_WRITTEN) and not first.name.startswith("--"):
        return None
    return first


def _filled(
    segments: Sequence[Sequence[str]],
    made_by: Mapping[object, Group],
    schema: Schema | None,
    root: str,
) -> set[str]:
    """The positional arguments that the entry and the manifest give, as ``<data>``.

    Raises:
        ManifestError: One of them would take the place of another that stands before it.
    """
    if schema is None or not schema.arguments:
        return set()
    words = segments[-1][1:] if len(segments) > 1 else _behind_program(segments[0])
    count = sum(not said.flag for said in typed_words(words, schema))
    filled: set[str] = set()
    missing = ""
    for place, one in enumerate(schema.arguments):
        group = made_by.get(id(one))
        if group is None and place >= count:
            missing = missing or one.name
            continue
        filled.add(one.display)
        if group is not None and missing:
            raise ManifestError(
                f"{origin(group.node, root)}: `{group.field}` would be taken for `<{missing}>`, "
                "which stands before it and has no value",
                hint=f"set `{missing}` in `options`, too",
            )
    return filled


def _behind_program(words: Sequence[str]) -> Sequence[str]:
    """What an entry gives to its program: the words behind a script or a module."""
    from fdl.programs.schema.program import LAUNCHING_MODULES

    for place, word in enumerate(words):
        if word.endswith(".py"):
            return words[place + 1 :]
        module = words[place + 1 : place + 2] if word == "-m" else []
        if module and not module[0].endswith(LAUNCHING_MODULES):
            return words[place + 2 :]
    return words[1:]


def _wins(preset: Node | None, group: Group) -> bool:
    """Whether the preset sets it, and so replaces what the manifest sets for the same option."""
    section, _, name = group.field.partition(".")
    return name in present(section, preset)


def _twice(first: Group, group: Group, root: str) -> ManifestError:
    """The error for two settings of one option: only the last one would count."""
    return ManifestError(
        f"{origin(group.node, root)}: `{group.field}` and `{first.field}` "
        f"({origin(first.node, root)}) set the same option `{group.name}`",
        hint="keep one of them",
    )


def _segments(
    tokens: list[str], named: list[str], tail: Sequence[str], schema: Schema | None
) -> tuple[list[list[str]], int, list[str]]:
    """The words of a program, cut before each of its subcommands.

    Returns:
        The segments, how many typed words they contain, and the names of the known subcommands.
    """
    segments: list[list[str]] = [[]]
    path: list[str] = []

    def take(word: str, *, subcommand: bool) -> None:
        nonlocal schema
        known = schema is not None and word in schema.commands
        if known and schema is not None:
            path.append(word)
            schema = schema.commands[word]
        if known or subcommand:
            segments.append([])
        segments[-1].append(word)

    for place, word in enumerate(tokens):
        # The first word is the program itself.
        if place:
            take(word, subcommand=False)
        else:
            segments[-1].append(word)
    for word in named:
        take(word, subcommand=True)
    moved = 0
    for word in tail:
        if schema is None or word not in schema.commands:
            break
        take(word, subcommand=True)
        moved += 1
    return segments, moved, path


def _entry_tokens(entry: Node | None, root: str) -> list[str]:
    """The words of ``entry``, split as a shell would, without expansion."""
    import shlex

    if entry is None:
        return []
    try:
        tokens = shlex.split(str(entry.value))
    except ValueError as problem:
        raise ManifestError(
            f"{origin(entry, root)}: `entry` does not split into words: {problem}",
            hint="close the quotation or escape the character with a backslash",
        ) from None
    if not tokens:
        raise ManifestError(
            f"{origin(entry, root)}: `entry` is empty", hint="entry: python main.py"
        )
    return tokens


_SEPARATOR = "--"


def _before_subcommand(made: list[Group], word: str, root: str) -> list[Group]:
    """The groups in front of the name of a subcommand.

    Raises:
        ManifestError: A list would take the name as one of its values.
    """
    made = _closed_last(made)
    if made and _is_open(made[-1]):
        raise ManifestError(
            _swallowed(made[-1], word, root),
            hint="set another option of one value before the subcommand",
        )
    return made


def _before_words(made: list[Group], tail: Sequence[str], root: str) -> list[Group]:
    """The groups in front of typed arguments; a separator ends a list if nothing else does.

    Raises:
        UsageError: A list would take the first typed argument, and options follow that.
    """
    typed = [word for place, word in enumerate(tail) if place != _separator(tail)]
    follows = bool(typed) and not typed[0].startswith("-")
    options = [one for one in made if one.declared is None or one.declared.kind == "option"]
    arguments = made[len(options) :]
    if not (follows or arguments) or not options or not _is_open(options[-1]):
        return made
    options = _closed_last(options)
    if not _is_open(options[-1]):
        return [*options, *arguments]
    if follows and any(word.startswith("-") and word != "-" for word in typed):
        raise UsageError(
            _swallowed(options[-1], typed[0], root),
            hint="write the options first, then the arguments",
        )
    if not follows:
        return [*arguments, *options]
    options[-1].tokens.append(_SEPARATOR)
    return [*options, *arguments]


def _separator(tail: Sequence[str]) -> int:
    """The place of the separator that fdl takes away; -1 without one."""
    return list(tail).index(_SEPARATOR) if _SEPARATOR in tail else -1


def _closed_last(made: list[Group]) -> list[Group]:
    """Lists first. If there is nothing else, a last one with a single value is made one word."""
    made = sorted(made, key=lambda one: one.declared is not None and not _is_open(one))
    if made and _is_open(made[-1]) and len(made[-1].tokens) == 2:
        made[-1].tokens = ["=".join(made[-1].tokens)]
    return made


def _is_open(group: Group) -> bool:
    """Whether the next word may be a value of this argument."""
    one = group.declared
    if one is None or one.kind == "arg":
        # Of an unknown option, nothing is assumed.
        return False
    if one.nargs == "?":
        return len(group.tokens) == 1 and "=" not in group.tokens[0]
    return one.nargs in ("*", "+") and "=" not in group.tokens[0]


def _swallowed(group: Group, word: str, root: str) -> str:
    where = origin(group.node, root)
    return f"`{group.name}` ({where}) takes every word that follows it, and so `{word}` too"
