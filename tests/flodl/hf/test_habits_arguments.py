"""Arguments that programs for transformers pass: they work as there, or name the supported way."""

from __future__ import annotations

import json
import pickle

import pytest
import torch

import flodl.hf
from flodl.hf import (
    AutoConfig,
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertModel,
    DataCollatorWithPadding,
    MaskedLMOutput,
    RobertaConfig,
)
from flodl.hf.errors import CheckpointMismatchError, ConfigError
from tests.flodl.hf.models_material import small_config
from tests.flodl.hf.predict.reference import write
from tests.later import transformers
from tests.rows import each_row

IDS = torch.tensor([[5, 6, 7], [8, 9, 5]])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("habits") / "model"
    write(folder, "bert", "ForSequenceClassification", num_labels=3)
    return folder


def opened(source, **options):
    return AutoModelForSequenceClassification.from_pretrained(source, **options)


# --- Fields and configurations -----------------------------------------------------------------


def test_fields_of_the_configuration_are_set_as_a_model_is_opened(source):
    given = {"hidden_dropout_prob": 0.4, "classifier_dropout": 0.3, "output_hidden_states": True}
    ours = opened(source, **given)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(source, **given)
    for name, value in given.items():
        assert getattr(ours.config, name) == getattr(theirs.config, name) == value
    assert ours.classifier.in_features == theirs.classifier.in_features
    dropouts = {one.p for one in ours.modules() if isinstance(one, torch.nn.Dropout)}
    assert dropouts == {0.3}
    assert len(ours(IDS).hidden_states) == len(theirs(IDS).hidden_states)
    assert isinstance(opened(source, return_dict=False)(IDS), tuple)


def test_a_layer_less_is_built_when_the_field_says_so(source, capsys):
    ours = opened(source, num_hidden_layers=1)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
        source, num_hidden_layers=1
    )
    torch.testing.assert_close(ours(IDS).logits, theirs.eval()(IDS).logits)
    assert "tensors have no place in this model" in capsys.readouterr().err


def test_a_configuration_takes_the_place_of_that_of_the_checkpoint(source, tmp_path, capsys):
    config = AutoConfig.from_pretrained(source, hidden_dropout_prob=0.2)
    model = opened(source, config=config)
    assert model.config.hidden_dropout_prob == 0.2
    assert model.config is not config
    assert len(opened(source, config=config, output_attentions=True)(IDS).attentions) > 0
    # As with num_labels=, a classifier that the checkpoint lacks is drawn.
    base = tmp_path / "base"
    write(base, "bert", "")
    new = opened(base, config=AutoConfig.from_pretrained(base, num_labels=5))
    assert new.classifier.out_features == 5
    assert "were drawn" in capsys.readouterr().err


@each_row(
    ("options", "error", "message"),
    [
        ({"nonsense": 1}, TypeError, "no argument 'nonsense'; it takes .*fields of BertConfig"),
        ({"is_decoder": True}, ConfigError, "decoders are not supported"),
        ({"config": {}}, TypeError, r"config is a builtins.dict: give one that flodl.hf.AutoConf"),
        ({"variant": "fp16"}, TypeError, "'variant': name the file model.safetensors"),
        ({"tp_plan": "auto"}, TypeError, "'tp_plan': a model is on one device"),
        ({"weights_only": False}, ValueError, "only reads safetensors"),
        ({"vocab_size": 10}, CheckpointMismatchError, r"resize_token_embeddings\(\) changes"),
        ({"force_download": True}, TypeError, "remove the repository from the cache"),
    ],
)
def test_what_cannot_be_done_names_what_can(source, options, error, message):
    with pytest.raises(error, match=message):
        opened(source, **options)


def test_a_class_refuses_a_configuration_of_another_family(source):
    config = RobertaConfig.from_dict(small_config("roberta").to_dict())
    with pytest.raises(TypeError, match=r"RobertaConfig: give one that flodl.hf.BertConfig.from"):
        BertModel.from_pretrained(source, config=config)


def test_none_asks_for_nothing(source):
    names = ("variant", "proxies", "tp_plan", "gguf_file", "quantization_config", "device_map")
    nothing = dict.fromkeys(names)
    expected = opened(source)(IDS).logits
    torch.testing.assert_close(opened(source, **nothing)(IDS).logits, expected)
    assert AutoTokenizer.from_pretrained(source, config=None, proxies=None)("fox").input_ids


def test_sources_are_given_by_the_name_of_transformers(source):
    name = str(source)
    assert opened(source)(IDS).logits.shape == (2, 3)
    for made in (AutoModel, BertModel, AutoConfig, flodl.hf.BertConfig, AutoTokenizer):
        assert made.from_pretrained(pretrained_model_name_or_path=name) is not None


def test_a_configuration_does_not_take_how_it_is_reached_for_a_field(source):
    config = AutoConfig.from_pretrained(source, trust_remote_code=False, proxies=None)
    assert not {"trust_remote_code", "proxies"} & set(config.to_dict())
    with pytest.raises(TypeError, match="'trust_remote_code': flodl never runs code"):
        AutoConfig.from_pretrained(source, trust_remote_code=True)
    with pytest.raises(TypeError, match="'return_unused_kwargs': all fields are kept"):
        AutoConfig.from_pretrained(source, return_unused_kwargs=True)


def test_a_configuration_has_the_fields_that_all_have(source):
    ours, theirs = (one.AutoConfig.from_pretrained(source) for one in (flodl.hf, transformers))
    for name in ("output_hidden_states", "output_attentions", "return_dict", "is_encoder_decoder"):
        assert getattr(ours, name) == getattr(theirs, name)
    with pytest.raises(AttributeError, match=r"no field 'to_json_file': save_pretrained\(folder"):
        ours.to_json_file("x")


def test_a_pooler_may_be_left_out(source):
    assert AutoModel.from_pretrained(source)(IDS).pooler_output is not None
    model = AutoModel.from_pretrained(source, add_pooling_layer=False)
    assert model(IDS).pooler_output is None
    assert not any("pooler" in name for name in model.state_dict())
    model = AutoModel.from_pretrained(source, ignore_mismatched_sizes=True, num_labels=7)
    assert model.config.num_labels == 7


def test_new_models_take_a_type(source):
    config = AutoConfig.from_pretrained(source)
    for options in ({"dtype": "bfloat16"}, {"torch_dtype": torch.bfloat16}):
        model = AutoModelForSequenceClassification.from_config(config, **options)
        assert model.dtype == torch.bfloat16
        assert model.num_labels == 3
    AutoModel.from_config(config, attn_implementation="sdpa")
    with pytest.raises(TypeError, match=r"from_config\(\) takes no argument 'hidden_size': set it"):
        AutoModel.from_config(config, hidden_size=8)


# --- Saving ------------------------------------------------------------------------------------


def test_a_head_that_finds_answers_is_saved_with_the_labels_it_has(tmp_path, source):
    """Transformers reads its width from the labels, so those of an earlier head have to go."""
    AutoModelForQuestionAnswering.from_pretrained(source, seed=0).save_pretrained(tmp_path)
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    ours = AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    torch.testing.assert_close(ours(IDS).start_logits, theirs.eval()(IDS).start_logits)


def test_saving_takes_what_means_nothing_and_refuses_the_rest(tmp_path, source):
    model = opened(source)
    model.save_pretrained(tmp_path / "a", push_to_hub=False, variant=None, token=None)
    with pytest.raises(TypeError, match=r"'push_to_hub': .* huggingface_hub.upload_folder"):
        model.save_pretrained(tmp_path / "b", push_to_hub=True)
    with pytest.raises(TypeError, match=r"'nonsense': see help\(model.save_pretrained\)"):
        model.save_pretrained(tmp_path / "b", nonsense=1)


# --- Calls -------------------------------------------------------------------------------------


@each_row(
    ("given", "message"),
    [
        ((IDS[0],), r"input_ids are torch.int64 of the shape \[3\], .*; ids\[None\] is one row"),
        ((IDS[:, :0],), r"of the shape \[2, 0\]"),
        ((IDS.float(),), r"input_ids are torch.float32"),
    ],
)
def test_ids_of_another_form_are_refused_in_a_sentence(source, given, message):
    with pytest.raises(ValueError, match=message):
        opened(source)(*given)


def test_labels_that_are_a_list_are_refused_in_a_sentence(source):
    with pytest.raises(TypeError, match=r"labels is a list, and a model takes tensors"):
        opened(source)(IDS, labels=[0, 1])


def test_the_number_of_words_may_be_a_multiple(source):
    ours, theirs = (one.AutoModel.from_pretrained(source) for one in (flodl.hf, transformers))
    count = ours.config.vocab_size
    for size in (None, count + 1):
        found = ours.resize_token_embeddings(size, pad_to_multiple_of=8, mean_resizing=False)
        expected = theirs.resize_token_embeddings(size, pad_to_multiple_of=8, mean_resizing=False)
        assert found.weight.shape == expected.weight.shape
    with pytest.raises(ValueError, match="mean_resizing=True: new rows are drawn"):
        ours.resize_token_embeddings(count, mean_resizing=True)


def test_outputs_are_made_again_of_their_values_and_take_more():
    logits = torch.zeros(1, 2, 3)
    output = MaskedLMOutput(logits=logits)
    # Accelerate does this to turn the outputs of a training in bfloat16 into float32.
    again = type(output)({name: value.double() for name, value in output.items()})
    assert again.logits.dtype == torch.float64
    # Pipelines note what they computed.
    output["input_ids"] = IDS
    assert list(output) == ["logits", "input_ids"]
    assert output.input_ids is IDS
    assert pickle.loads(pickle.dumps(output)).keys() == output.keys()


@each_row(
    ("task", "head"),
    [
        ("fill-mask", "ForMaskedLM"),
        ("text-classification", "ForSequenceClassification"),
        ("token-classification", "ForTokenClassification"),
    ],
)
def test_pipelines_of_transformers_take_our_models(tmp_path_factory, task, head):
    folder = tmp_path_factory.mktemp(task)
    write(folder, "bert", head)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = [
        transformers.pipeline(
            task, getattr(one, f"AutoModel{head}").from_pretrained(folder), tokenizer=tokenizer
        )(f"the {tokenizer.mask_token} fox")
        for one in (flodl.hf, transformers)
    ]
    for ours, theirs in zip(*found, strict=True):
        assert ours.pop("score") == pytest.approx(float(theirs.pop("score")))
        assert ours == theirs


def test_the_trainer_of_transformers_trains_in_bfloat16(tmp_path, source):
    tokenizer = AutoTokenizer.from_pretrained(source)
    rows = [{"labels": n % 3, **tokenizer(f"fox number {n}")} for n in range(8)]
    trainer = transformers.Trainer(
        model=opened(source),
        args=transformers.TrainingArguments(
            str(tmp_path), max_steps=1, bf16=True, report_to=[], use_cpu=True, disable_tqdm=True
        ),
        train_dataset=rows,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    trainer.train()
    assert trainer.predict(rows).predictions.shape == (8, 3)


# --- Tokenizers --------------------------------------------------------------------------------


def test_settings_of_a_tokenizer_are_saved_with_it(tmp_path, source):
    tokenizer = AutoTokenizer.from_pretrained(source, truncation_side="left")
    tokenizer.model_max_length = 9
    tokenizer.padding_side = "left"
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for one in (again, theirs):
        assert (one.model_max_length, one.padding_side, one.truncation_side) == (9, "left", "left")
    before, after = (
        json.loads((folder / "tokenizer_config.json").read_text()) for folder in (source, tmp_path)
    )
    sides = {"padding_side": "left", "truncation_side": "left"}
    assert after == {**before, "model_max_length": 9, **sides}


@each_row("role", ["cls", "sep", "mask", "unk", "bos", "eos", "pad"])
def test_special_tokens_are_named_by_attributes(source, role):
    ours, theirs = (one.AutoTokenizer.from_pretrained(source) for one in (flodl.hf, transformers))
    for one in (ours, theirs):
        setattr(one, f"{role}_token", "[UNK]")
    assert getattr(ours, f"{role}_token") == getattr(theirs, f"{role}_token") == "[UNK]"
    number = getattr(ours, f"{role}_token_id")
    assert number == getattr(theirs, f"{role}_token_id")
    assert ours("the fox").input_ids == theirs("the fox").input_ids
    for one in (ours, theirs):
        setattr(one, f"{role}_token_id", 0)
    assert getattr(ours, f"{role}_token") == getattr(theirs, f"{role}_token")
    with pytest.raises(ValueError, match=f"9999 is not the id of a token: name one by {role}_tok"):
        setattr(ours, f"{role}_token_id", 9999)


def test_special_tokens_are_named_as_a_tokenizer_is_read(source):
    given = {"pad_token": "[UNK]", "bos_token": "[CLS]", "additional_special_tokens": ["<new>"]}
    ours, theirs = (
        one.AutoTokenizer.from_pretrained(source, **given) for one in (flodl.hf, transformers)
    )
    for name in ("pad_token_id", "bos_token_id", "added_tokens_encoder"):
        assert getattr(ours, name) == getattr(theirs, name)
    texts = ["the <new> fox", "fox"]
    assert ours(texts, padding=True).input_ids == theirs(texts, padding=True).input_ids


@each_row(
    ("call", "message"),
    [
        (lambda s: AutoTokenizer.from_pretrained(s, tokenizer_file="x"), "from_file"),
        (lambda s: AutoTokenizer.from_pretrained(s, max_len=5), "give model_max_length="),
        (lambda s: flodl.hf.BertTokenizer(s / "vocab.txt"), r"from_file\(path\) or from_inner"),
    ],
)
def test_other_ways_to_make_a_tokenizer_name_the_supported_one(source, call, message):
    with pytest.raises(TypeError, match=message):
        call(source)
