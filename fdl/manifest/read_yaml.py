"""YAML text -> Node tree.

The tree is built from the parser's events, not from composed nodes. Events come one by one, so
depth and size are checked before anything grows. PyYAML's YAML 1.1 types never apply.
"""

from __future__ import annotations

import yaml
from yaml import YAMLError
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from fdl.manifest.node import Node, Null
from fdl.manifest.source import (
    MAX_DEPTH,
    MAX_VALUES,
    key_problem,
    odd_space,
    position,
    refusal,
    resolve,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from yaml.error import Mark

    from fdl.base.errors import ManifestError
    from fdl.manifest.node import Scalar

# libyaml if PyYAML was built with it: the same events, ten times faster.
LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TAG = "tag:yaml.org,2002:"
_TYPES: dict[str, tuple[type, ...]] = {
    f"{_TAG}bool": (bool,),
    f"{_TAG}float": (int, float),
    f"{_TAG}int": (int,),
    f"{_TAG}null": (type(None),),
}

# fdl's own tags. On lists: how the list of an overlay joins the weaker one. On any value: a secret.
_LIST_TAGS = ("!append", "!prepend")
_MERGE_BY = "!merge-by:"
_SECRET = "!secret"
_PUBLIC = "!public"
_NULL = "!null"
_QUOTED = ("'", '"', "|", ">")
_OWN_TAGS = "!append, !prepend, !merge-by:KEY, !null, !secret, !public"

# A part of the parser's message -> what to do about it.
_HINTS = (
    ("mapping values are not allowed", "quote a value that contains `: `, or fix the indentation"),
    ("escape", "double the backslash, or use single quotes"),
    ("quoted scalar", "check the quotes: each one needs its partner"),
    ("flow sequence", "close the list with `]` and put commas between its items"),
    ("flow mapping", "close the mapping with `}` and put commas between its entries"),
    ("could not find expected ':'", "write `key: value`, with a space after the colon"),
    ("expected key", "line up the keys of one mapping, and indent what belongs under them"),
    ("expected <block end>", "line up the keys or items that belong together"),
    ("expected '-' indicator", "line up the items of the list; keys cannot follow items"),
)
_HINT = "check the indentation and the quotes around this line"


def read_yaml(text: str, file: str) -> Node:
    """The document as a tree; an empty document is an empty mapping.

    Raises:
        ManifestError: Broken YAML, duplicate keys, an unsupported tag, several documents, nesting
            or alias expansion beyond the limits.
    """
    try:
        return _Builder(yaml.parse(text, Loader=LOADER), file).document()
    except YAMLError as error:
        raise translated(error, text, file) from None


def tree(events: Iterator[Any], file: str) -> Node:
    """The value that the events of a parser tell.

    Raises:
        ManifestError: Duplicate keys, or a key that is too long.
    """
    return _Builder(events, file).value(next(events), depth=0)


class _Builder:
    """Consumes the events of one stream; ``values`` counts what the tree holds when expanded."""

    def __init__(self, events: Iterator[Any], file: str) -> None:
        self.events = events
        self.file = file
        self.values = 0
        # Anchor -> its value and expanded size; None while the value is being built.
        self.expanded = 0
        self.anchors: dict[str, tuple[Node, int] | None] = {}

    def document(self) -> Node:
        next(self.events)
        if isinstance(next(self.events), StreamEndEvent):
            return Node({}, self.file, 1, 1)
        root = self.value(next(self.events), depth=0)
        next(self.events)
        if not isinstance(extra := next(self.events), StreamEndEvent):
            raise self.refusal(
                extra.start_mark,
                "a second document begins here, but a manifest is one document",
                "remove the `---` line or move what follows into its own file",
            )
        return root

    def value(self, event: Any, depth: int) -> Node:
        """The value that begins with ``event``; consumes events to its end."""
        mark = event.start_mark
        if isinstance(event, AliasEvent):
            return self.alias(event, depth)
        before = self.values
        self.values += 1
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        node = Node(None, self.file, mark.line + 1, mark.column + 1)
        node.secret = None if event.tag == _PUBLIC else event.tag == _SECRET
        if isinstance(event, ScalarEvent):
            node.value = self.scalar(event)
            node.empty = node.value is None and event.value == ""
        else:
            if depth >= MAX_DEPTH:
                raise self.too_deep(mark)
            node.merge = self.collection_tag(event)
            if isinstance(event, MappingStartEvent):
                node.value = self.mapping(depth)
            elif isinstance(event, SequenceStartEvent):
                node.value = self.sequence(depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = (node, self.values - before)
        return node

    def mapping(self, depth: int) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        first_lines: dict[str, int] = {}
        while not isinstance(event := next(self.events), MappingEndEvent):
            mark = event.start_mark
            key = self.key(event)
            if key in first_lines:
                problem = f"duplicate key `{key}`: line {first_lines[key]} already has it"
                raise self.refusal(mark, problem, "keep one of the two")
            first_lines[key] = mark.line + 1
            child = self.value(next(self.events), depth + 1)
            if key == "<<" and event.implicit[0]:
                merged = self.merge(child, mark)
                continue
            child.key_line, child.key_column = mark.line + 1, mark.column + 1
            own[key] = child
        return {**merged, **own}

    def merge(self, child: Node, mark: Mark) -> dict[str, Node]:
        """The keys that ``<<: *defaults`` or ``<<: [*first, *second]`` adds; earlier ones win."""
        sources = child.value if isinstance(child.value, list) else [child]
        merged: dict[str, Node] = {}
        for source in sources:
            if not isinstance(source.value, dict):
                hint = "write `<<: *anchor`, where the anchor names a mapping"
                raise self.refusal(mark, "`<<` can only merge mappings", hint)
            merged = {**source.value, **merged}
        return merged

    def sequence(self, depth: int) -> list[Node]:
        items: list[Node] = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            items.append(self.value(event, depth + 1))
        return items

    def alias(self, event: Any, depth: int) -> Node:
        name, mark = event.anchor, event.start_mark
        if name not in self.anchors:
            hint = f"define it first with `&{name}`, or quote the text if `*` belongs to it"
            raise self.refusal(mark, f"alias `*{name}` has no anchor above it", hint)
        anchored = self.anchors[name]
        if anchored is None:
            raise self.refusal(mark, f"alias `*{name}` refers to itself", "repeat the value")
        node, size = anchored
        self.expand(size, mark)
        if depth + _height(node) > MAX_DEPTH:
            raise self.too_deep(mark)
        # Only the top is copied: the key above it differs, and everything below is shared.
        copy = Node(node.value, node.file, node.line, node.column)
        copy.merge, copy.secret, copy.empty = node.merge, node.secret, node.empty
        return copy

    def key(self, event: Any) -> str:
        """Read a key as the text it is written as, also ``1:``, ``on:`` and ``null:``."""
        mark = event.start_mark
        if not isinstance(event, ScalarEvent):
            raise self.refusal(mark, "a key must be text", "write a plain name before the colon")
        if event.tag not in (None, "!", f"{_TAG}str"):
            raise self.refusal(mark, f"tag `{event.tag}` is not supported on a key", "remove it")
        self.values += 1
        self.refuse_odd_space(event, key=True)
        if problem := key_problem(event.value):
            raise self.refusal(mark, problem, "give it a short name")
        if event.anchor is not None:
            self.anchors[event.anchor] = (
                Node(event.value, self.file, mark.line + 1, mark.column + 1),
                1,
            )
        return str(event.value)

    def scalar(self, event: Any) -> Scalar:
        text, tag, mark = event.value, event.tag, event.start_mark
        if "\0" in text:
            problem = "text cannot hold a NUL character: no program can receive one"
            raise self.refusal(mark, problem, "remove the `\\0`")
        quoted = event.style in _QUOTED
        self.refuse_odd_space(event, key=False)
        if tag in ("!", f"{_TAG}str") or (tag in (None, _SECRET, _PUBLIC) and quoted):
            return str(text)
        try:
            value = resolve(text)
        except ValueError as error:
            raise self.refusal(mark, str(error), "quote it if it is text") from None
        if tag in (None, _SECRET, _PUBLIC):
            return value
        if tag == _NULL and value is None:
            return Null("null")
        if tag not in _TYPES:
            raise self.unsupported(event)
        # bool is a subclass of int, but `!!int true` is wrong.
        if not isinstance(value, _TYPES[tag]) or (isinstance(value, bool) and "bool" not in tag):
            problem = f"`{text}` is no !!{tag.removeprefix(_TAG)}"
            raise self.refusal(mark, problem, "remove the tag or correct the value")
        return float(value) if tag == f"{_TAG}float" and value is not None else value

    def refuse_odd_space(self, event: Any, *, key: bool) -> None:
        """Refuse a blank that YAML takes for a letter in a text without quotes."""
        if event.style in _QUOTED or not (odd := odd_space(event.value, key=key)):
            return
        raise self.refusal(
            event.start_mark,
            f"{odd} stands where YAML needs a plain space",
            "delete the blanks in this line and type them again",
        )

    def collection_tag(self, event: Any) -> str | None:
        """How a list joins the weaker one, from its tag. Other tags are refused."""
        tag = event.tag
        is_list = isinstance(event, SequenceStartEvent)
        if tag in (None, "!", _SECRET, _PUBLIC, f"{_TAG}{'seq' if is_list else 'map'}"):
            return None
        if tag not in _LIST_TAGS and not tag.startswith(_MERGE_BY):
            raise self.unsupported(event)
        if not is_list:
            raise self.needs_list(event)
        if tag == _MERGE_BY:
            hint = f"name the key that tells items apart: `{_MERGE_BY}name`"
            raise self.refusal(event.start_mark, f"`{tag}` names no key", hint)
        return str(tag[1:])

    def expand(self, values: int, mark: Mark) -> None:
        """Count the values of an alias. What is written out is limited by the size of the file."""
        self.values += values
        self.expanded += values
        if self.expanded > MAX_VALUES:
            problem = f"the aliases of the manifest stand for more than {MAX_VALUES} values"
            raise self.refusal(mark, problem, "use fewer aliases of aliases")

    def too_deep(self, mark: Mark) -> ManifestError:
        return self.refusal(mark, f"nested deeper than {MAX_DEPTH} levels", "flatten this part")

    def unsupported(self, event: Any) -> ManifestError:
        tag = event.tag.replace(_TAG, "!!")
        if isinstance(event, ScalarEvent) and (tag in _LIST_TAGS or tag.startswith("!merge-by")):
            return self.needs_list(event)
        hint = f"remove it, or write one of {_OWN_TAGS}"
        return self.refusal(event.start_mark, f"tag `{tag}` is not supported", hint)

    def needs_list(self, event: Any) -> ManifestError:
        return self.refusal(
            event.start_mark,
            f"`{event.tag}` needs a list",
            f"write the items as a list: `{event.tag} [first, second]`",
        )

    def refusal(self, mark: Mark, problem: str, hint: str) -> ManifestError:
        return refusal(self.file, mark.line + 1, mark.column + 1, problem, hint)


def _height(node: Node) -> int:
    """Levels of mappings and lists; 0 for a scalar."""
    value = node.value
    if not isinstance(value, dict | list):
        return 0
    children = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_height, children), default=0)


def translated(error: YAMLError, text: str, file: str) -> ManifestError:
    """The parser's error with its place and what to do."""
    mark = getattr(error, "problem_mark", None)
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        line, column = position(text, len(text))
        return refusal(file, line, column, f"not valid YAML: {error}", _HINT)
    problem, context, opened = error.problem or "", error.context or "", error.context_mark
    lines = text.split("\n")
    offending = lines[mark.line][mark.column :][:1] if mark.line < len(lines) else ""
    if "end of stream" in problem and opened is not None:
        # The parser gives up at the end of the file. Point the user at the opening quote instead.
        mark, problem = opened, "the quote opened here is never closed"
    elif context and opened is not None and opened.line != mark.line:
        problem = f"{problem} ({context} that begins on line {opened.line + 1})"
    hint = next((hint for part, hint in _HINTS if part in f"{problem} {context}"), _HINT)
    if offending == "\t":
        problem, hint = "a tab cannot indent YAML", "indent with spaces"
    elif "cannot start any token" in problem:
        problem = f"a value cannot begin with `{offending}`"
        hint = "put the value between quotes"
    return refusal(file, mark.line + 1, mark.column + 1, f"not valid YAML: {problem}", hint)
