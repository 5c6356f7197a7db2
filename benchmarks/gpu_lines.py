"""Lines of the packages that only a GPU runs, found in the syntax tree.

- A branch whose condition is true only on a GPU. Conditions name ``"cuda"`` or ``is_cuda``, ask
  torch about a device, or read a name that was set from such an expression.
- What follows an ``if`` that returns or raises without a GPU, to the end of its block.
- A function that calls ``torch.cuda`` or NVIDIA's library outside such a branch, completely. If it
  is the constructor, that is the whole class.

``torch.cuda.is_available()`` and similar questions are answered on every machine and do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("flodl", "fdl", "benchmarks", "examples", "templates")
"""Folders with code; tests are collected by pytest instead."""

_ANSWERED_EVERYWHERE = frozenset(
    ("is_available", "device_count", "is_initialized", "is_built", "is_current_stream_capturing")
)
"""Functions of ``torch.cuda`` that need no GPU."""

_QUESTIONS = _ANSWERED_EVERYWHERE - {"device_count", "is_built"}
"""Those that are true only if a GPU is used."""

_TOOLS = frozenset(("nvidia-smi", "nvcc"))

ALSO: dict[str, dict[str, str]] = {
    "flodl/ranks/clocks.py": {"DeviceWatch": "made for a rank on a GPU"},
    "flodl/nn/optim.py": {"_fused_on_cuda": "chooses the fused optimizer on a GPU"},
    "flodl/train/step/capturing.py": {"Capture": "made on a GPU"},
}
"""File -> function or class -> why only a GPU runs it, where the syntax does not show it."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

WHOLE = "all of it"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Lines of one function that need a GPU.

    Attributes:
        file: Relative to the repository.
        line: The first line.
        last: The last line.
        function: Its name, with that of its class; empty at the top of a module.
        why: The condition, or ``"all of it"``.
    """

    file: str
    line: int
    last: int
    function: str
    why: str

    @property
    def lines(self) -> int:
        """How many lines."""
        return self.last - self.line + 1


def places(root: Path = ROOT, packages: Sequence[str] = PACKAGES) -> list[Place]:
    """Every place of these folders, in the order of the files."""
    found: list[Place] = []
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if any(word in text for word in ("cuda", "pynvml", *_TOOLS)):
                found += places_in(text, path.relative_to(root).as_posix())
    return found


def places_in(text: str, file: str) -> list[Place]:
    """The places of one file.

    Raises:
        LookupError: Something of :data:`ALSO` is not in the file.
    """
    tree = ast.parse(text)
    finder = _Finder(file, _flags(tree), "import pynvml" in text)
    finder.block(tree.body, "")
    missing = set(ALSO.get(file, ())) - {place.function for place in finder.found}
    if missing:
        raise LookupError(f"{file} has no {', '.join(sorted(missing))}: change ALSO in gpu_lines")
    return sorted(finder.found)


class _Finder:
    """Walks through the blocks of a file.

    Args:
        file: Its name in the places.
        flags: Names in it that say whether a GPU is used.
        driver: Whether the file uses the bindings of NVIDIA's library.
    """

    def __init__(self, file: str, flags: frozenset[str], driver: bool) -> None:
        self.found: list[Place] = []
        self._file, self._flags, self._driver = file, flags, driver

    def block(self, body: Sequence[ast.stmt], owner: str) -> None:
        """Look at statements that follow each other, of which none needs a GPU by itself."""
        for index, one in enumerate(body):
            if isinstance(one, (*FUNCTIONS, ast.ClassDef)):
                self._definition(one, owner)
            elif isinstance(one, ast.If) and (side := self._on_gpu(one.test)) is not None:
                why = _condition(one.test, side)
                taken, other = (one.body, one.orelse) if side else (one.orelse, one.body)
                self._range(taken, owner, why)
                self._inner(other, owner, why)
                if not side and _ends(one.body):
                    self._range(body[index + 1 :], owner, why)
                    return
            elif isinstance(one, ast.For) and _counts_devices(one.iter):
                self._range(one.body, owner, _header(one))
            else:
                self._chosen(one, owner)
                for inner in _blocks(one):
                    self._inner(inner, owner, _header(one))

    def _inner(self, body: Sequence[ast.stmt], owner: str, why: str) -> None:
        """Look at a block inside a function; it may need a GPU."""
        need = self._need(body)
        if need is None:
            self.block(body, owner)
            return
        # An earlier statement may return or raise without a GPU. Only what follows needs one.
        exits = [at for at in range(need) if _is_exit(body[at])]
        begin = exits[-1] + 1 if exits else 0
        self.block(body[:begin], owner)
        self._range(body[begin:], owner, f"after {_header(body[begin - 1])}" if begin else why)

    def _definition(self, one: Definition, owner: str) -> None:
        """Look at a class or a function."""
        name = f"{owner}{one.name}"
        if name in ALSO.get(self._file, ()):
            self._range([one], name, ALSO[self._file][name])
        elif isinstance(one, ast.ClassDef):
            start = (f for f in one.body if isinstance(f, FUNCTIONS) and f.name == "__init__")
            if any(self._need(f.body) is not None for f in start):
                self._range([one], name, WHOLE)
            else:
                self.block(one.body, f"{name}.")
        elif self._need(one.body) is not None and not any(_is_exit(each) for each in one.body):
            self._range([one], name, WHOLE)
        else:
            self._inner(one.body, f"{name}.", WHOLE)

    def _chosen(self, one: ast.stmt, owner: str) -> None:
        """Look at the values that a statement chooses by a condition."""
        for node in _expressions(one):
            if isinstance(node, ast.IfExp) and (side := self._on_gpu(node.test)) is not None:
                value = node.body if side else node.orelse
                self._range([value], owner, _condition(node.test, side))

    def _range(self, body: Sequence[ast.stmt | ast.expr], owner: str, why: str) -> None:
        if body:
            last = body[-1].end_lineno or body[-1].lineno
            place = Place(self._file, body[0].lineno, last, owner.rstrip("."), why)
            self.found.append(place)

    def _need(self, body: Sequence[ast.stmt]) -> int | None:
        """The first statement of a block that calls the driver outside of all inner blocks."""
        for index, one in enumerate(body):
            if isinstance(one, (*FUNCTIONS, ast.ClassDef)):
                continue
            if any(self._calls_driver(node) for node in _expressions(one, self._on_gpu)):
                return index
            plain = (ast.With, ast.Try)
            if isinstance(one, plain) and self._need(one.body) is not None:
                return index
        return None

    def _calls_driver(self, node: ast.AST) -> bool:
        """Whether a node calls ``torch.cuda``, NVIDIA's library or a tool of NVIDIA."""
        if isinstance(node, ast.Attribute):
            return self._driver and _last_name(node.value) in ("nvml", "pynvml")
        if not isinstance(node, ast.Call):
            return False
        asked = _asked_of_torch(node.func)
        if asked and asked not in _ANSWERED_EVERYWHERE:
            return True
        words = (each for value in node.args for each in ast.walk(value))
        return any(isinstance(each, ast.Constant) and each.value in _TOOLS for each in words)

    def _on_gpu(self, test: ast.expr) -> bool | None:
        """Whether a condition is true on a GPU, or false; None if it says nothing about one."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._on_gpu(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            sides = [self._on_gpu(value) for value in test.values]
            if isinstance(test.op, ast.And):
                # One part that needs a GPU is enough. `not a GPU and …` says nothing of the rest.
                return True if True in sides else None
            return False if False in sides else (True if set(sides) == {True} else None)
        if _names_cuda(test, self._flags):
            unlike = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq)
            return not unlike
        return None


def _flags(tree: ast.Module) -> frozenset[str]:
    """Names and attributes that are set from an expression about a GPU."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if _is_question(node.value):
                found |= {_last_name(target) for target in targets}
    return frozenset(found - {""})


def _is_question(value: ast.expr) -> bool:
    """Whether an expression is true exactly on a GPU."""
    if isinstance(value, ast.Compare):
        return isinstance(value.ops[0], ast.Eq) and _names_cuda(value, frozenset())
    if isinstance(value, ast.Call):
        return _asked_of_torch(value.func) in _QUESTIONS
    return isinstance(value, ast.Attribute) and value.attr == "is_cuda"


def _names_cuda(test: ast.expr, flags: frozenset[str]) -> bool:
    if isinstance(test, ast.Compare):
        words = [test.left, *test.comparators]
        if any(isinstance(one, ast.Constant) and one.value == "cuda" for one in words):
            return isinstance(test.ops[0], (ast.Eq, ast.NotEq))
        return False
    if isinstance(test, ast.Call):
        return _asked_of_torch(test.func) in _QUESTIONS or (
            _last_name(test.func) in ("any", "all")
            and any(isinstance(n, ast.Attribute) and n.attr == "is_cuda" for n in ast.walk(test))
        )
    name = _last_name(test)
    return name == "is_cuda" or name in flags


def _asked_of_torch(function: ast.expr) -> str:
    """``name`` of ``torch.cuda.name``, else nothing."""
    if isinstance(function, ast.Attribute):
        return function.attr if ast.unparse(function.value) in ("torch.cuda", "self._cuda") else ""
    return ""


def _counts_devices(iterated: ast.expr) -> bool:
    """Whether a loop runs over the GPUs, or over what was kept for each of them."""
    return any(
        (isinstance(node, ast.Call) and _asked_of_torch(node.func) == "device_count")
        or (isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "'cuda'")
        for node in ast.walk(iterated)
    )


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _ends(body: Sequence[ast.stmt]) -> bool:
    return isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def _blocks(one: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The lists of statements inside a statement."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(one, field, None)
        if isinstance(block, list) and block:
            yield block
    for handler in getattr(one, "handlers", ()):
        yield handler.body
    for case in getattr(one, "cases", ()):
        yield case.body


def _expressions(
    one: ast.stmt, chooses: Callable[[ast.expr], bool | None] | None = None
) -> Iterator[ast.AST]:
    """The expressions of a statement, without those of blocks in it, and without annotations.

    Args:
        one: The statement.
        chooses: Of a value chosen by a condition that this knows, only the condition counts.
    """
    waiting: list[ast.AST] = [
        child for child in ast.iter_child_nodes(one) if isinstance(child, (ast.expr, ast.withitem))
    ]
    if isinstance(one, ast.AnnAssign):
        waiting = [one.value] if one.value is not None else []
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.IfExp) and chooses is not None and chooses(node.test) is not None:
            waiting.append(node.test)
        elif not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _is_exit(one: ast.stmt) -> bool:
    return isinstance(one, ast.If) and _ends(one.body)


def _header(one: ast.stmt) -> str:
    """The first line of a compound statement."""
    return _text(one).partition("\n")[0].rstrip(":")


def _condition(test: ast.expr, side: bool) -> str:
    return _text(test) if side else f"not ({_text(test)})"


def _text(node: ast.AST) -> str:
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= 70 else f"{text[:67]}…"
