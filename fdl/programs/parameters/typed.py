"""Reading the options of a program from the words after a command."""

from __future__ import annotations

from fdl.programs.parameters.contract import spellings
from fdl.programs.parameters.parameter import Parameter, is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


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
