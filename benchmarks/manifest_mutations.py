"""Manifests as nobody would write them on purpose: real projects, damaged by a seeded hand."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
ENV = "ci"
"""The environment whose overlays are made."""

MEGABYTES = 50

Files = dict[str, bytes]
"""Path relative to the project -> content. A path that ends in ``/`` is a directory, one that
ends in ``|`` a named pipe, one that ends in ``@`` a link to the path that is its content."""

Mutation = Callable[[random.Random, Files], None]

# A value of every kind that a manifest may hold, for projects that hold few.
_RICH = """\
description: Everything
env: {A: 1, B: text, HF_TOKEN: hidden}
env_file: [.env, {path: .env.local, required: false}]
entry: python main.py --workers 4
docker: dev
arg-name: recipe
ddp:
  mode: solo-0
  anchor: auto
  progressive: auto
  speed_hint: {slow_rank: 1, ratio: 2.5}
  partition_ratios: [0.7, 0.3]
training: {epochs: 5, batch_size: 64, lr: 1e-3, seed: 42}
output: {dir: runs, monitor: 3000, timeline: true}
schema:
  strict: true
  args: [{name: data, type: path}]
  options: {model: {type: string, choices: [linear, cnn], short: m, env: MODEL}}
commands:
  quick: &quick
    description: One epoch
    training: {epochs: 1}
    options: {model: linear, tags: [a, b], off: false, none: null}
  again: *quick
  run: {run: "printf '%s' \\"$A\\"", append: "-x -- -y", env: {A: 2}}
  block:
    run: |
      echo one
      echo two
  below: {path: sub}
  other: {path: sub, entry: python other.py}
"""

_NASTY = (
    "!!python/object/apply:os.getcwd []", "!!binary aGk=", "!!set {a, b}", "!!timestamp 2026-01-01",
    "!secret hidden", "!secret [a, {b: c}]", "!secret", "!append [x]", "!prepend [x]",
    "!append {a: b}", "!merge-by:name [{name: a}, b, {name: [1]}]", "!merge-by: [a]", "!merge-by:",
    "! x", "!<tag:x> y", "&a *a", "*undefined", "&a [*a]", "&a {<<: *a}", "{<<: [1, 2]}", "<<: x",
    "1e400", "-1e400", ".nan", "-.inf", "0o777", "0x" + "f" * 2000, "9" * 5000, "1" * 900,
    "1_000", "-0", "1e-400", "+.5", "2026-01-01", "12:30:45", "yes", "~", "null", "[]", "{}",
    '""', "' '", '"\\0"', '"\\uD800"', '"\\uDC00\\uD800"', '"\\U0001F600"', '"\\x1b[2J"',
    "|\n", ">-\n", "? a", "- a\n- b", "[a, [b, [c]]]", "{a: {b: {c: d}}}", "? [a, b]\n: c",
    "'unterminated", '"unterminated', "[unterminated", "{unterminated", "@x", "`x", "%x", "a: b: c",
    "..", ".", "/", "/dev/null", "/proc/self/environ", "../../../../etc", "sub/../sub", "sub\\x",
    "a" * 300, "a" * 5000, "$HOME ${HOME} $(id) `id`", "--", "-x", "--help", "\u202e", "\ufeff",
    "学习", "true", "false", "5", "-5", "0", "0.0", "1.5", "[true, null, 1.5, x]", "[[1]]",
    "[{a: 1}]",
)  # fmt: skip

_KEYS = (
    "run", "path", "entry", "docker", "append", "description", "options", "training", "ddp",
    "output", "env", "env_file", "schema", "compile", "inherit-from", "commands", "arg-name", "<<",
    "epochs", "lr", "mode", "policy", "comands", "", "a b", "=", "\0", "train", "help", "version",
)  # fmt: skip

_SEPARATORS = ("\r\n", "\r", "\x85", "\u2028", "\n\n", "\n\t", "\x0b", "\x0c")
_BLANKS = (" ", "  ", "\t", "\xa0", "\u3000", "        ")


def projects() -> list[Files]:
    """The undamaged projects: fixtures, templates, what the documentation shows, and a rich one."""
    found: list[Files] = [
        {"fdl.yml": _RICH.encode(), "sub/fdl.yml": _RICH.encode(), ".env": b"A=1\nB='two'\n"}
    ]
    folders = [*(ROOT / "tests" / "projects").iterdir(), *(ROOT / "templates").iterdir()]
    for folder in sorted(folder for folder in folders if folder.is_dir()):
        files = {
            str(file.relative_to(folder)).removesuffix(".j2").removesuffix(".example"): (
                re.sub(rb"\{\{.*?\}\}", b"demo", file.read_bytes())
            )
            for file in sorted(folder.rglob("fdl*"))
            if file.is_file() and "schema" not in file.name
        }
        if "fdl.yml" in files:
            found.append(files)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        blocks = re.findall(r"```ya?ml\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
        found += [{"fdl.yml": block.encode()} for block in blocks]
    found.append({"fdl.yml": (ROOT / "fdl.yml").read_bytes()})
    return found


def damaged(seed: int, originals: list[Files]) -> tuple[Files, list[str]]:
    """One damaged project, and the names of what was done to it; the same for the same seed."""
    rng = random.Random(seed)
    files = dict(rng.choice(originals))
    if rng.random() < 0.5:
        _add_overlay(rng, files)
    names = []
    for _ in range(rng.choice((1, 1, 2, 2, 3, 5))):
        name = rng.choices(list(_MUTATIONS), [weight for _, weight in _MUTATIONS.values()])[0]
        _MUTATIONS[name][0](rng, files)
        names.append(name)
    return files, names


def write(files: Files, folder: Path) -> None:
    """Put a project on disk."""
    for name, content in files.items():
        target = folder / name.rstrip("/|@")
        if os.path.lexists(target) or not _made(target.parent):
            # Two mutations want the same place: the first one has it.
            continue
        if name.endswith("/"):
            target.mkdir()
        elif name.endswith("|"):
            os.mkfifo(target)
        elif name.endswith("@"):
            target.symlink_to(content.decode())
        else:
            target.write_bytes(content)


def _made(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return True


def _manifests(files: Files) -> list[str]:
    return [name for name in files if name.endswith((".yml", ".yaml", ".json"))] or ["fdl.yml"]


def _pick(rng: random.Random, files: Files) -> tuple[str, bytes]:
    name = rng.choice(_manifests(files))
    return name, files.get(name, b"")


def _on_bytes(change: Callable[[random.Random, bytes], bytes]) -> Mutation:
    def mutate(rng: random.Random, files: Files) -> None:
        name, data = _pick(rng, files)
        files[name] = change(rng, data)

    return mutate


def _on_lines(change: Callable[[random.Random, list[str]], None]) -> Mutation:
    def mutate(rng: random.Random, files: Files) -> None:
        name, data = _pick(rng, files)
        lines = data.decode(errors="surrogateescape").split("\n")
        change(rng, lines)
        files[name] = "\n".join(lines).encode(errors="surrogateescape")

    return mutate


def _flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8)) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _insert(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    piece = rng.choice((
        b"\0", b"\xff", b"\x1b[31m", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"{", b"}",
        b"[", b"]", b":", b"#", b"&a ", b"*a ", b"\t", b"'", b'"', b"%", b"---\n", b"...\n", b"- ",
        b"!", b"|", b">", b"@", bytes(rng.randrange(256) for _ in range(16)),
    ))  # fmt: skip
    return data[:place] + piece + data[place:]


def _cut(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] if rng.random() < 0.5 else data[:start] + data[start + rng.randrange(40) :]


def _encoded(rng: random.Random, data: bytes) -> bytes:
    text = data.decode(errors="replace")
    encoding = rng.choice(("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-7"))
    return text.encode(encoding) if rng.random() < 0.8 else b"\xef\xbb\xbf\xef\xbb\xbf" + data


def _separators(rng: random.Random, data: bytes) -> bytes:
    return data.replace(b"\n", rng.choice(_SEPARATORS).encode(), rng.choice((-1, 1, 3)))


def _line(change: Callable[[random.Random, str], str | list[str]]) -> Mutation:
    def mutate(rng: random.Random, lines: list[str]) -> None:
        place = rng.randrange(len(lines))
        result = change(rng, lines[place])
        lines[place : place + 1] = [result] if isinstance(result, str) else result

    return _on_lines(mutate)


def _reindent(rng: random.Random, line: str) -> str:
    body = line.lstrip()
    blanks = rng.choice(_BLANKS) * rng.randrange(4)
    return blanks + body if rng.random() < 0.5 else rng.choice(_BLANKS) + line


def _renamed(rng: random.Random, line: str) -> str:
    head, colon, tail = line.partition(":")
    indent = head[: len(head) - len(head.lstrip())]
    key = rng.choice(_KEYS)
    return f"{indent}{key if rng.random() < 0.7 else json.dumps(key)}{colon}{tail}"


def _revalued(rng: random.Random, line: str) -> str:
    return f"{line.partition(':')[0]}: {rng.choice(_NASTY)}"


def _grown(rng: random.Random, line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return [line, f"{indent}{rng.choice(_KEYS)}: {rng.choice(_NASTY)}"]


def _shuffle(rng: random.Random, lines: list[str]) -> None:
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]


def _document_marks(rng: random.Random, lines: list[str]) -> None:
    mark = rng.choice(("---", "...", "%YAML 1.1\n---", "%TAG ! x:\n---", "--- !!map", "--- |"))
    lines.insert(rng.choice((0, rng.randrange(len(lines) + 1))), mark)


def _merge_keys(rng: random.Random, lines: list[str]) -> None:
    lines.insert(0, "description: &d text")
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(lines))
        indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
        piece = rng.choice(("<<: *d", "<<: {run: x}", "<<: [{run: x}, {a: y}]", "x: *d", "*d : y"))
        lines.insert(place, indent + piece)


def _laughs(rng: random.Random, files: Files) -> None:
    """Aliases of aliases: a few lines that stand for billions of values."""
    name, _ = _pick(rng, files)
    width, depth = rng.choice(((9, 10), (2, 40), (30, 5), (1, 500)))
    mapping = rng.random() < 0.5
    lines = ["commands:", "  a0: &a0 {run: x}"] if mapping else ["schema:", "  a0: &a0 [x, x]"]
    for level in range(1, depth):
        inner = ", ".join(
            f"k{index}: *a{level - 1}" if mapping else f"*a{level - 1}" for index in range(width)
        )
        opened, closed = ("{options: {", "}}") if mapping else ("[", "]")
        lines.append(f"  a{level}: &a{level} {opened}{inner}{closed}")
    files[name] = "\n".join(lines).encode()


def _nested(rng: random.Random, files: Files) -> None:
    name, _ = _pick(rng, files)
    depth = rng.choice((50, 99, 101, 500, 5_000, 100_000))
    files[name] = rng.choice((
        lambda: b"[" * depth,
        lambda: b"schema: " + b"[" * depth + b"]" * depth,
        lambda: b"schema: " + b"{a: " * depth + b"}" * depth,
        lambda: b'{"schema": ' + b'{"a": ' * depth + b"1" + b"}" * depth + b"}",
        lambda: b"".join(b" " * level + b"a:\n" for level in range(min(depth, 1_000))),
        lambda: b"- " * depth,
        lambda: b"schema: " + b"!secret " * depth + b"x",
        lambda: b"schema: " + b"&a " * min(depth, 500) + b"x",
        lambda: b"? " * depth,
    ))()  # fmt: skip


def _huge(rng: random.Random, files: Files) -> None:
    """Files and scalars of many megabytes."""
    name, data = _pick(rng, files)
    size = rng.choice((1 << 20, (1 << 20) - 60, MEGABYTES << 20))
    files[name] = rng.choice((
        lambda: b"description: " + b"x" * size,
        lambda: b'description: "' + b"\\n" * (size // 2) + b'"',
        lambda: b"description: |\n" + b"  x\n" * (size // 4),
        lambda: b"#" * size + b"\n" + data,
        lambda: b"\n" * size + data,
        lambda: b"commands: {a: {run: " + b"'" + b"x" * size + b"'}}",
    ))()  # fmt: skip


def _many(rng: random.Random, files: Files) -> None:
    """Thousands of small values, commands or keys."""
    name, _ = _pick(rng, files)
    count = rng.choice((1_000, 20_000, 60_000))
    files[name] = rng.choice((
        lambda: b"commands:\n" + b"".join(b"  c%d: {run: x}\n" % one for one in range(count // 4)),
        lambda: b"schema: [" + b"1," * count + b"]",
        lambda: b"schema:\n" + b"".join(b"  k%d: 1\n" % number for number in range(count)),
        lambda: b"".join(b"unknown%d: 1\n" % number for number in range(count // 10)),
        lambda: b"env:\n" + b"".join(b"  V%d: x\n" % number for number in range(count // 20)),
    ))()  # fmt: skip


def _as_json(rng: random.Random, files: Files) -> None:
    name, data = _pick(rng, files)
    try:
        # An alias would be written out, and an alias of aliases without end.
        document = None if b"*" in data else yaml.safe_load(data)
        text = json.dumps(document, default=str)
    except (yaml.YAMLError, ValueError, RecursionError):
        text = data.decode(errors="replace")
    text = rng.choice((
        text,
        json.dumps({"commands": {"a": {"run": "\ud800"}}}),
        text.replace("{", "{ /* no */ ", 1),
        text.replace("}", ",}", 1),
        text + text,
        text.replace('"', "'"),
        text.replace(":", ": NaN,", 1),
        '{"a": 1, "a": 2}',
        '{"description": 1' + "0" * 5000 + "}",
    ))  # fmt: skip
    files.pop(name, None)
    files[re.sub(r"\.ya?ml$", ".json", name)] = text.encode(errors="surrogatepass")


def _inherit(rng: random.Random, files: Files) -> None:
    """Links between files: chains, circles, files that are none."""
    names = _manifests(files)
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice(names)
        parent = rng.choice((
            *names, *names, ".", "..", "/", "/dev/null", "nowhere.yml", "fdl.yml", f"fdl.{ENV}.yml",
            "./sub/../fdl.yml", "base.yml", "~", "42", "[a]", "''", "*x", '"a\\0b"', "a" * 300,
        ))  # fmt: skip
        link = f"inherit-from: {os.path.relpath(parent, Path(name).parent)}\n"
        if rng.random() < 0.3:
            link = f"inherit-from: {parent}\n"
        files[name] = link.encode() + files.get(name, b"")
    files["base.yml"] = b"inherit-from: fdl.yml\ncommands: {base: {run: base}}\n"


def _add_overlay(rng: random.Random, files: Files) -> None:
    for name in _manifests(files):
        stem, _, extension = name.rpartition(".")
        overlay = f"{stem}.{ENV}.{extension}"
        if rng.random() < 0.7:
            files[overlay] = rng.choice((files.get(name, b""), _RICH.encode(), _overlay(rng)))


def _overlay(rng: random.Random) -> bytes:
    keys = ("run", "train", "quick", "block", "test", "below", "tools", "new")
    lines = [
        f"  {rng.choice(keys)}: {{{rng.choice(_KEYS[:12])}: {rng.choice(_NASTY)}}}"
        for _ in range(rng.randrange(4))
    ]
    head = rng.choice(("commands:", "commands: null", "commands: !append", "training: null"))
    return "\n".join([head, *lines, ""]).encode()


def _strange_file(rng: random.Random, files: Files) -> None:
    """A directory, a pipe or a link where a file should be; several manifests side by side."""
    name, data = _pick(rng, files)
    kind = rng.choice(("dir", "pipe", "link", "loop", "device", "example", "second"))
    if kind == "second":
        files[re.sub(r"\.\w+$", ".yaml", name)] = data
        return
    files.pop(name, None)
    if kind == "dir":
        files[f"{name}/"] = b""
    elif kind == "pipe":
        files[f"{name}|"] = b""
    elif kind == "example":
        files[f"{name}.example"] = data
    else:
        targets = {"link": "nowhere.yml", "loop": Path(name).name, "device": "/dev/zero"}
        files[f"{name}@"] = targets[kind].encode()


_MUTATIONS: dict[str, tuple[Mutation, float]] = {
    "bits flipped": (_on_bytes(_flip), 3),
    "bytes inserted": (_on_bytes(_insert), 4),
    "cut": (_on_bytes(_cut), 2),
    "other encoding": (_on_bytes(_encoded), 1),
    "other line ends": (_on_bytes(_separators), 1),
    "line repeated": (_line(lambda _, line: [line, line]), 2),
    "line removed": (_line(lambda *_: []), 2),
    "line indented": (_line(_reindent), 3),
    "lines swapped": (_on_lines(_shuffle), 2),
    "key replaced": (_line(_renamed), 4),
    "value replaced": (_line(_revalued), 6),
    "entry added": (_line(_grown), 5),
    "document marks": (_on_lines(_document_marks), 1),
    "anchors and merge keys": (_on_lines(_merge_keys), 2),
    "aliases of aliases": (_laughs, 0.7),
    "deep nesting": (_nested, 0.7),
    "many values": (_many, 0.3),
    "many megabytes": (_huge, 0.2),
    "JSON": (_as_json, 1.5),
    "inheritance": (_inherit, 3),
    "strange file": (_strange_file, 1),
}

MUTATIONS = tuple(_MUTATIONS)
"""Names of everything that may be done to a project."""
