"""The checks of transformers' model testers on our classes: each passes, or says what to do."""

from __future__ import annotations

import re
import traceback
import warnings
from pathlib import Path

import pytest

import flodl
from flodl.errors import FlodlError
from flodl.hf import HeadKind
from tests.flodl.hf.models.cells import CELLS
from tests.flodl.hf.models.model_checks import CHECKS, NotApplicable, Pair

ROOT = Path(flodl.__file__).parent
COMPILING = ("torch_compile", "torch_export")
REFUSED = {
    "headmasking": "takes no argument 'head_mask': attention heads cannot be masked",
    "model_as_decoder": "'is_decoder' is True; it must be false; decoders are not supported",
    "cross_attention": "takes no argument 'encoder_hidden_states': an encoder reads all tokens",
    "past_key_values": "takes no argument 'past_key_values': an encoder reads all tokens at once",
    "nested_lists": r'call tokenizer\(texts, padding=True, return_tensors="pt"\)',
    "unknown_argument": r"takes no argument 'input_idz': see help\(model.forward\)",
    "labels_of_an_encoder": "takes no argument 'labels': open the model with a head, such as Auto",
    "sdpa_can_dispatch_on_flash": "leave it out, or give 'sdpa' or 'eager'",
    "flex_attention": "leave it out, or give 'sdpa' or 'eager'",
    "model_various_embeddings": "'position_embedding_type' is 'relative_key'; it must be 'absol",
    "training_gradient_checkpointing_use_reentrant": "supported setting is {'use_reentrant': Fa",
    "peft_gradient_checkpointing_enable_disable": r"gradient_checkpointing_enable\(\) works wit",
    "resize_position_vector_embeddings": "give a larger max_position_embeddings to from_config",
    "tie_model_weights": "parameters that belong together are shared already",
    "head_pruning": r"drop_layers\(model.graph, layers\) drops layers",
    "generation": "a masked-language model fills gaps by fill_mask",
    "from_pretrained_no_checkpoint": "call model.load_state_dict",
    "correct_missing_keys": 'to start with a new head give head_init="random"',
    "save_as_pickle": "weights are only written as safetensors",
    "mismatched_shapes_without_ignore": "give ignore_mismatched_sizes=True",
    "mismatched_vocabulary": r"resize_token_embeddings\(\) changes the words",
    "disk_offload": "weights are memory-mapped: leave it out",
    "cpu_offload": 'give device="cuda" or another device; a model is on one device',
    "load_in_8bit": 'give dtype="bfloat16" for half the memory',
    "output_loading_info": "read model.load_report afterwards",
    "push_to_hub": "upload it with huggingface_hub.upload_folder",
    "wrong_config": r"from_pretrained\(source\) for a checkpoint",
}
"""The checks whose call is refused, and part of the sentence; all others pass."""


def outcome(check: str, family: str, kind: object, folder: Path) -> str:
    """How a check ends for a class: ``passes``, ``not applicable``, or a sentence of ours."""
    pair = Pair(family, kind, folder / check)  # type: ignore[arg-type]
    pair.folder.mkdir()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            CHECKS[check](pair)
    except NotApplicable:
        return "not applicable"
    except (FlodlError, AttributeError, TypeError, ValueError) as error:
        where = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if not where.is_relative_to(ROOT):
            raise  # a bare error of Python or torch
        return str(error)
    return "passes"


def problem(check: str, family: str, kind: object, folder: Path) -> str:
    """What is wrong with the outcome of a check; nothing if it is as expected."""
    try:
        found = outcome(check, family, kind, folder)
    except Exception as error:  # it belongs to the row
        return f"{check}: {type(error).__name__}: {error}"
    if found == "not applicable":
        return ""
    wanted = REFUSED.get(check, "^passes$")
    if check == "correct_missing_keys" and kind == HeadKind.QA:
        wanted = "^passes$"  # such a head starts on any encoder, the others want to be told
    return "" if re.search(wanted, found) else f"{check}: {found}"


def test_there_are_as_many_checks_as_transformers_asks():
    assert len(CHECKS) >= 66
    assert set(REFUSED) < set(CHECKS)


def test_each_check_of_transformers_on_one_class(tmp_path):
    cells = [CELLS[(number * 8) % len(CELLS)] for number in range(len(CHECKS))]
    found = [
        problem(check, family, kind, tmp_path)
        for check, (family, kind) in zip(CHECKS, cells, strict=True)
        if check not in COMPILING
    ]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), CELLS, ids=str)
def test_every_check_of_transformers_on_every_class(tmp_path, family, kind):
    found = [problem(check, family, kind, tmp_path) for check in CHECKS]
    assert not any(found), "\n".join(filter(None, found))
