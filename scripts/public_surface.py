#!/usr/bin/env python3
"""Compare what flodl promises with docs/reference/public.json, the surface of the last release.

    public_surface.py            list the changes; fail if CHANGELOG.md does not name each of them
    public_surface.py --release  write the file, so that these changes belong to a release

docs/reference/stability.md says what is promised. Nothing here imports torch.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fdl
from fdl.cli.builtin_table import TABLE
from fdl.manifest import json_schema
from fdl.scaffold.api_ref.scan import members, scan
from fdl.scaffold.api_ref.select import public, sig, traits

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs" / "reference" / "public.json"
STUBS = ("flodl", "flodl.hf", "flodl.ranks")

Surface = dict[str, dict[str, str]]
"""Kind of promise -> what is promised -> its form."""

FORMATS = {
    "checkpoint, `*.fdl`": ("flodl/checkpoint/container.py", "VERSION"),
    "libtorch.lock": ("fdl/libtorch/trust.py", "_VERSION"),
    "message to a training": ("flodl/train/observers/requests.py", "FORMAT"),
    "plan of a command, `FDL_PLAN`": ("fdl/plan/value.py", "SCHEMA_VERSION"),
    "samples.ledger": ("flodl/ranks/sample_ledger.py", "MAGIC"),
    "steps": ("flodl/monitor/step_files.py", "VERSION"),
    "steps.trace": ("fdl/base/step_trace.py", "MAGIC"),
}
"""Format -> the file and the constant that give its version."""


HOLDERS = {
    "File": "file",
    "Kind": "steps.trace",
    "Field": "",
    "Columns": "",
    "Field of the request": "request",
    "Field of the answer": "answer",
}
"""Head of a table of fields -> what has them; empty for the heading above it."""


def surface() -> Surface:
    """Everything that is promised, read from the code and from the pages that tests compare."""
    return {
        "names": dict(sorted({**_names_of_fdl(), **_names_of_flodl()}.items())),
        "commands": dict(_commands()),
        "manifest": dict(_keys(json_schema.document())),
        "formats": {name: _constant(*place) for name, place in FORMATS.items()},
        "fields": dict(_fields()),
        "documents": dict(_documents()),
        "exit codes": dict(_exit_codes()),
    }


def _names_of_fdl() -> dict[str, str]:
    found = {}
    for name in fdl.__all__:
        value = getattr(fdl, name)
        found[f"fdl.{name}"] = _form(value)
        if inspect.isclass(value):
            own = (
                member
                for base in value.__mro__
                if base.__module__.startswith("fdl.")
                for member in vars(base)
            )
            for member in own:
                # pydantic gives its models more attributes.
                if not member.startswith(("_", "model_")):
                    found[f"fdl.{name}.{member}"] = _form(getattr(value, member))
    return found


def _form(value: object) -> str:
    if inspect.isclass(value):
        return "class"
    return f"{inspect.signature(value)}" if callable(value) else "value"


def _names_of_flodl() -> dict[str, str]:
    found = {}
    for package in STUBS:
        stub = ROOT / package.replace(".", "/") / "__init__.pyi"
        for statement in ast.parse(stub.read_text(encoding="utf-8")).body:
            # `from . import nn` names packages, which a star import leaves out.
            if isinstance(statement, ast.ImportFrom) and statement.module:
                found |= {f"{package}.{one.name}": "value" for one in statement.names}
    reference = scan(ROOT / "flodl")
    classes = {one.name: one for one in reference.names if one.is_class}
    shown = []
    for one in public(reference):
        if one.is_class:
            shown.append((one.path, one))
        else:
            found[one.path] = sig(one)
    seen = {one.name for _, one in shown}
    # A class that a public method returns is public, too: `Trainer.builder(…)` returns a builder.
    while shown:
        path, one = shown.pop()
        found[path] = f"class({', '.join(traits(one))})"
        for member in members(one):
            used = found[f"{path}.{member.name}"] = sig(member)
            for name in re.findall(r"\w+", used.rpartition(" -> ")[2]):
                if name in classes and name not in seen and " -> " in used:
                    seen.add(name)
                    place = classes[name].path
                    # Where a class lies that no package exports is not promised.
                    shown.append((place if place.count(".") <= 2 else name, classes[name]))
    return found


def _commands() -> Iterator[tuple[str, str]]:
    for name, about in TABLE.items():
        for argument in about.get("args", ()):
            given = "" if argument.get("required") else "optional "
            yield f"fdl {name} {argument['name'].upper()}", given + _type(argument)
        for option, about_option in about.get("options", {}).items():
            yield f"fdl {name} --{option}", _type(about_option)


def _type(parameter: Mapping[str, Any]) -> str:
    choices = parameter.get("choices")
    return (
        f"{parameter['type']} of {', '.join(map(str, choices))}" if choices else parameter["type"]
    )


def _keys(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys of a manifest with their types; those of a definition stand behind its name."""
    homes = {"": document, **document["$defs"]}
    for home, model in homes.items():
        for key, rule in model.get("properties", {}).items():
            yield f"{home}.{key}".lstrip("."), _rule(rule)


def _rule(rule: Mapping[str, Any]) -> str:
    """The type of a key in one line: `integer | null`, `kebab | snake`."""
    if "anyOf" in rule:
        return " | ".join(_rule(one) for one in rule["anyOf"])
    if "enum" in rule:
        return " | ".join(map(str, rule["enum"]))
    if "$ref" in rule:
        return str(rule["$ref"]).rpartition("/")[2]
    kind = rule.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(kind)
    if kind == "array" and "items" in rule:
        return f"array of {_rule(rule['items'])}"
    return str(kind)


def _constant(file: str, name: str) -> str:
    """The value of a constant of a module, without importing it."""
    for statement in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and [ast.unparse(t) for t in statement.targets] == [
            name
        ]:
            value = ast.literal_eval(statement.value)
            return value.decode().strip() if isinstance(value, bytes) else str(value)
    raise LookupError(f"{file} has no constant {name}")


def _fields() -> Iterator[tuple[str, str]]:
    """Files of a run directory with their fields, from the tables of their page."""
    page = (ROOT / "docs/reference/run-record.md").read_text(encoding="utf-8")
    heading = table = ""
    for line in page.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            table = ""
        elif not table:
            table = cells[0]
        elif table in HOLDERS:
            for name in re.findall(r"`([^`]+)`", cells[0]):
                yield f"{HOLDERS[table] or heading}: {name}", "field"


def _exit_codes() -> Iterator[tuple[str, str]]:
    page = (FILE.parent / "commands.md").read_text(encoding="utf-8")
    table = page.partition("\n## Exit codes\n")[2]
    for code, meaning in re.findall(r"^\| ([^|-]+) \| ([^|]+) \|$", table, re.MULTILINE)[1:]:
        yield f"exit code {code}", meaning
    for command, about in TABLE.items():
        sentence = re.search(r"exit code is ([^.]+)\.", about["description"])
        if sentence:
            yield f"fdl {command}", sentence[1]


def _documents() -> Iterator[tuple[str, str]]:
    """The JSON that commands print: each path with its type."""
    schemas = json.loads((FILE.parent / "documents.schema.json").read_text(encoding="utf-8"))
    for command, schema in schemas["$defs"].items():
        yield from _paths(command, schema)


def _paths(path: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield path, _rule(schema)
    for key, below in schema.get("properties", {}).items():
        yield from _paths(f"{path}.{key}", below)
    if "items" in schema:
        yield from _paths(f"{path}[]", schema["items"])


def changes(before: Surface, after: Surface) -> Iterator[tuple[str, str, str]]:
    """For each difference: the kind of promise, what is promised, and what happened to it."""
    for kind in sorted({*before, *after}):
        old, new = before.get(kind, {}), after.get(kind, {})
        for name in sorted({*old, *new}):
            if name not in new:
                yield kind, name, "removed"
            elif name not in old:
                yield kind, name, "added"
            elif _alternatives(old[name]) != _alternatives(new[name]):
                yield kind, name, f"changed: {old[name]} -> {new[name]}"


def _alternatives(promised: str) -> list[str]:
    """The types or words that a value may be; their order promises nothing."""
    return sorted(promised.split(" | "))


def unreleased() -> str:
    """The section of CHANGELOG.md about what no release has."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return re.split(r"^## (?!#)", text, flags=re.MULTILINE)[1]


def word(name: str) -> str:
    """The word by which a changelog names a promise: `builder`, `--best`, `val_loss`."""
    if name.startswith("exit code"):
        return name
    return re.split(r"[\s.]|: ", name.strip())[-1].strip("`")


def unnamed(found: list[tuple[str, str, str]], text: str) -> list[tuple[str, str, str]]:
    """The changes that a changelog does not name. A new class names its members with it."""
    code = " ".join(re.findall(r"`+[^`]+`+", text))
    named = {
        one[1] for one in found if re.search(rf"(?<![\w-]){re.escape(word(one[1]))}(?![\w-])", code)
    }
    return [
        one
        for one in found
        if one[1] not in named
        and not (one[1].rpartition(".")[0] in named and not one[2].startswith("changed"))
    ]


def main() -> int:
    """Compare or write; the exit code is 1 if the changelog does not name a change."""
    now = surface()
    if "--release" in sys.argv[1:]:
        FILE.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    found = list(changes(json.loads(FILE.read_text(encoding="utf-8")), now))
    for kind, name, what in found:
        print(f"{kind}: {name}: {what}")  # noqa: T201 - the answer
    missing = unnamed(found, unreleased())
    for kind, name, _ in missing:
        sys.stderr.write(f"error: CHANGELOG.md does not name `{word(name)}` ({kind}: {name})\n")
    if missing:
        sys.stderr.write("Add it under 'Unreleased'; docs/reference/stability.md has the rules\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
