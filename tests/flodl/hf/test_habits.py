"""What programs for transformers do with a model: calls, outputs, modes, precision, memory."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from flodl.hf import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
    SequenceClassifierOutput,
    add_lora,
    backbone_outputs,
    drop_layers,
    set_unpad,
)
from flodl.hf.errors import ConfigError
from flodl.hf.head_kind import HeadKind
from flodl.hf.pretrained import PretrainedModel
from tests.flodl.hf.batches import batch_of_ids
from tests.flodl.hf.models_material import small_config
from tests.flodl.hf.predict.reference import write
from tests.later import transformers
from tests.rows import each_row

FAMILIES = ["bert", "roberta", "distilbert", "xlm-roberta", "albert", "deberta-v2", "modernbert"]
OURS = {
    "": AutoModel,
    "ForSequenceClassification": AutoModelForSequenceClassification,
    "ForTokenClassification": AutoModelForTokenClassification,
    "ForQuestionAnswering": AutoModelForQuestionAnswering,
    "ForMaskedLM": AutoModelForMaskedLM,
}
ROWS, LENGTH = 4, 7


def some_batch(family):
    """Rows of several lengths, padded on the right."""
    pad = 1 if "roberta" in family else 0
    ids = torch.randint(5, 60, (ROWS, LENGTH), generator=torch.Generator().manual_seed(6))
    mask = torch.ones_like(ids)
    mask[0, 4:] = mask[2, 5:] = mask[3, 2:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, pad), "attention_mask": mask}


def some_labels(head):
    counted = torch.tensor([[1, 2, -100, 0, -100, -100, -100]] * ROWS)
    return {
        "": {},
        "ForSequenceClassification": {"labels": torch.tensor([0, 2, 1, 1])},
        "ForTokenClassification": {"labels": counted},
        "ForQuestionAnswering": {
            "start_positions": torch.tensor([0, 2, 1, 9]),
            "end_positions": torch.tensor([1, 3, 2, 1]),
        },
        "ForMaskedLM": {"labels": counted},
    }[head]


def saved(path, family, head):
    fields = {"num_labels": 3} if head.endswith("Classification") else {}
    theirs = write(path, family, head, **fields)
    theirs.set_attn_implementation("eager")
    return theirs


def close(ours, theirs, mask):
    """Whether two tensors are equal at tokens; padding has no meaning."""
    if ours.dim() > 1 and ours.shape[:2] == mask.shape:
        ours, theirs = ours[mask.bool()], theirs[mask.bool()]
    elif ours.dim() == 4:
        seen = (mask[:, None, :, None] * mask[:, None, None, :]).bool().expand_as(ours)
        ours, theirs = ours[seen], theirs[seen]
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("head", list(OURS))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_gives_the_outputs_of_the_reference(tmp_path, family, head):
    theirs = saved(tmp_path, family, head)
    ours = OURS[head].from_pretrained(tmp_path)
    batch, labels = some_batch(family), some_labels(head)
    mask, wanted = batch["attention_mask"], {"output_hidden_states": True}
    given = ours(**batch, **labels, **wanted, output_attentions=True)
    expected = theirs(**batch, **labels, **wanted, output_attentions=True)
    # Of an encoder, the reference also returns what only a decoder fills.
    assert list(given) == [name for name in expected if name != "cross_attentions"]
    for name, value in given.items():
        both = (value, expected[name]) if isinstance(value, tuple) else ([value], [expected[name]])
        assert len(both[0]) == len(both[1])
        for one, other in zip(*both, strict=True):
            close(one, other, mask)

    plain, fast = ours(*batch.values(), **labels), expected
    if family == "modernbert":
        # Padding that sees padding alone: equal weights where attentions are wanted, else zero.
        theirs.set_attn_implementation("sdpa")
        fast = theirs(**batch, **labels)
        theirs.set_attn_implementation("eager")
    if labels:
        assert plain.loss.item() == pytest.approx(fast.loss.item(), abs=1e-6, rel=1e-6)
        assert given.loss.item() == pytest.approx(expected.loss.item(), abs=1e-6, rel=1e-6)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    both = (dict(model.named_parameters(remove_duplicate=False)) for model in (ours, theirs))
    assert len({frozenset(names) for names in both}) == 1
    assert ours.num_parameters() == theirs.num_parameters()

    vectors = theirs.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    assert torch.equal(ours.get_input_embeddings()(batch["input_ids"]), vectors)
    by_vectors = ours(inputs_embeds=vectors, attention_mask=mask)
    for name, value in theirs(inputs_embeds=vectors, attention_mask=mask).items():
        close(by_vectors[name], value, mask)
    assert by_vectors[0].sum().backward() is None
    assert vectors.grad is not None


@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("regression", torch.tensor([0.5, 1.0, -2.0, 3.0])),
        ("multi_label_classification", torch.tensor([[0.0, 1, 1]] * ROWS)),
        ("single_label_classification", torch.tensor([0, 2, -100, 1])),
    ],
)
def test_the_problem_type_may_be_given_when_a_model_is_opened(tmp_path, problem, labels):
    count = 1 if problem == "regression" else 3
    theirs = write(tmp_path, "bert", "ForSequenceClassification", num_labels=count)
    theirs.config.problem_type = problem
    ours = AutoModelForSequenceClassification.from_pretrained(tmp_path, problem_type=problem)
    batch = some_batch("bert")
    expected = theirs(**batch, labels=labels).loss
    assert ours(**batch, labels=labels).loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert ours.config.problem_type == problem


# --- Outputs -----------------------------------------------------------------------------------


def test_outputs_have_names_and_are_a_tuple_without_what_is_missing():
    out = SequenceClassifierOutput(logits=torch.ones(2, 3))
    assert out.loss is None
    assert "loss" not in out
    assert out[0] is out.logits is out["logits"]
    assert out.to_tuple() == (out.logits,)

    out.loss = torch.zeros(())
    loss, logits = out[:2]
    assert loss is out[0]
    assert logits is out.logits
    assert list(out) == ["loss", "logits"]
    assert dict(**out).keys() == {"loss", "logits"}

    again = pickle.loads(pickle.dumps(out))
    assert type(again) is SequenceClassifierOutput
    assert torch.equal(again.logits, out.logits)
    leaves, shape = torch.utils._pytree.tree_flatten(out)
    assert torch.utils._pytree.tree_unflatten(leaves, shape).logits is logits
    with pytest.raises(AttributeError, match="no value 'start_logits'; it has loss, logits"):
        _ = out.start_logits
    with pytest.raises(TypeError, match="no value 'scores'"):
        SequenceClassifierOutput(scores=1)


def test_a_tuple_is_returned_to_those_who_ask():
    model = BertForSequenceClassification.from_config(
        small_config("bert", HeadKind.SEQCLS), num_labels=2
    )
    batch = some_batch("bert")
    (logits,) = model(**batch, return_dict=False)
    loss, again = model(**batch, labels=torch.zeros(ROWS, dtype=torch.long), return_dict=False)
    assert logits.shape == again.shape == (ROWS, 2)
    assert loss.dim() == 0


def test_a_call_takes_ids_or_vectors():
    model = BertModel.from_config(small_config("bert"))
    with pytest.raises(ValueError, match="input_ids or inputs_embeds, got neither"):
        model()
    with pytest.raises(ValueError, match="input_ids or inputs_embeds, got both"):
        model(torch.zeros(1, 2, dtype=torch.long), inputs_embeds=torch.zeros(1, 2, 16))


# --- Modules -----------------------------------------------------------------------------------


def classifier(**fields):
    torch.manual_seed(0)
    config = small_config("bert", HeadKind.SEQCLS, **fields)
    return BertForSequenceClassification.from_config(config, num_labels=2).eval()


def test_a_head_and_its_graph_are_one_model():
    head = classifier()
    assert not head.training
    assert not head.graph.training
    head.train()
    assert head.graph.training
    assert head.bert.encoder.layer[0].training
    head.graph.eval()
    assert not head.training

    head.classifier = nn.Linear(16, 5)
    assert head.graph.classifier is head.classifier
    assert head(**some_batch("bert")).logits.shape == (ROWS, 5)
    assert head.freeze("bert") is None
    assert head.num_parameters(only_trainable=True) == 85
    assert head.num_parameters() > head.num_parameters(exclude_embeddings=True) > 85
    drop_layers(head.graph, [0])
    assert head.config.num_hidden_layers == 2


def test_types_and_devices_are_those_of_a_module():
    head = classifier()
    assert (head.device, head.dtype) == (torch.device("cpu"), torch.float32)
    assert head.bfloat16() is head
    assert head.dtype == head.graph.classifier.weight.dtype == torch.bfloat16
    assert head(**some_batch("bert")).logits.dtype == torch.bfloat16
    assert head.float().to(torch.float64).dtype == torch.float64
    assert head.half().dtype == torch.float16
    assert head.to("meta").device.type == "meta"


def test_a_model_is_copied_and_pickled_with_its_graph():
    head = classifier()
    batch = some_batch("bert")
    for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert other.labels == head.labels
        assert torch.equal(other(**batch).logits, head(**batch).logits)
        nn.init.zeros_(other.classifier.weight)
        assert other.graph.classifier is other.classifier
        assert not torch.equal(other(**batch).logits, head(**batch).logits)
        other.load_state_dict(head.state_dict())
        assert torch.equal(other.graph(**batch), head.graph(**batch))
    encoder = BertModel.from_config(small_config("bert"))
    again = pickle.loads(pickle.dumps(encoder)).eval()
    assert torch.equal(again(**batch)[0], encoder.eval()(**batch)[0])


def test_a_head_may_be_a_part_of_another_module():
    class Twice(nn.Module):
        def __init__(self, head):
            super().__init__()
            self.head = head
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, **batch):
            return self.head(**batch).logits * self.scale

    head = classifier()
    module = Twice(head).train()
    assert head.graph.training
    names = {f"head.{name}" for name in head.graph.state_dict()} | {"scale"}
    assert module.state_dict().keys() == names == {n for n, _ in module.named_parameters()}
    module(**some_batch("bert")).sum().backward()
    assert head.graph.classifier.weight.grad is not None
    module.eval().zero_grad()
    assert head.graph.classifier.weight.grad is None
    assert torch.equal(module(**some_batch("bert")), head(**some_batch("bert")).logits)


@pytest.mark.parametrize("made", ["encoder", "head", "graph"])
def test_a_compiler_takes_a_whole_call(made):
    head, batch = classifier(), some_batch("bert")
    torch.compiler.reset()
    if made == "graph":
        compiled, plain = head, copy.deepcopy(head)
        head.compile(backend="eager", fullgraph=True)
    else:
        plain = head if made == "head" else BertModel.from_config(small_config("bert")).eval()
        compiled = torch.compile(plain, backend="eager", fullgraph=True)
    with torch.no_grad():
        for name, value in compiled(**batch).items():
            close(value, plain(**batch)[name], batch["attention_mask"])


def test_an_adapter_trains_through_the_module():
    head = classifier()
    add_lora(head.graph, ["query", "value"], r=2, alpha=4)
    batch = some_batch("bert")
    labels = torch.tensor([0, 1, 1, 0])
    optimizer = torch.optim.Adam([p for p in head.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for _ in range(4):
        loss = head.train()(**batch, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    encoded = batch_of_ids(batch["input_ids"], batch["attention_mask"])
    loss = head(**batch, labels=labels).loss
    assert head.compute_loss(encoded, labels).item() == loss.item()


def test_tools_for_graphs_take_a_model():
    model = BertModel.from_config(small_config("bert")).eval()
    batch = some_batch("bert")
    encoded = batch_of_ids(batch["input_ids"], batch["attention_mask"])
    found = backbone_outputs(model, encoded, hidden_states=True)
    out = model(**batch, output_hidden_states=True)
    assert torch.equal(found.last_hidden_state, out.last_hidden_state)
    assert torch.equal(found.pooler_output, out.pooler_output)
    set_unpad(model, True)
    assert not model(**batch)[0][batch["attention_mask"] == 0].any()


# --- Words and memory --------------------------------------------------------------------------


def test_words_are_added_under_the_usual_name():
    model = AutoModelForMaskedLM.from_config(small_config("bert", HeadKind.MLM))
    table = model.resize_token_embeddings(64)
    assert table is model.get_input_embeddings()
    assert table.num_embeddings == model.config.vocab_size == 64
    assert model.resize_token_embeddings().num_embeddings == 64
    assert model(**some_batch("bert")).logits.shape[-1] == 64


@pytest.mark.parametrize("family", ["bert", "albert", "deberta-v2", "modernbert"])
def test_recomputed_layers_give_the_same_gradients(family):
    config = small_config(family, HeadKind.SEQCLS, hidden_dropout_prob=0.3)
    torch.manual_seed(0)
    head = AutoModelForSequenceClassification.from_config(config).train()
    batch, labels = some_batch(family), torch.tensor([0, 1, 1, 0])

    def gradients():
        head.zero_grad()
        held = []
        torch.manual_seed(1)

        def keep(tensor):
            held.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = head(**batch, labels=labels).loss
        loss.backward()
        return sum(held), [loss.detach(), *(p.grad.clone() for p in head.parameters())]

    assert not head.is_gradient_checkpointing
    many, expected = gradients()
    head.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert copy.deepcopy(head).is_gradient_checkpointing
    few, found = gradients()
    assert few < many / 2
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    head.gradient_checkpointing_disable()
    assert gradients()[0] == many
    with pytest.raises(ValueError, match="use_reentrant': False"):
        head.gradient_checkpointing_enable({"use_reentrant": True})


# --- Opening -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("base")
    write(path, "bert", "")
    return path


def test_naming_the_classes_draws_a_classifier(base, capsys):
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=2, id2label={0: "BAD", 1: "GOOD"}, label2id={"BAD": 0, "GOOD": 1}
    )
    assert model.config.id2label[1] == "GOOD"
    assert model.config.label2id == {"BAD": 0, "GOOD": 1}
    told = capsys.readouterr().err
    assert "classifier.bias, classifier.weight are not in the checkpoint and were drawn" in told
    # The same generator is asked in the same order.
    torch.manual_seed(0)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
    assert torch.equal(model.classifier.weight, theirs.classifier.weight)


def test_a_classifier_of_another_width_is_replaced_when_told(tmp_path):
    write(tmp_path, "bert", "ForSequenceClassification", num_labels=3)
    model = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, label2id={"a": 0, "b": 1}, ignore_mismatched_sizes=True
    )
    assert model.labels == ("a", "b")
    assert model.load_report.initialised == ("classifier.bias", "classifier.weight")


@each_row(
    ("options", "dtype"),
    [
        ({"torch_dtype": torch.bfloat16}, torch.bfloat16),
        ({"dtype": torch.float64}, torch.float64),
        ({"dtype": "bfloat16", "torch_dtype": torch.bfloat16}, torch.bfloat16),
        ({"torch_dtype": "auto", "attn_implementation": "sdpa"}, torch.float32),
        ({"low_cpu_mem_usage": True, "use_safetensors": True, "device_map": None}, torch.float32),
    ],
)
def test_the_precision_is_given_by_either_name(base, options, dtype):
    assert AutoModel.from_pretrained(base, **options).dtype == dtype


@each_row(
    ("options", "error", "message"),
    [
        ({"device_map": "auto"}, TypeError, "'device_map': give device="),
        ({"load_in_8bit": True}, TypeError, "'load_in_8bit': give dtype="),
        ({"trust_remote_code": True}, TypeError, "flodl never runs code of a checkpoint"),
        ({"attn_implementation": "flash_attention_2"}, ValueError, "scaled_dot_product_attention"),
        ({"dtype": "bfloat16", "torch_dtype": "float16"}, ValueError, "contradict each other"),
        ({"use_safetensors": False}, ValueError, "only reads safetensors"),
    ],
)
def test_what_is_not_supported_names_what_is(base, options, error, message):
    with pytest.raises(error, match=message):
        AutoModel.from_pretrained(base, **options)


def test_labels_in_both_directions_have_to_agree(base):
    with pytest.raises(ConfigError, match=r"id2label .* and label2id .* contradict each other"):
        AutoModelForSequenceClassification.from_pretrained(
            base, id2label=["a", "b"], label2id={"b": 0, "a": 1}
        )


@each_row(
    ("name", "remedy"),
    [("push_to_hub", "huggingface_hub.upload_folder"), ("generate", "fill_mask"), ("nothing", "")],
)
def test_a_missing_method_names_the_supported_way(name, remedy):
    model = BertModel.from_config(small_config("bert"))
    assert not hasattr(model, name)
    with pytest.raises(AttributeError, match=f"BertModel has no attribute '{name}'.*{remedy}"):
        getattr(model, name)


def test_a_class_called_with_a_configuration_makes_a_model():
    config = small_config("bert", HeadKind.QA)
    model = BertForQuestionAnswering(config)
    assert model(torch.ones(2, 3, dtype=torch.int64)).start_logits.shape == (2, 3)
    assert model.config.architectures == ("BertForQuestionAnswering",)
    with pytest.raises(TypeError, match=r"made of a BertConfig.*Answering.from_pretrained\(source"):
        BertForQuestionAnswering(small_config("roberta"))
    assert isinstance(AutoModelForQuestionAnswering.from_config(config), BertForQuestionAnswering)
    assert isinstance(AutoModel.from_config(config), PretrainedModel)


def test_an_encoder_is_saved_and_opened_again(tmp_path, base):
    encoder = AutoModel.from_pretrained(base)
    assert "model.safetensors" in encoder.save_pretrained(tmp_path / "saved")
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "saved")
    batch = some_batch("bert")
    found = encoder(**batch)
    close(found.pooler_output, theirs(**batch).pooler_output, batch["attention_mask"])
