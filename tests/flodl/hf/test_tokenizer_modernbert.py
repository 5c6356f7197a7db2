"""A tokenizer with the parts of ModernBERT's: byte pairs, BERT's special tokens, runs of spaces."""

from __future__ import annotations

import json

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from flodl.hf import AutoTokenizer
from tests.flodl.hf.config_samples import SMALLEST
from tests.flodl.hf.tokenizer_material import LINES
from tests.later import transformers

SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
TEXTS = [*LINES[:150], "", "a [MASK]  b", "x   y\n\n    z", "|||IP_ADDRESS||| here", "[CLS] typed"]


def write(directory):
    """Write the files that a checkpoint of ModernBERT has beside its weights."""
    inner = Tokenizer(models.BPE())
    inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.train_from_iterator(
        LINES,
        trainers.BpeTrainer(
            vocab_size=500,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    spaces = [AddedToken(" " * count, normalized=True) for count in range(4, 1, -1)]
    inner.add_tokens([AddedToken("|||IP_ADDRESS|||", normalized=True), *spaces])
    inner.add_special_tokens([AddedToken(one, lstrip=one == "[MASK]") for one in SPECIAL])
    ids = {token: inner.token_to_id(token) for token in SPECIAL}
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    inner.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": True,
        **{f"{token[1:-1].lower()}_token": token for token in SPECIAL},
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(
        json.dumps({**SMALLEST["modernbert"], "vocab_size": 600})
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    path = tmp_path_factory.mktemp("modernbert")
    write(path)
    return AutoTokenizer.from_pretrained(path), transformers.AutoTokenizer.from_pretrained(path)


def test_texts_and_pairs_get_the_ids_of_the_reference(both):
    ours, theirs = both
    options = {
        "padding": True,
        "truncation": True,
        "max_length": 40,
        "return_offsets_mapping": True,
    }
    for given in ((TEXTS,), (TEXTS, TEXTS[::-1])):
        mine, expected = ours(*given, **options), theirs(*given, **options)
        assert dict(mine) == dict(expected)
        assert list(mine) == ["input_ids", "attention_mask", "offset_mapping"]


def test_ids_become_the_texts_of_the_reference(both):
    ours, theirs = both
    rows = theirs(TEXTS)["input_ids"]
    for skip in (True, False):
        expected = theirs.batch_decode(rows, skip_special_tokens=skip)
        assert ours.batch_decode(rows, skip_special_tokens=skip) == expected
    assert ours.mask_token_id == theirs.mask_token_id
    assert ours.pad_token_id == theirs.pad_token_id
