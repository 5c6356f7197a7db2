"""CUDA_VISIBLE_DEVICES, entry by entry."""

from __future__ import annotations

from fdl.base.hardware import Gpu
from fdl.base.hardware.troubles import restrict
from tests.rows import each_row

CARDS = [
    Gpu(0, "a", (6, 1), uuid="GPU-aaaa1111-0000"),
    Gpu(1, "b", (8, 0), uuid="MIG-bbbb1111-0000", mig=True),
    Gpu(1, "b", (8, 0), uuid="MIG-bbbb2222-0000", mig=True),
    Gpu(2, "c", (9, 0), uuid="GPU-cccc1111-0000"),
    Gpu(3, "d", (9, 0), uuid="GPU-cccc2222-0000"),
]


def shown(value: str | None) -> str:
    gpus, _ = restrict(CARDS, value)
    return "".join("01"[gpu.visible] for gpu in gpus)


def trouble(value: str) -> list[str]:
    return [one.kind for one in restrict(CARDS, value)[1]]


@each_row(
    ("value", "expected"),
    [
        (None, "11111"),
        ("0", "10000"),
        ("2,0", "10010"),
        ("0,1,2,3", "11111"),
        (" 2 , 0 ", "10010"),
        ("GPU-aaaa1111-0000", "10000"),
        ("GPU-a", "10000"),
        ("GPU-cccc2", "00001"),
        ("MIG-bbbb1111-0000", "01000"),
        ("MIG-bbbb2,GPU-a", "10100"),
    ],
)
def test_named_cards_are_visible(value, expected):
    assert shown(value) == expected
    assert value is None or trouble(value) == []


@each_row("value", ["", " ", "-1", "-1,0", "NoDevFiles"])
def test_no_card_at_all_is_a_wish_like_any_other(value):
    assert shown(value) == "00000"
    assert trouble(value) == []


@each_row(
    ("value", "expected"),
    [
        ("0,7,2", "10000"),
        ("GPU-cccc", "00000"),
        ("GPU-aaaa,GPU-dddd,GPU-cccc1", "10000"),
        ("first", "00000"),
        ("0,,2", "10000"),
    ],
)
def test_what_names_nothing_ends_the_list_and_is_told(value, expected):
    assert shown(value) == expected
    assert trouble(value) == ["visibility-unknown-gpu"]


def test_minus_one_ends_the_list_without_a_word():
    assert shown("0,2,-1,1") == "10010"
    assert trouble("0,2,-1,1") == []


def test_a_card_named_twice_voids_the_list():
    assert shown("0,2,0") == "00000"
    assert trouble("0,2,0") == ["visibility-repeated-gpu"]


def test_a_machine_without_cards_has_no_wrong_entries():
    assert restrict([], "0") == ((), ())


def test_a_card_that_waits_for_its_slices_stays_hidden():
    ((gpu,), _) = restrict([Gpu(0, "a", (8, 0), visible=False)], "0")
    assert not gpu.visible
