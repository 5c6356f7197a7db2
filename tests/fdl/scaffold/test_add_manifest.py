"""One more command in a manifest, whatever it looks like."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from fdl.base.errors import FdlError
from fdl.scaffold.add import manifests, with_command
from tests.rows import each_row

KEYS = {"description": "Try models", "path": "./flodl-hf/"}
YML = Path("fdl.yml")

EDITS = {
    "the end of the commands": (
        "commands:\n  a:\n    run: x\n\n# later\ntraining:\n  lr: 1\n",
        "commands:\n  a:\n    run: x\n  flodl-hf:\n    description: Try models\n"
        "    path: ./flodl-hf/\n\n# later\ntraining:\n  lr: 1\n",
    ),
    "indentation, line ends, no last line end": (
        "commands:\r\n    a:\r\n        run: x # y",
        "commands:\r\n    a:\r\n        run: x # y\r\n    flodl-hf:\r\n"
        "        description: Try models\r\n        path: ./flodl-hf/",
    ),
    "no commands": (
        "# mine\ndescription: x\n",
        "# mine\ndescription: x\ncommands:\n  flodl-hf:\n    description: Try models\n"
        "    path: ./flodl-hf/\n",
    ),
    "commands without any": (
        "commands: # none yet\n\nddp:\n  mode: sync\n",
        "commands: # none yet\n  flodl-hf:\n    description: Try models\n    path: ./flodl-hf/\n"
        "\nddp:\n  mode: sync\n",
    ),
    "nothing at all": (
        "",
        "commands:\n  flodl-hf:\n    description: Try models\n    path: ./flodl-hf/\n",
    ),
    "braces": (
        "commands: {a: {run: x}}\ndescription: y\n",
        "commands: {a: {run: x}, flodl-hf: {description: Try models, path: ./flodl-hf/}}\n"
        "description: y\n",
    ),
    "several lines of shell": (
        "commands:\n  a:\n    run: |\n      x\n      y\n\n\ndescription: y\n",
        "commands:\n  a:\n    run: |\n      x\n      y\n  flodl-hf:\n    description: Try models\n"
        "    path: ./flodl-hf/\n\n\ndescription: y\n",
    ),
}


@each_row("name", EDITS)
def test_the_command_is_added_and_nothing_else_changes(name):
    text, changed = EDITS[name]
    assert with_command(text, YML, "flodl-hf", KEYS) == changed
    assert with_command(changed, YML, "flodl-hf", KEYS) == changed


def test_json_gets_it_too_also_as_an_example():
    made = with_command('{"commands": {"a": {"run": "x"}}}', Path("fdl.json.example"), "h", KEYS)
    assert json.loads(made) == {"commands": {"a": {"run": "x"}, "h": KEYS}}


def test_a_byte_order_mark_stays():
    made = with_command("\ufeffdescription: x\n", YML, "h", KEYS)
    assert made.startswith("\ufeffdescription: x\ncommands:\n  h:\n")


@each_row(
    ("text", "message"),
    [
        ("commands: [\n", "fdl.yml:2:1"),
        ("commands:\n  - a\n", "`commands` is a list"),
        ("x: &c {a: {run: b}}\ncommands: *c\n", "shared through an anchor"),
    ],
)
def test_what_cannot_take_it_is_refused(text, message):
    with pytest.raises(FdlError) as caught:
        with_command(text, YML, "h", KEYS)
    assert message in caught.value.message


def test_manifests_and_their_examples_are_found(tmp_path):
    for name in ("fdl.yml", "fdl.yml.example", "fdl.json.dist", "fdl.ci.yml"):
        (tmp_path / name).touch()
    (tmp_path / "fdl.yaml").symlink_to(tmp_path / "nowhere")
    found = [path.name for path in manifests(tmp_path)]
    assert found == ["fdl.yml", "fdl.yml.example", "fdl.json.dist"]


COMMANDS = st.dictionaries(
    st.sampled_from(["a", "b", "c-d", "e.f"]),
    st.sampled_from(["{run: x}", "{run: 'y # z'}", "\n{}  run: x  # why", "\n{}  run: |\n{}    x"]),
    max_size=3,
)


@given(
    COMMANDS,
    st.integers(1, 6),
    st.sampled_from(["", "# top\n", "description: x\n\n"]),
    st.sampled_from(["", "\n", "\n\n# below\n", "\ntraining:\n  lr: 1 # z\n", "\nenv: {A: b}"]),
    st.booleans(),
)
def test_in_any_manifest_the_command_is_the_only_change(commands, width, before, after, crlf):
    indent = " " * width
    lines = [f"{indent}{name}: {spec.replace('{}', indent)}" for name, spec in commands.items()]
    lines = [line.replace(f"{indent}  run", f"{indent}{indent}run") for line in lines]
    lines = [line.replace(f"{indent}    x", f"{indent}{indent}  x") for line in lines]
    text = f"{before}commands:\n" + "\n".join(lines) + after
    text = text.replace("\n", "\r\n") if crlf else text
    made = with_command(text, YML, "h", KEYS)
    # A block of text that ends the file gets the line end that anything below it needs.
    expected = yaml.safe_load(f"{text}\n")
    expected["commands"] = {**(expected["commands"] or {}), "h": KEYS}
    assert yaml.safe_load(made) == expected
    at = next(
        (i for i, (old, new) in enumerate(zip(text, made, strict=False)) if old != new), len(text)
    )
    added = len(made) - len(text)
    assert any(made[:i] + made[i + added :] == text for i in range(at + 1))
