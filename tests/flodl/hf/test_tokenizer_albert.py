"""ALBERT's SentencePiece files give the ids of the reference on thousands of strings."""

from __future__ import annotations

import importlib
import random
import sys
import unicodedata

import pytest

from flodl.hf.tokenizer import PreTrainedTokenizerFast
from tests.flodl.hf.batches import encoded
from tests.flodl.hf.tokenizer_material import (
    ALBERT_FIRST,
    LINES,
    Pieces,
    charsmap,
    rows_of,
    unigram_pieces,
    write_unigram,
)
from tests.later import transformers

COUNT = 5_000
# Where SentencePiece's rule nmt_nfkc_cf does something: Latin, Greek, Cyrillic, Armenian, forms of
# compatibility, and the white space and control characters of its part "nmt".
FOLDED = (
    *range(0x41, 0x250),
    *range(0x370, 0x590),
    *range(0x1E00, 0x2000),
    *range(0x2100, 0x2150),
    *range(0x2460, 0x2474),
    *range(0xFB00, 0xFB07),
    *range(0xFF01, 0xFFA0),
)
SPACES = "\t\n\r\u00a0\u1680\u2000\u2003\u2009\u200b\u2028\u3000\ufeff"
NOTHING = "\u0001\u0008\u000b\u007f\u008f\u009f\u200e\u00ad"
NUMBERED = [f"{mark}{digits}," for mark in ("", "▁") for digits in (*"0123456789", "10", "٣", "²")]


def nmt_nfkc_cf():
    """Rules as SentencePiece compiles them: NFKC with folded case, and its own for white space."""
    rules = dict.fromkeys(SPACES, " ") | dict.fromkeys(NOTHING, "")
    for number in FOLDED:
        character = chr(number)
        folded = unicodedata.normalize("NFKC", character).casefold()
        folded = unicodedata.normalize("NFKC", folded)
        if folded != character:
            rules.setdefault(character, folded)
        for mark in "\u0301\u0308\u030a":
            whole = unicodedata.normalize("NFKC", character + mark)
            if len(whole) == 1:
                rules[character + mark] = unicodedata.normalize("NFKC", whole.casefold())
    return charsmap(rules)


@pytest.fixture(scope="module")
def made():
    """A file with pieces of a digit and a comma, some of them likely."""
    pieces = unigram_pieces(ALBERT_FIRST)
    known = {text for text, _, _ in pieces}
    scores = random.Random(3)
    pieces += [(text, -scores.randint(2, 9), 1) for text in NUMBERED if text not in known]
    return Pieces(pieces, unk_id=1, rules=nmt_nfkc_cf())


def strings(seed=11):
    """Lines of many languages, numbers with commas, and characters of all kinds, mixed."""
    chance = random.Random(seed)
    alphabets = (
        "0123456789,. ",
        "01,,  $€%()",
        "abcdefgh ABCDEFGH",
        "äöüßÄÖÜẞéÉñÑçÇİıŁłŠš",
        "αβγΑΒΓςΣΩάΈ",
        "дЖяЁёЙйіЇ",
        "ﬁﬂ①②㎏ℌ™ｶＦｕｌ１２，",
        SPACES + NOTHING + "ab1,",
        "e\u0301A\u030au\u0308, ",
        "中文日本語かなカナ한국어עבריתعربي",
        "▁▁ ab(1,[MASK]``''\"",
    )
    found = []
    while len(found) < COUNT:
        parts = []
        for _ in range(chance.randint(1, 4)):
            if chance.random() < 0.4:
                line = chance.choice(LINES)
                start = chance.randrange(len(line))
                parts.append(line[start : start + chance.randint(1, 30)])
            elif chance.random() < 0.3:
                parts.append(f"{chance.randint(0, 99_999_999):,}")
            elif chance.random() < 0.1:
                numbers = (chance.randrange(1, sys.maxunicode) for _ in range(8))
                parts.append("".join(chr(n) for n in numbers if not 0xD800 <= n < 0xE000))
            else:
                letters = chance.choice(alphabets)
                parts.append("".join(chance.choices(letters, k=chance.randint(1, 15))))
        found.append(chance.choice(("", " ", ", ")).join(parts))
    return found


@pytest.mark.case("hf", 35)
@pytest.mark.parametrize("cased", [False, True])
def test_five_thousand_strings_have_the_ids_of_the_reference(tmp_path, monkeypatch, made, cased):
    settings = {"do_lower_case": not cased, "keep_accents": cased}
    directory = write_unigram(tmp_path / "albert", "spiece.model", made, settings)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    # The reference asks for the package sentencepiece, and then reads the file without it.
    # transformers has a module and a function of this name, and shows the one or the other.
    reading = importlib.import_module("transformers.convert_slow_tokenizer")
    monkeypatch.setattr(reading, "requires_backends", lambda *_: None)
    reference = transformers.AlbertTokenizer.from_pretrained(directory)
    assert reference.convert_tokens_to_ids("0,") == tokenizer.inner.token_to_id("0,") > 0
    lines = strings()
    ours, theirs = rows_of(encoded(tokenizer, lines)), reference(lines)["input_ids"]
    differing = [
        (line, tokenizer.inner.encode(line).tokens, reference.tokenize(line))
        for line, mine, other in zip(lines, ours, theirs, strict=True)
        if mine != other
    ]
    assert not differing, f"{len(differing)} of {len(lines)}, among them {differing[:3]}"
    used = {number for row in ours for number in row}
    assert len({text for text in NUMBERED if tokenizer.inner.token_to_id(text) in used}) > 15
