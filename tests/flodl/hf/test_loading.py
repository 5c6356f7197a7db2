"""What becomes of the tensors of a checkpoint: names, ties, dtypes, devices, fresh heads."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from flodl.hf.build import build
from flodl.hf.errors import CheckpointFormatError, CheckpointMismatchError
from flodl.hf.head_kind import HeadKind
from flodl.hf.weights.fill import fill
from flodl.hf.weights.stored import StoredFiles
from flodl.hf.weights.writing import save_safetensors_file_from_graph
from flodl.log import Verbosity, set_verbosity
from tests.flodl.hf.reference_files import (
    FAMILIES,
    MLM_TABLES,
    config_of,
    reference_from,
    rewrite,
    save_reference,
    stored_bytes,
    weights_of,
    words_in,
)
from tests.rows import each_row

WORDS = "bert.embeddings.word_embeddings.weight"
IDS = torch.tensor([[5, 9, 3, 8, 30], [7, 2, 6, 1, 1]])


def load(folder, kind, weights=None, *, pooler=True, **options):
    config = config_of(folder).replace(num_labels=2)
    graph = build(config, kind, pooler=pooler).eval()
    fill(graph, StoredFiles(weights or weights_of(folder)), config, **options)
    return graph


def state(graph):
    return dict(graph.state_dict())


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def largest_difference(graph, model):
    with torch.no_grad():
        return float((graph(IDS) - model(IDS).logits).abs().max())


@pytest.fixture
def bert_mlm(tmp_path):
    save_reference(tmp_path, "Bert", HeadKind.MLM)
    return tmp_path


@pytest.fixture
def bert_base(tmp_path):
    save_reference(tmp_path, "Bert", HeadKind.BASE)
    return tmp_path


# All models


@pytest.mark.parametrize("kind", list(HeadKind))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_the_reference_is_loaded_and_saved_again_bit_by_bit(tmp_path, family, kind):
    save_reference(tmp_path, family, kind)
    graph = load(tmp_path, kind)
    stored = load_file(tmp_path / "model.safetensors")
    assert sorted(graph.load_report.loaded) == sorted(stored)
    assert all(torch.equal(state(graph)[key], value) for key, value in stored.items())
    assert not any(parameter.is_meta for parameter in graph.parameters())
    assert stored_bytes(graph) == (tmp_path / "model.safetensors").read_bytes()


@each_row("kind", list(HeadKind))
@each_row("family", FAMILIES)
def test_an_encoder_without_prefix_fills_every_model_whose_head_is_drawn(tmp_path, family, kind):
    save_reference(tmp_path, family, HeadKind.BASE)
    encoder = load(tmp_path, HeadKind.BASE)
    graph = load(tmp_path, kind, head_init="random", seed=0)
    prefix = "" if kind is HeadKind.BASE else f"{config_of(tmp_path).prefix}."
    inside = {k.removeprefix(prefix): v for k, v in state(graph).items() if k.startswith(prefix)}
    assert all(torch.equal(value, state(encoder)[key]) for key, value in inside.items())
    assert graph.load_report.unexpected == ()


# Names


@pytest.mark.case("hf", 13)
@pytest.mark.parametrize("family", FAMILIES)
def test_files_in_every_form_load_to_identical_parameters(tmp_path, family):
    save_reference(tmp_path, family, HeadKind.MLM)
    words = words_in(load_file(tmp_path / "model.safetensors"))
    table, prefix = MLM_TABLES[family], words.partition(".")[0] + "."
    biases = {table.replace("weight", "bias"): table.replace("decoder.weight", "bias")}
    alone = ("vocab_projector.bias", "decoder.bias")
    biases = {alias: name for alias, name in biases.items() if alias not in alone}

    def old_norms(key):
        return (
            re.sub("weight$", "gamma", re.sub("bias$", "beta", key)) if "LayerNorm" in key else key
        )

    forms = {
        "prefix-less": lambda t: {k.removeprefix(prefix): v for k, v in t.items()},
        "old norms": lambda t: {old_norms(k): v for k, v in t.items()},
        "only aliases": lambda t: {
            {words: table, **{n: a for a, n in biases.items()}}.get(k, k): v for k, v in t.items()
        },
        "both aliases": lambda t: {
            **t,
            table: t[words].clone(),
            **{a: t[n].clone() for a, n in biases.items()},
        },
    }
    plain = load(tmp_path, HeadKind.MLM)
    original = load_file(tmp_path / "model.safetensors")
    for form, change in forms.items():
        changed = change(original)
        graph = load(tmp_path, HeadKind.MLM, rewrite(tmp_path, lambda _, new=changed: new))
        assert same(state(graph), state(plain)), form
        assert len(list(graph.parameters())) == len(list(plain.parameters())), form
        assert graph.load_report.unexpected == (), form
        assert graph.load_report.untied == (), form


def test_renamed_keys_are_reported(bert_mlm):
    gamma = "bert.embeddings.LayerNorm.gamma"
    decoder = "cls.predictions.decoder.weight"

    def change(tensors):
        tensors[gamma] = tensors.pop("bert.embeddings.LayerNorm.weight")
        tensors[decoder] = tensors.pop(WORDS)

    graph = load(bert_mlm, HeadKind.MLM, rewrite(bert_mlm, change))
    assert graph.load_report.renamed == {
        gamma: "bert.embeddings.LayerNorm.weight",
        decoder: WORDS,
    }


def test_two_keys_of_one_parameter_are_refused_by_name(bert_mlm):
    def change(tensors):
        tensors["embeddings.LayerNorm.beta"] = torch.zeros(16)

    with pytest.raises(CheckpointFormatError) as caught:
        load(bert_mlm, HeadKind.MLM, rewrite(bert_mlm, change))
    assert "bert.embeddings.LayerNorm.bias and embeddings.LayerNorm.beta" in str(caught.value)


def test_a_file_with_a_head_fills_an_encoder(bert_mlm):
    graph = load(bert_mlm, HeadKind.BASE, pooler=False)
    stored = load_file(bert_mlm / "model.safetensors")
    assert all(torch.equal(v, stored[f"bert.{k}"]) for k, v in state(graph).items())
    assert graph.load_report.ignored == tuple(sorted(k for k in stored if k.startswith("cls.")))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_finds_its_words_under_the_name_of_the_output_layer(tmp_path, family):
    save_reference(tmp_path, family, HeadKind.MLM)
    tensors = load_file(tmp_path / "model.safetensors")
    words = words_in(tensors)
    table = tensors[words]

    def change(tensors):
        tensors[MLM_TABLES[family]] = tensors.pop(words)

    graph = load(tmp_path, HeadKind.BASE, rewrite(tmp_path, change), pooler=False)
    inside = words.removeprefix(f"{config_of(tmp_path).prefix}.")
    assert torch.equal(graph.get_parameter(inside), table)
    assert graph.load_report.unexpected == ()
    config_of(tmp_path, tie_word_embeddings=False)
    with pytest.raises(CheckpointMismatchError) as caught:
        load(tmp_path, HeadKind.BASE, pooler=False)
    assert caught.value.missing == [inside]


# Ties


def test_a_tied_table_is_one_parameter_with_two_names(bert_mlm):
    graph = load(bert_mlm, HeadKind.MLM)
    decoder = graph.get_submodule("cls.predictions.decoder")
    assert decoder.weight is graph.get_submodule("bert.embeddings.word_embeddings").weight
    assert decoder.bias is graph.get_submodule("cls.predictions").bias
    assert graph.load_report.tied == {
        "cls.predictions.decoder.weight": WORDS,
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_tables_that_differ_are_untied_and_saved_as_the_reference_needs_them(
    tmp_path, family, capsys
):
    save_reference(tmp_path, family, HeadKind.MLM)

    def change(tensors):
        words = words_in(tensors)
        tensors[MLM_TABLES[family]] = tensors[words].flip(0) + 0.25

    weights = rewrite(tmp_path, change)
    expected = reference_from(tmp_path, family, HeadKind.MLM)
    capsys.readouterr()
    graph = load(tmp_path, HeadKind.MLM, weights)
    table = MLM_TABLES[family]
    bias = {table.replace("weight", "bias")} - {"vocab_projector.bias", "decoder.bias"}
    assert set(graph.load_report.untied) == {table, *bias}
    assert graph.load_report.tied == {}
    assert capsys.readouterr().err.count("warning:") == 1
    assert largest_difference(graph, expected) <= 1e-5

    save_safetensors_file_from_graph(graph, tmp_path / "model.safetensors")
    config_of(tmp_path, tie_word_embeddings=False)
    assert largest_difference(graph, reference_from(tmp_path, family, HeadKind.MLM)) <= 1e-5
    again = load(tmp_path, HeadKind.MLM)
    assert same(state(again), state(graph))


def test_tables_are_compared_by_their_bits(bert_mlm):
    def spoil(tensors):
        tensors[WORDS][3] = float("nan")
        tensors["cls.predictions.decoder.weight"] = tensors[WORDS].clone()

    assert load(bert_mlm, HeadKind.MLM, rewrite(bert_mlm, spoil)).load_report.untied == ()

    def negate(tensors):
        tensors[WORDS][3] = 0.0
        tensors["cls.predictions.decoder.weight"] = tensors[WORDS].clone()
        tensors["cls.predictions.decoder.weight"][3] = -0.0

    assert load(bert_mlm, HeadKind.MLM, rewrite(bert_mlm, negate)).load_report.untied != ()


def test_an_untied_parameter_is_trained_by_itself(bert_mlm):
    def change(tensors):
        tensors["cls.predictions.decoder.weight"] = tensors[WORDS] + 1

    graph = load(bert_mlm, HeadKind.MLM, rewrite(bert_mlm, change))
    predictions = graph.get_submodule("cls.predictions")
    before = predictions.bias.detach().clone()
    with torch.no_grad():
        predictions.decoder.bias.add_(1)
    assert torch.equal(predictions.bias, before)


def test_of_two_biases_alone_the_one_of_the_decoder_counts_and_the_table_stays_tied(
    bert_mlm, capsys
):
    def change(tensors):
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"] + 1

    weights = rewrite(bert_mlm, change)
    expected = reference_from(bert_mlm, "Bert", HeadKind.MLM)
    graph = load(bert_mlm, HeadKind.MLM, weights)
    predictions = graph.get_submodule("cls.predictions")
    assert predictions.bias is predictions.decoder.bias
    assert graph.load_report.untied == ()
    assert "cls.predictions.decoder.bias differs" in capsys.readouterr().err
    assert largest_difference(graph, expected) <= 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_is_not_tied_keeps_all_its_tensors(tmp_path, family):
    model = save_reference(tmp_path, family, HeadKind.MLM, tie_word_embeddings=False)
    graph = load(tmp_path, HeadKind.MLM)
    assert largest_difference(graph, model) <= 1e-5
    assert graph.load_report.tied == {}
    assert stored_bytes(graph) == (tmp_path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("left_out", ["cls.predictions.bias", "cls.predictions.decoder.bias"])
def test_one_bias_of_a_model_that_is_not_tied_serves_as_both(tmp_path, left_out):
    save_reference(tmp_path, "Bert", HeadKind.MLM, tie_word_embeddings=False)
    weights = rewrite(tmp_path, lambda t: {k: v for k, v in t.items() if k != left_out})
    predictions = load(tmp_path, HeadKind.MLM, weights).get_submodule("cls.predictions")
    assert torch.equal(predictions.bias, predictions.decoder.bias)
    assert predictions.bias.data_ptr() != predictions.decoder.bias.data_ptr()


def test_a_model_that_is_not_tied_needs_a_table_of_its_own(tmp_path):
    save_reference(tmp_path, "Bert", HeadKind.MLM, tie_word_embeddings=False)
    table = "cls.predictions.decoder.weight"
    weights = rewrite(tmp_path, lambda t: {k: v for k, v in t.items() if k != table})
    with pytest.raises(CheckpointMismatchError) as caught:
        load(tmp_path, HeadKind.MLM, weights)
    assert caught.value.missing == [table]


# Disagreements


@pytest.mark.case("hf", 15)
def test_a_renamed_key_is_missing_and_unused_and_nothing_was_changed(bert_base):
    key = "encoder.layer.0.attention.self.query.weight"
    weights = rewrite(
        bert_base, lambda t: {k.replace(key, key[:-3] + "th"): v for k, v in t.items()}
    )
    config = config_of(bert_base)
    graph = build(config, HeadKind.BASE, device="cpu", seed=3)
    before = {name: (p, p.detach().clone()) for name, p in graph.named_parameters()}
    with pytest.raises(CheckpointMismatchError) as caught:
        fill(graph, StoredFiles(weights), config)
    assert caught.value.missing == [key]
    assert caught.value.unused == [key[:-3] + "th"]
    assert f"{key} (unused and nearly the same: {key[:-3]}th)" in str(caught.value)
    for name, parameter in graph.named_parameters():
        assert parameter is before[name][0]
        assert torch.equal(parameter, before[name][1])
    assert not hasattr(graph, "load_report")


@pytest.mark.case("hf", 16)
def test_all_disagreements_are_counted_and_the_first_twenty_listed(bert_base):
    gone = sorted(k for k in load_file(bert_base / "model.safetensors") if "layer." in k)[:25]
    weights = rewrite(bert_base, lambda t: {k: v for k, v in t.items() if k not in gone})
    config_of(bert_base, vocab_size=41)
    with pytest.raises(CheckpointMismatchError) as caught:
        load(bert_base, HeadKind.BASE, weights)
    assert caught.value.missing == gone
    words = "embeddings.word_embeddings.weight"
    assert caught.value.shape_mismatches == [(words, (41, 16), (40, 16))]
    text = str(caught.value)
    assert "25 missing:" in text
    assert [key in text for key in gone] == [True] * 20 + [False] * 5
    assert "... and 5 more" in text
    assert f"{words}: expected [41, 16], found [40, 16]" in text


@pytest.mark.case("hf", 18)
def test_integers_are_refused_where_weights_are_needed_and_ignored_elsewhere(bert_base, capsys):
    def add_ids(tensors):
        tensors["embeddings.position_ids"] = torch.arange(20)[None]

    graph = load(bert_base, HeadKind.BASE, rewrite(bert_base, add_ids))
    assert graph.load_report.ignored == ("embeddings.position_ids",)
    assert capsys.readouterr() == ("", "")

    def count(tensors):
        tensors["pooler.dense.bias"] = torch.arange(16)

    with pytest.raises(CheckpointMismatchError, match=r"pooler\.dense\.bias: I64") as caught:
        load(bert_base, HeadKind.BASE, rewrite(bert_base, count))
    assert caught.value.bad_dtypes == [("pooler.dense.bias", "I64")]


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.bool, "BOOL"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.uint8, "U8")]
)
def test_other_types_without_fractions_are_refused_too(bert_base, dtype, name):
    def change(tensors):
        tensors["pooler.dense.bias"] = tensors["pooler.dense.bias"].to(dtype)

    with pytest.raises(CheckpointMismatchError) as caught:
        load(bert_base, HeadKind.BASE, rewrite(bert_base, change))
    assert caught.value.bad_dtypes == [("pooler.dense.bias", name)]


def test_unknown_tensors_are_warned_of_once_and_the_first_twenty_named(bert_base, capsys):
    extra = {f"adapter.{index:02}": torch.zeros(1) for index in range(23)}
    weights = rewrite(bert_base, lambda t: {**t, **extra})
    graph = load(bert_base, HeadKind.BASE, weights)
    assert graph.load_report.unexpected == tuple(sorted(extra))
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "23 tensors" in err
    assert "adapter.19, ... and 3 more" in err
    weights = rewrite(bert_base, lambda t: {**t, "cls.seq_relationship.bias": torch.zeros(2)})
    with pytest.raises(CheckpointMismatchError) as caught:
        load(bert_base, HeadKind.BASE, weights, allow_unused=False)
    assert caught.value.unused == [*sorted(extra), "cls.seq_relationship.bias"]


def test_tensors_of_other_heads_are_mentioned_on_request(bert_mlm, capsys):
    set_verbosity(Verbosity.VERBOSE)
    try:
        load(bert_mlm, HeadKind.BASE, pooler=False)
    finally:
        set_verbosity(Verbosity.NORMAL)
    assert "not needed: cls.predictions.bias, " in capsys.readouterr().out


# Fresh heads


@pytest.mark.case("hf", 23)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_is_drawn_the_same_for_the_same_seed_but_never_an_encoder(tmp_path, family):
    save_reference(tmp_path, family, HeadKind.BASE)
    first, again, other = (
        load(tmp_path, HeadKind.SEQCLS, head_init="random", seed=seed) for seed in (0, 0, 1)
    )
    assert same(state(first), state(again))
    drawn = first.load_report.initialised
    prefix = config_of(tmp_path).prefix + "."
    pooled = {f"{prefix}{k}" for k in load_file(tmp_path / "model.safetensors") if "pooler" in k}
    stored = {f"{prefix}{k}" for k in load_file(tmp_path / "model.safetensors")}
    assert set(drawn) == set(state(first)) - stored
    assert pooled.isdisjoint(drawn)
    for key in drawn:
        value = state(first)[key]
        if key.endswith("bias"):
            assert not value.any()
        elif "norm" in key:
            assert value.eq(1).all()
        else:
            assert not torch.equal(value, state(other)[key])
            # A ModernBERT scales by its depth and width, and cuts at two deviations.
            own = {"head.dense.weight": 0.0088, "classifier.weight": 0.22}
            spread = own[key] if family == "ModernBert" else 0.02
            assert 0.5 * spread < float(value.std()) < 1.5 * spread
    needed = {"DistilBert": "transformer", "ModernBert": "layers"}.get(family, "encoder")
    gone = next(k for k in load_file(tmp_path / "model.safetensors") if k.startswith(needed))
    weights = rewrite(tmp_path, lambda t: {k: v for k, v in t.items() if k != gone})
    with pytest.raises(CheckpointMismatchError) as caught:
        load(tmp_path, HeadKind.SEQCLS, weights, head_init="random", seed=0)
    assert caught.value.missing == [prefix + gone]


def test_a_missing_head_says_how_to_start_with_a_new_one(bert_base):
    with pytest.raises(CheckpointMismatchError, match='head_init="random"') as caught:
        load(bert_base, HeadKind.TOKCLS)
    assert caught.value.missing == ["classifier.bias", "classifier.weight"]


def test_a_new_norm_multiplies_by_one(bert_base):
    graph = load(bert_base, HeadKind.MLM, head_init="random")
    assert torch.equal(state(graph)["cls.predictions.transform.LayerNorm.weight"], torch.ones(16))
    assert graph.load_report.tied["cls.predictions.decoder.bias"] == "cls.predictions.bias"


def test_heads_are_drawn_in_the_order_of_their_names(tmp_path):
    save_reference(tmp_path, "DistilBert", HeadKind.BASE, initializer_range=0.5)
    graph = load(tmp_path, HeadKind.SEQCLS, head_init="random", seed=4)
    generator = torch.Generator().manual_seed(4)
    for key in ("classifier.weight", "pre_classifier.weight"):
        value = state(graph)[key]
        drawn = torch.empty(value.shape).normal_(0.0, 0.5, generator=generator)
        assert torch.equal(value, drawn)


def test_without_a_seed_torch_draws(bert_base):
    torch.manual_seed(5)
    first = load(bert_base, HeadKind.QA, head_init="random")
    torch.manual_seed(5)
    assert same(state(first), state(load(bert_base, HeadKind.QA, head_init="random")))


def test_a_head_of_another_width_is_replaced_only_when_told(tmp_path):
    save_reference(tmp_path, "Roberta", HeadKind.SEQCLS, num_labels=3)
    with pytest.raises(CheckpointMismatchError) as caught:
        load(tmp_path, HeadKind.SEQCLS, head_init="random")
    wide = ["classifier.out_proj.bias", "classifier.out_proj.weight"]
    assert [key for key, *_ in caught.value.shape_mismatches] == wide
    graph = load(tmp_path, HeadKind.SEQCLS, head_init="replace", seed=0)
    assert list(graph.load_report.initialised) == wide
    assert graph.load_report.unexpected == graph.load_report.ignored == ()
    assert state(graph)["classifier.out_proj.weight"].shape == (2, 16)


def test_a_table_of_another_size_is_never_replaced(bert_mlm):
    config_of(bert_mlm, vocab_size=41)
    with pytest.raises(CheckpointMismatchError) as caught:
        load(bert_mlm, HeadKind.MLM, head_init="replace")
    assert [key for key, *_ in caught.value.shape_mismatches] == [WORDS]


# Dtypes and devices


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_stored_type_is_kept(bert_mlm, dtype, capsys):
    weights = rewrite(bert_mlm, lambda t: {k: v.to(dtype) for k, v in t.items()})
    graph = load(bert_mlm, HeadKind.MLM, weights)
    assert {p.dtype for p in graph.parameters()} == {dtype}
    assert len(graph.load_report.dtypes) == 1
    assert graph.load_report.stored_dtypes == {}
    assert (
        f"the configuration says float32 and the weights are stored as {dtype}".replace(
            "torch.", ""
        )
        in capsys.readouterr().err
    )


def test_a_type_given_converts_all_weights(bert_base):
    graph = load(bert_base, HeadKind.SEQCLS, head_init="random", dtype="bfloat16")
    assert {p.dtype for p in graph.parameters()} == {torch.bfloat16}
    assert graph.load_report.dtypes == {"F32": len(load_file(bert_base / "model.safetensors"))}


@pytest.mark.parametrize("option", [{"dtype": "int8"}, {"dtype": torch.int64}, {"head_init": "no"}])
def test_an_impossible_option_is_refused(bert_base, option):
    with pytest.raises(ValueError, match="not"):
        load(bert_base, HeadKind.BASE, **option)


@pytest.mark.case("hf", 24)
@each_row("narrow", [torch.float16, torch.bfloat16])
@each_row("family", FAMILIES)
def test_a_file_of_mixed_types_is_widened_and_saved_bit_by_bit(tmp_path, family, narrow):
    save_reference(tmp_path, family, HeadKind.MLM)

    def mix(tensors):
        return {
            key: value.to(narrow) if index % 2 else value
            for index, (key, value) in enumerate(sorted(tensors.items()))
        }

    weights = rewrite(tmp_path, mix)
    graph = load(tmp_path, HeadKind.MLM, weights)
    assert {p.dtype for p in graph.parameters()} == {torch.float32}
    assert set(graph.load_report.stored_dtypes.values()) == {
        {torch.float16: "F16", torch.bfloat16: "BF16"}[narrow]
    }
    assert stored_bytes(graph) == weights.files[0].read_bytes()


def test_two_narrow_types_are_promoted_to_one_that_holds_both(bert_base):
    def mix(tensors):
        halves = {torch.float16: "pooler", torch.bfloat16: ""}
        return {
            k: v.to(next(dtype for dtype, part in halves.items() if part in k))
            for k, v in tensors.items()
        }

    weights = rewrite(bert_base, mix)
    graph = load(bert_base, HeadKind.BASE, weights)
    assert {p.dtype for p in graph.parameters()} == {torch.float32}
    assert set(graph.load_report.stored_dtypes) == set(state(graph))
    assert stored_bytes(graph) == weights.files[0].read_bytes()


def test_a_narrowed_nan_is_still_one(bert_base):
    def mix(tensors):
        tensors["pooler.dense.weight"] = tensors["pooler.dense.weight"].half()
        tensors["pooler.dense.weight"][2, 2] = float("nan")

    weights = rewrite(bert_base, mix)
    assert stored_bytes(load(bert_base, HeadKind.BASE, weights)) == (weights.files[0].read_bytes())


def test_what_the_user_narrows_is_not_widened(bert_base):
    def mix(tensors):
        tensors["pooler.dense.weight"] = tensors["pooler.dense.weight"].double()

    graph = load(bert_base, HeadKind.BASE, rewrite(bert_base, mix))
    assert {p.dtype for p in graph.parameters()} == {torch.float64}
    graph.half()
    save_safetensors_file_from_graph(graph, bert_base / "model.safetensors")
    stored = load_file(bert_base / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float16}


def test_what_the_user_converts_to_as_narrow_a_type_keeps_that_type(bert_base):
    def mix(tensors):
        tensors["pooler.dense.bias"] = torch.zeros_like(tensors["pooler.dense.bias"]).bfloat16()

    graph = load(bert_base, HeadKind.BASE, rewrite(bert_base, mix))
    assert graph.load_report.stored_dtypes["pooler.dense.bias"] == "BF16"
    graph.half()  # two bytes as well, and both types hold zero
    save_safetensors_file_from_graph(graph, bert_base / "model.safetensors")
    stored = load_file(bert_base / "model.safetensors")
    assert stored["pooler.dense.bias"].dtype == torch.float16


def test_a_type_given_is_saved_too(bert_base, capsys):
    weights = rewrite(bert_base, lambda t: {k: v.half() for k, v in t.items()})
    config_of(bert_base, dtype="bfloat16")
    graph = load(bert_base, HeadKind.BASE, weights, dtype=torch.float32)
    assert graph.load_report.stored_dtypes == {}
    assert capsys.readouterr().err == ""
    save_safetensors_file_from_graph(graph, weights.files[0])
    assert {v.dtype for v in load_file(weights.files[0]).values()} == {torch.float32}


def test_what_training_changed_is_not_narrowed(bert_base):
    def mix(tensors):
        tensors["pooler.dense.bias"] = tensors["pooler.dense.bias"].half()
        tensors["pooler.dense.weight"] = tensors["pooler.dense.weight"].half()

    graph = load(bert_base, HeadKind.BASE, rewrite(bert_base, mix))
    with torch.no_grad():
        graph.get_parameter("pooler.dense.bias").add_(1e-5)
    save_safetensors_file_from_graph(graph, bert_base / "model.safetensors")
    stored = load_file(bert_base / "model.safetensors")
    assert stored["pooler.dense.bias"].dtype == torch.float32
    assert stored["pooler.dense.weight"].dtype == torch.float16


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_loaded_and_saved_with_one_warning(bert_base, value, capsys):
    def spoil(tensors):
        for key in ("pooler.dense.bias", "pooler.dense.weight"):
            tensors[key].flatten()[3] = value
        tensors["pooler.dense.bias"].view(torch.int32)[5] = 0x7FC12345  # a NaN with a message

    weights = rewrite(bert_base, spoil)
    graph = load(bert_base, HeadKind.BASE, weights)
    err = capsys.readouterr().err
    assert err.count("warning:") == 1
    assert "pooler.dense.weight, pooler.dense.bias hold values that are not finite" in err
    assert stored_bytes(graph) == weights.files[0].read_bytes()


def test_numbers_whose_sum_is_infinite_are_no_reason_to_warn(bert_base, capsys):
    def grow(tensors):
        tensors["pooler.dense.weight"].fill_(3e38)

    load(bert_base, HeadKind.BASE, rewrite(bert_base, grow))
    assert capsys.readouterr().err == ""


# The module


def test_a_module_with_tensors_keeps_its_parameters_and_what_they_are_for(bert_base):
    config = config_of(bert_base)
    graph = build(config, HeadKind.BASE, device="cpu", seed=3)
    frozen = graph.get_parameter("pooler.dense.bias").requires_grad_(False)
    version = frozen._version
    optimizer = torch.optim.SGD(graph.parameters(), lr=0.1)
    fill(graph, StoredFiles(weights_of(bert_base)), config)
    assert graph.get_parameter("pooler.dense.bias") is frozen
    assert not frozen.requires_grad
    assert frozen._version > version
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in graph.parameters()}
    assert same(state(graph), load_file(bert_base / "model.safetensors"))


def test_what_is_frozen_before_it_has_values_stays_frozen(bert_base):
    config = config_of(bert_base)
    graph = build(config, HeadKind.BASE)
    graph.get_parameter("pooler.dense.bias").requires_grad_(False)
    fill(graph, StoredFiles(weights_of(bert_base)), config)
    frozen = [name for name, p in graph.named_parameters() if not p.requires_grad]
    assert frozen == ["pooler.dense.bias"]


def test_training_leaves_the_file_alone(bert_base):
    before = (bert_base / "model.safetensors").read_bytes()
    graph = load(bert_base, HeadKind.BASE)
    optimizer = torch.optim.SGD(graph.parameters(), lr=1.0)
    graph(IDS).sum().backward()
    optimizer.step()
    assert not same(state(graph), load_file(bert_base / "model.safetensors"))
    assert (bert_base / "model.safetensors").read_bytes() == before


def test_the_report_names_files_and_commit(bert_base):
    graph = load(bert_base, HeadKind.BASE, commit="c0ffee")
    assert graph.load_report.files == (bert_base / "model.safetensors",)
    assert graph.load_report.commit == "c0ffee"
    assert isinstance(graph.get_parameter("pooler.dense.bias"), nn.Parameter)


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 5e-2), ("float16", 5e-3)])
def test_a_shorter_type_changes_the_outputs_little(bert_mlm, dtype, most):
    generator = torch.get_rng_state()
    graph, exact = load(bert_mlm, HeadKind.MLM, dtype=dtype), load(bert_mlm, HeadKind.MLM)
    assert torch.equal(torch.get_rng_state(), generator)
    ids = torch.randint(40, (3, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        short, long = graph.eval()(ids), exact.eval()(ids)
    assert 0 < float((short.float() - long).norm() / long.norm()) < most
