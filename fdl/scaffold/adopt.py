"""A manifest for a script that exists: its options, presets to begin with, patterns for metrics."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdl.base.errors import ScaffoldError, failing
from fdl.base.files import put
from fdl.base.shell_words import join
from fdl.base.units import printable
from fdl.manifest.builtins import RESERVED
from fdl.manifest.check import check
from fdl.manifest.discover import Found, find_in
from fdl.manifest.load import Manifest
from fdl.manifest.read import parse
from fdl.manifest.select.level import Level
from fdl.manifest.show import scalar
from fdl.manifest.source import shown
from fdl.programs.source import read

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHORT = ("epochs", "num_epochs", "max_epochs", "n_epochs", "num_train_epochs", "max_steps",
          "steps", "num_steps", "iterations", "max_iters", "iters")  # fmt: skip
"""Options that make a training short, in the order of preference."""

_METRIC = re.compile(r"loss|acc|err|ppl|perplexity|f1|auc|bleu|score|precision|recall|rmse|mae|mse")
_PRINTED = re.compile(r"([A-Za-z][\w/]*)( ?[:=] *| +)(?:%[-+\d.]*[dfgse]|\{[^{}]*\})")


@dataclass(frozen=True, slots=True)
class Adopted:
    """A manifest that can be written for a script.

    Attributes:
        file: Where it goes.
        text: Its content.
        command: The command that starts the script.
        preset: Its first preset.
        options: The number of options that were read from the source.
    """

    file: Path
    text: str
    command: str
    preset: str
    options: int

    def write(self) -> None:
        """Write it.

        Raises:
            ScaffoldError: The folder cannot be written.
        """
        hint = "copy the script to a folder that you may write to"
        with failing(f"cannot write {shown(str(self.file))}", hint, ScaffoldError):
            put(str(self.file), self.text.encode())


def adopted(script: Path) -> Adopted:
    """Read a script and make the manifest for it. The script is not run, and nothing is written.

    The manifest belongs into the working directory if the script lies in it or below, because paths
    that the script opens mean files below the folder where it is started. Of another script it
    belongs into the folder of the script.

    Raises:
        ScaffoldError: The script does not exist, or a manifest exists already.
    """
    script = Path(os.path.abspath(script))  # noqa: PTH100 - a link stays a link
    folder = Path.cwd() if script.is_relative_to(Path.cwd()) else script.parent
    entry = join(["python", script.relative_to(folder).as_posix()])
    if script.suffix != ".py" or not script.is_file():
        raise ScaffoldError(
            f"{shown(str(script))} is not a Python script", hint="fdl adopt train.py"
        )
    if found := find_in(str(folder)):
        raise ScaffoldError(
            f"{shown(found.path)} exists already; nothing was written",
            hint=f"name the program in it: `entry: {entry}`",
        )
    file = folder / "fdl.yml"
    document = _document(file, entry)
    options: dict[str, Any] = document.get("options", {})
    preset, lines = _preset(options)
    # The name must not need quotes in a shell, and must not look like an option.
    command = re.sub(r"[^\w.]+|_", "-", script.stem).strip("-.") or "program"
    command = f"{command}-script" if command in (*RESERVED, preset) else command
    text = "\n".join(
        [
            "# yaml-language-server: $schema=.fdl/manifest.schema.json",
            f"# `fdl {command}` starts the program. `fdl {command} {preset}` also passes the values"
            " of the preset.",
            f"description: {scalar(document.get('description') or f'The program {script.name}')}",
            f"entry: {scalar(entry)}",
            "",
            *_options(options, script.name),
            "",
            *_metrics(script),
            "",
            "commands:",
            f"  {command}: {{path: .}}",
            *lines,
            "",
        ]
    )
    check(parse(text, str(file)), whole=True)
    return Adopted(file, text, command, preset, len(options))


def _document(file: Path, entry: str) -> dict[str, Any]:
    """What the source of the program declares; empty if it declares nothing that is understood."""
    found = Found(str(file.parent), file.name)
    manifest = Manifest(found, None, (parse(f"entry: {scalar(entry)}\n", str(file)), (), []))
    document, _ = read(Level(manifest, (), str(file.parent), None))
    return document or {}


def _options(options: dict[str, Any], name: str) -> list[str]:
    """The options as comments, because their defaults belong to the program."""
    if not options:
        return [
            f"# fdl found no options in {name}. What you write here is passed as `--name value`.",
            "options: {}",
        ]
    return [
        f"# The options of {name} with their defaults. Write here what should differ, such as",
        "# `options: {NAME: VALUE}`.",
        "options: {}",
        *(f"#   {_line(option, row)}" for option, row in options.items()),
    ]


def _line(name: str, row: dict[str, Any]) -> str:
    value = row.get("default")
    text = "" if value is None else _text(value)
    choices = ", ".join(printable(str(one)) for one in row.get("choices", ()))
    notes = [row.get("description", ""), f"one of {choices}" if choices else ""]
    note = "; ".join(one.rstrip(".") for one in notes if one)
    return f"{name.replace('-', '_')}: {text}{f'  # {note}' if note else ''}".rstrip()


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(scalar(one) for one in value)}]"
    return scalar(value)


def _preset(options: dict[str, Any]) -> tuple[str, list[str]]:
    """A first preset and its lines: a short training if an option makes one."""
    names = {name.replace("-", "_"): row for name, row in options.items()}
    short = next((one for one in _SHORT if names.get(one, {}).get("type") == "int"), "")
    if short:
        return "quick", [
            "  quick:",
            "    description: A short training, to check that everything works",
            f"    options: {{{short}: 1}}",
        ]
    return "plain", [
        "  plain:",
        "    description: The defaults of the program",
        "    options: {}",
    ]


def _metrics(script: Path) -> list[str]:
    """Patterns for what the script prints, as comments: a guess is never applied."""
    found = dict(_printed(script)) or {"loss": "loss[:=] *"}
    return [
        "# Patterns for metrics in what the program prints. Try them before you uncomment them.",
        "# metrics:",
        *(f'#   {name}: {{value: "{text}([0-9.e+-]+)"}}' for name, text in found.items()),
    ]


def _printed(script: Path) -> Iterator[tuple[str, str]]:
    """Name and pattern of each number that looks like a metric in a text of the source."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        for name, between in _PRINTED.findall(_template(node)):
            if _METRIC.search(name.lower()):
                yield name, f"{name}[:=] *" if between.strip() else f"{name} +"


def _template(node: ast.AST) -> str:
    """A text of the source, with `{}` for each value in it."""
    if isinstance(node, ast.JoinedStr):
        parts = (one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)
        return "".join(str(part) for part in parts)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
