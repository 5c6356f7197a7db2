#!/usr/bin/env python3
"""Write what is made from the settings of a Trainer.

- the stub of the builder's methods
- the table of settings in docs/reference/distributed.md
- keys of ``ddp:``, ``training:`` and ``guards:`` in the models of the manifest, and options of
  ``DdpArgs``; rows of fdl itself stay

``settings.py`` writes the files, ``settings.py --check`` fails when one is out of date.
"""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ROOT = Path(__file__).resolve().parent.parent
STUB = "flodl/train/settings/methods.pyi"
PAGE = "docs/reference/distributed.md"
MODELS = "fdl/manifest/models.py"
ARGUMENTS = "fdl/programs/args/ddp.py"
TRAINING = "training."
FIELDS = "fdl/plan/generate.py"

HEAD = '''\
"""Methods that set one value each.

Made by `python scripts/settings.py` from the fields of the settings; do not edit.
"""

'''


def stub() -> str:
    """The text of the stub: a method for each setting, with its types and its documentation."""
    from flodl.setting import how, methods
    from flodl.train.settings import methods as module

    names: dict[str, str] = {"Any": "typing", "Self": "typing"}
    body = []
    for part in module.PARTS:
        made = dict(methods(part))
        for one in fields(part):
            function = made.get(how(one).method or one.name)
            if function is None:
                continue
            source = how(one).made or part
            for parameter in signature(function).parameters.values():
                names |= dict(_homes(parameter.annotation, source.__module__))
            body += _method(function)
    whole = module.SettingMethods.__doc__
    imports = [
        f"import {name}" if home == name else f"from {home} import {name}"
        for name, home in sorted(names.items(), key=lambda one: (one[1] != one[0], one[1], one[0]))
    ]
    return _tidied(
        [
            HEAD + "\n".join(imports),
            "\n\nclass SettingMethods:",
            f'    """{whole}"""\n',
            "    _settings: dict[str, Any]",
            "    def __init__(self) -> None: ...",
            "    def _set(self, name: str, value: object) -> Self: ...",
            *body,
            "",
        ],
        STUB,
    )


def _tidied(lines: list[str], name: str) -> str:
    """The text as ruff sorts its imports and formats it."""
    text = "\n".join(lines)
    for words in (["check", "--select", "I", "--fix"], ["format"]):
        command = [sys.executable, "-m", "ruff", *words, "--quiet", "--stdin-filename", name, "-"]
        text = subprocess.run(
            command, input=text, stdout=subprocess.PIPE, encoding="utf-8", check=True, cwd=ROOT
        ).stdout
    return text


def _method(function: Any) -> Iterator[str]:
    found: Signature = signature(function)
    parts, marked = [], False
    for one in found.parameters.values():
        if one.kind is Parameter.KEYWORD_ONLY and not marked:
            parts.append("*")
            marked = True
        kind = "" if one.annotation is Parameter.empty else f": {one.annotation}"
        default = "" if one.default is Parameter.empty else f" = {one.default!r}"
        parts.append(f"{one.name}{kind}{default}")
    head = f"    def {function.__name__}({', '.join(parts)}) -> Self:"
    if len(head) > 100:
        lines = "".join(f"        {part},\n" for part in parts)
        head = f"    def {function.__name__}(\n{lines}    ) -> Self:"
    text = textwrap.indent(function.__doc__, "        ").lstrip()
    end = "\n        " if "\n" in text else ""
    yield f'{head}\n        """{text}{end}"""\n'


def _homes(annotation: Any, module: str) -> Iterator[tuple[str, str]]:
    """The names in an annotation of a module, and where each can be imported from."""
    if annotation is Parameter.empty:
        return
    for node in ast.walk(ast.parse(str(annotation))):
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            yield node.id, _home(node.id, module)


def _home(name: str, module: str) -> str:
    file = sys.modules[module].__file__ or ""
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and name in [one.name for one in node.names]:
            return node.module or ""
        if isinstance(node, ast.Import) and name in [one.name.split(".")[0] for one in node.names]:
            return name
    return module


# --- Pages and keys ------------------------------------------------------------------------------


def page(text: str) -> str:
    """The page of ranks with its table of settings."""
    from flodl.ranks.settings import DdpRunConfig
    from flodl.setting import described, texts, usual

    rows = ["| Setting | Default | Meaning |", "|---|---|---|"]
    for one in fields(DdpRunConfig):
        unsaid = usual(one) if one.default is None else ""
        meaning = _markdown(described(texts(DdpRunConfig)[one.name], unsaid))
        rows.append(f"| `{one.name}` | `{one.default}` | {meaning} |")
    before, heading, rest = text.partition("\n## Settings\n")
    start = rest.index("| Setting |")
    end = rest.index("\n\n", start)
    return before + heading + rest[:start] + "\n".join(rows) + rest[end:]


class Key(NamedTuple):
    """A key of a section: how the model of the manifest and the options of a program declare it."""

    kind: str
    """Its type in the model."""
    text: str
    """What it does, as Markdown in one paragraph."""
    option: str
    """Its type as an option."""
    help: str
    """Its first sentence."""

    def in_model(self, name: str) -> str:
        """The lines of the model."""
        text, key = textwrap.fill(f'"""{self.text}"""', 96), name.removeprefix(TRAINING)
        kind = self.kind if key == name else f"Referring[{self.kind}]"
        return textwrap.indent(f"{key}: {kind} | None = None\n{text}\n", "    ")

    def in_arguments(self, name: str) -> str:
        """The lines of the class of arguments."""
        choice = 'completer="echo auto", ' if "`auto`" in self.text and self.option == "str" else ""
        empty = "" if self.option in ("bool", "list[float]") else " | None"
        return f"    {name}: {self.option}{empty} = _option({choice}help={self.help!r})\n"


def keys_of(part: Any) -> Iterator[tuple[str, Key]]:
    """The keys of a manifest that the fields of some settings are."""
    from flodl.setting import described, how, texts, usual

    for one in fields(part):
        if not how(one).key:
            continue
        text, default = _markdown(texts(part)[one.name]), usual(one).replace("``", "`")
        if how(one).key.startswith(TRAINING):
            text = text.partition(". ")[0].rstrip(".") + "."
        said = f"{default}, or `auto`" if how(one).auto and default != "auto" else default
        kind, option = _kinds(one)
        first = described(text, "").partition(". ")[0].rstrip(".").replace("`", "")
        # The option of a manifest is a word; its default is what a program uses without it.
        form = (
            "; or auto" if said != default else _FORMS.get(option if option != "str" else kind, "")
        )
        told = f"{first}{form}" + (f" [default: {default}]" if default else "")
        yield how(one).key, Key(kind, described(text, said), option, told)


_FORMS = {"SpeedHint": ": 1:2.5", "list[float]": ", with commas"}
"""Type -> how its option is written."""


def _kinds(one: Any) -> tuple[str, str]:
    """The type of a key in the model, and that of its option."""
    from flodl.setting import Above, OneOf, Shares, Whole, how

    about, check = how(one), how(one).check
    if about.auto:
        words = 'Literal["auto", "true", "false"]'
        return ("AutoOrCount", "str") if isinstance(check, Whole) else ("AutoOrSwitch", words)
    if isinstance(check, OneOf):
        choices = ", ".join(f'"{word}"' for word in check.choices)
        return f"Literal[{choices}]", f"Literal[{choices}]"
    if isinstance(check, Whole):
        counts = {0: "NonNegativeInt", 1: "Count"}
        kind = counts.get(check.least, f"Annotated[int, Field(ge={check.least})]")
        return about.form or kind, "int"
    if isinstance(check, Shares):
        return "list[PositiveFloat]", "list[float]"
    if isinstance(one.default, bool):
        return "bool", "bool"
    if isinstance(check, Above):
        return about.form or ("NonNegativeFloat" if check.itself else "PositiveFloat"), "float"
    if isinstance(one.default, float):
        return about.form or "float", "float"
    return about.form, "str"


def _markdown(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def renewed(source: str, name: str, rows: Mapping[str, str]) -> str:
    """A source whose class has these rows: in the places of those of the same names, or behind."""
    lines = source.splitlines(keepends=True)
    [found] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    places = {}
    for node, below in zip(found.body, [*found.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            end = below.end_lineno if text and below is not None else node.end_lineno
            places[node.target.id] = (node.lineno - 1, end or node.lineno)
    last = max(end for _, end in places.values())
    changes = [
        (*places.get(key.removeprefix(TRAINING), (last, last)), row) for key, row in rows.items()
    ]
    for start, end, row in sorted(changes, key=lambda one: -one[0]):
        lines[start:end] = [row]
    return "".join(lines)


def _names(source: str, model: str) -> str:
    """The order of generated arguments, as the keys of ``ddp:`` stand in their model."""
    [found] = [
        node
        for node in ast.parse(model).body
        if isinstance(node, ast.ClassDef) and node.name == "Ddp"
    ]
    keys = [
        f'"{node.target.id}"'
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    rows = textwrap.fill(", ".join(keys) + ",", 92)
    before, head, rest = source.partition('    "ddp": (\n')
    return before + head + textwrap.indent(rows, " " * 8) + rest[rest.index("\n    ),") :]


def made() -> dict[str, str]:
    """Each file that is made from the settings, or in part, with its text."""
    from flodl.ranks.settings import DdpRunConfig
    from flodl.train.observers.guards.guard import Guards
    from flodl.train.settings.methods import PARTS

    def read(name: str) -> str:
        return (ROOT / name).read_text(encoding="utf-8")

    keys = dict(keys_of(DdpRunConfig))
    for part in PARTS:
        keys |= dict(keys_of(part))
    ddp = {name: key for name, key in keys.items() if not name.startswith(TRAINING)}
    training = {name: key for name, key in keys.items() if name not in ddp}
    model = read(MODELS)
    for section, rows in {
        "Ddp": ddp,
        "Training": training,
        "Guards": dict(keys_of(Guards)),
    }.items():
        model = renewed(model, section, {name: key.in_model(name) for name, key in rows.items()})
    model = _tidied([model], MODELS)
    options = {name: key.in_arguments(name) for name, key in ddp.items()}
    return {
        STUB: stub(),
        PAGE: page(read(PAGE)),
        MODELS: model,
        ARGUMENTS: _tidied([renewed(read(ARGUMENTS), "DdpArgs", options)], ARGUMENTS),
        FIELDS: _names(read(FIELDS), model),
    }


def main() -> int:
    """Write or check the files; the exit code is 1 when a check finds one out of date."""
    for name, text in made().items():
        file = ROOT / name
        if "--check" not in sys.argv[1:]:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"error: {name} is out of date\nrun: python scripts/settings.py\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
