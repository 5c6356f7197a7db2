"""Pairs of models, the reference's and ours, with the same values that show every part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flodl.graph import Graph
from flodl.hf.build import build
from flodl.hf.families import AutoConfig
from flodl.hf.head_kind import HeadKind
from tests.later import transformers

LABELS = 3
VOCABULARY = 60
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
OWN: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"type_vocab_size": 1, "pad_token_id": 1},
    "xlm-roberta": {"type_vocab_size": 1, "pad_token_id": 1},
    "distilbert": {},
    "albert": {"embedding_size": 16},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 8,
        "pos_att_type": ["c2p", "p2c"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    # Every other layer sees two tokens to each side, so both masks show in short rows.
    "modernbert": {"pad_token_id": 0, "global_attn_every_n_layers": 2, "local_attention": 4},
}
FAMILIES = tuple(OWN)
PREFIXES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "albert": "Albert",
    "deberta-v2": "DebertaV2",
    "modernbert": "ModernBert",
}
CELLS = [(family, kind) for family in FAMILIES for kind in HeadKind]
NO_DROPOUT = {
    "distilbert": {
        "dropout": 0.0, "attention_dropout": 0.0, "qa_dropout": 0.0, "seq_classif_dropout": 0.0
    },
    "modernbert": dict.fromkeys(
        ("embedding_dropout", "attention_dropout", "mlp_dropout", "classifier_dropout"), 0.0
    ),
}  # fmt: skip
_NO_DROPOUT = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.0,
}


def reference(family: str, kind: HeadKind, **fields: Any) -> Any:
    """A model of transformers, all of whose parameters were drawn anew; it evaluates."""
    name = PREFIXES[family]
    given = {**SIZES, **OWN[family], **fields}
    if family == "distilbert":
        spelled = {"hidden_size": "dim", "num_hidden_layers": "n_layers",
                   "num_attention_heads": "n_heads", "intermediate_size": "hidden_dim"}  # fmt: skip
        given = {spelled.get(key, key): value for key, value in given.items()}
    if kind in (HeadKind.SEQCLS, HeadKind.TOKCLS):
        given = {"num_labels": LABELS, **given}
    config = getattr(transformers, f"{name}Config")(**given)
    model = getattr(transformers, name + kind.suffix)(config)
    redraw(model)
    return model.eval()


def without_dropout(family: str) -> dict[str, Any]:
    """Fields that switch dropout off."""
    return NO_DROPOUT.get(family, _NO_DROPOUT)


def redraw(model: nn.Module) -> None:
    """Draw every parameter, so that biases, norms and rows of padding show as well."""
    generator = torch.Generator().manual_seed(11)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                values = torch.randn(parameter.shape, generator=generator)
                norm = isinstance(module, nn.LayerNorm) and name == "weight"
                spread, middle = (0.1, float(norm)) if norm or name == "bias" else (0.05, 0.0)
                with torch.no_grad():
                    parameter.copy_(middle + spread * values)


def ours(model: Any, kind: HeadKind, **fields: Any) -> Graph:
    """The same model as a graph, with copies of the values."""
    config = AutoConfig.from_json_str(model.config.to_json_string())
    config = config.replace(**fields) if fields else config
    config = config.replace(num_labels=model.config.num_labels)
    graph = build(config, kind, pooler=has_pooler(model), device="cpu")
    state, names = model.state_dict(), graph.state_dict(keep_vars=True)
    # A decoder that reads the encoder's table has it under a name of its own as well.
    second = {name for name in names.keys() - state.keys() if is_second(name, names)}
    assert state.keys() == names.keys() - second
    graph.load_state_dict(state, strict=not second)
    return graph.eval()


def is_second(name: str, state: dict[str, Any]) -> bool:
    """Whether a parameter has another name, too."""
    return any(other is state[name] for key, other in state.items() if key != name)


def has_pooler(model: Any) -> bool:
    """Whether the reference computed one."""
    return getattr(model, "pooler", None) is not None


def pair(family: str, kind: HeadKind, **fields: Any) -> tuple[Any, Graph]:
    """The reference and ours."""
    model = reference(family, kind, **fields)
    return model, ours(model, kind)


def batch(
    family: str, lengths: tuple[int, ...] = (11, 4, 7, 9), *, left: tuple[int, ...] = ()
) -> dict[str, Tensor]:
    """Rows of several lengths with both segments where the family has them.

    Args:
        family: Decides the padding and the inputs.
        lengths: Tokens of each row.
        left: Rows that are padded on the left.
    """
    pad = OWN[family].get("pad_token_id", 0)
    longest = max(lengths)
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(5, VOCABULARY, (len(lengths), longest), generator=generator)
    columns = torch.arange(longest)
    counts = torch.tensor(lengths)[:, None]
    mask = columns < counts
    for row in left:
        mask[row] = mask[row].flip(0)
    inputs = {"input_ids": ids.masked_fill(~mask, pad), "attention_mask": mask.long()}
    if family in ("bert", "albert"):
        inputs["token_type_ids"] = ((columns > 3) & mask).long()
    return inputs


def output_of(found: Any, kind: HeadKind) -> Tensor:
    """The tensor of a reference's output that a graph returns."""
    if kind is HeadKind.BASE:
        return found.last_hidden_state
    if kind is HeadKind.QA:
        return torch.stack([found.start_logits, found.end_logits], -1)
    return found.logits


def counted(tensor: Tensor, mask: Tensor) -> Tensor:
    """What stands at tokens; everything where there is one value per row."""
    return tensor[mask.bool()] if tensor.dim() == 3 else tensor
