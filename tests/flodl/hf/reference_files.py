"""Tiny random checkpoints, written by the reference itself."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from flodl.hf.errors import need
from flodl.hf.families import AutoConfig
from flodl.hf.head_kind import HeadKind
from flodl.hf.source import WeightFiles, shard_names
from flodl.hf.weights.fill import fill
from flodl.hf.weights.stored import StoredFiles
from flodl.hf.weights.writing import METADATA, saved_tensors

FAMILIES = ("Bert", "Roberta", "XLMRoberta", "DistilBert", "Albert", "DebertaV2", "ModernBert")
MLM_TABLES = {
    "Bert": "cls.predictions.decoder.weight",
    "Roberta": "lm_head.decoder.weight",
    "XLMRoberta": "lm_head.decoder.weight",
    "DistilBert": "vocab_projector.weight",
    "Albert": "predictions.decoder.weight",
    "DebertaV2": "cls.predictions.decoder.weight",
    "ModernBert": "decoder.weight",
}
"""The second name of the word table in a masked language model of each family."""

_COMMON = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
_FIELDS: dict[str, dict[str, Any]] = {
    "DistilBert": {
        "vocab_size": 40,
        "dim": 16,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 24,
        "max_position_embeddings": 20,
    },
    "ModernBert": {**_COMMON, "pad_token_id": 0, "local_attention": 4},
    "Albert": {**_COMMON, "embedding_size": 8},
    "DebertaV2": {
        **_COMMON,
        "relative_attention": True,
        "position_buckets": 4,
        "pos_att_type": ["c2p", "p2c"],
        "norm_rel_ebd": "layer_norm",
    },
}


@functools.cache
def _transformers() -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def reference_model(family: str, kind: HeadKind, seed: int = 0, **fields: Any) -> Any:
    """A model of the reference in which every parameter is random, in evaluation mode."""
    package = _transformers()
    config = getattr(package, family + "Config")(**{**_FIELDS.get(family, _COMMON), **fields})
    model = getattr(package, family + kind.suffix)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.05, generator=generator)
    return model


def reference_from(folder: Path, family: str, kind: HeadKind) -> Any:
    """What the reference makes of a directory."""
    return getattr(_transformers(), family + kind.suffix).from_pretrained(folder).eval()


def save_reference(
    folder: Path, family: str, kind: HeadKind, *, shards: str | None = None, **fields: Any
) -> Any:
    """Write ``config.json`` and the weights of a random model, and return that model."""
    model = reference_model(family, kind, **fields)
    model.save_pretrained(folder, **({"max_shard_size": shards} if shards else {}))
    return model


def config_of(folder: Path, **changes: Any) -> Any:
    """The configuration of a directory; changes are written to the file first."""
    path = folder / "config.json"
    if changes:
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return AutoConfig.from_json_str(path.read_text())


def words_in(tensors: Any) -> str:
    """The key of the table of words."""
    tables = ("word_embeddings.weight", "tok_embeddings.weight")
    return next(key for key in tensors if key.endswith(tables))


def weights_of(folder: Path) -> WeightFiles:
    """The single weights file of a directory."""
    return WeightFiles((folder / "model.safetensors",))


def rewrite(folder: Path, change: Any) -> WeightFiles:
    """Write the weights of a directory anew, after ``change`` got their dictionary."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    changed = change(tensors)
    save_file(tensors if changed is None else changed, path, metadata={"format": "pt"})
    return weights_of(folder)


def stored_bytes(module: Any) -> bytes:
    """What a file of the module holds."""
    return need("safetensors.torch", "hf-offline").save(saved_tensors(module), metadata=METADATA)


def fill_exactly(module: Any, path: Path) -> None:
    """Fill any module from a file, or the index of shards, that has exactly its names."""
    files = WeightFiles((path,))
    if path.suffix == ".json":
        files = WeightFiles(tuple(path.with_name(name) for name in shard_names(path)), path)
    fill(module, StoredFiles(files), None, allow_unused=False)
