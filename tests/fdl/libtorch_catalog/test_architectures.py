"""Which code runs on which GPU."""

from __future__ import annotations

import pytest

from fdl.base.errors import UsageError
from fdl.libtorch.catalog import Architecture, covers, parse, recorded
from tests.rows import each_row


def runs(archs: str, capability: str) -> bool:
    major, minor = map(int, capability.split("."))
    return covers(parse(archs), (major, minor))


@pytest.mark.case("cli", 57)
def test_code_of_the_same_major_and_a_lower_or_equal_minor_runs_and_no_other():
    assert not runs("7.0 7.5", "5.2")
    assert runs("8.0", "8.6")
    assert not runs("8.6", "8.0")


@each_row(
    ("archs", "card", "expected"),
    [
        ("8.6", "8.6", True),
        ("8.6", "8.9", True),
        ("8.9", "9.0", False),
        ("9.0", "10.0", False),
        ("12.0", "12.1", True),
        ("7.0+PTX", "9.0", True),
        ("7.0+PTX", "7.0", True),
        ("7.0+PTX", "6.1", False),
        ("6.1;9.0+PTX", "12.0", True),
        ("9.0a", "9.0", True),
        ("9.0a", "9.1", False),
        ("9.0a+PTX", "10.0", False),
        ("10.0f", "10.3", True),
        ("10.0f", "12.0", False),
        # Tegra: Orin is 8.7, and Thor is 10.1 in CUDA 12 and 11.0 in CUDA 13.
        ("8.0 8.6", "8.7", False),
        ("8.7", "8.9", False),
        ("8.7", "8.7", True),
        ("8.0+PTX", "8.7", True),
        ("10.0", "10.1", False),
        ("10.1", "11.0", True),
        ("7.0", "7.2", False),
    ],
)
def test_the_rule_of_binary_compatibility(archs, card, expected):
    assert runs(archs, card) is expected


def test_native_and_jit_are_told_apart():
    (one,) = parse("8.0+PTX")
    assert (one.is_native_on((8, 6)), one.is_native_on((9, 0))) == (True, False)
    assert (one.is_jit_on((9, 0)), one.is_jit_on((7, 5))) == (True, False)


@each_row(
    ("text", "expected"),
    [
        ("12.0;6.1", "6.1 12.0"),
        ("12.0, 6.1 ,6.1", "6.1 12.0"),
        ("6.1 6.1+PTX", "6.1+PTX"),
        ("6.1+PTX;6.1", "6.1+PTX"),
        ("9.0a 9.0", "9.0 9.0a"),
        ("  8.6\n", "8.6"),
    ],
)
def test_a_list_is_sorted_and_names_each_once(text, expected):
    assert " ".join(map(str, parse(text))) == expected


@each_row("text", ["", "8", "8.6.1", "sm_86", "8.6+ptx", "8.6 fast", "123.0", "8.6b"])
def test_what_is_no_architecture_is_refused_with_its_words(text):
    with pytest.raises(UsageError, match="is not a GPU architecture") as refused:
        parse(text)
    assert "6.1;12.0" in refused.value.hint


def test_a_record_that_makes_no_sense_has_no_architectures():
    assert recorded("cpu") == recorded("") == recorded("mystery") == ()
    assert recorded("7.0 7.5") == (Architecture(7, 0), Architecture(7, 5))


def test_compilers_call_it_sm():
    assert [one.sm for one in parse("6.1 9.0a 12.0+PTX")] == ["sm_61", "sm_90a", "sm_120"]
