"""What a program says at which level, and on which stream."""

from __future__ import annotations

import io
import json
import os
import sys
from functools import partial

import pytest

from flodl import log
from flodl.log import Verbosity, debug, enabled, msg, set_verbosity, trace, verbose, verbosity
from tests import fork_server
from tests.rows import each_row


@pytest.fixture(autouse=True)
def _normal():
    before = verbosity()
    set_verbosity(Verbosity.NORMAL)
    yield
    set_verbosity(before)


def run(program: str, *args: str, **env: str) -> tuple[str, str]:
    """Run a program as a process of its own and return what it said on stdout and stderr."""
    base = {key: text for key, text in os.environ.items() if key != "FLODL_VERBOSITY"}
    done = fork_server.python("-c", program, *args, env={**base, **env}, torch=True, abrupt=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


EVERY_LEVEL = """
import importlib, io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from flodl import log

said = {}
for setting in json.loads(sys.argv[1]):
    os.environ["FLODL_VERBOSITY"] = setting
    importlib.reload(log)  # as in a new process: the level is not known yet
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        log.msg("always", level=log.Verbosity.QUIET)
        log.msg("msg")
        log.verbose("verbose")
        log.debug("debug")
        log.trace("trace")
    said[setting] = [" ".join(one.getvalue().split()) for one in (out, err)]
print(json.dumps(said))
"""


def test_environment_sets_the_level():
    normal = ["always msg", ""]
    expected = {
        "quiet": ["always", ""],
        "0": ["always", ""],
        "1": normal,
        "VERBOSE": ["always msg verbose", ""],
        "Debug": ["always msg verbose", "debug"],
        " trace ": ["always msg verbose", "debug trace"],
        "4": ["always msg verbose", "debug trace"],
        **dict.fromkeys(["5", "-1", "9" * 20, "²", "", "bogus"], normal),
    }
    out, err = run(EVERY_LEVEL, json.dumps(list(expected)))
    assert json.loads(out) == expected
    assert err == ""


@pytest.mark.case("runtime", 72)
def test_bogus_level_is_normal_debug_callables_stay_uncalled_and_trace_goes_to_stderr():
    out, err = run(
        """
from flodl.log import debug, msg, set_verbosity, trace, verbosity
print(verbosity().name)
called = []
debug("value {}", lambda: called.append(1))
debug(lambda: called.append(2))
print(called)
set_verbosity("trace")
trace("deep {}", lambda: "down")
""",
        FLODL_VERBOSITY="bogus",
    )
    assert out.splitlines() == ["NORMAL", "[]"]
    assert err == "deep down\n"


def test_environment_is_read_at_first_use_and_set_verbosity_wins():
    out, _ = run(
        """
import os
from flodl.log import set_verbosity, verbosity
os.environ["FLODL_VERBOSITY"] = "debug"
print(verbosity().name)
os.environ["FLODL_VERBOSITY"] = "quiet"
print(verbosity().name)
set_verbosity(2)
print(verbosity().name)
"""
    )
    assert out.split() == ["DEBUG", "DEBUG", "VERBOSE"]


@each_row("level", [7, -1, "loud", "", 2**70])
def test_set_verbosity_takes_the_unknown_as_normal(level):
    set_verbosity("trace")
    set_verbosity(level)
    assert verbosity() is Verbosity.NORMAL


def test_enabled_follows_the_level():
    set_verbosity("verbose")
    assert [enabled(level) for level in Verbosity] == [True, True, True, False, False]


def test_arguments_are_formatted_and_text_without_them_is_not(capsys):
    msg("epoch {}: loss={:.4f}", 3, 0.5)
    msg("braces {} and {nothing} stay")
    msg(12)
    assert capsys.readouterr().out.splitlines() == [
        "epoch 3: loss=0.5000",
        "braces {} and {nothing} stay",
        "12",
    ]


def test_functions_are_called_for_their_value_and_classes_are_not(capsys):
    set_verbosity("debug")
    debug("{} {} {}", partial(int, "7"), [3].copy, int)
    verbose(lambda: "late")
    captured = capsys.readouterr()
    assert captured.err == "7 [3] <class 'int'>\n"
    assert captured.out == "late\n"


def test_what_is_not_shown_is_not_formatted(capsys):
    trace("{:.4f}", "not a number")
    assert capsys.readouterr() == ("", "")


@each_row("encoding", ["ascii", "cp1252"])
def test_a_console_that_lacks_a_character_gets_its_escape(monkeypatch, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    msg("学习 ok")
    assert raw.getvalue() == b"\\u5b66\\u4e60 ok\n"


def test_a_program_without_console_stays_silent(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    msg("nobody hears this")
    log.warning("nor this")
    assert enabled(Verbosity.NORMAL)


def test_warning_is_said_at_every_level_and_never_raises(capsys, monkeypatch):
    set_verbosity("quiet")
    log.warning("the disk is full")
    assert capsys.readouterr().err == "warning: the disk is full\n"
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    log.warning("nobody left to tell")
    with pytest.raises(ValueError, match="closed"):
        closed.write("")
