"""All families with all heads, with settings and values that nobody chose beforehand."""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path
from typing import Any

import pytest
import torch

from flodl.hf.encoder_model import set_unpad
from flodl.hf.export import export_command
from flodl.hf.families import AutoConfig
from flodl.hf.head_kind import HeadKind
from flodl.hf.opening import open_model
from flodl.hf.reference import LOSS_TOLERANCE, batch_for, load, loss_differences, make_synthetic
from flodl.hf.task_heads import inputs_of
from tests.flodl.hf.models.cells import CELLS, PREFIXES, counted, output_of
from tests.later import transformers

SEED = int(os.environ.get("RANDOM_MODELS_SEED", secrets.randbits(32)))
"""Drawn anew for every run; a failure tells it, and the variable repeats it."""

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu", "gelu_pytorch_tanh")


def drawn_fields(family: str, chance: random.Random) -> dict[str, Any]:
    """Settings of a small model, as transformers spells them."""
    heads = chance.choice([1, 2, 3, 4])
    width = heads * chance.choice([2, 4, 6, 8]) * 2
    layers, inner = chance.randint(1, 4), chance.randint(5, 50)
    act, eps = chance.choice(ACTIVATIONS), chance.choice([1e-12, 1e-5, 1e-3])
    fields: dict[str, Any] = {
        "vocab_size": chance.randint(30, 150),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": chance.randint(20, 70),
        "pad_token_id": chance.randint(0, 3),
        "tie_word_embeddings": chance.random() < 0.7,
    }
    if family == "distilbert":
        names = {"hidden_size": "dim", "num_hidden_layers": "n_layers",
                 "num_attention_heads": "n_heads", "intermediate_size": "hidden_dim"}  # fmt: skip
        renamed = {names.get(key, key): value for key, value in fields.items()}
        return {**renamed, "activation": chance.choice(["gelu", "relu"])}
    if family == "modernbert":
        yes: dict[str, Any] = {
            name: chance.random() < 0.5
            for name in ("norm_bias", "attention_bias", "mlp_bias", "decoder_bias",
                         "classifier_bias")
        }  # fmt: skip
        return {
            **fields,
            **yes,
            "hidden_activation": act,
            "classifier_activation": chance.choice(ACTIVATIONS),
            "norm_eps": max(eps, 1e-5),
            "local_attention": chance.randint(1, 20),
            "layer_types": [
                chance.choice(["full_attention", "sliding_attention"]) for _ in range(layers)
            ],
            "classifier_pooling": chance.choice(["cls", "mean"]),
        }
    fields |= {"hidden_act": act, "layer_norm_eps": eps, "type_vocab_size": chance.randint(2, 3)}
    if family == "albert":
        groups = chance.randint(1, layers)
        fields |= {"embedding_size": chance.randint(4, 20), "num_hidden_groups": groups,
                   "inner_group_num": chance.randint(1, 2)}  # fmt: skip
    if family == "deberta-v2":
        fields |= {
            "relative_attention": True,
            "position_buckets": chance.choice([-1, 4, 8]),
            "pos_att_type": chance.choice([["c2p"], ["p2c"], ["c2p", "p2c"]]),
            "share_att_key": chance.random() < 0.5,
            "norm_rel_ebd": chance.choice(["none", "layer_norm"]),
            "position_biased_input": chance.random() < 0.5,
            "conv_kernel_size": chance.choice([0, 3]),
            "conv_act": "gelu",
            "tie_word_embeddings": True,
        }
    return fields


def assert_equal_gradients(ours: Any, theirs: Any) -> None:
    found = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        if name in found and parameter.grad is not None:
            torch.testing.assert_close(found[name].grad, parameter.grad, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_a_random_model_is_that_of_the_reference(
    tmp_path: Path, family: str, kind: HeadKind
) -> None:
    told = f"RANDOM_MODELS_SEED={SEED}"
    chance = random.Random(f"{SEED} {family} {kind}")
    fields = drawn_fields(family, chance)
    if kind in (HeadKind.SEQCLS, HeadKind.TOKCLS):
        fields["num_labels"] = chance.randint(2, 5)
    theirs = getattr(transformers, f"{PREFIXES[family]}Config")(**fields)
    config = AutoConfig.from_json_str(theirs.to_json_string(use_diff=False))
    source, out = tmp_path / "source", tmp_path / "export"
    make_synthetic(config, kind, source, f"{SEED} {family} {kind}")

    opened, model = open_model(source, kind, {}), load(source, source).model
    enc = batch_for(opened.config)
    inputs = inputs_of(enc, opened.config)
    given = {name: one for name, one in inputs.items() if name != "position_ids"}
    mask = enc.attention_mask
    for unpad in (True, False):
        set_unpad(opened.graph, unpad)
        expected, found = output_of(model(**given), kind), opened.graph(**inputs)
        assert_near(found, expected, mask, f"{told} {unpad} {fields}")
        weights = torch.randn(expected.shape[-1], generator=torch.Generator().manual_seed(3))
        for one, output in ((model, expected), (opened.graph, found)):
            one.zero_grad()
            (counted(output, mask) @ weights).mean().backward()
        assert_equal_gradients(opened.graph, model)

    export_command(hub=str(source), checkpoint=None, out=out, head=kind)
    name = "model.safetensors"
    assert (out / name).read_bytes() == (source / name).read_bytes(), f"{told} {fields}"
    set_unpad(opened.graph, "auto")
    losses = loss_differences(model, opened.graph, opened.config, enc)
    assert all(value <= LOSS_TOLERANCE for value in losses.values()), f"{told} {losses} {fields}"


def assert_near(found: torch.Tensor, expected: torch.Tensor, mask: torch.Tensor, told: str) -> None:
    apart = (counted(found, mask) - counted(expected, mask)).abs().max()
    assert apart <= 1e-5, f"{told}: {apart}"
