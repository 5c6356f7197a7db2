"""Pickled weights become safetensors, and nothing in them is ever run."""

import errno
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from flodl.errors import FlodlError
from flodl.hf.__main__ import main
from flodl.hf.auto import AutoModelForMaskedLM
from flodl.hf.conversion import convert
from flodl.hf.errors import CheckpointFormatError, PickleOnlyError
from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import FAMILIES, all_cells, tiny_config
from flodl.hf.reference import make_synthetic
from tests import fork_server
from tests.flodl.hf.batches import encoded
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
COMMIT = "1" * 40


def bert(**changed):
    torch.manual_seed(3)
    config = transformers.BertConfig(**SIZES, architectures=["BertForMaskedLM"], **changed)
    return transformers.BertForMaskedLM(config).eval()


def written(folder, tensors, config=None, **how):
    """A checkpoint with one pickle, and the configuration if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, folder / "pytorch_model.bin", **how)
    if config is not None:
        (folder / "config.json").write_text(config.to_json_string(use_diff=False))
    return folder


def sharded(folder, tensors, shards=2):
    folder.mkdir(exist_ok=True)
    names = list(tensors)
    weight_map = {}
    for number in range(shards):
        file = f"pytorch_model-{number + 1:05}-of-{shards:05}.bin"
        mine = names[number::shards]
        torch.save({name: tensors[name] for name in mine}, folder / file)
        weight_map.update(dict.fromkeys(mine, file))
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def assert_same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


@pytest.fixture
def plain():
    return {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(3).half()}


def test_the_result_holds_the_tensors_and_says_they_are_of_torch(tmp_path, plain):
    done = convert(written(tmp_path, plain))
    assert (done.path, done.written, done.tensors) == (tmp_path / "model.safetensors", True, 2)
    assert_same(load_file(done.path), plain)
    with safe_open(done.path, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_second_name_in_the_same_storage_is_left_out(tmp_path):
    model = bert()
    state = model.state_dict()
    table = state["bert.embeddings.word_embeddings.weight"]
    assert state["cls.predictions.decoder.weight"].data_ptr() == table.data_ptr()
    done = convert(written(tmp_path, state, model.config))
    second = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert_same(load_file(done.path), {k: v for k, v in state.items() if k not in second})
    assert {note.split()[2].rstrip(":") for note in done.notes} == second


def test_an_equal_copy_of_the_word_table_is_left_out_and_another_is_kept(tmp_path):
    state = {k: v.clone() for k, v in bert().state_dict().items()}
    convert(written(tmp_path / "equal", state))
    assert "cls.predictions.decoder.weight" not in load_file(tmp_path / "equal/model.safetensors")
    state["cls.predictions.decoder.weight"][0, 0] += 1
    convert(written(tmp_path / "other", state))
    kept = load_file(tmp_path / "other/model.safetensors")
    assert torch.equal(
        kept["cls.predictions.decoder.weight"], state["cls.predictions.decoder.weight"]
    )


def test_all_names_stay_where_the_configuration_says_they_are_untied(tmp_path):
    model = bert(tie_word_embeddings=False)
    state = model.state_dict()
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
    done = convert(written(tmp_path, state, model.config))
    assert_same(load_file(done.path), state)


def test_views_and_other_shared_storage_are_stored_in_full(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {"whole": base, "again": base, "turned": base.t(), "part": base[1:, 1:]}
    done = convert(written(tmp_path, tensors))
    assert_same(load_file(done.path), {k: v.contiguous() for k, v in tensors.items()})
    assert done.notes == ()


def test_what_is_no_tensor_is_left_out_and_told(tmp_path, plain):
    inner = {**plain, "step": 3, 7: torch.ones(1)}
    outer = {"state_dict": inner, "epoch": 4, "optimizer": {"lr": 0.1}}
    done = convert(written(tmp_path, outer))
    assert_same(load_file(done.path), plain)
    assert done.notes == (
        "pytorch_model.bin: left out values that are not tensors: epoch, optimizer",
        "pytorch_model.bin: left out values that are not tensors: step, 7",
    )


def test_only_one_nesting_is_unwrapped(tmp_path, plain):
    with pytest.raises(CheckpointFormatError, match="hold no tensors"):
        convert(written(tmp_path, {"state_dict": {"state_dict": plain}}))


def test_parameters_and_empty_tensors_are_tensors(tmp_path):
    tensors = {"p": torch.nn.Parameter(torch.ones(2)), "none": torch.empty(0, 3)}
    convert(written(tmp_path, tensors))
    found = load_file(tmp_path / "model.safetensors")
    assert_same(found, {"p": torch.ones(2), "none": torch.empty(0, 3)})


def test_shards_become_one_file(tmp_path):
    state = bert().state_dict()
    single = convert(written(tmp_path / "one", state))
    many = convert(sharded(tmp_path / "many", state, 3))
    assert single.path.read_bytes() == many.path.read_bytes()


def test_files_older_than_the_zip_format_are_read(tmp_path, plain):
    folder = written(tmp_path, plain, _use_new_zipfile_serialization=False)
    assert_same(load_file(convert(folder).path), plain)


def test_a_file_and_an_index_can_be_named(tmp_path, plain):
    torch.save(plain, tmp_path / "weights.bin")
    out = tmp_path / "out" / "deep"
    assert convert(tmp_path / "weights.bin", out=out).path == out / "model.safetensors"
    folder = sharded(tmp_path / "many", plain)
    done = convert(folder / "pytorch_model.bin.index.json")
    assert_same(load_file(folder / "model.safetensors"), plain)
    assert done.path == folder / "model.safetensors"


def test_another_folder_gets_all_that_opening_takes(tmp_path):
    model = bert()
    source = written(tmp_path / "source", model.state_dict(), model.config)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    (source / "vocab.txt").write_text("\n".join(words))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling/config.json").write_text("{}")
    (source / "training_args.bin").write_bytes(b"x")
    out = tmp_path / "out"
    assert main(["convert", str(source), "--out", str(out)]) == 0
    assert sorted(str(file.relative_to(out)) for file in out.rglob("*.*")) == [
        "1_Pooling/config.json",
        "config.json",
        "model.safetensors",
        "vocab.txt",
    ]
    assert not (source / "model.safetensors").exists()
    head = AutoModelForMaskedLM.from_pretrained(out)
    enc = encoded(head.tokenizer, ["a [MASK] b"])
    assert enc.input_ids.tolist() == [[2, 5, 4, 6, 3]]
    with torch.inference_mode():
        logits = model(input_ids=enc.input_ids).logits
        assert float((head.forward_encoded(enc) - logits).abs().max()) <= 1e-5
    named = tmp_path / "named"
    convert(source / "pytorch_model.bin", out=named)
    assert (named / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_a_folder_with_another_model_is_left_alone_unless_forced(tmp_path, plain):
    source = written(tmp_path / "source", plain, bert().config)
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("{}")
    with pytest.raises(FlodlError, match=r"out holds another config\.json: --force"):
        convert(source, out=out)
    assert [file.name for file in out.iterdir()] == ["config.json"]
    assert (out / "config.json").read_text() == "{}"
    convert(source, out=out, force=True)
    assert (out / "config.json").read_bytes() == (source / "config.json").read_bytes()
    # The same files are no other model, and the source is its own.
    (out / "model.safetensors").unlink()
    convert(source, out=out)
    assert convert(source, out=source).path == source / "model.safetensors"


def test_a_result_that_is_there_stays_unless_forced(tmp_path, plain):
    folder = written(tmp_path, plain)
    first = convert(folder).path.read_bytes()
    written(folder, {**plain, "more": torch.ones(1)})
    again = convert(folder)
    assert (again.written, again.tensors, again.path.read_bytes()) == (False, 2, first)
    forced = convert(folder, force=True)
    assert (forced.written, forced.tensors) == (True, 3)


def test_a_conversion_that_fails_leaves_the_old_result(tmp_path, plain):
    folder = written(tmp_path, plain)
    first = convert(folder).path.read_bytes()
    (folder / "pytorch_model.bin").write_bytes(b"not weights")
    with pytest.raises(CheckpointFormatError, match=r"pytorch_model\.bin"):
        convert(folder, force=True)
    assert (folder / "model.safetensors").read_bytes() == first
    assert sorted(file.name for file in folder.iterdir()) == [
        "model.safetensors",
        "pytorch_model.bin",
    ]


class Harmful:
    """Creates a file as soon as it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def pickled(path: Path, content: object, *, zipped: bool) -> Path:
    """A pickle as it is, or inside the zip format of torch."""
    if zipped:
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    return path


@pytest.mark.case("hf", 20)
@each_row("zipped", [True, False])
def test_a_harmful_pickle_is_refused_and_never_run(tmp_path, zipped):
    canary = tmp_path / "canary"
    tensors = {"a": torch.ones(1), "b": Harmful(canary)}
    file = pickled(tmp_path / "pytorch_model.bin", tensors, zipped=zipped)
    with pytest.raises(CheckpointFormatError, match=r"pytorch_model\.bin .*nothing of it was run"):
        convert(tmp_path)
    with pytest.raises(CheckpointFormatError):
        convert(file)
    assert not canary.exists()
    assert not (tmp_path / "model.safetensors").exists()
    # It is harmful indeed.
    torch.load(file, weights_only=False) if zipped else pickle.loads(file.read_bytes())
    assert canary.exists()


@each_row(
    ("content", "told"),
    [
        ([torch.ones(1)], "holds a list"),
        ({"a": 1}, "hold no tensors"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, "a is a tensor of torch.complex64"),
        ({"a": torch.eye(2).to_sparse()}, "torch.sparse_coo"),
    ],
)
def test_what_no_file_of_weights_can_hold_is_refused_by_name(tmp_path, content, told):
    with pytest.raises(CheckpointFormatError, match=told):
        convert(written(tmp_path, content))


@pytest.mark.parametrize("length", [0, 10, 200])
def test_a_truncated_pickle_is_told_with_its_name(tmp_path, plain, length):
    file = written(tmp_path, plain) / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointFormatError, match=r"pytorch_model\.bin"):
        convert(tmp_path)


def test_an_index_that_leads_elsewhere_is_refused(tmp_path, plain):
    torch.save(plain, tmp_path / "secret.bin")
    folder = tmp_path / "model"
    folder.mkdir()
    index = folder / "pytorch_model.bin.index.json"
    for name in ("../secret.bin", "/etc/passwd", "sub/x.bin", "a\\b.bin"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(CheckpointFormatError, match="not the plain name"):
            convert(folder)
    for text in ("[]", "{}", "nonsense", '{"weight_map": {"a": 3}}', '{"weight_map": {"a": []}}'):
        index.write_text(text)
        with pytest.raises(CheckpointFormatError, match="index"):
            convert(folder)


def test_a_missing_shard_and_a_key_in_two_are_told(tmp_path, plain):
    folder = sharded(tmp_path, plain)
    last = folder / "pytorch_model-00002-of-00002.bin"
    torch.save(plain, last)
    with pytest.raises(CheckpointFormatError, match=r"a\.weight is in another shard too"):
        convert(folder)
    last.unlink()
    with pytest.raises(FileNotFoundError, match="00002-of-00002"):
        convert(folder)


def test_a_directory_without_pickles_says_what_was_looked_for(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither pytorch_model\.bin nor"):
        convert(tmp_path)


@pytest.mark.case("hf", 42)
@pytest.mark.parametrize("shards", [0, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tied_model_converts_and_loads_equal_to_the_original(tmp_path, family, shards):
    (cell,) = (one for one in all_cells() if one.name == f"{family}-mlm")
    make_synthetic(tiny_config(cell), HeadKind.MLM, tmp_path / "original", family)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "original")
    model = getattr(transformers, config.architectures[0]).from_pretrained(tmp_path / "original")
    state = model.state_dict()
    storages = {tensor.untyped_storage().data_ptr() for tensor in state.values()}
    assert len(storages) < len(state)
    folder = tmp_path / "pickled"
    if shards:
        sharded(folder, state, shards)
    else:
        written(folder, state)
    shutil.copy(tmp_path / "original/config.json", folder)
    with pytest.raises(PickleOnlyError, match=f"fdl flodl-hf convert {folder}"):
        AutoModelForMaskedLM.from_pretrained(folder)
    convert(folder)
    found = AutoModelForMaskedLM.from_pretrained(folder).graph
    expected = AutoModelForMaskedLM.from_pretrained(tmp_path / "original").graph
    assert_same(found.state_dict(), expected.state_dict())
    assert len(list(found.parameters())) == len(list(expected.parameters()))
    ids = torch.arange(3, 12)[None]
    with torch.inference_mode():
        logits = model.eval()(input_ids=ids).logits
        assert float((found(ids) - logits).abs().max()) <= 1e-5


CONVERT_AND_LOAD = """
import sys
from flodl.hf import AutoModelForMaskedLM
from flodl.hf.__main__ import main
from flodl.hf.errors import PickleOnlyError

try:
    AutoModelForMaskedLM.from_pretrained("owner/name")
except PickleOnlyError as told:
    assert "fdl flodl-hf convert owner/name" in str(told)
    assert main(["convert", "owner/name"]) == 0
print(AutoModelForMaskedLM.from_pretrained("owner/name").graph.load_report.files[0])
"""


@pytest.mark.case("hf", 42)
def test_a_repository_is_converted_once_and_then_loads(tmp_path, hub):
    model = bert()
    commit = hub.add_repo("owner/name", written(tmp_path / "m", model.state_dict(), model.config))
    done = hub.python(CONVERT_AND_LOAD, tmp_path)
    assert done.returncode == 0, done.stderr
    used = Path(done.stdout.splitlines()[-1])
    home = tmp_path / "hf-home"
    assert used == home / "flodl-converted/owner/name" / commit / "model.safetensors"
    state = model.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in load_file(used).items())


def cached(home, name, tensors, config):
    """A repository as the Hub's cache keeps it."""
    base = home / "hub" / f"models--{name.replace('/', '--')}"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text(COMMIT)
    return written(base / "snapshots" / COMMIT, tensors, config)


def test_a_repository_s_result_is_kept_by_commit_and_found_again(tmp_path):
    model = bert()
    cached(tmp_path, "owner/name", model.state_dict(), model.config)
    done = fork_server.python(
        *("-m", "flodl.hf", "convert", "owner/name"),
        env={
            **os.environ,
            "HF_HOME": str(tmp_path),
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "HF_HUB_OFFLINE": "1",
        },
        torch=True,
        abrupt=True,
    )
    assert done.returncode == 0, done.stderr
    target = tmp_path / "flodl-converted" / "owner/name" / COMMIT / "model.safetensors"
    assert str(target) in done.stdout
    assert len(load_file(target)) == len(model.state_dict()) - 2


def shards_of_safetensors(folder, tensors):
    """The same checkpoint as an index and two files, as saving in shards leaves it."""
    names = list(tensors)
    files = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    for file, mine in zip(files, (names[::2], names[1::2]), strict=True):
        save_file({name: tensors[name] for name in mine}, folder / file)
    weight_map = {name: files[place % 2] for place, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return [*files, "model.safetensors.index.json"]


@pytest.mark.parametrize("missing", ["", "model.safetensors.index.json"])
def test_shards_that_are_there_already_are_replaced_only_when_forced(tmp_path, plain, missing):
    folder = written(tmp_path, plain)
    names = shards_of_safetensors(folder, plain)
    if missing:
        (folder / missing).unlink()
        names.remove(missing)
    before = {file: (folder / file).read_bytes() for file in names}
    with pytest.raises(FlodlError, match=r"holds safetensors already: model.*--force") as raised:
        convert(folder)
    assert all(name in str(raised.value) for name in names)
    assert {file: (folder / file).read_bytes() for file in names} == before
    assert not (folder / "model.safetensors").exists()
    convert(folder, force=True)
    assert_same(load_file(folder / "model.safetensors"), plain)
    assert not (folder / "model.safetensors.index.json").exists()


@pytest.mark.parametrize(
    ("key", "shown"), [("__metadata__", "'__metadata__'"), ("a\ud800", r"'a\\ud800'")]
)
def test_names_the_format_has_no_place_for_are_refused(tmp_path, plain, key, shown):
    with pytest.raises(CheckpointFormatError, match=rf"pytorch_model\.bin calls a tensor {shown}"):
        convert(written(tmp_path, {**plain, key: torch.ones(1)}))
    assert not (tmp_path / "model.safetensors").exists()


def test_names_of_what_is_left_out_can_be_printed(tmp_path, plain):
    done = convert(written(tmp_path, {**plain, "a\ud800": 1, "b\nc": 2}))
    left_out = r"pytorch_model.bin: left out values that are not tensors: 'a\ud800', 'b\nc'"
    assert done.notes == (left_out,)


@pytest.mark.parametrize("shape", [(1 << 42,), (1 << 31, 1 << 31)])
def test_a_few_bytes_that_claim_to_be_very_many_are_refused(tmp_path, plain, shape):
    folder = written(tmp_path, {**plain, "much": torch.zeros(1).expand(shape)})
    with pytest.raises(CheckpointFormatError, match=r"pytorch_model\.bin: much is \["):
        convert(folder)
    convert(written(tmp_path, {**plain, "some": torch.ones(1).expand(7)}))
    assert load_file(tmp_path / "model.safetensors")["some"].tolist() == [1.0] * 7


def test_a_folder_that_gets_no_weights_is_not_made(tmp_path, monkeypatch):
    source = written(tmp_path / "source", bert().state_dict(), bert().config)
    monkeypatch.setattr("flodl.hf.conversion.write_file", _no_room)
    with pytest.raises(OSError, match="No space"):
        convert(source, out=tmp_path / "deep/out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def _no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
