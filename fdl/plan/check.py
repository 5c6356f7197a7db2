"""Checking arguments against a schema before the program is started.

Only typed arguments and the named preset are checked. Only what the program itself would refuse is
refused: values that are not allowed and, if the schema is strict, undeclared flags.
Imported on the warm path, if there is a schema.
"""

from __future__ import annotations

from fdl.base.errors import ManifestError, UsageError
from fdl.base.global_flags import before_command
from fdl.base.light_record import Record
from fdl.base.secrets import REDACTED, is_secret
from fdl.base.suggest import did_you_mean, nearest, setting_as_option
from fdl.manifest.node import Null, origin, text as spelled
from fdl.manifest.select.level import SECTIONS
from fdl.plan.generate import refuse_empty, settings
from fdl.plan.planner import UNCHECKED
from fdl.plan.spelling import AS_WRITTEN, KEYVALUE, Key, Spelling, flattened, written
from fdl.plan.typed_ranks import OPTIONS
from fdl.programs.parameters.contract import spellings
from fdl.programs.parameters.parameter import UNSET
from fdl.programs.parameters.parser import slots, typed_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level
    from fdl.programs.parameters.contract import Schema
    from fdl.programs.parameters.parameter import Parameter
    from fdl.programs.parameters.parser import Said


_ALWAYS_KNOWN = ("--help", "--version", "--fdl-schema", "--refresh-schema", "-h", "-V")


def check_tail(
    schema: Schema,
    tail: Sequence[str],
    command: str,
    page: str,
    presets: Sequence[str] = (),
    env: str | None = None,
    filled: Collection[str] = (),
) -> None:
    """Check the arguments after a command, up to the first ``--``.

    Args:
        schema: The arguments that the program declares.
        tail: The tokens.
        command: The command as typed, with its preset.
        page: The command whose help page lists all options.
        presets: What may follow the command instead, for the hint about a slip.
        env: The environment in use, for a command in a hint.
        filled: The positional arguments that the manifest gives, as ``<data>``; what is typed
            stands behind them.

    Raises:
        UsageError: A value that is not allowed, a flag that does not exist, or an argument for a
            program that takes none.
    """
    _Tail(schema, command, page, presets, env, filled).check(tail)


class _Tail(Record):
    """Checks the arguments one by one."""

    schema: Schema
    command: str
    page: str
    presets: Sequence[str]
    env: str | None
    filled: Collection[str]

    def settle(self) -> None:
        # fdl's own options are allowed too, even if the program does not declare them.
        self._words = {**spellings(OPTIONS.values()), **self.schema.spellings}
        arguments = [] if self.schema.style in KEYVALUE else self.schema.arguments
        self._arguments = [
            one for one in arguments if one.variadic or one.display not in self.filled
        ]

    def check(self, tokens: Sequence[str]) -> None:
        for said in typed_words(tokens, self.schema, spellings(OPTIONS.values())):
            if not said.flag:
                self._positional(said.words[0])
            elif said.option is None:
                self._unknown(said)
            else:
                # The program itself reports a missing value.
                for text in said.words:
                    self._allow(said.option, text)

    def _positional(self, token: str) -> None:
        if self._takes_none():
            raise UsageError(
                f"unexpected argument `{token}`", hint=self._meant(token), see=self._see()
            )
        if not self._arguments:
            return
        one = self._arguments[0]
        if not one.variadic:
            self._arguments = self._arguments[1:]
        self._allow(one, token)

    def _takes_none(self) -> bool:
        """Whether it is certain that the program takes no positional arguments.

        Only FdlArgs says so. The schema of another parser, or one that was written in a manifest or
        read from the source, may lack some of them.
        """
        schema = self.schema
        is_whole = schema.strict and schema.origins
        return is_whole and not schema.arguments and not schema.commands

    def _meant(self, word: str) -> str:
        """The hint for an argument of a program that takes none."""
        preset = did_you_mean(word, self.presets, typed=f"{self.command} {{}}")
        options = {one.name: one.flag for one in self.schema.options.values()}
        return preset or setting_as_option(word, options)

    def _allow(self, one: Parameter, text: str) -> None:
        if problem := _refusal(self.schema, one, text):
            raise UsageError(
                f"`{self.command}`: {problem}",
                hint=_guess(one, text),
                see=self._see(),
            )

    def _unknown(self, said: Said) -> None:
        if said.flag in _ALWAYS_KNOWN:
            return
        if not self.schema.strict:
            if said.end > said.start + 1:
                # The word behind it may be an argument, so the positional ones are unknown.
                self._arguments = []
            return
        raise UsageError(
            f"`{self.command}`: unknown option `{said.flag}`",
            hint=self._instead(said.flag),
            see=self._see(),
        )

    def _instead(self, flag: str) -> str:
        """The hint for an unknown option: a preset, an option of fdl, or the nearest one."""
        name = flag.removeprefix("--")
        if name in self.presets:
            return f"`{name}` is a preset: {self.command} {name}"
        if of_fdl := before_command(flag, self.command, self.env):
            return of_fdl
        close = nearest(flag, self._words)
        if close is None:
            return "what follows `--` is not checked"
        place = self._words[close].place
        return f"did you mean `{close}`?{f' ({place})' if place else ''}"

    def _see(self) -> tuple[str, str]:
        # A command that is right does not pay for the import.
        words = [self.command, "[OPTIONS]", *slots(self.schema.parameters)]
        return " ".join(words), self.page


def check_options(schema: Schema, level: Level, preset: str | None) -> None:
    """Check ``options`` of the manifest and of the preset that runs, and of no other preset.

    Raises:
        ManifestError: A value that is not allowed or missing, or an option that does not exist.
    """
    spelling = Spelling(schema, level.style)
    refuse_empty(level, preset, spelling)
    _Options(level, spelling, schema, f"`{level.typed()}`").check(level.manifest.node)
    if preset is not None:
        whose = f"preset `{level.typed(preset)}`"
        above = level.manifest.node.get("options")
        inherited = [key for key, _ in flattened(above.mapping.items() if above else ())]
        _Options(level, spelling, schema, whose).check(level.commands[preset], inherited)


class _Options(Record):
    """Checks the options of one manifest or preset."""

    level: Level
    spelling: Spelling
    schema: Schema
    whose: str

    def check(self, holder: Node, inherited: Iterable[str] = ()) -> None:
        options = holder.get("options")
        section = options.mapping.items() if options else ()
        if self.schema.style == "hydra":
            self._nulls(section, inherited)
        for key, node in flattened(section):
            if key.startswith(AS_WRITTEN):
                continue
            count = self.spelling.mapping(key)
            name = ".".join(key.path[:count]) if count else key
            one = self.spelling.declared(name)
            if one is None:
                self._unknown(name, node)
            elif count:
                continue
            elif one.shape == "flag" and "type" not in one.computed:
                self._flag(one, node)
            else:
                self._values(one, node)

    def _nulls(self, section: Iterable[tuple[str, Node]], inherited: Iterable[str]) -> None:
        """Refuse a null that removes nothing, where null is a value that people set."""
        names = [name for key in inherited for name in (key, *_above(key))]
        for key, node in written(section):
            removes = node.losers or key in names
            if node.value is None and not node.empty and not removes and key[0] not in AS_WRITTEN:
                raise self._refused(
                    node,
                    f"`null` removes an inherited option, and `{key}` has none",
                    f"{key}: !null passes the program's own null",
                )

    def _unknown(self, key: str, node: Node) -> None:
        above = key.rpartition(".")[0]
        outer = self.spelling.declared(above) if above else None
        # A group of Hydra has the keys of the chosen file.
        if outer is not None and outer.literal != "yaml" and self.schema.style != "hydra":
            raise self._refused(node, f"`{outer.display}` takes a value, and not a mapping")
        section = key.partition(".")[0]
        if section in SECTIONS and above and not self.spelling.bare:
            home = f"`{section}` stands beside `options`, and not in it"
            raise self._refused(node, f"the program has no option `{key}`", home)
        self._of_subcommand(key, node)
        if not self.schema.strict:
            return
        options = self.schema.options.values()
        known = [word.lstrip("-") for one in options for word in one.spellings]
        names = [*(word.replace("-", "_") for word in known), *known]
        every = f"`{self.level.typed()} --help` lists its options"
        off = {word.replace("_", "-"): one for one in options for word in one.negatives}
        meant = off.get(f"--{key}".replace("_", "-"))
        hint = f"{meant.name}: false" if meant else did_you_mean(key, names, every)
        raise self._refused(node, f"the program has no option `{key}`", hint)

    def _of_subcommand(self, key: str, node: Node) -> None:
        """Refuse an option of a subcommand if none is chosen."""
        commands = self.schema.commands
        homes = [
            name
            for name, inner in commands.items()
            if Spelling(inner, self.level.style).declared(key) is not None
        ]
        if homes:
            listed = " and ".join(f"`{name}`" for name in homes)
            what = "the subcommands" if len(homes) > 1 else "the subcommand"
            raise self._refused(
                node,
                f"`{key}` is an option of {what} {listed}",
                f"subcommand: {homes[0]}",
            )

    def _flag(self, one: Parameter, node: Node) -> None:
        if isinstance(node.value, bool) or (one.counted and isinstance(node.value, int)):
            return
        is_word = node.value in ("true", "false")
        raise self._refused(
            node,
            f"`{one.display}` is a flag{_declared_at(one)}",
            "remove the quotes" if is_word else "write `true` or `false`",
        )

    def _values(self, one: Parameter, node: Node) -> None:
        is_lost = node.value == [] and not self.spelling.groups(one.name, node, one)
        if is_lost and one.default not in (UNSET, []):
            problem = f"no words give an empty list to `{one.display}`: its default would count"
            raise self._refused(
                node, f"{problem}{_declared_at(one)}", "remove the key to keep the default"
            )
        for item in _items(node):
            text = spelled(item.value)
            if isinstance(item.value, bool | Null):
                text = one.words.get(text, text)
            if isinstance(item.value, list | dict) or self._is_null(one, item):
                continue
            if one.separator.isspace() and len(text.split()) > 1:
                end = f"`{one.display}` takes blanks as the end of a value"
                raise self._refused(item, f"`{text}` has a blank, and {end}")
            if item is not node and "," in text and one.commas and self.schema.origins:
                end = f"`{one.display}` takes commas as the end of a value"
                raise self._refused(item, f"`{text}` has a comma, and {end}")
            if problem := _refusal(self.schema, one, text) or self._type(one, text):
                raise self._refused(item, f"{problem}{_declared_at(one)}", _guess(one, text))

    def _is_null(self, one: Parameter, item: Node) -> bool:
        """Whether a value is a null for which the program has a word."""
        if not isinstance(item.value, Null):
            return False
        if self.schema.style == "hydra":
            return True
        return not one.choices and (bool(one.literal) or "null" in one.words)

    def _type(self, one: Parameter, text: str) -> str:
        """Why a value is not of the type that the source of a script declares."""
        if not self.schema.foreign or one.choices or "type" in one.computed:
            return ""
        return _not_a_number(one, text)

    def _refused(self, node: Node, problem: str, hint: str = "") -> ManifestError:
        place = origin(node, self.level.root)
        behind = f" (from {node.reference})" if node.reference else ""
        return ManifestError(f"{place}: {self.whose}: {problem}{behind}", hint=hint)


def _above(key: str) -> list[str]:
    """The mappings around a dotted key."""
    words = key.split(".")
    return [".".join(words[:count]) for count in range(1, len(words))]


def _declared_at(one: Parameter) -> str:
    """Where a program that was read declares an option."""
    return f" ({one.place})" if one.place else ""


def _items(node: Node) -> list[Node]:
    """The values of an option. A bare flag (true) or an absent one (false) has none to check."""
    if isinstance(node.value, list):
        return [each for item in node.value for each in _items(item)]
    return [] if isinstance(node.value, bool) else [node]


def _refusal(schema: Schema, one: Parameter, text: str) -> str:
    """Why a value is not allowed; empty if it is allowed."""
    for part in one.parts(text) if one.choices else ():
        if part and not any(one.means(choice, part) for choice in one.choice_texts()):
            shown = REDACTED if is_secret(one.name, part) else part
            allowed = ", ".join(one.choice_texts())
            return f"invalid value `{shown}` for `{one.display}` -- allowed: {allowed}"
    # Only FdlArgs converts a word as it is done here.
    return _not_a_number(one, text) if schema.origins and not one.choices else ""


def _not_a_number(one: Parameter, text: str) -> str:
    """Why a text is not a number of the declared type; empty for an option of another type."""
    if one.type not in ("int", "float"):
        return ""
    try:
        for part in filter(None, one.parts(text)):
            one.convert(part)
    except ValueError as problem:
        return str(problem)
    return ""


def _guess(one: Parameter, text: str) -> str:
    if not one.choices:
        return ""
    close = "" if is_secret(one.name, text) else did_you_mean(text, one.choice_texts())
    return close or "choose one of them"


_MOST_NAMES = 3


def note(schema: Schema, level: Level, preset: str | None) -> str:
    """What to say about the options of a manifest that are not checked; empty if all are."""
    spelling = Spelling(schema, level.style)
    if spelling.bare:
        # The grammar of such a program says itself how a value is written.
        return ""
    spec = level.commands[preset] if preset else None
    options = settings(level.manifest.node, spec)["options"]
    names = [key for key, node in options.items() if _is_guess(key, node, spelling)]
    if not names:
        return ""
    shown = [f"`{name}`" for name in names[:_MOST_NAMES]]
    if len(names) > _MOST_NAMES:
        shown.append(f"{len(names) - _MOST_NAMES} more")
    listed = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    one = spelling.declared(names[0])
    return (
        f"not checked: {listed}: the source of the program does not say how it reads the "
        f"value; the key `{spelling.flag(names[0], one)}` {UNCHECKED}"
    )


def _is_guess(key: str, node: Node, spelling: Spelling) -> bool:
    """Whether the words of a value are a guess."""
    if key.startswith(AS_WRITTEN):
        return False
    one = spelling.declared(key)
    if one is None:
        return not (isinstance(key, Key) and spelling.mapping(key))
    return "type" in one.computed and not one.literal and _has_several_spellings(node.value, one)


def _has_several_spellings(value: object, one: Parameter) -> bool:
    if isinstance(value, bool):
        is_bare = value and one.nargs == "?" and "true" not in one.words
        return not (is_bare or "false" in one.words)
    if isinstance(value, list):
        return one.shape != "list" and one.kind == "option"
    return isinstance(value, Null) and "null" not in one.words
