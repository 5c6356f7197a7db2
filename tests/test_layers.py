"""The layers of all packages: a part may import what stands before it in the table."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.rows import each_row

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/design/architecture.md"
PACKAGES = ["fdl", "flodl"]


@cache
def modules(package: str) -> dict[str, Path]:
    """Dotted name -> file of every module of a package."""
    found = {}
    for file in sorted((ROOT / package).rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(
    tree: ast.AST, package: list[str], *, types: bool = False
) -> Iterator[tuple[str, list[str]]]:
    """Each import of a module: what it names, and names in that.

    Args:
        tree: A syntax tree.
        package: The parts of the package's name, for relative imports.
        types: Whether imports for types alone count.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue  # most of a file, and without an import
        for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if for_types and not types:
            for other in node.orelse:
                yield from imported(ast.Module([other], []), package)
            continue
        if isinstance(node, ast.Import):
            yield from ((one.name, []) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base, [one.name for one in node.names]
        yield from imported(node, package, types=types)


@cache
def edges(package: str, *, types: bool = False) -> dict[str, set[str]]:
    """Module -> the modules of the same package that it imports, at its top or in a function."""
    known = modules(package)
    found: dict[str, set[str]] = {}
    for name, file in known.items():
        parts = name.split(".")
        inside = parts if file.name == "__init__.py" else parts[:-1]
        named = set()
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for base, names in imported(tree, inside, types=types):
            for one in names or [""]:
                whole = f"{base}.{one}".rstrip(".")
                named.add(whole if whole in known else base)
        found[name] = {one for one in named if one in known} - {name}
    return found


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of names that reach each other: what is left when all others are taken away."""
    left = {name: set(targets) for name, targets in graph.items()}
    while True:
        gone = {
            name
            for name in left
            if not left[name] or not any(name in targets for targets in left.values())
        }
        if not gone:
            break
        left = {name: targets - gone for name, targets in left.items() if name not in gone}
    return [[name, *sorted(targets)] for name, targets in sorted(left.items())]


def part(name: str) -> str:
    """The package or single file of the first level that a module belongs to."""
    return [*name.split("."), "__init__"][1]


@cache
def layers(package: str) -> dict[str, int]:
    """Part -> its place in the table of the architecture, from the lowest."""
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition(f"<!-- layers of {package} -->")[2].partition("<!-- end -->")[0]
    rows = re.findall(r"^\|[^|]*\| (`[^|]*) \|", table, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(names) == len(set(names))
    return {name: place for place, name in enumerate(names)}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_reaches_itself_through_its_imports(package):
    assert cycles(edges(package)) == []


def test_no_file_of_a_training_reaches_itself_even_through_imports_for_types():
    graph = edges("flodl", types=True)
    trains = {name for name in graph if part(name) in ("train", "ranks")}
    assert cycles({name: graph[name] & trains for name in trains}) == []


@each_row("package", PACKAGES)
def test_every_part_has_one_layer(package):
    assert {part(name) for name in modules(package)} == set(layers(package))


@each_row("package", PACKAGES)
def test_a_part_imports_only_what_stands_before_it(package):
    rank = layers(package)
    wrong = [
        f"{name} -> {target}"
        for name, targets in edges(package).items()
        for target in sorted(targets)
        if part(name) != part(target) and rank[part(target)] >= rank[part(name)]
    ]
    assert wrong == []


def test_the_packages_of_fdl_are_ten_and_stand_on_ten_layers():
    table = PAGE.read_text(encoding="utf-8").partition("<!-- layers of fdl -->")[2]
    rows = re.findall(r"^\|[^|]*\| (`[^|]*) \|", table.partition("<!-- end -->")[0], re.MULTILINE)
    assert len(rows) == 10
    packages = {part(name) for name, file in modules("fdl").items() if file.name == "__init__.py"}
    assert packages - {"__init__"} == {
        *("base", "manifest", "programs", "libtorch", "plan"),
        *("runs", "run", "machine", "scaffold", "cli"),
    }
    beside = {one.name for one in (ROOT / "fdl").iterdir() if one.is_file()}
    assert beside == {"__init__.py", "__main__.py", "app.py", "version.py", "py.typed"}


def test_flodl_imports_two_packages_of_fdl():
    used = set()
    for name, file in modules("flodl").items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        package = name.split(".")
        for base, names in imported(tree, package):
            used.update(f"{base}.{one}" for one in names or [""] if base.split(".")[0] == "fdl")
    assert {".".join(one.split(".")[:2]) for one in used} == {"fdl.base", "fdl.programs"}


def test_imports_in_functions_count_and_those_for_types_do_not():
    code = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import types_only\nelse:\n    import otherwise\n"
        "def f():\n    from . import near\n    from .. import far\n"
    )
    found = dict(imported(ast.parse(code), ["a", "b"]))
    assert found == {"typing": ["TYPE_CHECKING"], "otherwise": [], "a.b": ["near"], "a": ["far"]}
    assert dict(imported(ast.parse(code), ["a", "b"], types=True)) == found | {"types_only": []}


def test_a_cycle_is_found_and_what_hangs_on_it_is_not():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set(), "e": {"a", "d"}}
    assert cycles(graph) == [["b", "c"], ["c", "b"]]
