"""Calling a tokenizer gives what transformers' fast tokenizers give for the same arguments."""

from __future__ import annotations

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

from flodl.hf import AutoTokenizer
from flodl.hf.batch_encoding import BatchEncoding
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from tests.flodl.hf.test_tokenizer import tiny, words_tokenizer
from tests.flodl.hf.test_tokenizer_sources import saved_by_the_reference
from tests.flodl.hf.tokenizer_material import LINES, write_bert
from tests.later import transformers
from tests.rows import each_row

KINDS = ("bert", "distilbert", "roberta", "albert", "xlm", "deberta")
TEXTS = [LINES[0], "", LINES[3], "short", LINES[-1], LINES[21]]
PAIRS = [(LINES[1], LINES[2]), ("a", LINES[4]), (LINES[5], "")]
WORDS = [["New", "York", "isn't", "here"], ["one"], ["x", "👍", "größe"]]
FULL = {
    "return_special_tokens_mask": True,
    "return_offsets_mapping": True,
    "return_length": True,
    "return_token_type_ids": True,
}
OPTIONS = [
    {},
    {"padding": True, **FULL},
    {"padding": "longest", "return_tensors": "pt"},
    {"padding": "max_length", "max_length": 40, "truncation": True, "return_tensors": "np"},
    {"padding": "max_length", "truncation": True, "return_tensors": "pt", **FULL},
    {"truncation": True, "max_length": 9},
    {"max_length": 9},
    {"truncation": "only_first", "max_length": 12, "padding": True, "padding_side": "left"},
    {"padding": True, "pad_to_multiple_of": 8, "return_tensors": "pt"},
    {"truncation": "do_not_truncate", "padding": "do_not_pad", "add_special_tokens": False},
    {
        "truncation": True,
        "max_length": 12,
        "stride": 3,
        "return_overflowing_tokens": True,
        "padding": True,
        "return_tensors": "pt",
        **FULL,
    },
    {"return_attention_mask": False, "return_token_type_ids": False},
]


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    """Our tokenizer and the reference's, read from the same directory."""
    kind = request.param
    directory = tmp_path_factory.mktemp(kind)
    _, saved = saved_by_the_reference(directory / "t", "bert" if kind == "distilbert" else kind)
    settings = json.loads((saved / "tokenizer_config.json").read_text())
    if kind == "distilbert":
        settings["tokenizer_class"] = "DistilBertTokenizer"
    settings["model_max_length"] = 48
    (saved / "tokenizer_config.json").write_text(json.dumps(settings))
    return PreTrainedTokenizerFast.from_pretrained(
        saved
    ), transformers.AutoTokenizer.from_pretrained(saved)


def plain(batch):
    """Names, types and values of a batch."""
    return {
        name: (str(getattr(value, "dtype", "")), np.asarray(value).tolist())
        if not isinstance(value, list)
        else value
        for name, value in batch.items()
    }


def assert_same(ours, theirs):
    assert list(ours) == list(theirs)
    assert plain(ours) == plain(theirs)
    assert len(ours.encodings) == len(theirs.encodings)
    for mine, other in zip(ours.encodings, theirs.encodings, strict=True):
        assert (mine.tokens, mine.word_ids, mine.offsets) == (
            other.tokens,
            other.word_ids,
            other.offsets,
        )


def outcome(tokenizer, *inputs, **options):
    """The batch, or the error."""
    try:
        return tokenizer(*inputs, **options)
    except Exception as error:
        return error


def assert_same_call(both, *inputs, **options):
    """Both give the same, or both refuse."""
    ours, theirs = both
    mine, other = outcome(ours, *inputs, **options), outcome(theirs, *inputs, **options)
    if isinstance(other, Exception):
        assert "too short" in str(other)
        assert isinstance(mine, ValueError)
        assert "cannot be cut to" in str(mine)
    else:
        assert_same(mine, other)


@pytest.mark.filterwarnings("ignore:a row has")
@each_row("options", OPTIONS, ids=lambda options: "-".join(options) or "none")
def test_a_call_gives_the_values_of_the_reference(both, options):
    assert_same_call(both, TEXTS, **options)
    assert_same_call(both, TEXTS[0], **options)
    assert_same_call(both, PAIRS, **options)
    assert_same_call(both, [a for a, _ in PAIRS], [b for _, b in PAIRS], **options)
    assert_same_call(both, "one", "two", **options)
    assert_same_call(both, "one", "", **options)
    assert_same_call(both, WORDS, is_split_into_words=True, **options)
    assert_same_call(both, WORDS[0], WORDS[1], is_split_into_words=True, **options)


def test_the_second_text_can_be_the_one_that_is_cut(both):
    ours, theirs = both
    for side in ("right", "left"):
        ours.truncation_side = theirs.truncation_side = side
        options = {"truncation": "only_second", "max_length": 30, "padding": True}
        windows = {"return_overflowing_tokens": True, "stride": 2}
        assert_same(ours([PAIRS[1]], **options), theirs([PAIRS[1]], **options))
        assert_same(
            ours([PAIRS[1]], **options, **windows), theirs([PAIRS[1]], **options, **windows)
        )


def test_the_vocabulary_answers_as_the_references(both):
    ours, theirs = both
    for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        assert getattr(ours, f"{name}_token") == getattr(theirs, f"{name}_token")
        assert getattr(ours, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert set(ours.all_special_ids) == set(theirs.all_special_ids)
    assert (len(ours), ours.vocab_size) == (len(theirs), theirs.vocab_size)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert list(ours.model_input_names) == theirs.model_input_names
    assert ours.model_max_length == theirs.model_max_length == 48
    assert ours.padding_side == theirs.padding_side == "right"
    assert ours.is_fast
    for pair in (False, True):
        assert ours.num_special_tokens_to_add(pair) == theirs.num_special_tokens_to_add(pair)
    ids = theirs(LINES[3])["input_ids"]
    assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
    assert ours.convert_ids_to_tokens(ids, skip_special_tokens=True) == theirs.tokenize(LINES[3])
    assert ours.convert_ids_to_tokens(5) == theirs.convert_ids_to_tokens(5)
    tokens = [*theirs.tokenize(LINES[3]), "never a token"]
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    assert ours.convert_tokens_to_string(tokens) == theirs.convert_tokens_to_string(tokens)
    assert ours.get_special_tokens_mask(ids) == theirs.get_special_tokens_mask(
        ids, already_has_special_tokens=True
    )
    assert ours.tokenize("a b", "c") == theirs.tokenize("a b", "c")
    assert ours.tokenize("a", add_special_tokens=True) == theirs.tokenize(
        "a", add_special_tokens=True
    )


def test_one_text_is_encoded_to_ids_and_back(both):
    ours, theirs = both
    line = "Hello, it's a text ! n't bad . ''"
    ids = ours.encode(line)
    assert ids == theirs.encode(line)
    assert ours.encode(line, "b", add_special_tokens=False) == theirs.encode(
        line, "b", add_special_tokens=False
    )
    assert ours.encode(line, return_tensors="pt").tolist() == [ids]
    words = line.split()
    assert ours.encode(words, is_split_into_words=True) == theirs.encode(
        words, is_split_into_words=True
    )
    for skip in (False, True):
        for clean in (None, False, True):
            options = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": clean}
            assert ours.decode(ids, **options) == theirs.decode(ids, **options)
            batch = [ids, ids[:3]]
            assert ours.batch_decode(batch, **options) == theirs.batch_decode(batch, **options)
    for given in (torch.tensor(ids), np.array(ids), ids[1], torch.tensor([ids]), [torch.tensor(7)]):
        assert ours.decode(given) == theirs.decode(given)


def test_places_of_a_row_are_found_as_the_reference_finds_them(both):
    ours, theirs = both
    options = {"padding": True, "truncation": True, "max_length": 20}
    mine, other = ours(PAIRS, **options), theirs(PAIRS, **options)
    assert mine.n_sequences == other.n_sequences == 2
    for row in range(len(PAIRS)):
        assert mine.tokens(row) == other.tokens(row)
        assert mine.word_ids(row) == other.word_ids(row)
        assert mine.sequence_ids(row) == other.sequence_ids(row)
        for token in range(len(mine.input_ids[row])):
            for method in ("token_to_chars", "token_to_word", "token_to_sequence"):
                assert getattr(mine, method)(row, token) == getattr(other, method)(row, token)
        for place in range(6):
            for method in ("char_to_token", "char_to_word"):
                for text in (0, 1):
                    found = getattr(mine, method)(row, place, text)
                    assert found == getattr(other, method)(row, place, text)
            span = other.word_to_tokens(row, place)
            assert mine.word_to_tokens(row, place) == span
            # The reference fails where there is no such word.
            chars = None if span is None else other.word_to_chars(row, place)
            assert mine.word_to_chars(row, place) == chars
    assert mine.char_to_token(2) == other.char_to_token(2)
    assert mine.token_to_word(-2) == mine.token_to_word(0, len(mine.input_ids[0]) - 2)


# The mapping


@pytest.fixture
def tokenizer():
    return PreTrainedTokenizerFast.from_inner(words_tokenizer())


def test_a_batch_is_a_mapping_with_attributes(tokenizer):
    batch = tokenizer(["a b", "c"], padding=True, return_tensors="pt")
    assert isinstance(batch, BatchEncoding)
    assert batch.keys() == {"input_ids", "attention_mask"}
    assert batch.input_ids is batch["input_ids"]
    assert dict(**batch)["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch[0].tokens == ["[CLS]", "a", "b", "[SEP]"]
    assert [row.tokens[1] for row in batch[:2]] == ["a", "c"]
    assert batch.is_fast
    with pytest.raises(AttributeError, match="this batch has no 'labels'"):
        _ = batch.labels
    batch["labels"] = torch.tensor([0, 1])
    assert batch.labels.tolist() == [0, 1]


def test_a_batch_moves_in_place_and_keeps_what_is_not_a_tensor(tokenizer):
    batch = tokenizer("a b", return_tensors="pt")
    batch["name"] = "x"
    assert batch.to("meta") is batch
    assert batch.input_ids.device.type == "meta"
    assert batch.name == "x"
    with pytest.raises(TypeError, match=r"to\(\) takes a device, not torch.float16"):
        batch.to(torch.float16)
    with pytest.raises(ValueError, match="nowhere"):
        batch.to("nowhere")


def test_a_batch_can_be_copied_and_sent_to_another_process(tokenizer):
    batch = tokenizer(["a b", "c"], padding=True, return_tensors="pt")
    for again in (copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert again.input_ids.tolist() == batch.input_ids.tolist()
        assert again.tokens(1) == batch.tokens(1)
    tokens = pickle.loads(pickle.dumps(tokenizer))
    assert tokens("a b").input_ids == tokenizer("a b").input_ids


def test_rows_of_unequal_lengths_do_not_become_a_tensor(tokenizer):
    for kind in ("pt", "np"):
        with pytest.raises(ValueError, match=r"input_ids cannot become a tensor.*padding=True"):
            tokenizer(["a b", "c"], return_tensors=kind)
    with pytest.raises(ValueError, match="return_tensors is 'pt', 'np' or None, not 'tf'"):
        tokenizer("a", return_tensors="tf")


def test_a_batch_without_texts_says_so(tokenizer):
    padded = tokenizer.pad({"input_ids": [[2, 5, 3], [2, 3]]})
    assert padded.encodings is None
    with pytest.raises(ValueError, match="not made from texts"):
        padded.tokens()
    with pytest.raises(KeyError, match="no rows"):
        padded[0]
    assert padded[:1] == {"input_ids": [[2, 5, 3]], "attention_mask": [[1, 1, 1]]}


# What cannot be done


@each_row(
    ("arguments", "options", "message"),
    [
        (([],), {}, "empty batch"),
        ((["a"], ["b", "c"]), {}, "text has 1 entries and text_pair 2"),
        (("a",), {"max_length": 0}, "max_length must be at least 1, got 0"),
        (("a",), {"max_length": 1}, "max_length 1 is less than the 2 special tokens"),
        (("a",), {"stride": -1}, "stride must not be negative, got -1"),
        (("a",), {"max_length": 5, "stride": 3}, "a stride of 3 is not smaller than the 3 tok"),
        (("a",), {"padding": "long"}, "padding is True, False, 'longest'"),
        (("a",), {"truncation": "long"}, "truncation is True, False, 'do_not_truncate'"),
        (("a",), {"padding_side": "top"}, "padding_side is 'right' or 'left', not 'top'"),
        (("a",), {"pad_to_multiple_of": 0}, "pad_to_multiple_of must be at least 1, got 0"),
        (
            ("a",),
            {"padding": True, "truncation": True, "max_length": 9, "pad_to_multiple_of": 8},
            r"max_length 9 is not a multiple of pad_to_multiple_of \(8\)",
        ),
        (
            ("a b c d", "a b c d"),
            {"truncation": "only_first", "max_length": 6},
            "cannot be cut to 6 tokens with truncation='only_first'",
        ),
        (
            ("a b c d",),
            {"truncation": "only_second", "max_length": 4},
            "cannot be cut to 4 tokens with truncation='only_second'",
        ),
        ((["a", "b \ud800"],), {}, "text 1 holds half of a surrogate pair at character 2"),
        (([["a", "\ud800"]],), {"is_split_into_words": True}, "text 0 holds half of a surr"),
    ],
)
def test_a_call_that_cannot_be_met_is_explained(tokenizer, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        tokenizer(*arguments, **options)


@each_row(
    ("arguments", "options", "message"),
    [
        ((3,), {}, "text is a int; pass a str"),
        (([3],), {}, "text holds a int; pass str"),
        (((["a"]), "b"), {}, "pass a second text for each"),
        ((["a", 3],), {}, "a text is a str, a pair is two of them"),
        ((None,), {"text_target": "b"}, "takes no argument 'text_target'"),
        (("a",), {"return_tensor": "pt"}, "takes no argument 'return_tensor'; it takes add_sp"),
    ],
)
def test_what_is_not_text_is_named(tokenizer, arguments, options, message):
    with pytest.raises(TypeError, match=message):
        tokenizer(*arguments, **options)


@each_row(
    ("name", "message"),
    [
        ("batch_encode_plus", r"call tokenizer\(texts, padding=True, return_tensors='pt'\)"),
        ("apply_chat_template", "encoders have no chats"),
        ("bos_tokens", "backend_tokenizer is the tokenizer of the package tokenizers"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_another(tokenizer, name, message):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': {message}"):
        getattr(tokenizer, name)


def test_a_row_that_is_too_long_for_the_model_is_warned_of(tokenizer):
    from flodl.hf.families import BertConfig

    bounded = tokenizer.for_config(tiny(BertConfig))
    assert bounded.model_max_length == 10
    with pytest.warns(UserWarning, match="a row has 12 tokens and the model takes 10; pass trunc"):
        batch = bounded("a b c d e f g h i j")
    assert len(batch.input_ids) == 12
    assert list(batch) == ["input_ids", "token_type_ids", "attention_mask"]
    assert len(bounded("a b c d e f g h i j", truncation=True).input_ids) == 10
    assert len(bounded("a b c d e f g h i j", verbose=False).input_ids) == 12
    assert len(bounded("a", padding="max_length").input_ids) == 10
    assert len(tokenizer("a", padding="max_length", truncation=True).input_ids) == 3
    with pytest.warns(UserWarning, match="max_length does nothing here"):
        tokenizer("a", padding=True, max_length=10)


def test_without_a_pad_token_the_way_to_name_one_is_told():
    tokenizer = PreTrainedTokenizerFast.from_inner(
        Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    )
    with pytest.raises(ValueError, match=r"tokenizer\.add_special_tokens\(\{'pad_token'"):
        tokenizer(["a"], padding=True)
    with pytest.raises(ValueError, match="padding needs a pad token"):
        tokenizer.pad([{"input_ids": [0]}, {"input_ids": [0, 1]}], padding=True)
    tokenizer.pad_token = "b"
    assert tokenizer(["a"], padding="max_length", max_length=3).input_ids == [[0, 1, 1]]


def test_a_call_leaves_the_tokenizer_as_it_is(tokenizer):
    before = tokenizer.inner.to_str()
    tokenizer(["a b c d", "e"], truncation=True, max_length=4, padding=True)
    assert tokenizer.inner.to_str() == before


def test_threads_do_not_see_each_others_options(tokenizer):
    options = [
        {"truncation": True, "max_length": length, "padding": True, "padding_side": side}
        for length in (3, 5, 8)
        for side in ("left", "right")
    ]
    expected = [tokenizer(LINES[:40], **one).input_ids for one in options]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            found = list(pool.map(lambda one: tokenizer(LINES[:40], **one).input_ids, options))
            assert found == expected


def test_added_tokens_with_gaps_between_their_ids_keep_them():
    told = json.loads(words_tokenizer().to_str())
    told["added_tokens"].append({**told["added_tokens"][0], "id": 90, "content": "<x>"})
    told["added_tokens"].append({**told["added_tokens"][0], "id": 70, "content": "<y>"})
    tokenizer = PreTrainedTokenizerFast.from_inner(Tokenizer.from_str(json.dumps(told)))
    expected = tokenizer.inner.encode("a <x> <y>").ids
    assert tokenizer("a <x> <y>").input_ids == expected
    assert tokenizer("a <x> <y>", truncation=True, max_length=9).input_ids == expected


# Adding tokens


def test_tokens_are_added_and_saved(tmp_path):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(write_bert(tmp_path / "bert", {}))
    assert tokenizer.add_tokens(["<ent>", "the"]) == 2  # known as a piece, and now never split
    assert tokenizer.add_tokens("<ent>") == 0
    assert tokenizer.add_special_tokens({"pad_token": "<fill>", "sep_token": "[SEP]"}) == 1
    assert tokenizer.add_special_tokens({"additional_special_tokens": ["<a>", "<b>"]}) == 2
    assert (tokenizer.pad_token, len(tokenizer), tokenizer.vocab_size) == ("<fill>", 604, 600)
    with pytest.raises(ValueError, match="there is no special token 'pad'; there are bos_token"):
        tokenizer.add_special_tokens({"pad": "x"})
    assert {"<a>", "<b>", "<fill>"} < set(tokenizer.all_special_tokens)
    files = tokenizer.save_pretrained(tmp_path / "out")
    assert str(tmp_path / "out" / "tokenizer.json") in files
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    texts = ["the <ent>x<a>", "y"]
    expected = tokenizer(texts, padding=True)["input_ids"]
    assert again(texts, padding=True)["input_ids"] == expected
    assert theirs(texts, padding=True)["input_ids"] == expected
    assert expected[1][-1] == tokenizer.pad_id == 601


# AutoTokenizer


def test_auto_tokenizer_takes_the_settings_of_a_call(tmp_path):
    directory = write_bert(tmp_path / "bert", {"padding_side": "left"})
    assert AutoTokenizer.from_pretrained(directory).padding_side == "left"
    tokenizer = AutoTokenizer.from_pretrained(
        directory,
        use_fast=False,
        trust_remote_code=False,
        model_max_length=4,
        padding_side="right",
        truncation_side="left",
    )
    batch = tokenizer(["a b c d e", "f"], truncation=True, padding="max_length")
    assert tokenizer.batch_decode(batch.input_ids) == [
        "[CLS] d e [SEP]",
        "[CLS] f [SEP] [PAD]",
    ]
    with pytest.raises(TypeError, match=r"no argument 'lower'.* its settings are do_lower_case"):
        AutoTokenizer.from_pretrained(directory, lower=False)
    with pytest.raises(TypeError, match="do_lower_case must be True or False, not 'no'"):
        AutoTokenizer.from_pretrained(directory, do_lower_case="no")
    with pytest.raises(ValueError, match=r"add_prefix_space has no effect on .*vocab\.txt; it tak"):
        AutoTokenizer.from_pretrained(directory, add_prefix_space=True)
    with pytest.raises(TypeError, match="flodl never runs code of a checkpoint"):
        AutoTokenizer.from_pretrained(directory, trust_remote_code=True)
    with pytest.raises(ValueError, match="padding_side is 'right' or 'left'"):
        AutoTokenizer.from_pretrained(directory, padding_side="up")
    with pytest.raises(TypeError, match=r"use AutoTokenizer\.from_pretrained"):
        AutoTokenizer()


# Settings that say otherwise than tokenizer.json

CHANGES = [
    ("bert", {"do_lower_case": False}),
    ("bert", {"strip_accents": False, "tokenize_chinese_chars": False}),
    ("bert", {"do_lower_case": False, "strip_accents": True}),
    ("roberta", {"add_prefix_space": True}),
]


@pytest.mark.parametrize(("kind", "changes"), CHANGES, ids=str)
def test_settings_beside_the_file_count_as_in_the_reference(tmp_path, kind, changes):
    _, directory = saved_by_the_reference(tmp_path / kind, kind)
    before = PreTrainedTokenizerFast.from_pretrained(directory)(LINES).input_ids
    asked = AutoTokenizer.from_pretrained(directory, **changes)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**settings, **changes}))
    written = (directory / "tokenizer.json").read_bytes()
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    expected = theirs(LINES, return_offsets_mapping=True)
    ours = PreTrainedTokenizerFast.from_pretrained(directory)
    assert expected["input_ids"] != before
    for tokenizer in (ours, asked):
        batch = tokenizer(LINES, return_offsets_mapping=True)
        assert batch.input_ids == expected["input_ids"]
        assert batch.offset_mapping == expected["offset_mapping"]
    # Together with the settings the file stays as it was; alone it must hold them.
    ours.save(tmp_path / "both")
    assert (tmp_path / "both" / "tokenizer.json").read_bytes() == written
    assert (
        PreTrainedTokenizerFast.from_pretrained(tmp_path / "both")(LINES).input_ids
        == batch.input_ids
    )
    ours.save(tmp_path / "alone.json")
    assert (
        PreTrainedTokenizerFast.from_file(tmp_path / "alone.json")(LINES).input_ids
        == batch.input_ids
    )


def test_a_file_that_settles_everything_ignores_the_settings(tmp_path):
    _, directory = saved_by_the_reference(tmp_path / "bert", "bert")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}
    before = PreTrainedTokenizerFast.from_pretrained(directory)(LINES).input_ids
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    assert PreTrainedTokenizerFast.from_pretrained(directory)(LINES).input_ids == before
    assert theirs(LINES)["input_ids"] == before
    with pytest.raises(ValueError, match=r"do_lower_case has no effect .*that file settles every"):
        AutoTokenizer.from_pretrained(directory, do_lower_case=True)


def test_settings_of_a_sentencepiece_file_are_taken_as_arguments(tmp_path):
    from tests.flodl.hf.tokenizer_material import albert_file, write_unigram

    made, settings = albert_file(), {"keep_accents": True, "do_lower_case": False}
    plain = write_unigram(tmp_path / "plain", "spiece.model", made)
    told = write_unigram(tmp_path / "told", "spiece.model", made, settings)
    asked = AutoTokenizer.from_pretrained(plain, **settings)
    expected = PreTrainedTokenizerFast.from_pretrained(told)(LINES).input_ids
    assert (
        asked(LINES).input_ids == expected != AutoTokenizer.from_pretrained(plain)(LINES).input_ids
    )
    asked.save_pretrained(tmp_path / "out")
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")(LINES).input_ids == expected
    with pytest.raises(
        ValueError, match=r"strip_accents has no effect on .*spiece\.model; it takes"
    ):
        AutoTokenizer.from_pretrained(plain, strip_accents=True)
