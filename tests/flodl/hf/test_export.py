"""Exports hold the bytes they were made from, and load everywhere."""

import hashlib
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from flodl.errors import CheckpointError, FlodlError
from flodl.hf import sentence_settings
from flodl.hf.auto import AutoModel
from flodl.hf.build import build
from flodl.hf.errors import ConfigError, UnsupportedModelError
from flodl.hf.export import export_command, load_trained, write_model
from flodl.hf.families import AutoConfig
from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import Cell, all_cells, tiny_config
from flodl.hf.reference import make_synthetic
from tests import fork_server
from tests.later import transformers
from tests.rows import each_row

CELLS = all_cells()
WEIGHTS = "model.safetensors"


def cell_of(name: str) -> Cell:
    return next(cell for cell in CELLS if cell.name == name)


def made(folder: Path, name: str, **fields) -> Path:
    """A random checkpoint of the reference."""
    cell = cell_of(name)
    config = tiny_config(cell)
    if fields:
        config = AutoConfig.from_json_str(json.dumps(config.source | fields))
    make_synthetic(config, HeadKind(cell.head), folder, name)
    return folder


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()


def from_hub(src: Path, out: Path, **options):
    return export_command(hub=str(src), checkpoint=None, out=out, **options)


def from_checkpoint(file: Path, out: Path, **options):
    return export_command(hub=None, checkpoint=file, out=out, **options)


@pytest.mark.case("hf", 37)
@pytest.mark.parametrize("cell", CELLS, ids=[cell.name for cell in CELLS])
def test_what_the_reference_saved_is_exported_with_the_same_bytes(tmp_path, cell):
    source = made(tmp_path / "source", cell.name)
    config = json.loads((source / "config.json").read_text())
    own = {"my_field": {"deep": [1, None]}, "transformers_version": "0.0", "_name_or_path": "x"}
    (source / "config.json").write_text(json.dumps(config | own))
    from_hub(source, tmp_path / "out")
    assert digest(tmp_path / "out") == digest(source)
    told = json.loads((tmp_path / "out/config.json").read_text())
    assert told["my_field"] == {"deep": [1, None]}
    assert told["transformers_version"] == "0.0"
    assert told["architectures"] == config["architectures"]
    assert "_name_or_path" not in told
    assert "flodl_source_repo" not in told


EXPORT = "import sys; from flodl.hf.__main__ import main; sys.exit(main(sys.argv[1:]))"
EXPORT_EACH = """
import sys
from pathlib import Path
from flodl.hf.__main__ import main

for source in sorted(Path(sys.argv[1]).iterdir()):
    out = Path(sys.argv[2]) / source.name
    assert main(["export", "--hub", str(source), "--out", str(out)]) == 0
"""


@pytest.mark.case("hf", 38)
def test_two_processes_write_the_same_bytes(tmp_path):
    names = ("bert-mlm", "albert-seqcls")
    for name in names:
        made(tmp_path / "source" / name, name)
    here = os.environ.get("PYTHONHASHSEED")
    for number, env in (
        ("1", os.environ),
        ("2", {**os.environ, "PYTHONHASHSEED": "1" if here != "1" else "2"}),
    ):
        words = ("-c", EXPORT_EACH, str(tmp_path / "source"), str(tmp_path / number))
        done = fork_server.python(*words, env=env, torch=True, abrupt=True)
        assert done.returncode == 0, done.stderr
    for name in names:
        first, second = tmp_path / "1" / name, tmp_path / "2" / name
        for file in (WEIGHTS, "config.json"):
            assert (first / file).read_bytes() == (second / file).read_bytes()
        with safe_open(first / WEIGHTS, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}


@pytest.mark.case("hf", 38)
def test_training_leaves_the_source_alone_and_it_may_be_exported_over(tmp_path):
    source = made(tmp_path, "bert-seqcls")
    before, weights = digest(source), load_file(source / WEIGHTS)
    graph = AutoModel.from_pretrained_for_export(source)
    with torch.no_grad():
        for parameter in graph.parameters():
            parameter.add_(1.0)
    assert digest(source) == before
    with pytest.raises(FlodlError, match="--force"):
        from_hub(source, source)
    assert digest(source) == before
    from_hub(source, source, force=True)
    assert digest(source) == before
    write_model(graph, graph.source_config, source)
    for key, tensor in load_file(source / WEIGHTS).items():
        assert torch.equal(tensor, weights[key] + 1.0), key


def test_the_configuration_is_sorted_and_tells_the_dtype_and_the_labels(tmp_path):
    source = made(tmp_path / "source", "bert-seqcls")
    from_hub(source, tmp_path / "out", dtype="bfloat16")
    text = (tmp_path / "out/config.json").read_text()
    told = json.loads(text)
    assert text == json.dumps(told, indent=2, sort_keys=True) + "\n"
    assert told["torch_dtype"] == "bfloat16"
    assert told["id2label"] == {"0": "no", "1": "perhaps", "2": "yes"}
    assert told["label2id"] == {"no": 0, "perhaps": 1, "yes": 2}
    assert told["num_labels"] == 3
    assert {t.dtype for t in load_file(tmp_path / "out" / WEIGHTS).values()} == {torch.bfloat16}


def test_a_repository_is_named_with_its_commit_and_a_directory_is_not(tmp_path, hub):
    source = made(tmp_path / "source", "bert")
    commit = hub.add_repo("owner/name", source)
    out = tmp_path / "out"
    words = ["export", "--hub", "owner/name", "--out", str(out)]
    done = hub.python(EXPORT, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    told = json.loads((out / "config.json").read_text())
    assert (told["flodl_source_repo"], told["flodl_source_revision"]) == ("owner/name", commit)
    assert digest(out) == digest(source)


@pytest.mark.parametrize("older", [True, False])
def test_deberta_says_which_decoder_it_has(tmp_path, older):
    source = made(tmp_path / "source", "deberta-v2-mlm", legacy=older)
    config = json.loads((source / "config.json").read_text())
    # What the file says is wrong; the weights decide.
    (source / "config.json").write_text(json.dumps(config | {"legacy": not older}))
    from_hub(source, tmp_path / "out")
    told = json.loads((tmp_path / "out/config.json").read_text())
    assert told["legacy"] is older
    assert told.get("tie_word_embeddings", True) is older
    assert digest(tmp_path / "out") == digest(source)
    _, info = transformers.DebertaV2ForMaskedLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


def test_shards_hold_the_same_tensors(tmp_path):
    source = made(tmp_path / "source", "roberta-mlm")
    done = from_hub(source, tmp_path / "out", max_shard_size="20KB")
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) > 1
    assert {*shards, "config.json", "model.safetensors.index.json"} == set(done.files)
    merged = {}
    for shard in shards:
        merged |= load_file(tmp_path / "out" / shard)
    expected = load_file(source / WEIGHTS)
    assert sorted(merged) == sorted(expected)
    assert all(torch.equal(merged[key], expected[key]) for key in expected)


@each_row("size", [None, "20KB"])
def test_only_what_was_written_is_listed(size):
    with TemporaryDirectory() as folder:
        config = tiny_config(cell_of("bert"))
        earlier = Path(folder, "model_best.safetensors")
        earlier.touch()
        text, graph = config.to_json_string(), build(config, device="cpu")
        files = write_model(graph, text, folder, max_shard_size=size)
        there = {one.name for one in Path(folder).iterdir()} - {earlier.name}
        assert sorted(files) == sorted(there)


def test_a_head_can_be_chosen_and_an_unknown_class_is_an_encoder(tmp_path):
    source = made(tmp_path / "source", "bert-mlm")
    from_hub(source, tmp_path / "base", head=HeadKind.BASE)
    told = json.loads((tmp_path / "base/config.json").read_text())
    assert told["architectures"] == ["BertModel"]
    assert "embeddings.word_embeddings.weight" in load_file(tmp_path / "base" / WEIGHTS)
    config = json.loads((source / "config.json").read_text())
    unknown = config | {"architectures": ["BertForPreTraining"]}
    (source / "config.json").write_text(json.dumps(unknown))
    from_hub(source, tmp_path / "unknown")
    assert digest(tmp_path / "unknown") == digest(tmp_path / "base")


def test_what_cannot_be_exported_names_what_can():
    config = tiny_config(cell_of("bert")).replace(architectures=("BertForMultipleChoice",))
    with pytest.raises(UnsupportedModelError, match=r"BertForMultipleChoice.*ForMaskedLM"):
        build(config, device="cpu")


def test_a_pooler_is_kept_exactly_where_there_is_one(tmp_path):
    source = made(tmp_path / "source", "bert")
    assert from_hub(source, tmp_path / "with").tensors == len(load_file(source / WEIGHTS))
    tensors = {k: v for k, v in load_file(source / WEIGHTS).items() if "pooler" not in k}
    save_file(tensors, source / WEIGHTS, metadata={"format": "pt"})
    from_hub(source, tmp_path / "without")
    assert load_file(tmp_path / "without" / WEIGHTS).keys() == tensors.keys()


def test_companions_are_copied_and_nothing_else(tmp_path):
    source = made(tmp_path / "source", "bert")
    (source / "1_Pooling").mkdir()
    listed = {"vocab.txt": b"[PAD]\n", "1_Pooling/config.json": b"{}", "tokenizer.json": b"\xff{}"}
    for name, content in {**listed, "README.md": b"x", "training_args.bin": b"x"}.items():
        (source / name).write_bytes(content)
    done = from_hub(source, tmp_path / "out")
    assert set(done.files) == {*listed, "config.json", WEIGHTS}
    assert done.notes == ()
    for name, content in listed.items():
        assert (tmp_path / "out" / name).read_bytes() == content
    assert not (tmp_path / "out/README.md").exists()


def test_what_makes_sentence_embeddings_is_copied_whatever_the_family_is(tmp_path):
    source = made(tmp_path / "source", "roberta")
    names = {"modules.json", *sentence_settings._MODEL_FILES, sentence_settings._PROMPTS}
    for name in names:
        (source / name).write_text(f"{{}}  {name}")
    done = from_hub(source, tmp_path / "out")
    assert names <= set(done.files)
    for name in names:
        assert (tmp_path / "out" / name).read_text() == f"{{}}  {name}"


@pytest.mark.parametrize("failure", [OSError("full"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["save_safetensors_file_from_graph", "copy_files", "put_file"])
def test_an_export_that_fails_leaves_no_directory_behind(tmp_path, monkeypatch, failure, step):
    graph = AutoModel.from_pretrained_for_export(made(tmp_path / "source", "bert"))

    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(f"flodl.hf.export.{step}", fail)
    with pytest.raises(type(failure)):
        write_model(graph, graph.source_config, tmp_path / "deep/out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(type(failure)):
        write_model(graph, graph.source_config, mine)
    assert (mine / "notes.txt").read_text() == "mine"


def test_a_size_that_is_none_leaves_no_directory_behind(tmp_path):
    graph = AutoModel.from_pretrained_for_export(made(tmp_path / "source", "bert"))
    with pytest.raises(ValueError, match="is not a file size"):
        write_model(graph, graph.source_config, tmp_path / "out", max_shard_size="much")
    assert not (tmp_path / "out").exists()


# From a checkpoint of a training


def trained(folder: Path, source: Path) -> Path:
    graph = AutoModel.from_pretrained_for_export(source)
    graph.save_checkpoint(folder / "model.fdl")
    return folder / "model.fdl"


@pytest.mark.parametrize("name", ["bert-seqcls", "albert-mlm", "distilbert-qa", "roberta"])
def test_both_ways_of_the_same_weights_give_the_same_bytes(tmp_path, name):
    source = made(tmp_path / "source", name)
    file = trained(tmp_path / "run", source)
    from_hub(source, tmp_path / "1")
    done = from_checkpoint(file, tmp_path / "2")
    for name in (WEIGHTS, "config.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    assert any("loaded, 0 skipped, none missing" in note for note in done.notes)
    assert any("no tokenizer" in note for note in done.notes)


def test_dtypes_of_a_checkpoint_are_kept(tmp_path):
    source = made(tmp_path / "source", "bert-qa")
    half = {key: tensor.half() for key, tensor in load_file(source / WEIGHTS).items()}
    save_file(half, source / WEIGHTS, metadata={"format": "pt"})
    from_checkpoint(trained(tmp_path, source), tmp_path / "out")
    assert {t.dtype for t in load_file(tmp_path / "out" / WEIGHTS).values()} == {torch.float16}


def test_the_configuration_is_read_beside_inside_or_where_it_is_named(tmp_path):
    source = made(tmp_path / "source", "bert-qa")
    file = trained(tmp_path, source)
    sidecar = tmp_path / "model.config.json"
    text = sidecar.read_text()
    from_checkpoint(file, tmp_path / "beside", preserve_source_config=True)
    assert (tmp_path / "beside/config.source.json").read_text() == text
    sidecar.unlink()
    from_checkpoint(file, tmp_path / "inside")
    (tmp_path / "other.json").write_text(json.dumps(json.loads(text) | {"mine": 1}))
    from_checkpoint(file, tmp_path / "named", config=tmp_path / "other.json")
    told = json.loads((tmp_path / "named/config.json").read_text())
    assert told.pop("mine") == 1
    assert told == json.loads((tmp_path / "inside/config.json").read_text())


def test_a_trained_model_no_longer_comes_from_the_repository(tmp_path):
    source = made(tmp_path / "source", "bert-qa", flodl_source_repo="owner/name")
    from_checkpoint(trained(tmp_path, source), tmp_path / "out")
    assert "flodl_source_repo" not in json.loads((tmp_path / "out/config.json").read_text())


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    source = made(tmp_path / "source", "bert-qa")
    file = trained(tmp_path, source)
    config = json.loads((tmp_path / "model.config.json").read_text())
    other = json.dumps(config | {"architectures": ["BertForMaskedLM"]})
    with pytest.raises(CheckpointError):
        load_trained(file, other, "config")
    unknown = json.dumps(config | {"architectures": ["BertForMultipleChoice"]})
    with pytest.raises(UnsupportedModelError, match="ForMaskedLM"):
        load_trained(file, unknown, "config")
    bare = tmp_path / "bare.fdl"
    torch_module = build(tiny_config(cell_of("bert")), device="cpu")
    torch_module.save_checkpoint(bare)
    with pytest.raises(ConfigError, match="--config"):
        from_checkpoint(bare, tmp_path / "out")
    assert not (tmp_path / "out").exists()
