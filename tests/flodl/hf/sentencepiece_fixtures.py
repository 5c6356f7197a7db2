"""Make the SentencePiece BPE models that the tests read, and what SentencePiece says of texts.

Needs the package ``sentencepiece``, which the tests do not need::

    pip install sentencepiece
    python -m tests.flodl.hf.sentencepiece_fixtures

For each model it writes ``bpe/NAME.model.xz`` and ``bpe/NAME.crc``: a checksum of the ids of each
of the 5,000 texts of ``random_strings``, in order.
"""

from __future__ import annotations

import lzma
import struct
import tempfile
import zlib
from pathlib import Path

from tests.flodl.hf.random_strings import random_strings
from tests.flodl.hf.tokenizer_material import LINES

FOLDER = Path(__file__).parent / "bpe"
COUNT, SEED = 5_000, 24
RULES = {"ﬁ": "fi", "ﬂ": "fl", "①": "1", "½": "1/2", "\t": " ", "\n": " ", "\u3000": " ", "™": "TM"}
MODELS = {
    "bytes": {"byte_fallback": True, "normalization_rule_name": "identity", "vocab_size": 700},
    "rules": {"vocab_size": 500, "normalization_rule_tsv": "RULES", "character_coverage": 0.98},
    "spaces": {
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "vocab_size": 700,
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "split_by_whitespace": False,
    },
    "plain": {
        "vocab_size": 450,
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "character_coverage": 0.98,
    },
    "nmt": {"vocab_size": 600},
}


def checksum(ids: list[int]) -> int:
    """The checksum of the ids of a text."""
    return zlib.crc32(struct.pack(f"<{len(ids)}I", *ids))


def model(name: str) -> bytes:
    """The bytes of a model file."""
    return lzma.decompress((FOLDER / f"{name}.model.xz").read_bytes())


def expected(name: str) -> list[int]:
    """What SentencePiece says of the texts: a checksum for each."""
    return list(struct.unpack(f"<{COUNT}I", (FOLDER / f"{name}.crc").read_bytes()))


def texts() -> list[str]:
    """The texts that the checksums are of."""
    return random_strings(COUNT, SEED)


def main() -> None:
    """Train the models and write the files."""
    import sentencepiece

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder, "rules.tsv")
        rules.write_text("".join(f"{_hex(a)}\t{_hex(b)}\n" for a, b in RULES.items()))
        for name, options in MODELS.items():
            told = {k: str(rules) if v == "RULES" else v for k, v in options.items()}
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(LINES),
                model_prefix=str(Path(folder, name)),
                model_type="bpe",
                minloglevel=2,
                hard_vocab_limit=False,
                **told,
            )
            data = Path(folder, f"{name}.model").read_bytes()
            (FOLDER / f"{name}.model.xz").write_bytes(lzma.compress(data))
            processor = sentencepiece.SentencePieceProcessor(model_proto=data)
            sums = [checksum(processor.encode(text)) for text in texts()]
            (FOLDER / f"{name}.crc").write_bytes(struct.pack(f"<{COUNT}I", *sums))


def _hex(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)


if __name__ == "__main__":
    main()
