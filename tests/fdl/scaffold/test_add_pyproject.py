"""Editing what a project demands: the change, and not a byte besides."""

import tomllib

import pytest
from hypothesis import given, strategies as st

from fdl.base.errors import ScaffoldError
from fdl.scaffold.add_requirement import (
    lines_with_extra,
    lines_with_requirement,
    with_extra,
    with_requirement,
)
from tests.rows import each_row

EXTRA_EDITS = {
    "one line": (
        '[project]\nname = "x"\ndependencies = ["a", "flodl==0.1.0", "b"]\n',
        '[project]\nname = "x"\ndependencies = ["a", "flodl[hf]==0.1.0", "b"]\n',
    ),
    "many lines, comments, other quotes": (
        "[project]\r\ndependencies = [ # all\r\n\t'flodl[train] >= 0.1', # ours\r\n  \"b\"\r\n]",
        "[project]\r\ndependencies = [ # all\r\n\t'flodl[train,hf] >= 0.1', # ours\r\n  \"b\"\r\n]",
    ),
    "twice, by marker": (
        "project.dependencies = [\"flodl==1; os_name == 'nt'\", 'flodl==2']",
        "project.dependencies = [\"flodl[hf]==1; os_name == 'nt'\", 'flodl[hf]==2']",
    ),
    "in braces": (
        'project = { name = "x", "dependencies" = ["flodl"], version = "1" }\n',
        'project = { name = "x", "dependencies" = ["flodl[hf]"], version = "1" }\n',
    ),
    "several lines of text": (
        '["project"]\ndependencies = ["""flodl""", ]\n',
        '["project"]\ndependencies = ["""flodl[hf]""", ]\n',
    ),
    "escapes": (
        '[project]\ndependencies = ["flodl\\u005btrain\\u005d", "b"]\n',
        '[project]\ndependencies = ["flodl[train,hf]", "b"]\n',
    ),
    "look-alikes": (
        '# dependencies = ["flodl"]\n[x]\ntext = """\n[project]\ndependencies = ["flodl"]\n"""\n'
        '[tool.project]\ndependencies = ["flodl"]\n[project]\ndependencies = ["flodl-x", "flodl"]',
        '# dependencies = ["flodl"]\n[x]\ntext = """\n[project]\ndependencies = ["flodl"]\n"""\n'
        '[tool.project]\ndependencies = ["flodl"]\n'
        '[project]\ndependencies = ["flodl-x", "flodl[hf]"]',
    ),
}


@each_row("name", EXTRA_EDITS)
def test_the_extra_is_added_in_place(name):
    text, changed = EXTRA_EDITS[name]
    assert with_extra(text, "hf") == changed
    assert with_extra(changed, "hf") == changed


NEW = "flodl[hf]==1.2.3"
NEW_EDITS = {
    "one line": (
        '[project]\ndependencies = ["a", "b"] # two\n',
        f'[project]\ndependencies = ["a", "b", "{NEW}"] # two\n',
    ),
    "a comma at the end": (
        '[project]\ndependencies = ["a",]',
        f'[project]\ndependencies = ["a", "{NEW}",]',
    ),
    "an empty list": (
        "[project]\ndependencies = [ ]\n",
        f'[project]\ndependencies = ["{NEW}" ]\n',
    ),
    "many lines": (
        "[project]\r\ndependencies = [\r\n    'a', # first, and last\r\n    # nothing\r\n]\r\n",
        "[project]\r\ndependencies = [\r\n    'a', # first, and last\r\n"
        f"    '{NEW}',\r\n    # nothing\r\n]\r\n",
    ),
    "many lines without the last comma": (
        '[project]\ndependencies = [\n\t"a" # [one]\n]\n',
        f'[project]\ndependencies = [\n\t"a", # [one]\n\t"{NEW}"\n]\n',
    ),
    "a bracket behind the last item": (
        '[project]\ndependencies = ["a",\n  "b"]\n',
        f'[project]\ndependencies = ["a",\n  "b",\n  "{NEW}"]\n',
    ),
    "no list": (
        '[project]\nname = "x" # mine\n\n[project.urls]\na = "b"\n',
        f'[project]\nname = "x" # mine\ndependencies = ["{NEW}"]\n\n[project.urls]\na = "b"\n',
    ),
    "no list, no line end": (
        '[project] # here\r\nname = "x"',
        f'[project] # here\r\nname = "x"\r\ndependencies = ["{NEW}"]',
    ),
    "no list, dotted": (
        'project.name = "x"\nb = 1\n[tool.y]\n',
        f'project.name = "x"\nproject.dependencies = ["{NEW}"]\nb = 1\n[tool.y]\n',
    ),
    "no list, in braces": (
        'project = {name = "x"}\n',
        f'project = {{name = "x", dependencies = ["{NEW}"]}}\n',
    ),
    "no table": (
        "[tool.x]\na = 1",
        '[tool.x]\na = 1\n\n[project]\nname = "my-app"\nversion = "0.1.0"\n'
        f'dependencies = ["{NEW}"]\n',
    ),
    "nothing at all": (
        "",
        f'[project]\nname = "my-app"\nversion = "0.1.0"\ndependencies = ["{NEW}"]\n',
    ),
}


@each_row("name", NEW_EDITS)
def test_a_requirement_is_added_as_the_file_is_laid_out(name):
    text, changed = NEW_EDITS[name]
    assert with_requirement(text, NEW, "my app") == changed


def test_what_cannot_be_changed_alone_is_refused():
    with pytest.raises(ScaffoldError, match="cannot be changed without touching"):
        with_requirement("project = {}\n", NEW, "x")


def test_a_broken_file_is_refused_with_its_line():
    with pytest.raises(ScaffoldError, match=r"not valid TOML: .*line 2"):
        with_requirement("[project]\nname = \n", NEW, "x")


@each_row(
    ("text", "changed"),
    [
        ("flodl==1  # ours\r\nb\r\n", "flodl[hf]==1  # ours\r\nb\r\n"),
        ("-r other.txt\nflodl[train]>=1", "-r other.txt\nflodl[train,hf]>=1"),
        (
            "# flodl==1\nflodl==1 \\\n    --hash=sha256:00\n",
            "# flodl==1\nflodl[hf]==1 \\\n    --hash=sha256:00\n",
        ),
        ("flodl-x\n\n", "flodl-x\n\n"),
    ],
)
def test_a_line_of_requirements_gets_the_extra(text, changed):
    assert lines_with_extra(text, "hf") == changed
    assert lines_with_extra(changed, "hf") == changed


@each_row(
    ("text", "changed"),
    [("", f"{NEW}\n"), ("a\r\nb", f"a\r\nb\r\n{NEW}\r\n"), ("a\n", f"a\n{NEW}\n")],
)
def test_a_line_more_is_added_at_the_end(text, changed):
    assert lines_with_requirement(text, NEW) == changed


# Any file -------------------------------------------------------------------------------------

# Values whose text looks like what the edit looks for, or ends where it should not.
VALUES = st.sampled_from(
    [
        *("1", "0x1f", "1_000.5e3", "nan", "true", "1979-05-27 07:32:00Z", "''", '""', "{}", "[]"),
        *('"]"', "'#'", '"a\\"b"', '"""\n[project]\ndependencies = ["flodl"]"""', '""""a"" """'),
        *("'''it''s'''''", '"""\\\n  x"""', "[ # ]\n [ 1, 2, ], [] ]", "{ a = [ '}' ], b.c = 1 }"),
    ]
)
COMMENTS = st.sampled_from(["", " # x", "# [project]", " # ]", ' # "flodl"', "\t"])
ITEMS = st.sampled_from(
    ['"a"', "'b>=1'", "\"c; os_name == 'nt'\"", "'flodl-x'", '"d[x, y]"', '"""e"""']
)
OURS = st.sampled_from(
    ['"flodl"', "'flodl>=0.1'", '"flodl[train]==1"', "\"flodl ; os_name == 'b'\""]
)
KEYS = st.sampled_from(["a", "b-1", '"c d"', "'e'", 'f."g.h"', "dependencies", "3"])


@st.composite
def arrays(draw, items):
    """A list in some layout; always valid, often ugly."""
    lines = draw(st.booleans())
    gap = st.sampled_from(
        ["\n", "\n    ", " # x\n\t", "\n\n  # y, z ]\n  "] if lines else ["", " "]
    )
    text = draw(gap)
    for place, item in enumerate(items):
        last = place == len(items) - 1
        comma = draw(st.sampled_from([",", " ,", ""] if last else [",", ", ", " , "]))
        text += item + comma + draw(gap)
    return f"[{text}]"


@st.composite
def entries(draw, prefix=""):
    keys = draw(st.lists(KEYS, unique=True, max_size=3))
    return [
        f"{prefix}{key} = {draw(VALUES)}{draw(COMMENTS)}" for key in keys if key != "dependencies"
    ]


@st.composite
def documents(draw, with_flodl):
    """A ``pyproject.toml`` with a list of dependencies (or, without flodl, perhaps without one)."""
    names = draw(st.lists(ITEMS, max_size=3))
    if with_flodl:
        names.insert(draw(st.integers(0, len(names))), draw(OURS))
    listed = []
    if with_flodl or draw(st.booleans()):
        listed = [f"dependencies = {draw(arrays(names))}{draw(COMMENTS)}"]
    own = ['name = "x"', *draw(entries("x.")), *listed]
    own = draw(st.permutations(own))
    tables = [
        [f"[tool.t{place}]{draw(COMMENTS)}", *draw(entries())]
        for place in range(draw(st.integers(0, 2)))
    ]
    tables.append(["[[tool.u]]", *draw(entries()), "[[tool.u]]", "[tool.u.v]", *draw(entries())])
    head = draw(entries())
    form = draw(st.sampled_from(["table", "dotted", "braces"]))
    if form == "table":
        tables.append([draw(st.sampled_from(["[project]", "[ 'project' ] # x"])), *own])
        tables.append(["[project.urls]", 'dependencies = "flodl"'])
    elif form == "dotted":
        head += [f"project.{line}" for line in own]
    else:
        inner = [f'name = "x"{draw(st.sampled_from(["", " "]))}']
        inner += [f"dependencies = {draw(arrays(names))}"] if listed else []
        head.append(f"project = {{ {', '.join(inner)} }}")
    groups = [head, *draw(st.permutations(tables))]
    text = "\n".join(line for group in groups for line in [*group, ""])
    text = text if draw(st.booleans()) else text.rstrip("\n")
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


def said(value):
    """A document in which `nan` equals itself and order counts for lists only."""
    if isinstance(value, dict):
        return {key: said(child) for key, child in value.items()}
    return [said(one) for one in value] if isinstance(value, list) else repr(value)


def is_kept(old, new):
    """Whether nothing of a text was taken away: it is left when some characters are struck out."""
    remaining = iter(new)
    return all(char in remaining for char in old)


@given(documents(with_flodl=True))
def test_in_any_file_only_the_extra_changes(text):
    before = tomllib.loads(text)
    changed = with_extra(text, "hf")
    spelled = {
        "flodl": "flodl[hf]",
        "flodl>=0.1": "flodl[hf]>=0.1",
        "flodl[train]==1": "flodl[train,hf]==1",
        "flodl ; os_name == 'b'": "flodl[hf] ; os_name == 'b'",
    }
    names = before["project"]["dependencies"]
    before["project"]["dependencies"] = [spelled.get(name, name) for name in names]
    assert said(tomllib.loads(changed)) == said(before)
    assert is_kept(text, changed)
    assert len(changed) - len(text) in (3, 4)
    assert with_extra(changed, "hf") == changed


@given(documents(with_flodl=False))
def test_in_any_file_only_the_requirement_is_added(text):
    before = tomllib.loads(text)
    changed = with_requirement(text, NEW, "x")
    project = before["project"]
    before["project"] = {**project, "dependencies": [*project.get("dependencies", []), NEW]}
    assert said(tomllib.loads(changed)) == said(before)
    assert is_kept(text, changed)
    assert "\r\n" in text or "\r" not in changed
    assert "\r\n" not in text or changed.count("\n") == changed.count("\r\n")
