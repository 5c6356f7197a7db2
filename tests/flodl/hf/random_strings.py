"""Random texts of many scripts to compare tokenizers on, the same in every run of a seed."""

from __future__ import annotations

import random
import sys

from tests.flodl.hf.tokenizer_material import SENTENCES

SPACES = "\t\n\r\x0b\x0c\x1c\x85\u00a0\u1680\u2000\u2003\u2009\u200b\u2028\u2029\u202f\u3000\ufeff"
CONTROLS = "\x00\x01\x08\x1b\x7f\x80\x9f\u00ad\u200c\u200d\u200e\u202e\u2066\ufff9\ufffd\U000e0041"
MARKS = "\u0301\u0308\u030a\u0327\u0338\u05b7\u064b\u093c\u0e35\u3099\u20e3\ufe0f"
EMOJI = "😀👍🏽👨\u200d👩\u200d👧🇫🇷🇯🇵❤\ufe0f1\ufe0f\u20e3🏴\U000e0067\U000e0062\U000e007f☕✈"
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "abcXYZ ABC xyz ",
    "0123456789.,:%$€+-",
    "äöüßÄÖÜẞéÉñÑçÇİıŁłŠšøÅæŒ",
    "αβγδΑΒΓΔςσΣΩάΈ",
    "абвгдежЖяЁёЙйіЇЪ",
    "אבגדהװﬡשׁ",
    "ابتثجحخدكيىةﷲ١٢٣",
    "अआइकखगघनमयर्ािी",
    "กขคงจฉชาิีเแไ",
    "ਅਆਕ ఆకఖ ஆகஙசஞ ಅಆಕ",
    "ሀለሐመሠረሰ ႠႡაბგ ԱԲԳաբգ",
    "中文日本語漢字龍𠮷㐀",
    "かなカナｶﾅガがゔヷー",
    "한국어가나다각갃각",
    "ﬁﬂ①②½㎏ℌ™ＡＢ１２，",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "``''‘’“”«»„…–—¿¡§",
    "▁▁ ab▁",
    "##a ## b##",
)
NAMES = ("[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "<mask>", "<s>", "</s>", "<pad>", "<unk>")


def random_strings(count: int, seed: int) -> list[str]:
    """Texts of 0 to some hundred characters, each from one to five parts of different kinds."""
    chance = random.Random(seed)
    makers = (_of_a_sentence, _of_an_alphabet, _of_an_alphabet, _rare, _number, _repeated)
    texts = ["", " ", "a"]
    while len(texts) < count:
        parts = [chance.choice(makers)(chance) for _ in range(chance.randint(1, 5))]
        if chance.random() < 0.08:
            parts.insert(chance.randrange(len(parts) + 1), chance.choice(NAMES))
        texts.append(chance.choice(("", " ", " ", "  ", ", ", "\n")).join(parts))
        if chance.random() < 0.01:
            texts.append(chance.choice("aäж中") * chance.randint(90, 400))
    return texts[:count]


def _of_a_sentence(chance: random.Random) -> str:
    sentence = chance.choice(SENTENCES)
    start = chance.randrange(len(sentence))
    return sentence[start : start + chance.randint(1, 30)]


def _of_an_alphabet(chance: random.Random) -> str:
    return "".join(chance.choices(chance.choice(ALPHABETS), k=chance.randint(1, 14)))


def _rare(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.4:
        return "".join(chance.choices(EMOJI, k=chance.randint(1, 6)))
    if kind < 0.6:
        return "".join(chance.choices("ab " + SPACES + CONTROLS, k=chance.randint(1, 8)))
    if kind < 0.8:
        return "".join(c + chance.choice(MARKS) for c in chance.choices("aeouнक中ก", k=3))
    numbers = (chance.randrange(1, sys.maxunicode) for _ in range(5))
    return "".join(chr(number) for number in numbers if not 0xD800 <= number < 0xE000)


def _number(chance: random.Random) -> str:
    return f"{chance.randint(0, 9_999_999):,}"


def _repeated(chance: random.Random) -> str:
    return chance.choice(("a", "the", "-", " ", "é", "日", "👍", "▁", "#", "x y")) * chance.randint(
        2, 9
    )
