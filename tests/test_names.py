"""Pages, help texts and errors name only what exists: commands, flags, methods, keys, variables."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fdl.base.global_flags import SPELLINGS
from fdl.cli.builtin_table import TABLE
from fdl.manifest import json_schema
from fdl.manifest.builtins import BUILTINS, HIDDEN, OF_SELF
from tests.pages import ROOT, pages
from tests.rows import each_row

SOURCES = ("fdl", "flodl", "templates", "scripts", "benchmarks", "examples")
OPTIONS_OF_PYTEST = "tests/levels.py"
KINDS = (".py", ".pyi", ".yml", ".j2", ".toml", ".sh", ".js", ".bash", ".zsh", ".fish")
NOT_READ = ("tests/records/cases.md", "tests/records/slow_tests.md", "CHANGELOG.md")
"""Made of names of tests, and a history that also names what was removed."""


class Said(NamedTuple):
    """A piece of code that a text names, and where."""

    place: str
    code: str


@cache
def sources() -> dict[str, str]:
    """File -> text of everything that can define a name."""
    found = {}
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and (path.suffix in KINDS or path.name == "fdl"):
                found[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    found[OPTIONS_OF_PYTEST] = (ROOT / OPTIONS_OF_PYTEST).read_text(encoding="utf-8")
    return found


@cache
def all_source() -> str:
    return "\n".join(sources().values())


@cache
def spans() -> tuple[Said, ...]:
    """Every inline code of the pages."""
    return tuple(
        Said(f"{name}:{text.count(chr(10), 0, match.start()) + 1}", match[1].replace("\n", " "))
        for name, text in prose().items()
        for match in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text)
    )


@cache
def prose() -> dict[str, str]:
    """Page -> its text without code blocks, with the same lines."""
    from tests.pages import text

    every = {page.relative_to(ROOT).as_posix(): text(page) for page in pages()}
    return {name: content for name, content in every.items() if name not in NOT_READ}


@cache
def blocks() -> tuple[Said, ...]:
    """Every line that a page types in a terminal."""
    found = []
    for page in pages():
        name = page.relative_to(ROOT).as_posix()
        content = page.read_text(encoding="utf-8")
        for block in re.finditer(r"^```(console|bash)[^\n]*\n(.*?)^```", content, re.S | re.M):
            line = content.count("\n", 0, block.start(2))
            for number, typed in enumerate(block[2].splitlines(), line + 1):
                if typed.startswith("$ ") or block[1] == "bash":
                    found.append(Said(f"{name}:{number}", typed.removeprefix("$ ")))
    return tuple(found)


@cache
def messages() -> tuple[Said, ...]:
    """Every text of the program with a command in it: help, errors, hints, docstrings."""
    found = []
    for name, content in sources().items():
        if not name.endswith(".py") or name.startswith(("benchmarks/", "templates/")):
            continue
        if not re.search(r"[`\"']fdl ", content):
            continue
        for node in ast.walk(ast.parse(content)):
            text = _text(node)
            place = f"{name}:{getattr(node, 'lineno', 0)}"
            found += [Said(place, code) for code in re.findall(r"`(fdl [^`]+)`", text)]
            if text.startswith("fdl ") and not SENTENCES.match(text) and text.isprintable():
                found.append(Said(place, text.partition(", ")[0].partition("; ")[0]))
    return tuple(found)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        return "".join(map(str, parts))
    return ""


# Commands and their flags


def mistakes(code: str, own: Set[str]) -> Iterator[str]:
    """What a command line of fdl names that is neither built in nor a project's own."""
    try:
        words = shlex.split(code.partition("  #")[0].partition(" | ")[0])
    except ValueError:
        words = code.split()
    words = words[words.index("fdl") + 1 :]
    while words and words[0].startswith("-"):
        flag = words.pop(0)
        name = flag.partition("=")[0]
        if name.startswith("--") and name not in known_globals():
            yield f"{name} is not a global flag"
        takes_value = name == "-j" or (name in SPELLINGS and SPELLINGS[name].needs)
        if takes_value and "=" not in flag and words:
            words.pop(0)
        if name in ("--help", "-h"):
            return  # the word behind it names a group of options
    if not words or not re.fullmatch(r"[a-z][\w-]*", words[0]):
        return
    if words[0] not in (*BUILTINS, *HIDDEN):
        if words[0] not in own:
            yield f"`{words[0]}` is not a command"
        return
    words = ["self", *words] if words[0] in OF_SELF else words
    name = words[0]
    if name not in TABLE:
        return
    rest = words[1:]
    while rest and f"{name} {rest[0]}" in TABLE:
        name = f"{name} {rest.pop(0)}"
    group = any(known.startswith(f"{name} ") for known in TABLE)
    if group and rest and re.fullmatch(r"[a-z][a-z-]+", rest[0]):
        yield f"`{name} {rest[0]}` is not a command"
    if not TABLE[name].get("strict"):
        return
    options = TABLE[name].get("options", {})
    for word in rest[: rest.index("--") if "--" in rest else None]:
        flag = word.partition("=")[0]
        bare = flag[2:].removeprefix("no-")
        named = flag.startswith("--") and flag[2:3].isalpha() and flag not in known_globals()
        if named and not {flag[2:], bare} & set(options):
            yield f"`{name}` has no {flag}"


@cache
def known_globals() -> set[str]:
    from fdl.base import global_flags
    from fdl.cli import prepass

    files = [Path(one.__file__) for one in (global_flags, prepass)]
    text = "".join(one.read_text(encoding="utf-8") for one in files)
    return {"--help", *re.findall(r"\"(--[a-z-]+)\"", text)}


PROJECT = {"train", "test", "build", "bench", "check", "clean", "lint", "quick"}
"""Commands of the projects that pages and errors speak of."""

ELSEWHERE = {
    # Of the project in benchmarks/runners; the page shows that fdl has no `push`.
    "docs/benchmarks/side_by_side.md": {"evaluate", "push"},
    "docs/benchmarks/startup.md": {"hello"},
    "docs/guide/manifest.md": {"tets"},  # the page shows the error
    "fdl/__init__.py": {"run-kind-command"},
    "fdl/manifest/select/level.py": {"sub"},
}
"""Commands that another file defines, or that stand for any command."""

SENTENCES = re.compile(r"fdl (?:has|sets|launcher)\b")
"""A message that begins with the name of the program."""


@cache
def own_of(page: str) -> frozenset[str]:
    """The commands that the manifests of a page define, and the environments."""
    content = (ROOT / page).read_text(encoding="utf-8")
    files = re.findall(r"^```(yaml|json|python|toml)([^\n]*)\n(.*?)^```", content, re.S | re.M)
    words = set(PROJECT)
    for _, name, text in files:
        words |= set(re.findall(r"[{,\s\"]([\w-]+)\"?:", text))
        words |= set(re.findall(r"fdl\.([\w-]+)\.ya?ml", name))
    words |= set(re.findall(r"fdl\.([\w-]+)\.ya?ml", content))
    return frozenset(words)


def test_the_commands_on_the_pages_exist():
    found = []
    for place, code in (*spans(), *blocks()):
        if re.match(r"(?:\w+=\S+ )*fdl ", code):
            page = place.partition(":")[0]
            own = own_of(page) | ELSEWHERE.get(page, set())
            found += [f"{place}: {mistake} in `{code}`" for mistake in mistakes(code, own)]
    assert found == []


def test_the_commands_in_help_and_errors_exist():
    found = [
        f"{place}: {mistake} in `{code}`"
        for place, code in messages()
        for mistake in mistakes(code, PROJECT | ELSEWHERE.get(place.partition(":")[0], set()))
    ]
    assert found == []


def test_many_commands_are_looked_at():
    assert len([code for _, code in spans() if code.startswith("fdl ")]) > 150
    assert len(messages()) > 100


@each_row(
    "code",
    [
        "fdl trian",
        "fdl runs lst",
        "fdl runs list --were x",
        "fdl --evn ci train",
        "fdl skill instal",
    ],
)
def test_a_command_that_does_not_exist_is_found(code):
    assert list(mistakes(code, PROJECT))


@each_row(
    "code",
    [
        "fdl runs list --where x --limit 3",
        "fdl --jobs 2 train --each seed=1..4",
        "fdl ci train --any",
        "fdl runs ui --no-open",
        "fdl --help all",
    ],
)
def test_a_command_that_exists_passes(code):
    assert not list(mistakes(code, {*PROJECT, "ci"}))


# Flags, environment variables, methods, keys

FOREIGN_FLAGS = {
    "--nproc-per-node", "--no-deps", "--upgrade", "--user", "--slow", "--deep", "--replicas",
    "--a-b",
}  # fmt: skip
"""Flags of pip, torchrun and of examples."""
FOREIGN_PAGE = "docs/reference/foreign-programs.md"
"""Its commands are those of other people's programs."""


def test_the_flags_on_the_pages_exist():
    found = []
    for place, code in spans():
        if place.startswith(FOREIGN_PAGE):
            continue
        page = ROOT / place.partition(":")[0]
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)) - FOREIGN_FLAGS
        found += [f"{place}: {flag} in `{code}`" for flag in flags if not is_flag(flag, page)]
    assert found == []
    assert not is_flag("--lerning-rate", ROOT / "README.md")


@cache
def defined_flags() -> frozenset[str]:
    """Every flag of the program: built-in options, global flags, and words of the source."""
    options = {f"--{name}" for one in TABLE.values() for name in one.get("options", {})}
    written = re.findall(r"(?<![\w-])--[a-z][a-z-]+", all_source())
    fields = {
        f"--{name.replace('_', '-')}" for name in re.findall(r"^    (\w+):", all_source(), re.M)
    }
    return frozenset({*options, *known_globals(), *written, *fields})


@cache
def words_of(page: Path) -> frozenset[str]:
    """Words of a page's code blocks: its own programs declare flags there."""
    code = "\n".join(re.findall(r"^```.*?^```", page.read_text(encoding="utf-8"), re.S | re.M))
    return frozenset(re.findall(r"[\w-]+", code.replace("_", "-")))


def is_flag(flag: str, page: Path) -> bool:
    bare = flag[2:].removeprefix("no-")
    return flag in defined_flags() or f"--{bare}" in defined_flags() or bare in words_of(page)


def test_the_environment_variables_on_the_pages_and_in_messages_exist():
    read = "\n".join(text for name, text in sources().items() if not name.endswith((".md", ".j2")))
    known = set(re.findall(r"[\"']((?:FDL|FLODL)_[A-Z_]+)[\"']", read))
    known |= set(re.findall(r"\$\{?((?:FDL|FLODL)_[A-Z_]+)", read))
    named = {
        (name, place)
        for place, text in prose().items()
        for name in re.findall(r"\b(?:FDL|FLODL)_[A-Z_]+[A-Z]\b", text)
    }
    assert len({name for name, _ in named}) > 15
    assert sorted(f"{place}: {name}" for name, place in named if name not in known) == []


@cache
def methods() -> frozenset[str]:
    """Every function and method that fdl and flodl define."""
    own = "\n".join(text for name, text in sources().items() if name.startswith(("fdl/", "flodl/")))
    return frozenset(re.findall(r"^ *(?:async )?def ([a-z]\w*)\(", own, re.MULTILINE))


OF_TENSORS = {"abs", "cpu", "item", "permute"}
"""Methods of torch that messages name."""


def test_the_methods_on_the_pages_exist():
    found = []
    for place, code in spans():
        page = ROOT / place.partition(":")[0]
        named = set(re.findall(r"(?<![\w)\]\"'/])\.([a-z]\w+)\(", code))
        lost = named - methods() - words_of(page)
        found += [f"{place}: .{name}() in `{code}`" for name in lost]
    assert found == []
    assert "keep_best" in methods()
    assert "kep_best" not in methods()


@cache
def keys() -> frozenset[str]:
    """Every key of a manifest."""
    document = json_schema.document()
    models = [document, *document["$defs"].values()]
    return frozenset(key for model in models for key in model.get("properties", {}))


def test_the_keys_of_a_manifest_on_the_pages_exist():
    found = []
    for place, code in spans():
        page = place.partition(":")[0]
        key = re.fullmatch(r"([a-z_]+):", code) if page.startswith("docs/guide/") else None
        if key and key[1] not in keys() | own_of(page):
            found.append(f"{place}: {code}")
    assert found == []
    assert {"entry", "commands", "training", "ddp"} <= keys()


def test_the_modules_and_scripts_on_the_pages_exist():
    found, seen = [], 0
    for place, code in (*spans(), *blocks()):
        modules = re.findall(r"python -m ((?:fdl|flodl|benchmarks)(?:\.\w+)*)", code)
        files = [ROOT / name.replace(".", "/") for name in modules]
        lost = [one for one in files if not one.with_suffix(".py").exists()]
        lost = [one for one in lost if not (one / "__main__.py").exists()]
        scripts = re.findall(r"(?:python|bash) ((?:scripts|examples)/[\w./]+)", code)
        lost += [ROOT / name for name in scripts if not (ROOT / name).exists()]
        found += [f"{place}: {one.relative_to(ROOT)}" for one in lost]
        seen += len(modules) + len(scripts)
    assert found == []
    assert seen > 30


def test_the_methods_in_messages_exist():
    found, seen = [], 0
    for file, content in sources().items():
        if not file.startswith(("flodl/", "fdl/")) or not file.endswith(".py"):
            continue
        for number, line in enumerate(content.splitlines(), 1):
            for text in re.findall(r'"([^"]*)"', line):
                named = set(re.findall(r"(?:^|[\s`(,])\.([a-z]\w+)\(", text))
                lost = named - methods() - OF_TENSORS
                found += [f"{file}:{number}: .{name}() in {text!r}" for name in lost]
                seen += len(named)
    assert found == []
    assert seen > 30
