"""An import that lasts leaves the collector's sight, unless an object would miss its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import flodl.collector

HEAD = f"""
import gc, sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("collector", {flodl.collector.__file__!r})
collector = module_from_spec(spec)
spec.loader.exec_module(collector)
"""
IMPORT = """
with collector.LastingImport("wave"):
    import wave
    assert not gc.isenabled()
print(gc.get_freeze_count() > 0, gc.isenabled())
"""


def printed(program: str, cwd: Path) -> str:
    words = [sys.executable, "-c", HEAD + program]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("before", "frozen"),
    [
        ("", True),
        ("import wave", False),
        ("gc.disable()", False),
        ("gc.freeze()", True),  # as the program did it
        ("file = open('text', 'w')", False),
        ("def numbers():\n    yield 1\nones = numbers()\nnext(ones)", False),
        ("def numbers():\n    yield 1\nones = numbers()", True),
        ("file = open(collector.__file__, 'rb')", True),
        ("class Own:\n    def __del__(self): pass\nown = Own()\nown.me = own", False),
        ("collector.MOST_OBJECTS = 10", False),
    ],
)
def test_only_where_no_object_has_work_to_do_at_its_end(before, frozen, tmp_path):
    enabled = before != "gc.disable()"
    assert printed(f"{before}\n{IMPORT}", tmp_path) == f"{frozen} {enabled}\n"


def test_what_is_made_later_is_collected_as_always(tmp_path):
    program = f"""
{IMPORT}
class Own:
    def __init__(self, name):
        self.name, self.me = name, self
    def __del__(self):
        print(self.name)
kept = Own("at the end")
other = Own("garbage")
del other
gc.collect()
print("end")
"""
    assert printed(program, tmp_path) == "True True\ngarbage\nend\nat the end\n"


def test_without_work_at_the_end_nothing_is_shown_again(tmp_path):
    program = f"""
{IMPORT}
import atexit
class Own:
    pass
own = Own()
own.me = own
collector._show_again()
print(gc.get_freeze_count() > 0)
file = open("text", "w")
collector._show_again()
print(gc.get_freeze_count() > 0)
"""
    assert printed(program, tmp_path) == "True True\nTrue\nFalse\n"


def test_an_import_that_fails_changes_nothing(tmp_path):
    program = """
try:
    with collector.LastingImport("missing"):
        import missing
except ImportError:
    print(gc.get_freeze_count(), gc.isenabled())
"""
    assert printed(program, tmp_path) == "0 True\n"
