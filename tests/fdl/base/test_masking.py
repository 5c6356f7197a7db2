"""The mask: what it replaces in texts, in data and in output that arrives piece by piece."""

from __future__ import annotations

import html
import json
import re
import shlex
import urllib.parse
from dataclasses import dataclass

from fdl.base.masking import KNOWN, Mask
from fdl.base.secrets import REDACTED
from tests.rows import each_row

PHRASE = 'Pass "phrase" & it\'s <tag>/é 77'


@each_row(
    "spelled",
    [
        str,
        json.dumps,
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda text: json.dumps(json.dumps(text)),
        repr,
        shlex.quote,
        html.escape,
        urllib.parse.quote,
        urllib.parse.quote_plus,
        lambda text: urllib.parse.quote(text, safe=""),
        lambda text: re.sub("%..", lambda one: one[0].lower(), urllib.parse.quote(text)),
    ],
)
@each_row("secret", [PHRASE, "s3cr3t-Value-0123456789"])
def test_a_secret_is_masked_in_every_spelling(secret, spelled):
    shown = Mask([secret]).text(f"before{spelled(secret)}after")
    assert REDACTED in shown
    assert shown.strip("\"'").startswith("before")
    assert "phrase" not in shown
    assert "0123456789" not in shown


@each_row("secret", ["1", "12", "abc", "train", "password", "1234567890"])
def test_a_short_or_ordinary_secret_leaves_other_texts_alone(secret):
    text = f"fdl {secret} x{secret} 1.{secret}"
    assert Mask([secret]).text(text) == text
    assert Mask([secret]).text(secret) == (REDACTED if len(secret) >= 4 else secret)


@each_row("secret", ["hunter2", "t0ken1", "only-letters"])
def test_a_secret_that_is_no_ordinary_word_is_masked_anywhere(secret):
    assert Mask([secret]).text(f"x{secret}y") == f"x{REDACTED}y"


def test_each_line_of_a_key_is_masked():
    mask = Mask(["-----BEGIN-----\nabcdefghijklmnop\nqrstuvwxyzabcdef\n-----END-----\n"])
    assert mask.text("a qrstuvwxyzabcdef") == f"a {REDACTED}"


def test_values_under_secret_names_are_masked_and_so_are_their_copies():
    mask = Mask()
    config = {
        "note": "https://h?key=s3cr3t-Value-0123",
        "api_key": {"value": "s3cr3t-Value-0123", "origin": "fdl.yml:3:9"},
        "nested": {"db_password": {"main": "0ther-secret-text"}, "pad_token": "[PAD]"},
        "s3cr3t-Value-0123": ["0ther-secret-text", 3, None, True],
    }
    assert mask.data(config) == {
        "note": f"https://h?key={REDACTED}",
        "api_key": {"value": REDACTED, "origin": "fdl.yml:3:9"},
        "nested": {"db_password": {"main": REDACTED}, "pad_token": "[PAD]"},
        REDACTED: [REDACTED, 3, None, True],
    }


def test_data_may_be_nested_deeper_than_calls_may_be():
    deep = "s3cr3t-Value-0123"
    for _ in range(5000):
        deep = {"below": [deep]}
    shown = Mask().data({"api_key": "s3cr3t-Value-0123", "deep": deep})["deep"]
    for _ in range(5000):
        (shown,) = shown["below"]
    assert shown == REDACTED


def test_records_keep_their_types():
    @dataclass(frozen=True)
    class Record:
        name: str
        values: tuple[float, ...]

    mask = Mask(["s3cr3t-Value-0123"])
    plain = Record("loss", (1.0, float("nan")))
    assert mask.texts(plain) is plain
    assert mask.texts([Record("s3cr3t-Value-0123", (1.0,))]) == [Record(REDACTED, (1.0,))]


@each_row("size", [1, 2, 7, 1000])
def test_output_is_masked_wherever_a_piece_ends(size):
    secrets = ["s3cr3t-Value-0123", "a phrase with blanks 7"]
    lines = (
        "key s3cr3t-Value-0123, then a phrase with blanks 7\r\n"
        "a phrase with other words\n50%|##s3cr3t-Value-0123##\r"
        "Authorization: Bearer abcdefgh12345678\nredis://:s3cr3t-pw@cache and é"
    ).encode()
    stream = Mask(secrets).stream()
    pieces = [lines[at : at + size] for at in range(0, len(lines), size)]
    shown = b"".join([*(stream.feed(piece) for piece in pieces), stream.rest()]).decode()
    assert shown == (
        f"key {REDACTED}, then {REDACTED}\r\n"
        f"a phrase with other words\n50%|##{REDACTED}##\r"
        f"Authorization: Bearer {REDACTED}\nredis://:{REDACTED}@cache and é"
    )


def test_output_does_not_wait_without_need():
    stream = Mask(["s3cr3t-Value-0123"]).stream()
    assert stream.feed(b"50% | \r") == b"50% | \r"
    assert stream.feed(b"Continue? [y/N] ") == b"Continue? [y/N] "


def test_a_process_knows_the_secrets_of_its_variables_and_of_its_command_line(monkeypatch):
    plan = {
        "argv": ["main.py", "--title", "marked-by-the-plan", "--api-key", "shown-in-the-clear"],
        "flags": [
            {"name": "--title", "index": 1, "count": 2, "secret": True},
            {"name": "--api-key", "index": 3, "count": 2, "secret": None},
        ],
        "variables": [
            {"name": "DB_PLACE", "secret": True},
            {"name": "MODE", "secret": True},
            {"name": "A_TOKEN", "secret": None},
        ],
        "secrets": ["known-to-fdl-alone"],
    }
    for name, value in {
        "FDL_PLAN": json.dumps(plan), "WANDB_API_KEY": "from-the-shell", "MODE": "train",
        "DB_PLACE": "marked-variable", "A_TOKEN": "public-variable",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["main.py", "--token", "typed-by-hand", *plan["argv"][3:]])
    KNOWN.forget()
    for secret in ("marked-by-the-plan", "known-to-fdl-alone", "from-the-shell", "marked-variable",
                   "typed-by-hand"):  # fmt: skip
        assert KNOWN.text(f"x {secret}") == f"x {REDACTED}"
    for text in ("shown-in-the-clear", "public-variable", "fdl train"):
        assert KNOWN.text(f"x {text}") == f"x {text}"
    assert KNOWN.data({"api_key": "shown-in-the-clear", "title": "abc", "mode": "x"}) == {
        "api_key": "shown-in-the-clear", "title": REDACTED, "mode": REDACTED,
    }  # fmt: skip


@each_row("plan", ["", "{", "[]", "[" * 100_000, '{"flags": 3}', '{"flags": [{}], "argv": []}'])
def test_a_broken_plan_of_another_program_is_no_plan(monkeypatch, plan):
    monkeypatch.setenv("FDL_PLAN", plan)
    monkeypatch.setenv("WANDB_API_KEY", "from-the-shell")
    KNOWN.forget()
    assert KNOWN.text("x from-the-shell") == f"x {REDACTED}"


def test_the_working_folder_is_not_a_secret(monkeypatch):
    monkeypatch.setenv("PWD", "/home/ada/a-project")
    monkeypatch.setenv("DB_PWD", "hunter2-and-more")
    KNOWN.forget()
    assert (
        KNOWN.text("in /home/ada/a-project: hunter2-and-more") == "in /home/ada/a-project: <secret>"
    )
