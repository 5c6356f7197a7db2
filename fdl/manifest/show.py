"""Node tree -> YAML with a comment on every leaf: the text of ``fdl config show``.

Imported on every `config show`: loads only fdl's own light modules.
"""

from __future__ import annotations

from fdl.manifest.node import Node, Null

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.manifest.node import Scalar

_INLINE_WIDTH = 80
_INFINITY = float("inf")

# Words that some YAML reader does not read as text, in any case.
_WORDS = frozenset(
    ("~", "null", "true", "false", "y", "n", "yes", "no", "on", "off", "=", "<<",
     ".inf", "-.inf", "+.inf", ".nan")
)  # fmt: skip
_DIGITS = "0123456789"
_NUMERIC = frozenset("0123456789abcdefABCDEFoOxX_.+-")
_INDICATORS = "-?:,[]{}#&*!|>'\"%@` \t"
# PyYAML ends a plain word in a flow list or mapping at the first of these.
_FLOW_INDICATORS = ",:?[]{}"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def lines(
    node: Node, path: tuple[str, ...] = (), indent: str = ""
) -> Iterator[tuple[str, str, tuple[str, ...], Node | None]]:
    """The lines of a tree as YAML that reads back to the same values.

    Args:
        node: A tree.
        path: Its path.
        indent: Blanks before it.

    Yields:
        Name, value and path of every line, and the leaf that begins there. A list, or an empty
        mapping, is one leaf.
    """
    head = f"{indent}{quoted(path[-1])}:" if path else ""
    value = node.value
    if isinstance(value, dict) and value:
        if path:
            yield head, "", path, None
            indent += "  "
        for key, child in value.items():
            yield from lines(child, (*path, key), indent)
        return
    text = flow(node)
    scalars = isinstance(value, list) and not any(
        isinstance(item.value, dict | list) for item in value
    )
    fits = len(head) + 1 + len(text) <= _INLINE_WIDTH
    if not isinstance(value, list) or not value or (scalars and fits):
        yield head, text, path, node
        return
    yield head, "", path, node
    for item in value:
        yield f"{indent}  -", flow(item, inside=not scalars), path, None


def flow(node: Node, *, inside: bool = False) -> str:
    """A value on one line of YAML. ``inside`` a list or mapping, more characters need quotes."""
    value = node.value
    if isinstance(value, dict):
        entries = (f"{quoted(k, inside=True)}: {flow(v, inside=True)}" for k, v in value.items())
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, list):
        return f"[{', '.join(flow(item, inside=True) for item in value)}]"
    return scalar(value, inside=inside)


def scalar(value: Scalar, *, inside: bool = False) -> str:
    """A scalar as both YAML 1.1 and 1.2 readers understand it."""
    if isinstance(value, Null):
        # Between brackets, what follows would belong to the tag.
        return f"{value!r} " if inside else repr(value)
    if isinstance(value, str):
        return quoted(value, inside=inside)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if value != value:  # only true of NaN
            return ".nan"
        if abs(value) == _INFINITY:
            return ".inf" if value > 0 else "-.inf"
        digits, exponent, power = repr(value).partition("e")
        # Without a point YAML 1.1 reads `1e-05` as text.
        return f"{digits}{'' if '.' in digits else '.0'}{exponent}{power}"
    return str(value)


def quoted(text: str, *, inside: bool = False) -> str:
    """Text, in double quotes only if it would not read back as the same text."""
    if not _ambiguous(text) and not (inside and any(char in _FLOW_INDICATORS for char in text)):
        return text
    return f'"{"".join(map(_escaped, text))}"'


def _ambiguous(text: str) -> bool:
    return (
        not text
        or text[0] in _INDICATORS
        or text[-1].isspace()
        or text.startswith("...")
        or any(char in ":#'\"" or not char.isprintable() for char in text)
        or text.lower() in _WORDS
        or _looks_numeric(text)
    )


def _looks_numeric(text: str) -> bool:
    digits = text.lstrip("+-.")
    return digits[:1] in _DIGITS and digits != "" and all(char in _NUMERIC for char in digits)


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
