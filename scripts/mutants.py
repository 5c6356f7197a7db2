"""Small changes of a program's source, and a sample of them for :mod:`mutation`."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        key: Short name; it stays the same when other lines of the file change.
        file: Path below the checkout.
        line: Where it is, from 1; ``last`` is the last line of what is replaced.
        at: Offset of the replaced bytes; ``end`` is the offset behind them.
        before: The text that is replaced.
        after: What replaces it.
    """

    key: str
    file: str
    line: int
    last: int
    at: int
    end: int
    before: str
    after: str

    def applied(self, raw: bytes) -> bytes:
        """The file with this change."""
        return raw[: self.at] + self.after.encode() + raw[self.end :]


def replacements(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """The part of a node that may be replaced, with its replacement."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        changed = ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]],
                              node.comparators)  # fmt: skip
        yield node, f"({ast.unparse(changed)})"
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, f"({ast.unparse(ast.BoolOp(other, node.values))})"
    elif isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        yield node, f"({ast.unparse(ast.BinOp(node.left, _SIGNS[type(node.op)](), node.right))})"
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int):
        was: bool | int = node.value  # type: ignore[assignment]
        yield node, repr(not was if isinstance(was, bool) else was + 1)
    elif isinstance(node, ast.If):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
    elif isinstance(node, ast.Return) and node.value is not None:
        yield node, "return None"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes whose change means something to a user of the program.

    Decorators and annotations are left out, and what only a type checker reads. So are f-strings,
    whose parts have no places in the text.
    """
    for name, value in ast.iter_fields(tree):
        for child in value if isinstance(value, list) else [value]:
            types_only = name in ("annotation", "returns", "decorator_list")
            left_out = types_only or isinstance(child, ast.JoinedStr) or _types_only(child)
            if isinstance(child, ast.AST) and not left_out:
                yield child
                yield from nodes(child)


def _types_only(node: object) -> bool:
    """Whether a statement is ``if TYPE_CHECKING: …`` or ``TYPE_CHECKING = False``."""
    named = node.test if isinstance(node, ast.If) else None
    if isinstance(node, ast.Assign):
        named = node.targets[0]
    return isinstance(named, ast.Name) and named.id == "TYPE_CHECKING"


def mutants(root: Path, file: Path, seed: int = 1) -> Iterator[Mutant]:
    """Every change of one file below ``root``."""
    raw = file.read_bytes()
    lines = raw.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    name = file.relative_to(root).as_posix()
    same: Counter[tuple[str, ...]] = Counter()
    for node in nodes(ast.parse(raw)):
        for part, after in replacements(node):
            first, last = part.lineno, part.end_lineno  # type: ignore[attr-defined]
            at = starts[first - 1] + part.col_offset  # type: ignore[attr-defined]
            end = starts[last - 1] + part.end_col_offset  # type: ignore[attr-defined]
            before = raw[at:end].decode()
            if before == after:
                continue
            words = (name, lines[first - 1].decode().strip(), before, after)
            same[words] += 1
            key = hashlib.sha256(repr((seed, *words, same[words])).encode()).hexdigest()[:10]
            yield Mutant(key, name, first, last, at, end, before, after)


def sample(root: Path, files: Iterable[Path], count: int, seed: int = 1) -> list[Mutant]:
    """Some of the changes of these files.

    A change is chosen by a digest of its own text. So the sample is the same for the same code, and
    most of it stays when other lines of the code change.
    """
    everything = [one for file in files for one in mutants(root, file, seed)]
    return sorted(everything, key=lambda one: one.key)[:count]
