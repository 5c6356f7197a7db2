"""Multilingual lines, and tiny vocabularies of every kind trained on them, file by file."""

from __future__ import annotations

import functools
import json
import random
import struct
from dataclasses import dataclass, field

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

SENTENCES = (
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "In 2024, 1,234 people paid $5.60 (or 7%) for ``nothing''.",
    "Der Fuchs läuft über die große Straße; Äpfel kosten 3,50 €.",
    "Le garçon naïf a mangé une crème brûlée à l'Hôtel-Dieu.",
    "El niño comió una piña en la montaña, ¿verdad?",
    "São Paulo não é a capital do país, mas é enorme.",
    "Zażółć gęślą jaźń, a potem idź do domu.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "İstanbul'da ışık çok güzel, değil mi? IĞDIR",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Щастя здоров'я бажаю всім вам, її їжак.",
    "Η γρήγορη αλεπού πηδάει πάνω από τον τεμπέλη σκύλο. ΟΔΟΣ",
    "السلام عليكم، كيف حالكَ اليوم؟ ١٢٣",
    "שלום עולם, מה שלומך הַיּוֹם?",
    "नमस्ते दुनिया, आप कैसे हैं? क़लम",
    "สวัสดีชาวโลก วันนี้อากาศดีมาก",
    "Xin chào thế giới, hôm nay trời đẹp quá.",
    "今天天气很好，我们去公园吧。",
    "日本語のテキストです。カタカナ ｶﾀｶﾅ ガギグ",
    "한국어 문장입니다. 안녕하세요 세계!",
    "Ｆｕｌｌ　ｗｉｄｔｈ １２３ ﬁne ①② ½ ㎏ ℌ™",
    "emoji 😀👍🏽 family 👨‍👩‍👧 and flags 🇫🇷",
    "e\u0301 versus é, A\u030a versus Å, n\u0303",
    "tabs\tand\u00a0hard\u2009spaces\u200band\u00adsoft  double   triple",
    "snake_case camelCase http://example.org/a?b=c#d user@host.net",
    "▁ already there ▁▁ twice, [brackets] <angles> ##pieces",
)
PUNCTUATION = (" ", "  ", ", ", " - ", "... ", "\t", "\n", "")


def multilingual_lines(count=500, seed=7):
    """Lines that mix the languages, cut anywhere, some of them very short."""
    chance = random.Random(seed)
    lines = list(SENTENCES)
    while len(lines) < count:
        parts = []
        for _ in range(chance.randint(1, 3)):
            sentence = chance.choice(SENTENCES)
            start = chance.randrange(len(sentence))
            parts.append(sentence[start : start + chance.randint(1, 40)])
        lines.append(chance.choice(PUNCTUATION).join(parts))
    return lines


LINES = multilingual_lines()

FOLDED = {
    **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94)},
    "\u3000": " ",
    "\t": " ",
    "\n": " ",
    "\u00a0": " ",
    "\u2009": " ",
    "\u200b": " ",
    "\u00ad": "",
    "ﬁ": "fi",
    "①": "1",
    "②": "2",
    "½": "1⁄2",
    "㎏": "kg",
    "ℌ": "H",
    "™": "TM",
    "e\u0301": "é",
    "A\u030a": "Å",
    "ｶ": "カ",
}


def charsmap(rules):
    """Normalisation rules, compiled to a double-array trie as SentencePiece stores them."""
    values, positions = b"", {}
    for source, target in rules.items():
        positions[source.encode()] = len(values)
        values += target.encode() + b"\0"
    units = _double_array(positions)
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + values


def _double_array(values):
    """Units of the darts-clone layout: label in the low byte, offset from bit 10, leaf bit 8."""
    units, used, bases = [0] * 1024, {0}, set()

    def place(node, keys, depth):
        """Give the node its children; ``keys`` are those that go through it."""
        below = [key for key in keys if len(key) > depth]
        labels = sorted({key[depth] for key in below})
        is_key = len(below) < len(keys)
        labels = [0, *labels] if is_key else labels
        # A base of its own: else a key that is not there might find children of another node.
        base = next(
            b
            for b in range(max(bases, default=0) - 200 if len(bases) > 300 else 1, 1 << 20)
            if b not in bases and all(b ^ label not in used for label in labels)
        )
        bases.add(base)
        _grow(units, base | 0xFF)
        units[node] |= (node ^ base) << 10 | (1 << 8 if is_key else 0)
        used.update(base ^ label for label in labels)
        for label in labels:
            units[base ^ label] = values[keys[0][:depth]] | 1 << 31 if label == 0 else label
        for label in labels:
            if label:
                place(base ^ label, [key for key in below if key[depth] == label], depth + 1)

    place(0, list(values), 0)
    return units


def _grow(units, index):
    units.extend([0] * (index + 256 - len(units)))


@dataclass
class Pieces:
    """What a SentencePiece file holds, to be written."""

    pieces: list  # of (text, score, kind)
    unk_id: int = 0
    rules: bytes = b""
    algorithm: int = 1
    extra: bytes = field(default=b"")

    def to_bytes(self):
        trainer = _varint_field(3, self.algorithm) + _varint_field(40, self.unk_id)
        normalizer = _bytes_field(1, b"test") + _bytes_field(2, self.rules)
        return (
            b"".join(_bytes_field(1, self._piece(*piece)) for piece in self.pieces)
            + _bytes_field(2, trainer)
            + _bytes_field(3, normalizer)
            + self.extra
        )

    def _piece(self, text, score, kind):
        data = _bytes_field(1, text.encode()) + b"\x15" + struct.pack("<f", score)
        return data if kind == 1 else data + _varint_field(3, kind)


def _varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _varint_field(number, value):
    return _varint(number << 3) + _varint(value)


def _bytes_field(number, value):
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def unigram_pieces(first, size=400):
    """Pieces trained on the lines, after some reserved ones ``(text, kind)``."""
    return list(_trained_pieces(tuple(first), size))


@functools.cache
def _trained_pieces(first, size):
    trained = Tokenizer(models.Unigram())
    trained.normalizer = normalizers.NFKC()
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=size, show_progress=False, unk_token="<unk>")
    trained.train_from_iterator(LINES, trainer)
    reserved = [text for text, _ in first]
    vocab = json.loads(trained.to_str())["model"]["vocab"]
    learnt = [
        (text, _as_float32(score), 1) for text, score in vocab if text not in {*reserved, "<unk>"}
    ]
    return [(text, 0.0, kind) for text, kind in first] + learnt


def _as_float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


ALBERT_FIRST = (("<pad>", 3), ("<unk>", 2), ("[CLS]", 3), ("[SEP]", 3), ("[MASK]", 3), ("(", 4))
XLM_FIRST = (("<unk>", 2), ("<s>", 3), ("</s>", 3))
DEBERTA_FIRST = (("[PAD]", 3), ("[CLS]", 3), ("[SEP]", 3), ("[UNK]", 2))


def albert_file():
    pieces = unigram_pieces(ALBERT_FIRST)
    known = {text for text, _, _ in pieces}
    pieces += [(text, -1.5, 1) for text in ("4,", "▁1,", "3,") if text not in known]
    return Pieces(pieces, unk_id=1, rules=charsmap(FOLDED))


def xlm_roberta_file():
    return Pieces(unigram_pieces(XLM_FIRST), unk_id=0, rules=charsmap(FOLDED))


def deberta_file():
    return Pieces(unigram_pieces(DEBERTA_FIRST), unk_id=3, rules=charsmap(FOLDED))


@functools.cache
def word_piece_lines(*, lowercase=True, strip_accents=None, chinese=True):
    """The lines of a ``vocab.txt``."""
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=chinese
    )
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=600,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        show_progress=False,
    )
    trained.train_from_iterator(LINES, trainer)
    return tuple(sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__))


@functools.cache
def byte_pair_files():
    """``vocab.json`` and ``merges.txt``."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(LINES, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = "".join(f"{a} {b}\n" for a, b in model["merges"])
    return json.dumps(model["vocab"], ensure_ascii=False), "#version: 0.2\n" + merges


def write_bert(directory, settings=None, **casing):
    """A directory with a ``vocab.txt`` and, if there are settings, ``tokenizer_config.json``."""
    lines = word_piece_lines(**casing)
    return _written(directory, settings, {"vocab.txt": "\n".join(lines) + "\n"})


def write_roberta(directory, settings=None):
    """A directory with ``vocab.json`` and ``merges.txt``."""
    vocab, merges = byte_pair_files()
    return _written(directory, settings, {"vocab.json": vocab, "merges.txt": merges})


def write_unigram(directory, name, made, settings=None):
    """A directory with a SentencePiece file of some name."""
    _written(directory, settings, {})
    (directory / name).write_bytes(made.to_bytes())
    return directory


def _written(directory, settings, files):
    directory.mkdir(exist_ok=True)
    if settings is not None:
        files = {**files, "tokenizer_config.json": json.dumps(settings)}
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8", newline="")
    return directory


def rows_of(batch):
    """The ids of every row, without the padding."""
    return [
        ids[mask != 0].tolist()
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    ]
