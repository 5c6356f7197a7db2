"""The checks that transformers' model testers run on every class, asked of our classes.

Each check is a function of a pair of models with the same values. It passes, or the call that
it makes is refused, or it does not apply to our models at all.
"""

from __future__ import annotations

import copy
import inspect
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import flodl.hf
from flodl.hf import AutoConfig, AutoModel, HeadKind
from tests.flodl.hf.models.cells import LABELS, PREFIXES, VOCABULARY, reference, without_dropout
from tests.later import transformers

ROWS, LENGTH = 3, 8
NEAR = 2e-5
CLOSE: dict[str, Any] = {"atol": NEAR, "rtol": 1e-4}


class NotApplicable(Exception):  # noqa: N818 - an outcome
    """The check asks for something that no model of ours is; the text says what."""


@dataclass
class Pair:
    """A class of ours and the class of transformers, with the same values.

    Attributes:
        family: The family.
        kind: The head.
        folder: An empty folder.
    """

    family: str
    kind: HeadKind
    folder: Path

    @property
    def name(self) -> str:
        """The name of both classes."""
        return PREFIXES[self.family] + self.kind.suffix

    @property
    def ours_class(self) -> Any:
        """Our class."""
        return getattr(flodl.hf, self.name)

    @property
    def theirs_class(self) -> Any:
        """The class of transformers."""
        return getattr(transformers, self.name)

    @cached_property
    def theirs(self) -> Any:
        """The model of transformers, evaluating, with attention by its formula."""
        model = reference(self.family, self.kind, **without_dropout(self.family))
        model.set_attn_implementation("eager")
        return model

    @cached_property
    def ours(self) -> Any:
        """Our model with copies of the values."""
        model = self.ours_class(self.config())
        load(model, self.theirs.state_dict())
        return model.eval()

    def config(self, **fields: Any) -> Any:
        """Our configuration: that of transformers, read as a file."""
        data = json.loads(self.theirs.config.to_json_string()) | fields
        return AutoConfig.from_json_str(json.dumps(data | {"architectures": [self.name]}))

    @cached_property
    def batch(self) -> dict[str, Tensor]:
        """Ids without padding, and their mask."""
        generator = torch.Generator().manual_seed(3)
        ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    @property
    def labels(self) -> dict[str, Tensor]:
        """What the head is trained with; empty for an encoder."""
        row, column = torch.arange(ROWS), torch.arange(LENGTH)
        match self.kind:
            case HeadKind.SEQCLS:
                return {"labels": row % LABELS}
            case HeadKind.TOKCLS:
                return {"labels": (row[:, None] + column) % LABELS}
            case HeadKind.MLM:
                return {"labels": (row[:, None] * 3 + column) % VOCABULARY}
            case HeadKind.QA:
                return {"start_positions": row % LENGTH, "end_positions": (row + 2) % LENGTH}
        return {}

    def saved(self) -> Path:
        """A folder that transformers wrote."""
        self.theirs.save_pretrained(self.folder / "theirs")
        return self.folder / "theirs"


def load(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Copy values by name; a shared table may lack its second name."""
    missing, unexpected = model.load_state_dict(state, strict=False)
    names = dict(model.state_dict(keep_vars=True))
    held = {id(names[name]) for name in names if name in state}
    assert not unexpected
    assert all(id(names[name]) in held for name in missing), missing


def run(model: Any, batch: dict[str, Any], **more: Any) -> Any:
    """Call a model without gradients."""
    with torch.no_grad():
        return model(**batch, **more)


def same(ours: Any, theirs: Any) -> None:
    """Both outputs have the same names, in order, and near values."""
    empty = {"pooler_output", "cross_attentions"}  # the second is of a decoder
    mine = {name: value for name, value in ours.items() if name not in empty}
    other = {name: value for name, value in theirs.items() if name not in empty}
    assert list(mine) == list(other)
    for name, value in mine.items():
        near(value, other[name])


def near(ours: Any, theirs: Any) -> None:
    """Tensors, or tuples of them, are near."""
    if isinstance(ours, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            near(one, other)
        return
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, **CLOSE)


# --- Outputs -------------------------------------------------------------------------------------


def model(pair: Pair) -> None:
    same(run(pair.ours, pair.batch), run(pair.theirs, pair.batch))
    run(pair.ours, {"input_ids": pair.batch["input_ids"]})


def _head(pair: Pair, kind: HeadKind) -> None:
    if pair.kind is not kind:
        raise NotApplicable("another head")
    same(run(pair.ours, pair.batch, **pair.labels), run(pair.theirs, pair.batch, **pair.labels))


def for_masked_lm(pair: Pair) -> None:
    _head(pair, HeadKind.MLM)


def for_question_answering(pair: Pair) -> None:
    _head(pair, HeadKind.QA)


def for_sequence_classification(pair: Pair) -> None:
    _head(pair, HeadKind.SEQCLS)


def for_token_classification(pair: Pair) -> None:
    _head(pair, HeadKind.TOKCLS)


def for_multiple_choice(pair: Pair) -> None:
    raise NotApplicable(f"{pair.family} has no such head here")


def for_causal_lm(pair: Pair) -> None:
    raise NotApplicable(f"{pair.family} has no such head here")


def determinism(pair: Pair) -> None:
    first, second = (run(pair.ours, pair.batch)[0] for _ in range(2))
    assert torch.equal(first, second)


def batching_equivalence(pair: Pair) -> None:
    whole = run(pair.ours, pair.batch)[0]
    for row in range(ROWS):
        one = {name: value[row : row + 1] for name, value in pair.batch.items()}
        near(run(pair.ours, one)[0], whole[row : row + 1])


def left_padding_compatibility(pair: Pair) -> None:
    mask = pair.batch["attention_mask"].clone()
    mask[:, :3] = 0
    mask[:, 0] = 1  # the row's first token, which a classifier reads
    padded = {**pair.batch, "attention_mask": mask}
    kept = mask.bool()
    ours, theirs = run(pair.ours, padded)[0], run(pair.theirs, padded)[0]
    if ours.dim() == 3 or pair.kind is HeadKind.QA:
        ours, theirs = ours[kept], theirs[kept]
    near(ours, theirs)


def model_outputs_equivalence(pair: Pair) -> None:
    for more in ({}, {"output_hidden_states": True}, {"output_attentions": True}, pair.labels):
        named = run(pair.ours, pair.batch, **more)
        plain = run(pair.ours, pair.batch, **more, return_dict=False)
        assert isinstance(plain, tuple)
        near(plain, named.to_tuple())


def attention_outputs(pair: Pair) -> None:
    ours = run(pair.ours, pair.batch, output_attentions=True)
    same(ours, run(pair.theirs, pair.batch, output_attentions=True))
    pair.ours.config.output_attentions = True
    assert len(run(pair.ours, pair.batch).attentions) == len(ours.attentions)
    assert run(pair.ours, pair.batch, output_attentions=False).attentions is None


def hidden_states_output(pair: Pair) -> None:
    ours = run(pair.ours, pair.batch, output_hidden_states=True)
    same(ours, run(pair.theirs, pair.batch, output_hidden_states=True))
    pair.ours.config.output_hidden_states = True
    assert len(run(pair.ours, pair.batch).hidden_states) == len(ours.hidden_states)
    assert run(pair.ours, pair.batch, output_hidden_states=False).hidden_states is None


def retain_grad_hidden_states_attentions(pair: Pair) -> None:
    out = pair.ours(**pair.batch, output_hidden_states=True, output_attentions=True)
    kept = [out.hidden_states[0], out.attentions[0]]
    for one in kept:
        one.retain_grad()
    out[0].flatten()[0].backward()
    assert all(one.grad is not None for one in kept)


def feed_forward_chunking(pair: Pair) -> None:
    before = run(pair.ours, pair.batch)[0]
    pair.ours.config.chunk_size_feed_forward = 1
    near(run(pair.ours, pair.batch)[0], before)


def inputs_embeds(pair: Pair) -> None:
    vectors = pair.ours.get_input_embeddings()(pair.batch["input_ids"])
    given = {"inputs_embeds": vectors, "attention_mask": pair.batch["attention_mask"]}
    assert run(pair.ours, given)[0].shape == run(pair.ours, pair.batch)[0].shape


def inputs_embeds_matches_input_ids(pair: Pair) -> None:
    vectors = pair.ours.get_input_embeddings()(pair.batch["input_ids"])
    given = {"inputs_embeds": vectors, "attention_mask": pair.batch["attention_mask"]}
    near(run(pair.ours, given)[0], run(pair.ours, pair.batch)[0])


def problem_types(pair: Pair) -> None:
    if pair.kind is not HeadKind.SEQCLS:
        raise NotApplicable("another head")
    rows = torch.arange(ROWS)
    wanted = torch.stack([rows % 2, rows % 3, rows % 2], 1).float()
    labels = {
        "regression": wanted,
        "single_label_classification": rows % LABELS,
        "multi_label_classification": (wanted > 0).float(),
    }
    for problem, targets in labels.items():
        for model in (pair.ours, pair.theirs):
            model.config.problem_type = problem
        near(
            run(pair.ours, pair.batch, labels=targets).loss,
            run(pair.theirs, pair.batch, labels=targets).loss,
        )


def headmasking(pair: Pair) -> None:
    pair.ours(**pair.batch, head_mask=torch.ones(3, 4))


def model_as_decoder(pair: Pair) -> None:
    pair.ours_class(pair.config(is_decoder=True))


def cross_attention(pair: Pair) -> None:
    states = torch.zeros(ROWS, LENGTH, 32)
    pair.ours(**pair.batch, encoder_hidden_states=states)


def past_key_values(pair: Pair) -> None:
    pair.ours(**pair.batch, past_key_values=((torch.zeros(1),),))


def use_cache(pair: Pair) -> None:
    pair.ours.config.use_cache = False
    near(run(pair.ours, pair.batch, use_cache=False)[0], run(pair.ours, pair.batch)[0])


def nested_lists(pair: Pair) -> None:
    pair.ours(input_ids=pair.batch["input_ids"].tolist())


def unknown_argument(pair: Pair) -> None:
    pair.ours(**pair.batch, input_idz=pair.batch["input_ids"])


def labels_of_an_encoder(pair: Pair) -> None:
    if pair.labels:
        raise NotApplicable("a head takes labels")
    pair.ours(**pair.batch, labels=torch.zeros(ROWS, dtype=torch.int64))


def eager_matches_sdpa_inference(pair: Pair) -> None:
    before = run(pair.ours, pair.batch)[0]
    pair.ours.set_attn_implementation("eager")
    near(run(pair.ours, pair.batch)[0], before)


def sdpa_can_dispatch_on_flash(pair: Pair) -> None:
    pair.ours_class.from_pretrained(pair.saved(), attn_implementation="flash_attention_2")


def flex_attention(pair: Pair) -> None:
    pair.ours.set_attn_implementation("flex_attention")


def model_various_embeddings(pair: Pair) -> None:
    pair.ours_class(pair.config(position_embedding_type="relative_key"))


def forward_signature(pair: Pair) -> None:
    names = list(inspect.signature(type(pair.ours).forward).parameters)
    assert names[1:3] == ["input_ids", "attention_mask"]
    assert set(pair.labels) <= set(names)


def model_main_input_name(pair: Pair) -> None:
    assert pair.ours.main_input_name == pair.theirs.main_input_name == "input_ids"


def half_precision(pair: Pair) -> None:
    out = run(copy.deepcopy(pair.ours).to(torch.bfloat16), pair.batch)[0]
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()


def torch_export(pair: Pair) -> None:
    again = torch.export.export(pair.ours, (), dict(pair.batch)).module()
    near(again(**pair.batch)[0], run(pair.ours, pair.batch)[0])


def multi_gpu_data_parallel_forward(pair: Pair) -> None:
    raise NotApplicable(f"{pair.name} is on one device")


# --- Training ------------------------------------------------------------------------------------


def training(pair: Pair) -> None:
    if not pair.labels:
        raise NotApplicable("an encoder has no loss")
    ours, theirs = (one.train() for one in (pair.ours, pair.theirs))
    for one in (ours, theirs):
        one(**pair.batch, **pair.labels).loss.backward()
    grads = dict(ours.named_parameters(remove_duplicate=False))
    for name, parameter in theirs.named_parameters():
        if parameter.grad is not None:
            near(grads[name].grad, parameter.grad)


def _checkpointed(pair: Pair, **settings: Any) -> None:
    if not pair.labels:
        raise NotApplicable("an encoder has no loss")
    pair.ours.train()
    pair.ours(**pair.batch, **pair.labels).loss.backward()
    before = [one.grad for one in pair.ours.parameters()]
    pair.ours.zero_grad()
    pair.ours.gradient_checkpointing_enable(**settings)
    assert pair.ours.is_gradient_checkpointing
    pair.ours(**pair.batch, **pair.labels).loss.backward()
    for one, grad in zip(pair.ours.parameters(), before, strict=True):
        assert (one.grad is None) == (grad is None)
        if grad is not None:
            near(one.grad, grad)


def training_gradient_checkpointing(pair: Pair) -> None:
    _checkpointed(pair)


def training_gradient_checkpointing_use_reentrant_false(pair: Pair) -> None:
    _checkpointed(pair, gradient_checkpointing_kwargs={"use_reentrant": False})


def training_gradient_checkpointing_use_reentrant(pair: Pair) -> None:
    pair.ours.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})


def gradient_checkpointing_enable_disable(pair: Pair) -> None:
    assert not pair.ours.is_gradient_checkpointing
    pair.ours.gradient_checkpointing_enable()
    assert pair.ours.is_gradient_checkpointing
    pair.ours.gradient_checkpointing_disable()
    assert not pair.ours.is_gradient_checkpointing


def peft_gradient_checkpointing_enable_disable(pair: Pair) -> None:
    pair.ours.enable_input_require_grads()


def initialization(pair: Pair) -> None:
    for name, one in pair.ours_class(pair.config(initializer_range=1e-10)).named_parameters():
        if pair.family == "modernbert" and name == "classifier.weight":
            continue  # its spread follows from the width, in transformers too
        assert one.data.mean().mul(1e9).round().div(1e9).item() in (0.0, 1.0), name


def model_is_small(pair: Pair) -> None:
    assert pair.ours.num_parameters() == pair.theirs.num_parameters() < 1_000_000


def torch_compile(pair: Pair) -> None:
    compiled = torch.compile(pair.ours, backend="eager")
    near(run(compiled, pair.batch)[0], run(pair.ours, pair.batch)[0])


# --- Parts ---------------------------------------------------------------------------------------


def model_get_set_embeddings(pair: Pair) -> None:
    table = pair.ours.get_input_embeddings()
    assert table.weight.shape == pair.theirs.get_input_embeddings().weight.shape
    new = nn.Embedding(*table.weight.shape)
    pair.ours.set_input_embeddings(new)
    assert pair.ours.get_input_embeddings() is new
    theirs = pair.theirs.get_output_embeddings()
    ours = pair.ours.get_output_embeddings()
    assert (ours is None) == (theirs is None)


def resize_tokens_embeddings(pair: Pair) -> None:
    for size in (VOCABULARY + 10, VOCABULARY - 15):
        pair.ours.resize_token_embeddings(size)
        assert pair.ours.config.vocab_size == size
        assert len(pair.ours.get_input_embeddings().weight) == size
        run(pair.ours, {"input_ids": pair.batch["input_ids"].clamp(max=size - 1)})


def resize_embeddings_untied(pair: Pair) -> None:
    if pair.kind is not HeadKind.MLM:
        raise NotApplicable("another head")
    model = pair.ours_class(pair.config(tie_word_embeddings=False))
    model.resize_token_embeddings(VOCABULARY + 10)
    assert run(model, pair.batch)[0].shape[-1] == VOCABULARY + 10


def resize_position_vector_embeddings(pair: Pair) -> None:
    pair.ours.resize_position_embeddings(20)


def tied_weights_keys(pair: Pair) -> None:
    if pair.kind is not HeadKind.MLM:
        raise NotApplicable("another head")
    assert pair.ours.get_output_embeddings().weight is pair.ours.get_input_embeddings().weight


def tie_model_weights(pair: Pair) -> None:
    pair.ours.tie_weights()


def head_pruning(pair: Pair) -> None:
    pair.ours.prune_heads({0: [0]})


def base_model(pair: Pair) -> None:
    ours, theirs = pair.ours.base_model, pair.theirs.base_model
    near(run(ours, pair.batch)[0], run(theirs, pair.batch)[0])
    assert pair.ours.base_model_prefix == pair.theirs.base_model_prefix


def generation(pair: Pair) -> None:
    pair.ours.generate(**pair.batch)


# --- Files ---------------------------------------------------------------------------------------


def save_load(pair: Pair) -> None:
    pair.ours.save_pretrained(pair.folder / "ours")
    again = pair.ours_class.from_pretrained(pair.folder / "ours")
    assert torch.equal(run(again, pair.batch)[0], run(pair.ours, pair.batch)[0])
    theirs = pair.theirs_class.from_pretrained(pair.folder / "ours", attn_implementation="eager")
    near(run(pair.ours, pair.batch)[0], run(theirs, pair.batch)[0])


def load_of_theirs(pair: Pair) -> None:
    ours = pair.ours_class.from_pretrained(pair.saved())
    same(run(ours, pair.batch), run(pair.theirs, pair.batch))


def from_pretrained_no_checkpoint(pair: Pair) -> None:
    pair.ours_class.from_pretrained(None, config=pair.config(), state_dict=pair.ours.state_dict())


def torch_save_load(pair: Pair) -> None:
    kept = io.BytesIO()
    torch.save(pair.ours.state_dict(), kept)
    kept.seek(0)
    again = pair.ours_class(pair.config())
    again.load_state_dict(torch.load(kept, weights_only=True))
    assert torch.equal(run(again.eval(), pair.batch)[0], run(pair.ours, pair.batch)[0])


def save_load_from_base(pair: Pair) -> None:
    pair.theirs.base_model.save_pretrained(pair.folder / "base")
    head = pair.ours_class.from_pretrained(
        pair.folder / "base", **({} if pair.kind is HeadKind.BASE else {"head_init": "random"})
    )
    near(run(head.base_model, pair.batch)[0], run(pair.theirs.base_model, pair.batch)[0])


def save_load_to_base(pair: Pair) -> None:
    base = AutoModel.from_pretrained(pair.saved())
    near(run(base, pair.batch)[0], run(pair.theirs.base_model, pair.batch)[0])


def correct_missing_keys(pair: Pair) -> None:
    if pair.kind is HeadKind.BASE:
        raise NotApplicable("an encoder has no head to miss")
    pair.theirs.base_model.save_pretrained(pair.folder / "base")
    pair.ours_class.from_pretrained(pair.folder / "base")


def can_use_safetensors(pair: Pair) -> None:
    pair.ours.save_pretrained(pair.folder / "ours", safe_serialization=True)
    assert (pair.folder / "ours/model.safetensors").is_file()
    pair.ours_class.from_pretrained(pair.folder / "ours", use_safetensors=True)


def save_as_pickle(pair: Pair) -> None:
    pair.ours.save_pretrained(pair.folder / "ours", safe_serialization=False)


def load_save_without_tied_weights(pair: Pair) -> None:
    model = pair.ours_class(pair.config(tie_word_embeddings=False)).eval()
    model.save_pretrained(pair.folder / "ours")
    again = pair.ours_class.from_pretrained(pair.folder / "ours")
    assert torch.equal(run(again, pair.batch)[0], run(model, pair.batch)[0])


def model_weights_reload_no_missing_tied_weights(pair: Pair) -> None:
    again = pair.ours_class.from_pretrained(pair.saved())
    assert not again.load_report.initialised


def load_with_mismatched_shapes(pair: Pair) -> None:
    if not pair.kind.labelled:
        raise NotApplicable("a head without classes")
    again = pair.ours_class.from_pretrained(
        pair.saved(), num_labels=42, ignore_mismatched_sizes=True
    )
    assert again.config.num_labels == run(again, pair.batch)[0].shape[-1] == 42


def mismatched_shapes_without_ignore(pair: Pair) -> None:
    if not pair.kind.labelled:
        raise NotApplicable("a head without classes")
    pair.ours_class.from_pretrained(pair.saved(), num_labels=42)


def mismatched_vocabulary(pair: Pair) -> None:
    pair.ours_class.from_pretrained(pair.saved(), vocab_size=10)


def disk_offload(pair: Pair) -> None:
    pair.ours_class.from_pretrained(pair.saved(), offload_folder=pair.folder)


def cpu_offload(pair: Pair) -> None:
    pair.ours_class.from_pretrained(pair.saved(), device_map="auto")


def load_in_8bit(pair: Pair) -> None:
    pair.ours_class.from_pretrained(pair.saved(), load_in_8bit=True)


def output_loading_info(pair: Pair) -> None:
    pair.ours_class.from_pretrained(pair.saved(), output_loading_info=True)


def push_to_hub(pair: Pair) -> None:
    pair.ours.push_to_hub("owner/name")


def from_config(pair: Pair) -> None:
    config = pair.config()
    assert type(pair.ours_class.from_config(config)) is pair.ours_class
    assert run(pair.ours_class.from_config(config).eval(), pair.batch)[0].isfinite().all()


def config(pair: Pair) -> None:
    ours, theirs = pair.ours.config, pair.theirs.config
    for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"):
        assert getattr(ours, name) == getattr(theirs, name)
    ours.save_pretrained(pair.folder / "config")
    again = type(ours).from_pretrained(pair.folder / "config", num_labels=5)
    assert (again.num_labels, len(again.id2label), len(again.label2id)) == (5, 5, 5)
    known = type(theirs).from_pretrained(pair.folder / "config")
    assert known.hidden_size == ours.hidden_size


def wrong_config(pair: Pair) -> None:
    other = "roberta" if pair.family == "bert" else "bert"
    pair.ours_class(Pair(other, HeadKind.BASE, pair.folder).config())


CHECKS: dict[str, Callable[[Pair], None]] = {
    name: function
    for name, function in list(globals().items())
    if inspect.isfunction(function)
    and function.__module__ == __name__
    and list(inspect.signature(function).parameters) == ["pair"]
}
"""The checks by name."""
