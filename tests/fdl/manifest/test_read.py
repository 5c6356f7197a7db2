"""Manifest files as people write them, and as they break them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from fdl.base.errors import ManifestError
from fdl.manifest import read_yaml
from fdl.manifest.node import Node, origin
from fdl.manifest.read import read
from tests.rows import each_row


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors show paths as seen from the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["libyaml", "pure"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of PyYAML's parsers: an installation may lack the compiled one."""
    if request.param == "pure":
        monkeypatch.setattr(read_yaml, "LOADER", yaml.SafeLoader)


def read_as(text: str | bytes, name: str = "fdl.yml") -> Node:
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    return read(str(Path(name).absolute()))


def refused(text: str | bytes, name: str = "fdl.yml") -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        read_as(text, name)
    return caught.value


def positions(node: Node) -> dict[str, tuple[int, int, int, int]]:
    return {
        ".".join(path): (leaf.key_line, leaf.key_column, leaf.line, leaf.column)
        for path, leaf in node.leaves()
    }


@pytest.mark.usefixtures("loader")
@each_row(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("y", "y"),
        ("~", None),
        ("null", None),
        ("", None),
        ("'null'", "null"),
        ("1e-3", 0.001),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0.0", -0.0),
        ("12", 12),
        ("+12", 12),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2024-01-31", "2024-01-31"),
        ("2024-01-31T10:00:00Z", "2024-01-31T10:00:00Z"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("inf", "inf"),
        ("1.2.3", "1.2.3"),
        ("=", "="),
        ("'12'", "12"),
        ('"tab\\there"', "tab\there"),
        ("!!str 12", "12"),
        ("! 12", "12"),
        ("!!float 12", 12.0),
        ("[1, [a, ~]]", [1, ["a", None]]),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found: Any = read_as(f"key: {text}\n").plain()
    assert found == {"key": value}
    assert type(found["key"]) is type(value)


def test_not_a_number_is_read() -> None:
    found: Any = read_as("key: .nan\n").plain()
    assert math.isnan(found["key"])


@pytest.mark.usefixtures("loader")
def test_unusual_blanks_within_a_text_belong_to_it() -> None:
    text = "a: 10\xa0000 x-\xa0y\nb: 'q:\xa0r'\n'c\xa0d': 1\n"
    assert read_yaml.read_yaml(text, "fdl.yml").plain() == {
        "a": "10\xa0000 x-\xa0y",
        "b": "q:\xa0r",
        "c\xa0d": 1,
    }


@each_row("text", ["", "\n", "# only a comment\n", "---\n", "~\n", "---\n...\n"])
def test_an_empty_document_is_an_empty_mapping(text: str) -> None:
    assert read_as(text).plain() == {}


@pytest.mark.usefixtures("loader")
@each_row("text", ["", "\n", "# only a comment\n"])
def test_an_empty_document_begins_at_its_first_character(text: str) -> None:
    node = read_as(text)
    assert (node.line, node.column) == (1, 1)


@each_row("text", ["", " \n", "null"])
def test_an_empty_json_document_is_an_empty_mapping(text: str) -> None:
    assert read_as(text, "fdl.json").plain() == {}


@pytest.mark.usefixtures("loader")
def test_every_value_knows_its_line_and_column() -> None:
    node = read_as(
        "# é\na: 1\nb:\n  é: {x: 1, y: [2,\n    3]}\n  n:\n  t: |\n    text\nc:\n  - 1\n"
    )
    assert positions(node) == {
        "a": (2, 1, 2, 4),
        "b.é.x": (4, 7, 4, 10),
        "b.é.y": (4, 13, 4, 16),
        "b.n": (5 + 1, 3, 5 + 1, 5),
        "b.t": (7, 3, 7, 6),
        "c": (9, 1, 10, 3),
    }
    items = node.mapping["b"].mapping["é"].mapping["y"].value
    assert isinstance(items, list)
    assert [(item.key_line, item.line, item.column) for item in items] == [(4, 4, 17), (5, 5, 5)]
    assert origin(items[1], str(Path.cwd().parent)) == f"{Path.cwd().name}/fdl.yml:5:5"


def test_windows_line_ends_and_a_byte_order_mark_do_not_move_anything() -> None:
    node = read_as(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert node.plain() == {"a": 1, "b": 2}
    assert positions(node) == {"a": (1, 1, 1, 4), "b": (2, 1, 2, 4)}
    node = read_as(b'\xef\xbb\xbf{"a": 1,\r\n"b": 2}', "fdl.json")
    assert positions(node) == {"a": (1, 2, 1, 7), "b": (2, 1, 2, 6)}


def test_json_has_positions_and_its_own_rules() -> None:
    node = read_as(
        '\t{\n\t"a"\t: "\\ud83d\\ude00\\/",\n "b": {"<<": {"c": [1e-3, true]}}}', "fdl.json"
    )
    assert node.plain() == {"a": "😀/", "b": {"<<": {"c": [0.001, True]}}}
    assert positions(node) == {"a": (2, 2, 2, 8), "b.<<.c": (3, 15, 3, 20)}


def test_an_example_is_read_by_the_name_it_stands_for() -> None:
    assert read_as('\t{"a": 1}', "fdl.json.example").plain() == {"a": 1}
    assert read_as("a: no", "fdl.yaml.dist").plain() == {"a": "no"}


@pytest.mark.usefixtures("loader")
def test_keys_are_the_text_as_written() -> None:
    node = read_as("1: a\ntrue: b\nno: c\n0x10: d\n~: e\n'q': f\n1.0: g\n")
    assert node.plain() == dict(
        zip(["1", "true", "no", "0x10", "~", "q", "1.0"], "abcdefg", strict=True)
    )


@pytest.mark.usefixtures("loader")
def test_aliases_share_a_value_and_keep_its_place() -> None:
    node = read_as("a: &x {k: [1]}\nb: *x\n")
    assert node.plain() == {"a": {"k": [1]}, "b": {"k": [1]}}
    assert (node.mapping["b"].line, node.mapping["b"].key_line) == (1, 2)
    assert node.mapping["a"].key_line == 1


@pytest.mark.usefixtures("loader")
@each_row(
    ("text", "value"),
    [
        ("a: &d {x: 1, y: 1}\nb: {<<: *d, y: 2}\n", {"x": 1, "y": 2}),
        ("a: 0\nb: {y: 2, <<: {x: 1, y: 1}}\n", {"x": 1, "y": 2}),
        ("a: 0\nb: {<<: [{x: 1}, {x: 2, y: 2}]}\n", {"x": 1, "y": 2}),
        ("a: 0\nb: {'<<': 1}\n", {"<<": 1}),
    ],
)
def test_merge_keys_bring_in_what_is_not_there(text: str, value: object) -> None:
    found: Any = read_as(text).plain()
    assert found["b"] == value


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
TOWER = "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}]\n" for i in range(200))


@each_row(
    ("text", "place", "words"),
    [
        ("a: b: c\n", "1:5", "not valid YAML"),
        ("a: [1, 2\nb: 3\n", "2:2", "begins on line 1"),
        ("a: 'open\nb: 1\n", "1:4", "never closed"),
        ("a:\n\tb: 1\n", "2:1", "a tab cannot indent YAML"),
        ("a: |\n  x\n\ty\n", "3:1", "a tab cannot indent YAML"),
        ("a: 1\nb\nc: 2\n", "3:1", "could not find expected ':'"),
        ("a:\n  - 1\n b: 2\n", "3:2", "expected"),
        ("a: @x\n", "1:4", "cannot begin with `@`"),
        ('a: "\\q"\n', "1:5", "escape"),
        ("%YAML 2.0\n---\na: 1\n", "1:1", "incompatible"),
        ("a: 1\nb: 2\na: 3\n", "3:1", "duplicate key `a`: line 1 already has it"),
        ("m:\n  a: {k: 1, k: 2}\n", "2:13", "duplicate key `k`: line 2"),
        ("a: 1\n'a': 2\n", "2:1", "duplicate key `a`"),
        ("- a\n", "1:1", "must be a mapping of keys, not a list"),
        ("hello\n", "1:1", "not text"),
        ("a: 1\n---\nb: 2\n", "2:1", "second document"),
        ("a: *x\n", "1:4", "alias `*x` has no anchor"),
        ("a: &x [*x]\n", "1:8", "refers to itself"),
        ("a: !foo x\n", "1:4", "tag `!foo`"),
        ("a: !!python/object:os.system x\n", "1:4", "not supported"),
        ("a: !!set {x}\n", "1:4", "tag `!!set`"),
        ("a: !!int x\n", "1:4", "no !!int"),
        ("a: !!int true\n", "1:4", "no !!int"),
        ("? [a]\n: 1\n", "1:3", "a key must be text"),
        ("? {a: 1}\n: 1\n", "1:3", "a key must be text"),
        ("a: &x k\n*x : 1\n", "2:1", "a key must be text"),
        ("'': 1\n", "1:1", "an empty key"),
        ("? !!int 1\n: 2\n", "1:3", "on a key"),
        (f"{'k' * 200}: 1\n", "1:1", "too long"),
        ("<<: 1\n", "1:1", "can only merge mappings"),
        ('a: "\\0"\n', "1:4", "NUL"),
        ('"a\\0": 1\n', "1:1", "NUL"),
        (f"a: {'9' * 5000}\n", "1:4", "5000 digits"),
        (f"a: {'9' * 1001}\n", "1:4", "1001 digits"),
        (LAUGHS, "5:8", "more than 20000 values"),
        (TOWER, "100:12", "nested deeper than 100"),
        ("[" * 10_000, "1:101", "nested deeper than 100"),
        ("\n".join(" " * i + "a:" for i in range(1000)), "101:101", "nested deeper than 100"),
        ("a: x\0y\n", "1:5", "control character U+0000"),
        ("a: 1\nb: \x07\n", "2:4", "control character U+0007"),
        (b"a: \xe9\n", "1:4", "0xe9 is not valid UTF-8"),
        ("a: é ".encode() + b"\xff\n", "1:6", "0xff is not valid UTF-8"),
        ("a: 1\n".encode("utf-16"), "1:1", "UTF-16"),
        ("training:\n\xa0 lr: 1\n", "2:1", "a non-breaking space (U+00A0) stands where"),
        ("training: {lr:\xa01}\n", "1:12", "a non-breaking space (U+00A0)"),
        ("entry:\xa0echo a\n", "1:1", "a non-breaking space (U+00A0)"),
        ("a:\n  -\u2003b\n", "2:3", "a space (U+2003)"),
    ],
)
def test_broken_yaml_is_refused_with_its_place(text: str | bytes, place: str, words: str) -> None:
    error = refused(text)
    assert error.message.startswith(f"fdl.yml:{place}: ")
    assert words in error.message
    assert "\n" not in error.message
    assert error.hint
    assert error.exit_code == 1


@each_row(
    "text",
    [
        *("a: b: c\n", "a: [1\n", "a: 'x\n", "a:\n\tb: 1\n", "a: @x\n", "%YAML 2.0\n---\na: 1\n"),
        *("a: 1\na: 2\n", "- a\n", "a: *x\n", "a: !foo x\n", "a: 1\n---\nb: 2\n"),
        *(LAUGHS, TOWER, "[" * 10_000),
    ],
)
def test_the_pure_python_parser_refuses_the_same(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = refused(text).message.split(":")[1]
    monkeypatch.setattr(read_yaml, "LOADER", yaml.SafeLoader)
    error = refused(text)
    # A parser notices an unclosed bracket on the last line or behind it.
    assert abs(int(error.message.split(":")[1]) - int(line)) <= 1
    assert error.hint


@each_row(
    ("text", "place", "words"),
    [
        ('{"a": 1, "b"}', "1:13", "not valid JSON"),
        ('{"a": 1 // one\n}', "1:9", "not valid JSON"),
        ("{'a': 1}", "1:2", "not valid JSON"),
        ("{a: 1}", "1:2", "not valid JSON"),
        ('{"a": "open', "1:7", "not valid JSON"),
        ('{"a": 1} x', "1:10", "not valid JSON"),
        ("a: 1\n", "1:1", "not valid JSON"),
        ('{"a": 1,\n "a": 2}', "2:2", "duplicate key `a`: line 1"),
        ('{"a": {"b": NaN}}', "1:13", "`NaN`"),
        ('{"a": "\\ud800"}', "1:7", "surrogate"),
        ('{"a": "\\u0000"}', "1:7", "NUL"),
        ('{"": 1}', "1:2", "an empty key"),
        (f'{{"a": {"9" * 5000}}}', "1:7", "5000 digits"),
        ("[1]", "1:1", "not a list"),
        ('"x"', "1:1", "not text"),
        ('{"a":' * 10_000, "1:501", "nested deeper than 100"),
    ],
)
def test_broken_json_is_refused_with_its_place(text: str, place: str, words: str) -> None:
    error = refused(text, "fdl.json")
    assert error.message.startswith(f"fdl.json:{place}: ")
    assert words in error.message
    assert error.hint


def test_a_directory_named_like_a_manifest_is_explained(tmp_path: Path) -> None:
    (tmp_path / "fdl.yml").mkdir()
    with pytest.raises(ManifestError, match=r"^fdl\.yml: is a directory") as caught:
        read(str(tmp_path / "fdl.yml"))
    assert "rename" in caught.value.hint


def test_a_dangling_link_is_explained(tmp_path: Path) -> None:
    (tmp_path / "fdl.yml").symlink_to("gone.yml")
    with pytest.raises(ManifestError, match=r"is a link to gone\.yml, which does not exist"):
        read(str(tmp_path / "fdl.yml"))


def test_a_vanished_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="does not exist"):
        read(str(tmp_path / "fdl.yml"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fdl.yml")
    with pytest.raises(ManifestError, match="not a regular file"):
        read(str(tmp_path / "fdl.yml"))


def test_a_huge_file_is_refused() -> None:
    assert "larger than 1 MiB" in refused("#" * ((1 << 20) + 1)).message


# Root may read everything, so the child becomes nobody once its imports are done.
UNREADABLE = """
import os, sys
from fdl.base.errors import ManifestError
from fdl.manifest.read import read
if os.geteuid() == 0:
    os.setuid(65534)
try:
    read(sys.argv[1])
except ManifestError as error:
    print(error.message, "|", error.hint)
"""


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no Unix permissions here")
def test_an_unreadable_file_is_explained() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        target = Path(folder, "fdl.yml")
        target.write_text("{}")
        target.chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", UNREADABLE, str(target)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert "cannot be read: Permission denied | check its permissions" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["fdl.yml", "fdl.json"])
def test_a_manifest_may_have_thousands_of_commands(tmp_path: Path, name: str) -> None:
    rows = [f'"c{i}": {{"run": "true", "description": "{i}"}}' for i in range(5000)]
    file = tmp_path / name
    file.write_text(f'{{"commands": {{{", ".join(rows)}}}}}')
    commands = read(str(file)).get("commands")
    assert commands is not None
    assert len(commands.mapping) == 5000
