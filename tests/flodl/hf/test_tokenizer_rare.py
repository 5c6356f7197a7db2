"""Tokenizers with rare settings, and calls that few people make."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from flodl.hf.batch_encoding import BatchEncoding
from flodl.hf.collators import DataCollatorForLanguageModeling
from flodl.hf.errors import CheckpointFormatError
from flodl.hf.predict.fill_mask import mask_id_of
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from tests.flodl.hf.test_tokenizer import words_tokenizer
from tests.flodl.hf.tokenizer_material import write_bert
from tests.rows import each_row


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_inner(words_tokenizer())


def bare(words: tuple[str, ...] = ("a", "b", "?")) -> PreTrainedTokenizerFast:
    """A tokenizer without special tokens."""
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast.from_inner(inner)


@each_row(
    ("settings", "says"),
    [
        ({"pad_token_type_id": "1"}, "pad_token_type_id must be a number, not '1'"),
        ({"pad_token_type_id": True}, "pad_token_type_id must be a number, not True"),
        ({"padding_side": "middle"}, "padding_side must be 'right' or 'left', not 'middle'"),
        ({"truncation_side": 1}, "truncation_side must be 'right' or 'left', not 1"),
        ({"model_input_names": "input_ids"}, "model_input_names must list names"),
        ({"model_input_names": ["attention_mask"]}, "model_input_names must list names"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_named(
    tmp_path: Path, settings: dict[str, object], says: str
) -> None:
    write_bert(tmp_path, settings)
    with pytest.raises(CheckpointFormatError, match=says) as raised:
        PreTrainedTokenizerFast.from_pretrained(tmp_path)("a")
    assert "tokenizer_config.json" in str(raised.value)


def test_the_type_of_padding_is_that_of_the_settings(tmp_path: Path) -> None:
    write_bert(tmp_path, {"pad_token_type_id": 1, "model_input_names": ["input_ids"]})
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    batch = tokenizer(["the", "the dog"], padding=True, return_token_type_ids=True)
    short, long = batch["token_type_ids"]
    assert len(short) == len(long)
    assert (short[-1], long[-1]) == (1, 0)


def test_two_files_that_disagree_about_a_token(tmp_path: Path) -> None:
    write_bert(tmp_path, {"mask_token": "[MASK]"})
    (tmp_path / "special_tokens_map.json").write_text('{"mask_token": "[PAD]"}', encoding="utf-8")
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path).mask_token == "[MASK]"


@each_row("spaced", [True, False])
def test_a_space_before_the_first_word_without_the_frame_of_roberta(
    tmp_path: Path, spaced: bool
) -> None:
    inner = Tokenizer(models.BPE({"Ġ": 0, "a": 1, "Ġa": 2}, [("Ġ", "a")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=not spaced)
    inner.decoder = decoders.ByteLevel()
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": spaced}))
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path)("a")["input_ids"] == [
        2 if spaced else 1
    ]


def test_the_pad_token_that_is_named_later_is_saved_with_the_padding(tmp_path: Path) -> None:
    inner = words_tokenizer()
    inner.enable_padding(pad_id=1, pad_token="[UNK]")
    tokenizer = PreTrainedTokenizerFast.from_inner(inner)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save(tmp_path / "tokenizer.json")
    padding = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["padding"]
    assert (padding["pad_id"], padding["pad_token"]) == (0, "[PAD]")
    assert tokenizer(["a", "a bc"], padding=True)["input_ids"][0][-1] == 0


def test_ids_of_every_form_are_decoded(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer("a bc")["input_ids"]
    forms = [ids, tuple(ids), torch.tensor(ids), np.array(ids), {"input_ids": ids}]
    forms.append([np.int64(number) for number in ids])
    assert {tokenizer.decode(form, skip_special_tokens=True) for form in forms} == {
        tokenizer.decode(ids, skip_special_tokens=True)
    }


def test_rows_that_are_tensors_become_one_tensor() -> None:
    rows = [torch.tensor([1, 2]), torch.tensor([3, 4])]
    made = BatchEncoding({"rows": rows, "whole": torch.ones(2, 1)}, tensor_type="pt")
    assert made["rows"].tolist() == [[1, 2], [3, 4]]
    assert made["whole"].tolist() == [[1.0], [1.0]]
    with pytest.raises(ValueError, match="ragged cannot become a tensor"):
        BatchEncoding({"ragged": [[1], [2, 3]]}, tensor_type="pt")


@each_row(
    ("call", "kind", "says"),
    [
        (lambda t: t.encode("a", device="cpu"), TypeError, "takes no argument 'device'"),
        (lambda t: t.encode(["a"]), TypeError, r"takes one text: for many, call tokenizer\(texts"),
        (lambda t: t.pad([]), ValueError, r"pad\(\) needs a mapping of values"),
        (lambda t: t.pad([3]), ValueError, r"pad\(\) needs a mapping of values"),
        (
            lambda t: t.pad([{"input_ids": [2, 3], "label": 1}, {"input_ids": [2]}]),
            ValueError,
            "a row has no 'label', and the first row has it",
        ),
        (
            lambda t: t("a bc", truncation=True, max_length=1),
            ValueError,
            "max_length 1 is less than the 2 special tokens",
        ),
        (
            lambda t: t("a bc c", truncation=True, max_length=4, stride=2),
            ValueError,
            "a stride of 2 is not smaller than the 2 tokens of text",
        ),
        (
            lambda t: t.get_special_tokens_mask([5], already_has_special_tokens=False),
            ValueError,
            "return_special_tokens_mask=True",
        ),
    ],
)
def test_a_call_that_cannot_be_answered_says_why(
    tokenizer: PreTrainedTokenizerFast, call: object, kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        call(tokenizer)  # type: ignore[operator]


def test_without_special_tokens_padding_and_masking_say_what_is_missing() -> None:
    tokenizer = bare()
    with pytest.raises(ValueError, match="padding needs a pad token, and the tokenizer has none"):
        tokenizer.pad([{"input_ids": [0]}, {"input_ids": [1, 1]}])
    with pytest.raises(ValueError, match="the tokenizer has no mask token to hide tokens with"):
        DataCollatorForLanguageModeling(tokenizer)
    with pytest.raises(ValueError, match="its vocabulary has neither "):
        mask_id_of(tokenizer)
    assert mask_id_of(bare(("a", "?", "<mask>"))) == 2


@pytest.mark.parametrize("probability", [-0.1, 1.5])
def test_a_collator_refuses_what_is_no_probability(
    tokenizer: PreTrainedTokenizerFast, probability: float
) -> None:
    with pytest.raises(ValueError, match=rf"mlm_probability must be 0 … 1, got {probability}"):
        DataCollatorForLanguageModeling(tokenizer, mlm_probability=probability)


def test_a_collator_refuses_shares_of_more_than_all(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match="are more than 1 together"):
        DataCollatorForLanguageModeling(tokenizer, mask_replace_prob=0.9, random_replace_prob=0.2)
