"""`info` tells what a checkpoint holds from its headers alone."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from flodl.hf.errors import CheckpointFormatError, PickleOnlyError, UnsupportedModelError
from flodl.hf.info import inspect_checkpoint
from tests.later import transformers
from tests.rows import each_row

SIZES = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}


def saved(folder, name="BertForSequenceClassification", config="BertConfig", **changed):
    """A checkpoint of the reference."""
    torch.manual_seed(3)
    made = getattr(transformers, config)(**{**SIZES, **changed})
    model = getattr(transformers, name)(made)
    model.save_pretrained(folder)
    return folder


def test_family_head_labels_and_sizes_are_told(tmp_path):
    folder = saved(tmp_path, id2label={0: "no", 1: "yes", 2: "perhaps"})
    found = inspect_checkpoint(folder)
    tensors = load_file(folder / "model.safetensors")
    assert (found.family, found.head) == ("bert", "seqcls")
    assert found.architecture == "BertForSequenceClassification"
    assert found.labels == ("no", "yes", "perhaps")
    assert (found.tensors, found.files) == (len(tensors), 1)
    assert found.parameters == sum(tensor.numel() for tensor in tensors.values())
    assert found.bytes == 4 * found.parameters
    assert found.dtypes == {"F32": len(tensors)}
    assert (found.keys.fits, found.keys.renamed) == (True, 0)
    assert (found.keys.ignored, found.keys.unexpected) == ((), ())


@each_row(
    ("family", "config"),
    [
        ("Bert", "BertConfig"),
        ("Roberta", "RobertaConfig"),
        ("XLMRoberta", "XLMRobertaConfig"),
        ("DistilBert", "DistilBertConfig"),
        ("Albert", "AlbertConfig"),
        ("DebertaV2", "DebertaV2Config"),
    ],
)
@each_row(
    ("suffix", "head"),
    [
        ("Model", "base"),
        ("ForSequenceClassification", "seqcls"),
        ("ForTokenClassification", "tokcls"),
        ("ForQuestionAnswering", "qa"),
        ("ForMaskedLM", "mlm"),
    ],
)
def test_what_the_reference_saves_fits(tmp_path, family, config, suffix, head):
    more = {"embedding_size": 8} if family == "Albert" else {}
    found = inspect_checkpoint(saved(tmp_path, family + suffix, config, **more))
    assert (found.head, found.keys.fits, found.keys.unexpected) == (head, True, ())


def test_the_tensors_themselves_are_not_read(tmp_path):
    folder = saved(tmp_path)
    before = inspect_checkpoint(folder)
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    length = int.from_bytes(content[:8], "little")
    content[8 + length :] = b"\xff" * (len(content) - 8 - length)
    file.write_bytes(content)
    assert inspect_checkpoint(folder) == before


def test_keys_that_do_not_fit_are_listed(tmp_path):
    folder = saved(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.wieght"] = tensors.pop("classifier.weight")
    tensors["bert.pooler.dense.bias"] = torch.zeros(3)
    tensors["bert.embeddings.LayerNorm.gamma"] = tensors.pop("bert.embeddings.LayerNorm.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    found = inspect_checkpoint(folder).keys
    assert not found.fits
    assert found.missing == ("classifier.weight",)
    assert found.shapes == ("bert.pooler.dense.bias: expected [16], found [3]",)
    assert found.unexpected == ("classifier.wieght",)


def test_older_names_are_counted_and_needless_tensors_named(tmp_path):
    folder = saved(tmp_path, "BertForMaskedLM")
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.embeddings.LayerNorm.gamma"] = tensors.pop("bert.embeddings.LayerNorm.weight")
    tensors["bert.embeddings.position_ids"] = torch.arange(20)[None]
    tensors["my.own"] = torch.zeros(1).half()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    found = inspect_checkpoint(folder)
    assert (found.keys.fits, found.keys.renamed) == (True, 1)
    assert found.keys.ignored == ("bert.embeddings.position_ids",)
    assert found.keys.unexpected == ("my.own",)
    assert found.dtypes == {"F16": 1, "F32": len(tensors) - 2, "I64": 1}
    text = found.as_text()
    assert "fit the model, 1 renamed" in text
    assert "  1 unexpected:\n    my.own\n" in text


def test_shards_count_as_one_checkpoint(tmp_path):
    folder = saved(tmp_path / "one")
    torch.manual_seed(3)
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    model.save_pretrained(tmp_path / "many", max_shard_size="8KB")
    one, many = inspect_checkpoint(folder), inspect_checkpoint(tmp_path / "many")
    assert many.files > 1
    assert (many.tensors, many.parameters, many.keys) == (one.tensors, one.parameters, one.keys)
    assert f"in {many.files} files" in many.as_text()


def test_what_cannot_be_told_is_an_error(tmp_path):
    folder = saved(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointFormatError, match=r"model\.safetensors"):
        inspect_checkpoint(folder)
    file.rename(folder / "pytorch_model.bin")
    with pytest.raises(PickleOnlyError, match="fdl flodl-hf convert"):
        inspect_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UnsupportedModelError, match="gpt2"):
        inspect_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        inspect_checkpoint(folder)


INSPECT = """
import sys
from flodl.hf.__main__ import main
sys.exit(main(["info", "owner/name", "--json"]))
"""


def test_of_a_repository_only_headers_are_fetched(tmp_path, hub):
    folder = saved(tmp_path / "model", vocab_size=9000)
    commit = hub.add_repo("owner/name", folder)
    done = hub.python(INSPECT, tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    expected = inspect_checkpoint(folder)
    assert (told["name"], told["commit"]) == ("owner/name", commit)
    assert told["tensors"] == expected.tensors
    assert told["parameters"] == expected.parameters
    assert told["keys"]["fits"]
    size = (folder / "model.safetensors").stat().st_size
    assert 0 < sum(one.sent for one in hub.requests if one.server == "cdn") < size / 4


def test_shards_of_a_repository_are_told_too(tmp_path, hub):
    folder = saved(tmp_path / "one")
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    model.save_pretrained(tmp_path / "many", max_shard_size="8KB")
    hub.add_repo("owner/name", tmp_path / "many")
    done = hub.python(INSPECT, tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    expected = inspect_checkpoint(tmp_path / "many")
    assert (told["files"], told["tensors"]) == (expected.files, expected.tensors)
    assert told["keys"]["fits"]


def test_a_configuration_that_is_no_text_is_named(tmp_path):
    folder = saved(tmp_path)
    (folder / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(CheckpointFormatError, match=r"config\.json is not text in UTF-8"):
        inspect_checkpoint(folder)


HEADERS = (
    "[1]",
    "null",
    "[" * 50_000,
    '{"a": 5}',
    '{"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 8]}}',
    '{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}',
    '{"a": {"dtype": "F32", "shape": [-3], "data_offsets": [8, 0]}}',
    '{"a": {"dtype": "F77", "shape": [2], "data_offsets": [0, 8]}}',
)

INSPECT_EACH = """
import sys
from flodl.hf.__main__ import main
for name in sys.argv[1:]:
    assert main(["info", name, "--json"]) == 1, name
"""


def test_a_header_of_a_repository_that_is_none_is_named(tmp_path, hub):
    folder = saved(tmp_path / "model")
    names = [f"owner/name{number}" for number in range(len(HEADERS))]
    for name, header in zip(names, HEADERS, strict=True):
        raw = header.encode()
        content = len(raw).to_bytes(8, "little") + raw + bytes(8)
        (folder / "model.safetensors").write_bytes(content)
        hub.add_repo(name, folder)
    done = hub.python(INSPECT_EACH, tmp_path, *names)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
        f"error: {name}: model.safetensors has no sound header" for name in names
    ]
    assert "Traceback" not in done.stderr
