"""What must hold for every stack of layers: places tell the truth, edits touch one value."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from fdl.base.errors import ManifestError
from tests.conftest import Fdl, Project
from tests.fdl.inspect.in_process import fdl as in_process, folder
from tests.rows import each_row

FILES = ("fdl.yml", "fdl.mid.yml", "fdl.ci.yml")
SCALARS = ("a", "b")
LISTS = ("l", "m")
NEW_NUMBER, NEW_ITEM = 987, 654


@st.composite
def options(draw: st.DrawFn) -> dict[str, str]:
    """Key -> its value as YAML on one line."""
    found = {key: draw(st.sampled_from(["1", "2", "null", "3 # why"])) for key in SCALARS}
    for key in LISTS:
        tag = draw(st.sampled_from(["", "!append ", "!prepend "]))
        items = draw(st.lists(st.integers(0, 5), max_size=3))
        found[key] = draw(st.sampled_from([f"{tag}{items}", f"{tag}{items}", "null"]))
    kept = draw(st.sets(st.sampled_from([*SCALARS, *LISTS])))
    return {key: value for key, value in found.items() if key in kept}


@st.composite
def stacks(draw: st.DrawFn) -> dict[str, str]:
    """The files of a project whose environment ``ci`` has three layers."""
    files = {}
    for name in FILES:
        lines = ["# a comment"]
        if name == "fdl.ci.yml":
            lines.append("inherit-from: fdl.mid.yml")
        lines += ["commands:", "  p:", "    options:"]
        own, is_empty = draw(options()), draw(st.booleans())
        if own or is_empty:
            lines += [f"      {key}: {value}" for key, value in own.items()]
        else:
            lines[-1] += " null"
        lines += ["training:", f"  lr: {draw(st.sampled_from(['0.1', '0.2', 'null']))}  # pace"]
        files[name] = "\n".join(lines) + "\n"
    files["fdl.yml"] += "entry: python x.py\n"
    return files


def merged() -> Any:
    leaves = json.loads(in_process("--env", "ci", "config", "show", "--json").out)
    return {leaf["path"]: leaf["value"] for leaf in leaves if "removed" not in leaf}


def explained() -> list[dict[str, Any]]:
    found = []
    for path in ("commands.p.options", "training"):
        session = in_process("--env", "ci", "why", path, "--json")
        if session.exit == 0:
            found += json.loads(session.out)["fields"]
    # In the place of a mapping, the edits below would be mistakes.
    return [field for field in found if field["path"] not in ("commands.p.options", "training")]


def edited(text: str, statement: dict[str, Any]) -> str:
    """The text with another value at the place a statement names; tags stay."""
    lines = text.splitlines(keepends=True)
    line = lines[statement["line"] - 1]
    head, old = line[: statement["column"] - 1], line[statement["column"] - 1 :]
    tag = f"{old.split()[0]} " if old.startswith("!") else ""
    new = f"{tag}[{NEW_ITEM}]" if "[" in old else str(NEW_NUMBER)
    lines[statement["line"] - 1] = f"{head}{new}\n"
    return "".join(lines)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(stacks())
def test_editing_a_winner_changes_the_value_and_editing_a_loser_never_does(
    files: dict[str, str],
) -> None:
    with folder(files) as root:
        before = merged()
        for field in explained():
            for statement in field["stack"]:
                # Under a list that joins what is below it, a null is only the lack of a list.
                if statement["value"] is None and statement["role"] == "overridden":
                    continue
                file = root / statement["file"]
                text = file.read_text()
                file.write_text(edited(text, statement))
                after = merged()
                file.write_text(text)
                if statement["role"] == "overridden":
                    assert after == before
                else:
                    assert after.get(field["path"], "gone") != before.get(field["path"], "gone")


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(stacks())
def test_config_show_reads_back_to_the_merge(files: dict[str, str]) -> None:
    with folder(files):
        shown = yaml.safe_load(in_process("--env", "ci", "config", "show").out)
        flat: dict[str, Any] = {}

        def flatten(node: Any, path: str) -> None:
            if isinstance(node, dict) and node:
                for key, child in node.items():
                    flatten(child, f"{path}.{key}" if path else key)
            else:
                flat[path] = node

        flatten(shown, "")
        assert flat == merged()
        assert list(flat) == list(merged())


VALUES = st.one_of(
    st.integers(-5, 5).map(str),
    st.sampled_from(
        ["yes", "'no'", '"a # b"', "1e-3", "a: b", "[1, x]", "''", "|\n  two\n  lines"]
    ),
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8),
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(
    stacks(),
    st.sampled_from(["commands.p.options.a", "commands.p.options.l", "commands.p.options.new"]),
    VALUES,
    st.sampled_from([[], ["--where", "ci"], ["--where", "base"]]),
)
def test_setting_a_value_sets_that_value_and_nothing_else(
    files: dict[str, str], path: str, value: str, where: list[str]
) -> None:
    with folder(files) as root:
        before = merged()
        session = in_process("--env", "ci", "config", "set", *where, "--", path, value)
        texts = {name: (root / name).read_text() for name in FILES}
        if session.exit != 0:
            assert session.exit == (1 if says_something(value) else 2), session.err
            assert session.err.startswith("error: ")
            assert texts == files
            return
        assert len([name for name in FILES if texts[name] != files[name]]) <= 1
        for name in FILES:
            assert texts[name].count("# a comment") == files[name].count("# a comment")
            assert texts[name].count("# pace") == files[name].count("# pace")
        after = merged()
        others = {key: one for key, one in before.items() if not key.startswith(path)}
        kept = {key: one for key, one in after.items() if not key.startswith(path)}
        # A mapping that has got its first key is no leaf any more.
        for mapping in ("commands.p", "commands.p.options"):
            others.pop(mapping, None)
        assert kept == others
        field = json.loads(in_process("--env", "ci", "why", path, "--json").out)["fields"][0]
        said = [one for one in field["stack"] if one["role"] != "overridden"]
        expected = plain(value)
        if isinstance(expected, dict):
            # The options of a mapping are fields of their own.
            (expected,) = expected.values()
        assert any(one["value"] == expected for one in said)


def says_something(value: str) -> bool:
    """Whether a value can be read as YAML, and is not only a comment."""
    try:
        return plain(value) != {} or "{" in value
    except ManifestError:
        return False


def plain(value: str) -> Any:
    from fdl.manifest.read_yaml import read_yaml

    return read_yaml(value, "VALUE").plain()


PLACES = (
    "name", "mark", "file", "option", "marked option", "marked script", "flag in a script",
    "append", "default", "overridden", "removed", "child",
)  # fmt: skip


def secret_of(place: str) -> str:
    return f"s3cr3t-{place.replace(' ', '-')}-0123456789"


def planted(places: set[str]) -> dict[str, str]:
    """A project with a secret of its own in each of some places."""
    given = {place: secret_of(place) if place in places else "harmless" for place in PLACES}
    return {
        "fdl.yml": f"""
env:
  API_TOKEN: {given["name"]}
  MODE: !secret {given["mark"]}
  DB_PASSWORD: {given["overridden"]}
  OLD_TOKEN: {given["removed"]}
env_file: .env
commands:
  a: {{run: !secret 'echo {given["marked script"]}'}}
  b: {{run: 'true --token {given["flag in a script"]} -v', append: !secret '-- {given["append"]}'}}
  train:
""",
        "fdl.ci.yml": "env: {DB_PASSWORD: plain-ci-password, OLD_TOKEN: null}\n",
        ".env": f"SOME_URL={given['file']}\n",
        "train/fdl.yml": f"""
entry: python main.py
env: !secret {{QUIET: {given["child"]}}}
schema:
  options:
    api-key: {{type: string, default: {given["default"]}}}
    model: {{type: string}}
commands:
  quick:
    options:
      api_key: {given["option"]}
      model: !secret {given["marked option"]}
""",
    }


TYPED = "s3cr3t-typed-0123456789"
LINES = ("a", "b", "train", "train quick", f"train quick --api-key {TYPED} --token={TYPED}")


def every_command() -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = [("--help",), ("list",), ("list", "--json"), ("config", "show")]
    calls += [("config", "show", "--json"), ("why", "env"), ("why", "commands", "--json")]
    calls += [("why", f"env.{name}") for name in ("API_TOKEN", "MODE", "DB_PASSWORD", "OLD_TOKEN")]
    calls += [("config", "set", "env.API_TOKEN", TYPED, "-n"), ("b", "-x")]
    calls += [("config", "set", "env.NEW", "1", "-n"), ("config", "set", "nope", "1", "-n")]
    for line in LINES:
        words = tuple(line.split())
        calls += [("--dry-run", *words), ("--dry-run", "--json", *words), (*words, "--help")]
        calls += [("config", "show", *words, *more) for more in ((), ("--json",))]
        calls += [("why", "env", *words), ("why", "nope", *words)]
        calls += [("why", "api-key", *words), ("why", "model", *words)]
        calls += [("why", "run", *words), ("why", "append", *words)]
    return calls


@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.sampled_from(PLACES), min_size=1), st.booleans())
def test_a_planted_secret_never_appears(places: set[str], in_ci: bool) -> None:
    environment = ("--env", "ci") if in_ci else ()
    with folder(planted(places)):
        for call in every_command():
            session = in_process(*environment, *call)
            assert session.exit in (0, 1, 2)
            seen = session.out + session.err
            for secret in (*map(secret_of, PLACES), TYPED):
                assert secret not in seen, (call, seen)
            assert "plain-ci-password" not in seen


@each_row(
    "text",
    [
        "training: {lr: !secret SECRET}\n",
        "env: {API_TOKEN: [SECRET]}\n",
        "commands: {p: {options: {api_key: {x: SECRET}}}}\n",
        "ddp: {mode: !secret SECRET}\n",
        "commands: {p: {options: {token: [SECRET, {a: 1}]}}}\n",
    ],
)
def test_an_error_about_a_secret_does_not_repeat_it(text: str) -> None:
    secret = "s3cr3t-0123456789"
    with folder({"fdl.yml": text.replace("SECRET", secret)}):
        for call in (("config", "show"), ("p",), ("why", "training"), ("list",), ("--help",)):
            session = in_process(*call)
            assert secret not in session.out + session.err


@settings(max_examples=30)
@given(st.text(min_size=1, max_size=12), st.text(min_size=1, max_size=12))
def test_paths_read_back_as_they_are_written(first: str, second: str) -> None:
    from fdl.manifest.inspect.field import parse
    from fdl.manifest.node import dotted

    assume("\0" not in first + second)
    assert parse(dotted((first, 3, second))) == (first, 3, second)


COPIED = """
    entry: echo
    commands:
      a: {run: echo, env: {API_KEY: hunter2hunter2}, description: hunter2hunter2 again}
      b: {run: "curl -H hunter2hunter2 host", append: -- hunter2hunter2}
      p: {description: a preset, options: {header: hunter2hunter2}}
    """


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["a", "--help"],
        ["b", "--help"],
        ["p", "--help"],
        ["-n", "b"],
        ["-n", "--json", "b"],
        ["-n", "p"],
        ["list"],
        ["list", "--json"],
        ["config", "show"],
        ["config", "show", "b"],
        ["why", "commands.b.run"],
        ["nope"],
    ],
    ids=" ".join,
)
def test_a_copy_of_a_secret_that_nothing_marks_is_not_printed(
    project: Project, fdl: Fdl, words: list[str]
) -> None:
    project({"fdl.yml": COPIED})
    done = fdl(*words)
    assert done.out + done.err
    assert "hunter2" not in done.out + done.err


def test_what_is_announced_holds_no_copy_of_a_secret(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": COPIED})
    done = fdl("p")
    assert done.out == "--header hunter2hunter2\n", "the program itself gets it"
    assert done.err == "fdl: echo --header '<secret>'\n"
