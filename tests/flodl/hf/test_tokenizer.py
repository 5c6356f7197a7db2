"""Encoding: what a batch holds, how it is padded and cut, and what is refused."""

from __future__ import annotations

import json
import textwrap
import threading

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from flodl.hf.errors import CheckpointFormatError
from flodl.hf.families import (
    AlbertConfig,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    RobertaConfig,
    XLMRobertaConfig,
)
from flodl.hf.tokenizer import PreTrainedTokenizerFast, position_limit
from tests import fork_server
from tests.flodl.hf.batches import encoded, token_fact
from tests.flodl.hf.tokenizer_material import LINES, rows_of, write_bert, write_roberta
from tests.later import transformers
from tests.rows import each_row

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]


def words_tokenizer(*, template=True):
    """One token per letter between spaces."""
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens(WORDS[:5])
    if template:
        inner.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    return inner


def tiny(config_class, **fields):
    shape = {
        "vocab_size": 30,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "max_position_embeddings": 10,
    }
    if config_class is AlbertConfig:
        shape["embedding_size"] = 4
    named = {"model_type": config_class.model_type, **shape, **fields}
    return config_class.from_json_str(json.dumps(named))


@pytest.fixture
def tokenizer():
    return PreTrainedTokenizerFast.from_inner(words_tokenizer())


def facts(batch, name):
    return token_fact(batch, name).tolist()


def test_a_batch_holds_everything_about_its_tokens(tokenizer):
    batch = encoded(tokenizer, ["a bc c", "d"])
    assert batch.input_ids.tolist() == [[2, 5, 1, 7, 3], [2, 8, 3, 0, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch.token_type_ids.tolist() == [[0] * 5] * 2
    assert facts(batch, "sequence_ids") == [[-1, 0, 0, 0, -1], [-1, 0, -1, -1, -1]]
    assert facts(batch, "word_ids") == [[-1, 0, 1, 2, -1], [-1, 0, -1, -1, -1]]
    assert facts(batch, "special_tokens_mask") == [[1, 0, 0, 0, 1], [1, 0, 1, 1, 1]]
    assert facts(batch, "offsets") == [
        [[0, 0], [0, 1], [2, 4], [5, 6], [0, 0]],
        [[0, 0], [0, 1], [0, 0], [0, 0], [0, 0]],
    ]
    assert {one.dtype for one in batch.values()} == {torch.int64}


def test_a_pair_shares_a_row_and_has_two_segments(tokenizer):
    batch = encoded(tokenizer, [("a b", "c"), ("", "d e")])
    assert batch.input_ids.tolist() == [[2, 5, 6, 3, 7, 3], [2, 3, 8, 9, 3, 0]]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 0]]
    assert facts(batch, "sequence_ids") == [[-1, 0, 0, -1, 1, -1], [-1, -1, 1, 1, -1, -1]]
    assert facts(batch, "word_ids") == [[-1, 0, 1, -1, 0, -1], [-1, -1, 0, 1, -1, -1]]


def test_a_call_of_the_tokenizer_says_the_same_of_its_tokens(tokenizer):
    texts = ["a bc c", "d"]
    called, own = tokenizer(texts, padding=True, return_tensors="pt"), encoded(tokenizer, texts)
    given = tokenizer(
        texts,
        padding=True,
        return_tensors="pt",
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    for name in ("sequence_ids", "word_ids", "special_tokens_mask", "offsets"):
        assert facts(called, name) == facts(given, name) == facts(own, name)


def test_offsets_count_characters_and_not_bytes(tmp_path):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(write_bert(tmp_path / "bert"))
    line = "straße 👍 日本"
    batch = encoded(tokenizer, [line])
    parts = [line[start:end] for start, end in facts(batch, "offsets")[0]]
    assert "".join(parts) == "straße👍日本"


@each_row(
    ("inputs", "message"),
    [
        (["a", 3], "texts and pairs of texts mixed"),
        ([3], "pair 0 must be two texts, got 3"),
        ([("a", "b"), ("a", None)], "pair 1 must be two texts"),
        ([("a", "b"), None], "pair 1 must be two texts, got None"),
    ],
)
def test_what_is_no_text_is_named(tokenizer, inputs, message):
    with pytest.raises(TypeError, match=message):
        encoded(tokenizer, inputs)


def test_text_that_utf8_cannot_hold_is_named(tokenizer):
    with pytest.raises(ValueError, match="text 1 holds half of a surrogate pair at character 2"):
        encoded(tokenizer, ["a", "b \ud800"])


# Padding


def test_the_padding_section_names_the_pad_token_first(tmp_path):
    inner = words_tokenizer()
    inner.enable_padding(pad_id=9, pad_token="e", direction="left", length=12)
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "[MASK]"}')
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert encoded(tokenizer, ["a", "a b"]).input_ids.tolist() == [[2, 5, 3, 9], [2, 5, 6, 3]]
    assert (tokenizer.pad_id, tokenizer.pad_token) == (9, "e")


@each_row("name", ["tokenizer_config.json", "special_tokens_map.json"])
@each_row("value", ["j", {"content": "j", "lstrip": False}])
def test_then_the_files_beside_name_it(tmp_path, name, value):
    words_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_text(json.dumps({"pad_token": value}))
    tokenizer = PreTrainedTokenizerFast.from_file(tmp_path / "tokenizer.json")
    assert encoded(tokenizer, ["a", "a b"]).input_ids.tolist() == [[2, 5, 3, 14], [2, 5, 6, 3]]
    assert tokenizer.for_config(tiny(BertConfig, pad_token_id=4)).pad_id == 14


def test_then_the_model_names_it(tmp_path):
    words_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "not in the vocabulary"}')
    (tmp_path / "config.json").write_text(tiny(BertConfig, pad_token_id=4).to_json_string())
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path).pad_id == 4


def test_rows_of_one_length_need_no_pad_token_and_others_do():
    inner = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast.from_inner(inner)
    assert tokenizer.pad_id is None
    assert tokenizer.pad_token is None
    assert encoded(tokenizer, ["a b", "b b"]).input_ids.tolist() == [[0, 1], [1, 1]]
    with pytest.raises(ValueError, match="padding needs a pad token, and the tokenizer has none"):
        encoded(tokenizer, ["a", "a b"])


# The model's limits

LIMITS = [
    (BertConfig, {}, 10),
    (DistilBertConfig, {}, 10),
    (AlbertConfig, {}, 10),
    (RobertaConfig, {"max_position_embeddings": 12, "pad_token_id": 1}, 10),
    (XLMRobertaConfig, {"max_position_embeddings": 15, "pad_token_id": 4}, 10),
    (DebertaV2Config, {"position_biased_input": True}, 10),
]


@pytest.mark.case("hf", 34)
@each_row(("config_class", "fields", "limit"), LIMITS)
def test_an_over_long_row_is_named_with_the_limit_unless_it_is_cut(
    tokenizer, config_class, fields, limit
):
    config = tiny(config_class, **fields)
    bounded = tokenizer.for_config(config)
    assert bounded.limit == position_limit(config) == limit
    longest, over = " ".join("a" * 8), " ".join("a" * 9)
    assert encoded(bounded, [longest]).input_ids.shape == (1, 10)
    with pytest.raises(ValueError, match=r"text 1 has 11 tokens and the limit is 10: .*truncation"):
        encoded(bounded, ["a", over, longest])
    with pytest.raises(ValueError, match="pair 0 has 11 tokens and the limit is 10"):
        encoded(bounded, [("a b c", "a b c d e")])
    for truncation in (True, "longest_first", "only_first"):
        cut = encoded(bounded, ["a", over], truncation=truncation)
        assert cut.input_ids[1].tolist() == [2] + [5] * 8 + [3]
        assert cut.attention_mask.sum(dim=1).tolist() == [3, 10]
    assert encoded(bounded, [("a b c", "a b c d e")], truncation=True).input_ids.shape == (1, 10)
    assert tokenizer.limit is None
    assert encoded(tokenizer, [over]).input_ids.shape == (1, 11)


@pytest.mark.case("hf", 34)
def test_deberta_without_absolute_positions_takes_any_length(tokenizer):
    config = tiny(DebertaV2Config, position_biased_input=False, relative_attention=True)
    unbounded = tokenizer.for_config(config)
    assert unbounded.limit is None
    assert encoded(unbounded, [" ".join("a" * 700)]).input_ids.shape == (1, 702)
    assert encoded(unbounded, ["a b c"], truncation=True).input_ids.shape == (1, 5)


def test_a_checkpoint_brings_its_models_limit_along(tmp_path):
    words_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(tiny(BertConfig).to_json_string())
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path).limit == 10
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path).limit is None


def test_max_length_without_truncation_is_a_limit_too(tokenizer):
    with pytest.raises(ValueError, match="text 0 has 4 tokens and the limit is 3"):
        encoded(tokenizer, ["a b"], max_length=3)
    bounded = tokenizer.for_config(tiny(BertConfig))
    with pytest.raises(ValueError, match="max_length 11 is more than the model's 10 positions"):
        encoded(bounded, ["a b"], truncation=True, max_length=11)


@pytest.mark.parametrize("config_class", [RobertaConfig, XLMRobertaConfig])
def test_roberta_gets_no_segments(tokenizer, config_class):
    config = tiny(config_class, pad_token_id=1)
    pairs = encoded(tokenizer.for_config(config), [("a", "b")])
    assert "token_type_ids" not in pairs
    assert facts(pairs, "sequence_ids") == [[-1, 0, -1, 1, -1]]


# Truncation


def test_a_truncation_section_counts_only_when_asked_for(tmp_path):
    inner = words_tokenizer()
    inner.enable_truncation(4)
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert encoded(tokenizer, ["a b c d e f"]).input_ids.shape == (1, 8)
    assert encoded(tokenizer, ["a b c d e f"], truncation=True).input_ids.shape == (1, 4)
    assert encoded(tokenizer, ["a b c d e f"], truncation=True, max_length=6).input_ids.shape == (
        1,
        6,
    )
    assert tokenizer.inner.truncation is None


@each_row("section", [None, 4, 30])
@each_row("length", [6, 10, 1e30])
def test_the_settings_name_the_length_to_cut_to_whatever_was_used_last(tmp_path, section, length):
    inner = words_tokenizer()
    if section is not None:
        inner.enable_truncation(section)
    inner.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    text = "a b c d e f " * 3
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs = reference([text], truncation=True)["input_ids"]
    made = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert encoded(made, [text], truncation=True).input_ids.tolist() == theirs
    assert len(theirs[0]) == min(length, 20)
    # A model of eight positions takes no more.
    bounded = made.for_config(tiny(BertConfig, max_position_embeddings=8))
    assert encoded(bounded, [text], truncation=True).input_ids.shape[1] == min(length, 8)


def test_settings_name_a_length_and_absurd_ones_do_not_count(tmp_path):
    words_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for length, width in ((5, 5), (1e30, 8)):
        settings = json.dumps({"model_max_length": length})
        (tmp_path / "tokenizer_config.json").write_text(settings)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
        assert encoded(tokenizer, ["a b c d e f"], truncation=True).input_ids.shape == (1, width)


def test_windows_of_long_texts_overlap_and_know_their_text(tokenizer):
    batch = encoded(tokenizer, ["a", "a b c d e f g"], truncation=True, max_length=5, stride=1)
    assert batch.input_ids.tolist() == [
        [2, 5, 3, 0, 0],
        [2, 5, 6, 7, 3],
        [2, 7, 8, 9, 3],
        [2, 9, 10, 11, 3],
    ]
    assert batch.overflow_to_sample_mapping.tolist() == [0, 1, 1, 1]
    assert facts(batch, "word_ids")[2:] == [[-1, 2, 3, 4, -1], [-1, 4, 5, 6, -1]]
    assert facts(batch, "offsets")[3] == [[0, 0], [8, 9], [10, 11], [12, 13], [0, 0]]


LETTERS = st.lists(st.sampled_from("abcdefghij"), max_size=12).map(" ".join)


def of_the_library(first, second, max_length, strategy, stride):
    """What the library itself cuts: ids of the rows, or None where it refuses."""
    inner = words_tokenizer()
    inner.enable_truncation(max_length, stride=stride or 0, strategy=strategy)
    try:
        made = inner.encode(first, second)
    except Exception:
        return None
    return [e.ids for e in ([made] if stride is None else [made, *made.overflowing])]


@settings(max_examples=300, deadline=None)
@given(first=LETTERS, second=st.none() | LETTERS, data=st.data())
def test_cutting_equals_the_librarys(first, second, data):
    names = ["longest_first", "only_first"] + ["only_second"] * (second is not None)
    strategy = data.draw(st.sampled_from(names))
    windowed = second is None or strategy != "longest_first"
    stride = data.draw(st.none() | st.integers(0, 3)) if windowed else None
    max_length = data.draw(st.integers(4, 20))
    assume((stride or 0) < max_length - (2 if second is None else 3))  # the library asks for this
    tokenizer = PreTrainedTokenizerFast.from_inner(words_tokenizer())
    options = {"truncation": strategy, "max_length": max_length, "stride": stride}
    try:
        if second is None:
            rows = rows_of(encoded(tokenizer, [first], **options))
        else:
            rows = rows_of(encoded(tokenizer, [(first, second)], **options))
    except ValueError as error:
        assume("stride" not in str(error))  # where the library panics, loudly
        rows = None
    assert rows == of_the_library(first, second, max_length, strategy, stride)


@each_row(
    ("options", "message"),
    [
        ({"truncation": "longest"}, "truncation is True, False, 'do_not_truncate' or one of long"),
        ({"stride": 1}, "it needs truncation"),
        ({"truncation": True, "max_length": 0}, "max_length must be at least 1, got 0"),
        ({"truncation": True, "max_length": 5, "stride": -1}, "stride must not be negative"),
        ({"truncation": True, "max_length": 5, "stride": 3}, "a stride of 3 is not smaller than"),
        ({"truncation": True, "max_length": 2}, "max_length 2 leaves no space for a text"),
        ({"truncation": "only_second", "max_length": 4}, "text 1 cannot be cut to 4 .*only_sec"),
    ],
)
def test_options_that_cannot_be_met_are_explained(tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        encoded(tokenizer, ["a b", "a b c d e f"], **options)


def test_pairs_that_cannot_be_cut_are_named(tokenizer):
    pairs = [("a", "b"), ("a b c d", "a b")]
    with pytest.raises(ValueError, match=r"pair 1 cannot be cut to 7 tokens .*only_second"):
        encoded(tokenizer, pairs, truncation="only_second", max_length=7)
    with pytest.raises(ValueError, match="windows of pairs need truncation='only_first'"):
        encoded(tokenizer, pairs, truncation=True, max_length=7, stride=1)


# State


def test_a_tokenizer_that_pads_and_cuts_is_wrapped_without_changing_it():
    inner = words_tokenizer()
    inner.enable_padding(length=20, pad_id=4, pad_token="[MASK]")
    inner.enable_truncation(3)
    tokenizer = PreTrainedTokenizerFast.from_inner(inner)
    assert encoded(tokenizer, ["a b c", "d"]).input_ids.tolist() == [
        [2, 5, 6, 7, 3],
        [2, 8, 3, 4, 4],
    ]
    assert inner.padding["length"] == 20
    assert inner.truncation["max_length"] == 3


def test_a_plain_tokenizer_is_wrapped_as_it_is():
    inner = words_tokenizer()
    tokenizer = PreTrainedTokenizerFast.from_inner(inner)
    assert tokenizer.inner is inner
    inner.enable_padding(length=20)
    inner.enable_truncation(3)
    assert encoded(tokenizer, ["a b c"]).input_ids.tolist() == [[2, 5, 6, 7, 3]]


def test_threads_do_not_see_each_others_options(tokenizer):
    expected = {
        length: encoded(tokenizer, LINES[:40], truncation=True, max_length=length).input_ids
        for length in range(3, 9)
    }
    wrong = []

    def work(length):
        for _ in range(10):
            made = encoded(tokenizer, LINES[:40], truncation=True, max_length=length).input_ids
            if not torch.equal(made, expected[length]):
                wrong.append(length)

    threads = [threading.Thread(target=work, args=(length,)) for length in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Special tokens


def test_special_tokens_are_found_by_their_usual_names(tokenizer):
    assert (tokenizer.mask_token, tokenizer.mask_token_id) == ("[MASK]", 4)
    assert (tokenizer.cls_token, tokenizer.cls_token_id) == ("[CLS]", 2)
    assert (tokenizer.sep_token, tokenizer.sep_token_id) == ("[SEP]", 3)
    assert (tokenizer.unk_token, tokenizer.unk_token_id) == ("[UNK]", 1)
    assert (tokenizer.pad_token, tokenizer.pad_id) == ("[PAD]", 0)


def test_a_name_marked_as_special_comes_before_one_that_is_only_a_word():
    inner = Tokenizer(models.WordLevel({"[MASK]": 0, "<mask>": 1}, unk_token="<mask>"))
    inner.add_special_tokens(["<mask>"])
    assert PreTrainedTokenizerFast.from_inner(inner).mask_token == "<mask>"


def test_a_tokenizer_without_special_tokens_has_none():
    tokenizer = PreTrainedTokenizerFast.from_inner(
        Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    )
    assert tokenizer.mask_token is tokenizer.cls_token is tokenizer.sep_token is None
    assert tokenizer.mask_token_id is tokenizer.cls_token_id is tokenizer.sep_token_id is None


# Saving


def test_a_changed_tokenizer_is_written_as_it_is_now(tmp_path):
    directory = write_bert(tmp_path / "bert", {"do_lower_case": False})
    (directory / "added_tokens.json").write_text("{}")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    tokenizer.inner.add_tokens([AddedToken("zzz", single_word=True)])
    tokenizer.save(tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"tokenizer.json", "tokenizer_config.json"}
    again = PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    assert again.inner.token_to_id("zzz") == 600
    lines = ["zzz Zzz", *LINES[:20]]
    assert rows_of(encoded(again, lines)) == rows_of(encoded(tokenizer, lines))
    assert (
        rows_of(encoded(again, lines))
        == transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(lines)["input_ids"]
    )


def test_sections_that_are_switched_off_are_written_back(tmp_path):
    inner = words_tokenizer()
    inner.enable_padding(pad_id=4, pad_token="[MASK]", pad_to_multiple_of=8)
    inner.enable_truncation(7, stride=2)
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    tokenizer.inner.add_tokens(["new"])
    tokenizer.save(tmp_path / "changed.json")
    changed = Tokenizer.from_file(str(tmp_path / "changed.json"))
    assert changed.token_to_id("new") == 15
    assert changed.padding == inner.padding
    assert changed.truncation == inner.truncation


def test_a_tokenizer_made_in_memory_loads_in_the_reference(tmp_path, tokenizer):
    tokenizer.save(tmp_path / "out")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    padded = reference(["a b", "c"], padding=True)
    assert encoded(tokenizer, ["a b", "c"]).input_ids.tolist() == padded["input_ids"]
    assert reference.mask_token == "[MASK]"


def test_a_file_of_another_name_becomes_the_one_the_reference_looks_for(tmp_path):
    words_tokenizer().save(str(tmp_path / "mine.json"))
    tokenizer = PreTrainedTokenizerFast.from_file(tmp_path / "mine.json")
    tokenizer.save(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tokenizer.json"]
    written = (tmp_path / "out" / "tokenizer.json").read_bytes()
    assert written == (tmp_path / "mine.json").read_bytes()


def test_a_tokenizer_that_breaks_on_a_text_names_its_file(tmp_path):
    inner = Tokenizer(models.WordPiece({"a": 0}, unk_token="[UNK]"))
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = PreTrainedTokenizerFast.from_file(tmp_path / "tokenizer.json")
    with pytest.raises(CheckpointFormatError, match=r"tokenizer\.json cannot encode: .*UNK"):
        encoded(tokenizer, ["b"])


def test_it_says_what_it_is(tmp_path, tokenizer):
    assert repr(tokenizer) == "PreTrainedTokenizerFast(memory, 15 tokens, limit None)"
    made = PreTrainedTokenizerFast.from_pretrained(write_roberta(tmp_path / "r"))
    assert repr(made) == f"PreTrainedTokenizerFast({tmp_path / 'r'}, 500 tokens, limit None)"


MISSING = """
    import sys
    sys.modules["tokenizers"] = None
    from flodl.hf.tokenizer import PreTrainedTokenizerFast
    from flodl.hf.errors import MissingDependencyError
    try:
        PreTrainedTokenizerFast.from_pretrained(sys.argv[1])
    except MissingDependencyError as error:
        assert "flodl[hf]" in str(error), error
        assert not {"transformers", "safetensors", "huggingface_hub"} & set(sys.modules)
        print("named")
"""


def test_without_the_package_the_extra_is_named(tmp_path):
    directory = write_bert(tmp_path / "bert")
    code = textwrap.dedent(MISSING)
    done = fork_server.python("-c", code, str(directory), torch=True, abrupt=True)
    assert (done.stdout, done.stderr) == ("named\n", "")


def test_importing_the_module_does_not_import_the_package():
    code = "import sys, flodl.hf.tokenizer; print('tokenizers' in sys.modules)"
    done = fork_server.python("-c", code, torch=True, abrupt=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
