"""How a program takes its settings: the spelling of flags, and which words carry a value.

A declared spelling is kept. For other options ``style:`` decides; without it, ``_`` becomes ``-``.
"""

from __future__ import annotations

from fdl.base.light_record import Record
from fdl.manifest.node import Node, Null, text
from fdl.programs.parameters.parameter import UNSET, is_group, is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fdl.programs.parameters.contract import Schema
    from fdl.programs.parameters.parameter import Parameter

    Groups = list[list[str]]

KEYVALUE = ("keyvalue", "hydra")
"""Styles without dashes: ``batch_size=8``."""

AS_WRITTEN = ("-", "+", "~")
"""Keys that begin like this are passed as they stand."""
_HYDRA_DIRECTORY = "hydra.run.dir"

# Values of these characters need no quotes in Hydra's grammar (OverrideLexer.g4).
_HYDRA_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_/-.")
_HYDRA_WORDS = frozenset(("null", "true", "false", "nan", "inf", "-inf"))


class Spelling(Record):
    """The spelling of one program's settings.

    Args:
        schema: Its known arguments, or None.
        style: The manifest's ``style:``, or empty. Then the style of the schema counts.
    """

    schema: Schema | None = None
    style: str = ""

    def settle(self) -> None:
        """Index the spellings of all parameters; the first one with a spelling has it."""
        self._known: dict[str, Parameter] = {}
        for one in self.schema.parameters if self.schema else ():
            for word in (*one.spellings, one.name) if one.kind == "option" else (one.name,):
                self._known.setdefault(_plain(word), one)

    @property
    def bare(self) -> bool:
        """Whether settings are written without dashes."""
        return self._style in KEYVALUE

    @property
    def _style(self) -> str:
        return self.style or (self.schema.style if self.schema else "")

    def declared(self, *names: str) -> Parameter | None:
        """The option or argument that one of some keys means, in any of its spellings."""
        return next((self._known[word] for word in map(_plain, names) if word in self._known), None)

    def mapping(self, key: Key) -> int:
        """How many of the mappings around a key are one value of an option; 0 for none."""
        for count in range(1, len(key.path)):
            one = self.declared(".".join(key.path[:count]))
            takes = one is not None and (one.mapping or one.holds_data)
            if takes or self._style == "fire":
                return count
        return 0

    def flag(self, key: str, one: Parameter | None = None) -> str:
        """The word that carries a key: ``--num_epochs``, ``-lr``, or ``optimizer.lr``."""
        if key.startswith(AS_WRITTEN):
            return key
        if self.bare:
            return next(filter(is_group, one.flags), one.name) if one else key
        if one is not None:
            return one.flag if one.kind == "option" else one.display
        if self._style == "snake":
            return "--" + key.replace("-", "_")
        return "--" + key.replace("_", "-")

    def groups(self, key: str, node: Node, one: Parameter | None, *, switch: bool = True) -> Groups:
        """The token groups of one value: none, one, or one per item of a list that needs it.

        With ``switch``, a boolean of an unknown option is a bare flag; else its value is written.
        """
        name, value = self.flag(key, one), node.value
        if self.bare and not key.startswith("-"):
            return [[_assignment(name, node, hydra=self._style == "hydra")]]
        if one is not None and one.kind == "arg":
            whole = one.holds_data and not one.variadic
            return [[_word(item.value, one)] for item in ([node] if whole else _flat(node))]
        if one is not None and one.holds_data and one.shape != "list":
            return [valued(name, _word(value, one), one)]
        literal = self._language(key, one)
        is_switch = literal != "python" and (one is not None or not literal)
        if isinstance(value, bool) and is_switch:
            return self._switch(name, value, one, switch=switch)
        if one is not None and one.counted and isinstance(value, int):
            return [[name]] * value
        if isinstance(value, list | dict) and value and one and one.mapping == "words":
            return [[name, *_words(node, one)]]
        if literal and isinstance(value, list | dict):
            return [[name, _as_data(node, "eval" if literal == "python" else "json")]]
        if not isinstance(value, list):
            word = _literal(value) if literal == "python" else _word(value, one)
            return [valued(name, word, one)]
        if any(isinstance(item.value, list) for item in value):
            # One occurrence of the option for each inner list.
            return [[name, *(_word(each.value, one) for each in item.listed)] for item in value]
        items = [_word(item.value, one) for item in value if item.value is not None]
        if not items:
            is_ours = self.schema is not None and self.schema.origins
            return _nothing(name, one, is_ours=is_ours)
        if one is not None and one.separator:
            return [valued(name, _joined(items, one.separator), one)]
        if one is not None and one.nargs not in (None, "?"):
            return [[name, *items]]
        repeated = one is not None and one.shape == "list" and not one.commas
        if repeated or any("," in item for item in items):
            return [valued(name, item, one) for item in items]
        return [valued(name, ",".join(items), one)]

    def surplus(self, key: str, node: Node) -> str:
        """What a list holds that the program has no spelling for; empty if all is well."""
        one = self.declared(key)
        held = set(_held(node))
        if self._style == "hydra" or self._language(key, one) or not held:
            return ""
        if one is not None and (one.mapping or one.holds_data):
            return ""
        several = one is None or (one.shape == "list" and not one.once)
        return "" if several and held == {list} else "a mapping" if dict in held else "a list"

    def _language(self, key: str, one: Parameter | None) -> str:
        """The language of a list; that of ``model.layers`` is the one of ``model``."""
        if one is not None:
            several = one.nargs not in (None, "?") or (one.holds_data and one.shape == "list")
            return "" if several else one.literal
        above = key.rpartition(".")[0]
        while above:
            if (outer := self.declared(above)) is not None:
                return outer.literal
            above = above.rpartition(".")[0]
        return "python" if self._style == "fire" else ""

    def _switch(self, name: str, value: bool, one: Parameter | None, *, switch: bool) -> Groups:
        if one is None:
            takes_word = not switch
        else:
            bare = one.shape == "optional" and one.default is not UNSET
            bare = bare or (one.nargs == "?" and "true" not in one.words)
            takes_word = one.shape != "flag" and not (bare and value)
        if not value and one is not None and _is_off_without_value(one):
            return []
        if takes_word:
            return [valued(name, _word(value, one), one)]
        if value:
            return [[name]]
        if one is not None and one.negatives:
            return [[one.negatives[0]]]
        if one is None or one.default is False:
            return []
        off = self.declared(f"no-{one.name}") if one.default is True else None
        return [[off.flag]] if off else []


def output_keys(style: str) -> tuple[str, ...]:
    """The keys under which a program may take ``output.dir``."""
    return (_HYDRA_DIRECTORY,) if style == "hydra" else ("output", "output_dir")


class Key(str):
    """A dotted key that remembers the mappings it was written in.

    Attributes:
        path: The key of each mapping, outermost first.
    """

    __slots__ = ("path",)
    path: tuple[str, ...]

    def __new__(cls, path: tuple[str, ...]) -> Key:
        """Join the keys."""
        made = str.__new__(cls, ".".join(path))
        made.path = path
        return made


def flattened(section: Iterable[tuple[str, Node]]) -> Iterable[tuple[Key, Node]]:
    """Settings in mappings as dotted keys: ``optimizer.lr``. Nulls are left out.

    A key without a value switches a flag on. Where the program has no such flag, it is refused.
    A key such as ``~callbacks`` needs no value: in Hydra's grammar, it deletes.
    """
    for key, node in written(section):
        if node.value is not None:
            yield key, node
        elif node.empty or key.startswith("~"):
            yield key, node.at(True)


def written(
    section: Iterable[tuple[str, Node]], above: tuple[str, ...] = ()
) -> Iterable[tuple[Key, Node]]:
    """The same with nulls, and with keys that have no value."""
    for key, node in section:
        if isinstance(node.value, dict):
            yield from written(node.mapping.items(), (*above, key))
        else:
            yield Key((*above, key)), node


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _nothing(name: str, one: Parameter | None, *, is_ours: bool) -> Groups:
    """An empty list, if the program has a spelling for it; of FdlArgs if its default is another."""
    if one is None:
        return []
    if one.separator or (is_ours and one.commas and one.default not in (UNSET, [])):
        return [[f"{name}="]]
    return [[name]] if one.nargs == "*" else []


def _is_off_without_value(one: Parameter) -> bool:
    """Whether false means that an option with an optional value is not given."""
    is_plain = one.nargs == "?" and not one.computed and "false" not in one.words
    return is_plain and (one.default is UNSET or not one.default)


def _flat(node: Node) -> Iterable[Node]:
    """The values of a list, and of the lists in it."""
    if not isinstance(node.value, list):
        yield node
        return
    for item in node.value:
        yield from _flat(item)


def _words(node: Node, one: Parameter) -> list[str]:
    """The words of a value: those of a list in turn, and keys and values of a mapping."""
    if isinstance(node.value, dict):
        pairs = ((key, *_words(child, one)) for key, child in node.value.items())
        return [word for pair in pairs for word in pair]
    if isinstance(node.value, list):
        return [word for item in node.value for word in _words(item, one)]
    return [_word(node.value, one)]


def _held(node: Node) -> Iterable[type]:
    """The kinds of the lists and mappings inside a list."""
    for item in node.value if isinstance(node.value, list) else node.mapping.values():
        if isinstance(item.value, list | dict):
            yield type(item.value)
            yield from _held(item)


def _word(value: object, one: Parameter | None) -> str:
    """A value as the program reads it."""
    if one is None:
        return _scalar(value)
    plain = value if isinstance(value, Null) else _scalar(value)
    if (isinstance(value, bool | Null)) and plain in one.words:
        return one.words[plain]
    if one.holds_data:
        return _as_data(value, one.literal)
    return _literal(value) if one.literal == "python" else plain


def _as_data(value: object, literal: str) -> str:
    """A value as one word of JSON or Python. Text that is such data already is passed unchanged."""
    from ast import literal_eval
    from json import dumps, loads

    write, read = (dumps, loads) if literal == "json" else (repr, literal_eval)
    plain = _data(value)
    if isinstance(plain, str):
        try:
            read(plain)
        except (ValueError, SyntaxError):
            return write(plain)
        return plain
    return write(plain)


def _data(value: object) -> object:
    if isinstance(value, Node):
        return _data(value.value)
    if isinstance(value, dict):
        return {key: _data(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_data(one) for one in value]
    return None if isinstance(value, Null) else value


def _literal(value: object) -> str:
    """A value as Fire reads it; text is quoted where it would be read as something else."""
    if isinstance(value, Null):
        return "None"
    if not isinstance(value, str):
        return str(value)
    plain = value[:1].isalpha() and all(char.isalnum() or char in "_-./: " for char in value)
    return value if plain and value not in ("True", "False", "None") else repr(value)


def _joined(items: Sequence[str], separator: str) -> str:
    if separator.isspace():
        return separator.join(items)
    quoted = (item.replace('"', '""') for item in items)
    return separator.join(
        f'"{item}"' if separator in item or '"' in item else item for item in quoted
    )


def valued(name: str, value: str, one: Parameter | None) -> list[str]:
    """Flag and value; one token if a parser would take the value for another flag."""
    # FdlArgs takes a number with a sign for the value of a numeric option only.
    is_sure = _reads_as_number(value[1:]) and (one is None or one.numeric or name[:2] != "--")
    if len(value) > 1 and value.startswith("-") and not is_sure:
        return [f"{name}={value}"]
    return [name, value]


def _reads_as_number(number: str) -> bool:
    """Whether argparse takes the word for a number with a sign in front, and not for a flag."""
    return number.replace(".", "", 1).isdecimal() and not number.endswith(".")


def _scalar(value: object) -> str:
    """A scalar as text; a number below zero without an exponent, see :func:`_reads_as_number`."""
    plain = text(value)
    if not (isinstance(value, float) and plain.startswith("-") and "e" in plain):
        return plain
    from decimal import Decimal

    return f"{Decimal(plain):f}"


def _assignment(name: str, node: Node, *, hydra: bool) -> str:
    if name.startswith("~") and node.value is True:
        return name
    if not hydra:
        return f"{name}={','.join(map(_bare, node.listed))}"
    return f"{name}={_hydra(node)}"


def _bare(node: Node) -> str:
    if isinstance(node.value, list):
        return f"[{','.join(map(_bare, node.value))}]"
    return text(node.value)


def _hydra(node: Node) -> str:
    """A value in Hydra's override grammar; quoted if it would be read as something else."""
    value = node.value
    if isinstance(value, list):
        return f"[{','.join(map(_hydra, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_hydra(child)}' for key, child in value.items())}}}"
    if value is None or isinstance(value, Null):
        return "null"
    if not isinstance(value, str):
        return text(value)
    # An interpolation is for Hydra to resolve.
    if value.startswith("${") and value.endswith("}"):
        return value
    plain = _HYDRA_PLAIN.issuperset(value)
    if value and plain and value.lower() not in _HYDRA_WORDS and not is_number(value):
        return value
    return f"'{_hydra_escaped(value)}'"


def _hydra_escaped(value: str) -> str:
    """The inside of a quoted value: backslashes count only before a quote and at the end."""
    made, pending = "", 0
    for char in f"{value}'":
        if char == "\\":
            pending += 1
            continue
        made += "\\" * (pending * 2 + 1 if char == "'" else pending) + char
        pending = 0
    # The last quote is only a mark, and its own backslash goes with it.
    return made[:-2]
