"""One argument of a program, however it was declared: the common currency of this package.

Built-in commands declare these directly; FdlArgs, the adapters and a program's ``--fdl-schema``
are turned into them; parser, help, completion and validation read nothing else.
Imported on the warm path: nothing beyond our own light modules.
"""

from __future__ import annotations

from fdl.base.light_record import Record
from fdl.base.secrets import REDACTED, is_secret
from fdl.manifest.words import IN_WORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, Final, Literal

    Kind = Literal["option", "arg"]
    Shape = Literal["flag", "value", "optional", "list"]


class _Unset:
    __slots__ = ()

    def __repr__(self) -> str:
        return "<unset>"


UNSET: Final = _Unset()
"""The default of a parameter that declares none."""


class Parameter(Record):
    """One option or positional argument.

    Attributes:
        name: Without dashes in front, words joined by dashes: ``batch-size``.
        kind: ``option`` (``--name``) or ``arg`` (positional).
        type: Of one value: ``string``, ``int``, ``float``, ``bool`` or ``path``.
        shape: ``flag`` (takes no value), ``value``, ``optional`` (may be absent; an option may be
            given bare), or ``list``.
        default: Declared default, ``UNSET`` when there is none. Of an ``optional`` option: its
            value when given bare.
        short: The letter of the ``-x`` form.
        choices: Allowed values; members of an ``Enum`` count by their values.
        env: Environment variable read when argv has nothing.
        commas: Whether one word can hold several values of a list option, separated by commas.
        separator: What joins the values of a list into one word, if that is the only way; a value
            that contains it is quoted as in CSV.
        ignore_case: Whether choices may be typed in upper and lower case.
        once: Whether only the last occurrence of a list counts.
        literal: How the program evaluates a word: ``python`` (a literal, so that text may need
            quotes), ``json`` or ``eval`` (data, so that a value may be a mapping), ``yaml`` (lists
            and mappings alone are JSON). Empty if not.
        mapping: How a mapping is written: ``literal``, or ``words``: keys and values in turn, and
            so are the values of lists in a list.
        words: How ``true``, ``false`` and ``null`` are written, if not as these words.
        variadic: Takes all remaining positionals.
        required: Whether a positional must be given.
        completer: Shell snippet that prints one completion candidate per line.
        help: One sentence.
        group: Heading of the option on a help page; empty for the general options.
        flags: Every spelling that the program declares, in its order: ``("--num_epochs", "-n")``.
            Empty for a program that takes ``--name`` and ``-short``.
        negatives: The spellings that turn a flag off: ``("--no-shuffle",)``.
        nargs: Words that one option takes: a number, ``*``, ``+``, or ``?`` for one that may be
            absent; None for one word.
        counted: Whether the flag may be repeated, and its number counts: ``-vvv``.
        place: ``file:line`` of the declaration, the file relative to the project; empty if unknown.
        computed: What the source computes, so that reading it gives no value: names out of
            ``type``, ``default``, ``choices``, ``nargs``, ``help``.
    """

    name: str
    kind: Kind = "option"
    type: str = "string"
    shape: Shape = "value"
    default: Any = UNSET
    short: str | None = None
    choices: Sequence[Any] = ()
    env: str | None = None
    commas: bool = True
    separator: str = ""
    ignore_case: bool = False
    once: bool = False
    literal: str = ""
    mapping: str = ""
    words: Mapping[str, str] = {}
    variadic: bool = False
    required: bool | None = None
    completer: str | None = None
    help: str = ""
    group: str = ""
    flags: Sequence[str] = ()
    negatives: Sequence[str] = ()
    nargs: int | Literal["*", "+", "?"] | None = None
    counted: bool = False
    place: str = ""
    computed: Sequence[str] = ()

    def settle(self) -> None:
        """Derive what was not given."""
        self.choices, self.computed = tuple(self.choices), tuple(self.computed)
        self.flags, self.negatives = tuple(self.flags), tuple(self.negatives)
        self.commas = self.commas and self.kind == "option" and self.shape == "list"
        if self.required is None:
            is_value = self.kind == "arg" and self.shape == "value"
            self.required = is_value and self.default is UNSET

    @property
    def field(self) -> str:
        """The name as a Python attribute: ``batch_size``."""
        return self.name.replace("-", "_")

    @property
    def flag(self) -> str:
        """The spelling to type: the first long one that is declared, else the first one."""
        long = (one for one in self.flags if one.startswith("--"))
        return next(long, self.flags[0] if self.flags else f"--{self.name}")

    @property
    def spellings(self) -> Sequence[str]:
        """Every word that names the option on a command line, without those that turn it off."""
        if self.flags:
            return self.flags
        return (f"--{self.name}", *((f"-{self.short}",) if self.short else ()))

    @property
    def holds_data(self) -> bool:
        """Whether a value may be a mapping, and is written as JSON or as Python."""
        return self.literal in ("json", "eval")

    @property
    def display(self) -> str:
        """How messages name it: ``--batch-size`` or ``<data>``."""
        return self.flag if self.kind == "option" else f"<{self.name}>"

    @property
    def type_name(self) -> str:
        """The schema's word for the type: ``int``, ``list[int]``."""
        return f"list[{self.type}]" if self.shape == "list" else self.type

    @property
    def numeric(self) -> bool:
        """Whether ``-1`` may be a value."""
        return self.type in ("int", "float")

    def may_take(self, token: str) -> bool:
        """Whether a word behind the option can be its value and not the next flag."""
        return may_be_value(token, self.numeric)

    @property
    def adds_up(self) -> bool:
        """Whether each occurrence adds to those before it, and does not replace them."""
        return self.counted or (self.shape == "list" and not (self.once or self.separator))

    def absent(self) -> Any:
        """The value when neither argv nor the environment gives one."""
        if self.shape == "flag":
            return False if self.default is UNSET else self.default
        if self.shape == "optional" and self.kind == "option":
            return None
        if self.shape == "list":
            return [] if self.default is UNSET else list(self.default)
        return None if self.default is UNSET else self.default

    def hides(self, value: Any) -> bool:
        """Whether a value of this parameter is kept from print: its name or variable says so."""
        # A word that should have been a number is shown under `--max-tokens`, not `--password`.
        shown = 0 if self.numeric and isinstance(value, str) else value
        return any(is_secret(name, shown) for name in (self.name, self.env) if name)

    def refusal(self, value: Any, reason: str) -> str:
        """The message for a value that is not accepted; a secret is not repeated."""
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        shown = REDACTED if self.hides(value) else text
        return f"invalid value `{shown}` for `{self.display}` -- {reason}"

    def convert(self, text: str) -> Any:
        """Turn one word into a value.

        Raises:
            ValueError: The word is not of the type, or not among the choices; says which.
        """
        if self.choices:
            for choice in self.choices:
                if self.means(choice_text(choice), text):
                    return choice
            raise ValueError(self.refusal(text, f"allowed: {', '.join(self.choice_texts())}"))
        try:
            return converted(text, self.type)
        except ValueError:
            raise ValueError(self.refusal(text, f"not {IN_WORDS[self.type]}")) from None

    def means(self, choice: str, text: str) -> bool:
        """Whether a word is a choice, perhaps in upper or lower case; ``1.0`` is the number 1."""
        if self.numeric and is_number(choice) and is_number(text):
            return float(choice) == float(text)
        return choice == text or (self.ignore_case and choice.casefold() == text.casefold())

    def parts(self, text: str) -> list[str]:
        """The values that one word holds."""
        if self.separator.isspace():
            return text.split()
        if not self.commas:
            return [text]
        parts = [part.strip() for part in text.split(",")]
        return parts if self.separator else [part for part in parts if part]

    def split(self, text: str) -> list[Any]:
        """The values of a list in one word: separated by commas, blanks dropped.

        Raises:
            ValueError: One of them is refused, see :meth:`convert`.
        """
        return [self.convert(part.strip()) for part in text.split(",") if part.strip()]

    def choice_texts(self) -> list[str]:
        """The allowed words, in declaration order."""
        return [choice_text(choice) for choice in self.choices]


def choice_text(choice: Any) -> str:
    """A choice as it is typed; ``value`` is what every ``Enum`` member has."""
    return str(getattr(choice, "value", choice))


def group_word(group: str) -> str:
    """A group as it is typed behind ``--help``: ``data-loading`` for ``Data loading``."""
    return "-".join("".join(char if char.isalnum() else " " for char in group).lower().split())


def groups_of(parameters: Iterable[Parameter]) -> dict[str, list[Parameter]]:
    """Word of a group -> its options; the general options stand under the empty word."""
    found: dict[str, list[Parameter]] = {}
    for one in parameters:
        if one.kind == "option":
            found.setdefault(group_word(one.group), []).append(one)
    return found


def collapsed_last(
    parameters: Iterable[Parameter], collapsed: Iterable[str]
) -> tuple[Parameter, ...]:
    """The parameters, those of groups that a help page shows as one line behind the others."""
    words = {group_word(one) for one in collapsed}
    return tuple(sorted(parameters, key=lambda one: group_word(one.group) in words))


def help_word(argv: Sequence[str]) -> str:
    """The word directly behind the first help flag, which may name a group of options."""
    for index, token in enumerate(argv):
        if token in ("-h", "--help"):
            following = "".join(argv[index + 1 : index + 2])
            return "" if following.startswith("-") else following
    return ""


def is_flag_name(name: str) -> bool:
    """Whether a word can be a long name: letters, digits and ``-``, ``_``, ``.`` between them."""
    return (
        bool(name) and name[0].isalnum() and all(char.isalnum() or char in "-_." for char in name)
    )


def is_group(word: str) -> bool:
    """Whether a spelling is a group of Hydra in a folder: ``model/encoder``."""
    return word[:1].isalnum() and "/" in word


def is_letter(short: str) -> bool:
    """Whether a word can be the letter of a ``-x`` form."""
    return len(short) == 1 and short not in "-=" and not short.isspace()


def is_number(text: str) -> bool:
    """Whether a word can be read as a number, so that its dash is a sign and not a flag's."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def may_be_value(token: str, numeric: bool) -> bool:
    """Whether a word behind a flag can be its value, which may be a number, and not a flag."""
    return token[:1] != "-" or token == "-" or (numeric and is_number(token))


_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,), "path": (str,), "int": (int,), "float": (int, float), "bool": (bool,),
}  # fmt: skip


def is_of(value: object, type_: str) -> bool:
    """Whether a value is one of a type; a path is text."""
    return isinstance(value, _KINDS[type_]) and (type_ == "bool" or not isinstance(value, bool))


def converted(text: str, type_: str) -> Any:
    """A word as a value of a type; raises a ValueError for a word that is not of the type."""
    if type_ == "int":
        return int(text)
    if type_ == "float":
        return float(text)
    if type_ == "path":
        from pathlib import Path

        return Path(text)
    if type_ == "bool":
        if text not in ("true", "false"):
            raise ValueError
        return text == "true"
    return text
