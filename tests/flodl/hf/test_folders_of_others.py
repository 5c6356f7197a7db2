"""Folders that other programs wrote: adapters of PEFT, and weights of wrapped models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from flodl.hf import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    add_lora,
    load_lora,
    save_lora,
)
from flodl.hf.errors import CheckpointFormatError, CheckpointMismatchError, ConfigError
from flodl.hf.tiny_model import write_tiny_model
from tests.rows import each_row


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny classifier."""
    write_tiny_model(tmp_path / "tiny", head="seqcls")
    return tmp_path / "tiny"


def test_a_folder_with_an_adapter_says_what_it_is_and_how_to_open_it(
    folder: Path, tmp_path: Path
) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    add_lora(model.graph, "query", r=2)
    lora = tmp_path / "lora"
    save_lora(model.graph, lora, base_model=str(folder))
    for kind in (AutoModel, AutoModelForSequenceClassification, BertForSequenceClassification):
        with pytest.raises(ConfigError) as refused:
            kind.from_pretrained(lora)
        assert str(refused.value) == (
            f"{lora} is an adapter of PEFT for the model {str(folder)!r}, and not a model: "
            f"open that one with from_pretrained({str(folder)!r}), then "
            f"load_lora(model.graph, {str(lora)!r})"
        )
    again = AutoModelForSequenceClassification.from_pretrained(folder)
    assert load_lora(again.graph, lora)  # what the message says


@each_row("text", ["", "{}", '{"peft_type": "IA3"}', "[1]", "{bad"])
def test_an_odd_adapter_is_named_as_well(text: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ConfigError, match="is an adapter of PEFT"):
        AutoModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "model.net."])
def test_weights_of_a_wrapped_model_name_the_prefix_and_the_option(
    folder: Path, prefix: str
) -> None:
    plain = AutoModelForSequenceClassification.from_pretrained(folder).state_dict()
    file = folder / "model.safetensors"
    save_file({prefix + key: value for key, value in load_file(file).items()}, file)
    with pytest.raises(CheckpointMismatchError) as refused:
        AutoModelForSequenceClassification.from_pretrained(folder)
    pattern = prefix.replace(".", r"\.")
    option = f'key_mapping={{r"^{pattern}": ""}}'
    assert f"its names begin with {prefix!r}: give {option}" in str(refused.value)
    mapping = {f"^{pattern}": ""}
    model = AutoModelForSequenceClassification.from_pretrained(folder, key_mapping=mapping)
    assert all(torch.equal(value, plain[key]) for key, value in model.state_dict().items())


def test_a_mapping_that_joins_two_tensors_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointFormatError, match=r"key_mapping gives .* the same name"):
        AutoModel.from_pretrained(folder, key_mapping={"weight|bias": "x"})


def test_without_a_common_prefix_none_is_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    (first, *_), (*_, last) = sorted(tensors), sorted(tensors)
    tensors["module." + first] = tensors.pop(first)
    tensors["other." + last] = tensors.pop(last)
    save_file(tensors, file)
    with pytest.raises(CheckpointMismatchError) as refused:
        AutoModelForSequenceClassification.from_pretrained(folder)
    assert "key_mapping" not in str(refused.value)
    assert json.loads((folder / "config.json").read_text())
