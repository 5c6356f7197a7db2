#!/usr/bin/env python3
"""What a machine can check of plain English: sentence length, idioms, words of the glossary.

``python -m tests.plain_english [FILE ...]`` prints what it finds.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LONGEST = 30
"""Words of a sentence. Aim at 20."""

_IDIOMS: tuple[tuple[str, str], ...] = (
    # Negations in an unusual place.
    (
        r"(?<!there )\b(?:is|are|was|were|be|been) no (?!(?:longer|more|less|fewer|other)\b)[\w…]+",
        "write `is not a ...`",
    ),
    (r"\b(?:has|have|had) not(?=[.,;:)]|$)", "write `does not have`"),
    (r"\bnobody has\b", "name what is missing: `no node has this tag`"),
    (r"\bnothing but\b|\bnothing is \w+ but\b", "write `only`"),
    (r"\bnot (?:uncommon|unusual|unlike|without)\b|\bcannot but\b", "say it without negation"),
    # Words of books and of old letters.
    (r"\bwho(?:m)?ever\b", "name the person or the program"),
    (
        r"\b(?:whence|thence|thereof|therein|thereby|hereby|wherein|lest|albeit)\b",
        "use other words",
    ),
    (r"\bone's\b", "write `your own` or `its own`"),
    (r"\b(?:anew|afresh)\b", "write `again`"),
    (r"\bgo(?:es)? on\b(?! \d)", "write `continue`"),
    (r"\bmend(?:s|ed)?\b", "write `fix`"),
    (r"\bto be had\b", "write `available`"),
    (r"\ball that is\b|\ball that are\b", "name the things"),
    (r"\bas (?:it|they) stands?\b", "write `unchanged`"),
    # Figures of speech.
    (r"\bby halves\b", "write `fully or not at all`"),
    (r"\bwhat answers\b", "name the program or the address"),
    (r"\bfinds out\b", "write `detects`"),
    (r"\bspelled out\b|\bin so many words\b", "write `explicit`"),
    (r"\b(?:looks? after|looking after)\b", "write `manage`"),
    (r"\bmoods?\b|\bfinger on\b|\bto the keyboard\b", "no figures of speech"),
    (r"\bhouses?\b", "write `package` or `layout`"),
    (r"\brooms?\b", "write `space`"),
    (r"\btrails?\b", "write `record` or `log`"),
    (r"\bwalls?\b(?! (?:time|clock))", "name the limit"),
)

_GLOSSARY: tuple[tuple[str, str], ...] = (
    (r"(?<!model )\bcards?\b|\bgraphics (?:card|chip|board)s?\b", "write `GPU`"),
    (r"\bsub-commands?\b", "write `command`, or `subcommand` for one of a program"),
    (r"\b(?-i:mini-?batch(?:es)?)\b", "write `batch`"),
    (r"\bhyper-parameters?\b", "write `hyperparameter`"),
)

_RULES = tuple((re.compile(p, re.IGNORECASE), advice) for p, advice in (*_IDIOMS, *_GLOSSARY))
_CODE = re.compile(r"``[^`]+``|`[^`]*`")
_END = re.compile(r"(?<=[.!?])[)\"']*\s+(?=\S)")
_WORD = re.compile(r"[A-Za-z]")


@dataclass(frozen=True)
class Text:
    """Something that people read: a paragraph, a message, a cell of a table."""

    line: int
    words: str
    parts: bool = False
    """Whether ``;`` and ``:`` end a sentence, as between the parts of an error message."""


@dataclass(frozen=True)
class Finding:
    """A place that is not plain."""

    file: str
    line: int
    problem: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.problem}: {self.sentence}"


def faults(text: Text) -> Iterator[tuple[str, str]]:
    """What is not plain in a text: the problem and the sentence it is in."""
    for sentence in sentences(text):
        plain = _CODE.sub("`…`", sentence)
        length = sum(1 for word in plain.split() if "…" in word or _WORD.search(word))
        if length > LONGEST:
            yield f"{length} words, at most {LONGEST}", sentence
        for rule, advice in _RULES:
            if found := rule.search(plain):
                yield f"`{found[0]}`: {advice}", sentence


def sentences(text: Text) -> list[str]:
    """The sentences of a text, in one line each."""
    flat = " ".join(text.words.split())
    # A full stop in code ends no sentence.
    kept: list[str] = _CODE.findall(flat)
    split = _END.split(_CODE.sub("`…`", flat))
    if text.parts:
        split = [part for sentence in split for part in re.split(r"(?<=[;:])\s+", sentence)]
    codes = iter(kept)
    return [re.sub("`…`", lambda _: next(codes, "`…`"), sentence) for sentence in split]


def texts(file: Path) -> Iterator[Text]:
    """What people read of a file, by its kind."""
    content = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        yield from _python(content, file)
        return
    template = file.suffix == ".j2"
    if template:
        # Lines keep their numbers.
        content = re.sub(r"{%.*?%}|{#.*?#}", "", content)
        content = re.sub(r"{{.*?}}", "`…`", content)
    if file.name.removesuffix(".j2").endswith(".md"):
        yield from markdown(content)
        if file.name == "commands.md":
            yield from _help_pages(content)
    else:
        yield from _comments(content)


def markdown(page: str) -> Iterator[Text]:
    """Paragraphs, list items, headings and cells of tables; no code."""
    lines: list[str] = []
    begin, fenced = 0, False

    def flush() -> Iterator[Text]:
        if lines:
            yield Text(begin, _without_links(" ".join(lines)))
            lines.clear()

    for number, line in enumerate(page.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("```"):
            yield from flush()
            fenced = not fenced
        elif fenced:
            continue
        elif bare.startswith("|"):
            yield from flush()
            for cell in re.split(r"(?<!\\)\|", bare.strip("|")):
                yield Text(number, _without_links(cell))
        elif not bare or bare.startswith(("#", "<!--")):
            yield from flush()
            if bare.startswith("#"):
                yield Text(number, bare.lstrip("# "))
        elif item := re.match(r"(?:[-*]|\d+\.) +", bare):
            yield from flush()
            begin, lines[:] = number, [bare[item.end() :]]
        elif lines:
            lines.append(bare)
        elif not line.startswith("    "):  # so far indented is code
            begin, lines[:] = number, [bare]
    yield from flush()


def _without_links(text: str) -> str:
    return re.sub(r"\[((?:[^\]`]|`[^`]*`)*)\]\([^)]*\)", r"\1", text)


def _help_pages(page: str) -> Iterator[Text]:
    """The lines of fenced pages: their columns have idioms, and sentences of no fixed place."""
    fenced = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced:
            yield Text(number, line)


def _comments(content: str) -> Iterator[Text]:
    """Comments and descriptions of a manifest, a Dockerfile or a shell script."""
    lines: list[str] = []
    begin = 0
    for number, line in enumerate([*content.splitlines(), ""], 1):
        bare = line.strip()
        if bare.startswith("# "):
            begin = begin if lines else number
            lines.append(bare[2:])
            continue
        if lines:
            yield Text(begin, " ".join(lines))
            lines.clear()
        if said := re.match(r"(?:description|echo|fail|printf|say):? +(.+)", bare):
            yield Text(number, said[1].strip("\"'"))


_MESSAGES = re.compile(
    r"(?:Error|Warning|Mismatch|Failed|Refused|Unreachable|Fault|Finding|Problem)$"
    r"|^(?:warn|warning|note|error|info|fail|wrong|refused|problem|say|tell|hint)$"
)
_HELP = ("help", "description", "hint", "epilog", "short_help", "summary", "title", "remedy")


def _python(content: str, file: Path) -> Iterator[Text]:
    tree = ast.parse(content)
    yield from _docstrings(tree, file)
    seen: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        given = list(node.args) if _MESSAGES.search(name) else []
        given += [
            word.value for word in node.keywords if _MESSAGES.search(name) or word.arg in _HELP
        ]
        for value in given:
            for text in _strings(value):
                if id(value) not in seen and " " in text:
                    yield Text(value.lineno, text, parts=True)
            seen.add(id(value))


def _strings(node: ast.expr) -> Iterator[str]:
    """The texts that an expression can give, with ``…`` for what it fills in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    elif isinstance(node, ast.IfExp):
        yield from _strings(node.body)
        yield from _strings(node.orelse)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        ends = list(_strings(node.right)) or ["…"]
        yield from (one + other for one in _strings(node.left) for other in ends)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _strings(node.func.value)  # "…".format(…)


def _docstrings(tree: ast.Module, file: Path) -> Iterator[Text]:
    """The docstrings of the public names of a module."""
    if file.name.startswith("_") and file.name not in ("__init__.py", "__main__.py"):
        return

    def inside(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[Text]:
        if node.body and (text := ast.get_docstring(node, clean=False)):
            yield from _paragraphs(text, node.body[0].lineno)
        if isinstance(node, ast.FunctionDef):
            return
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef) and not child.name.startswith("_"):
                yield from inside(child)

    yield from inside(tree)


_ITEM = re.compile(r"\s+\*{0,2}\w+(?: \(.*?\))?: |\s*[-*] ")


def _paragraphs(docstring: str, first: int) -> Iterator[Text]:
    """Paragraphs and described names of a docstring; no code."""
    lines: list[str] = []
    begin, code, table, before = first, False, False, ""
    cleaned = inspect.cleandoc(docstring)
    for number, line in enumerate([*cleaned.splitlines(), ""], first):
        bare = line.strip()
        if code and (not bare or line.startswith((" ", ">>>", "..."))):
            continue
        code = False
        ruled = bare.startswith("====")
        table = (table or ruled) and bool(bare)
        item = _ITEM.match(line)
        if not bare or bare.startswith(">>>") or table or item:
            if lines:
                yield Text(begin, " ".join(lines), parts=True)
            before, lines = lines[-1] if lines else before, []
            code = (not bare and before.endswith("::")) or bare.startswith(">>>")
        if bare and not code and not ruled:
            begin = begin if lines else number
            # The names of arguments and exceptions are code.
            lines.append(line[item.end() :] if item else bare)


def files() -> list[Path]:
    """Every file whose texts are checked."""
    kinds = {
        "docs": ("*.md",),
        "templates": ("*.j2", "*.py", "fdl"),
        "scripts": ("*.py", "*.sh"),
        "fdl": ("*.py",),
        "flodl": ("*.py",),
        "examples": ("*.py", "*.md"),
        "benchmarks": ("*.py",),
    }
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    found += [ROOT / "fdl.yml"]
    for folder, patterns in kinds.items():
        for pattern in patterns:
            found += sorted((ROOT / folder).rglob(pattern))
    return [file for file in found if file.relative_to(ROOT).as_posix() not in _NOT_CHECKED]


_NOT_CHECKED = (
    # Made of the names of tests.
    "tests/records/cases.md",
    "tests/records/slow_tests.md",
)


def findings(file: Path) -> list[Finding]:
    """What is not plain in a file."""
    name = file.relative_to(ROOT).as_posix()
    return [
        Finding(name, text.line, problem, sentence)
        for text in texts(file)
        for problem, sentence in faults(text)
    ]


def main() -> int:
    """Print the findings of the given files, or of all; 1 when there are any."""
    given = [Path(name).resolve() for name in sys.argv[1:]] or files()
    found = [finding for file in given for finding in findings(file)]
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
