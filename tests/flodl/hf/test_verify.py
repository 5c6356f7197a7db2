"""`verify-export` passes what is right and tells what is wrong."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from flodl.hf.__main__ import main
from flodl.hf.auto import AutoModel, AutoModelForSequenceClassification
from flodl.hf.export import export_command
from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import all_cells, tiny_config
from flodl.hf.reference import load, make_synthetic, outputs_of_reference
from flodl.hf.verify import verify_export
from tests.flodl.hf.batches import batch_of_ids

CELLS = {cell.name: cell for cell in all_cells()}
WEIGHTS = "model.safetensors"
FULL = [
    *("structure", "reference", "bytes", "config", "tokenizer", "source", "outputs", "losses"),
]


def exported(folder: Path, name: str) -> tuple[Path, Path]:
    """A random checkpoint of the reference, and its export."""
    cell, source = CELLS[name], folder / "source"
    make_synthetic(tiny_config(cell), HeadKind(cell.head), source, name)
    export_command(hub=str(source), checkpoint=None, out=folder / "out")
    return source, folder / "out"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("bert"), "bert-seqcls")


@pytest.fixture
def spoilt(bert, tmp_path):
    """A copy of an export, to be spoilt, and its source."""
    source, out = bert
    return source, Path(shutil.copytree(out, tmp_path / "out"))


def verdicts(report):
    return {check.name: check.passed for check in report.checks}


def fails_at(out: Path, source: Path, name: str) -> str:
    """Check that the command fails, and at one check; return what it says of that."""
    code = main(["verify-export", str(out), "--hub-source", str(source)])
    report = verify_export(out, source=str(source))
    (failed,) = [check for check in report.checks if check.passed is False]
    assert (code, failed.name) == (1, name)
    return failed.detail


@pytest.mark.case("hf", 39)
@pytest.mark.parametrize(
    "name",
    # The grid of all cells makes the same checks of each of them at every change.
    [
        name
        if name in ("bert-mlm", "deberta-v2-qa")
        else pytest.param(name, marks=pytest.mark.slow)
        for name in CELLS
    ],
)
def test_every_cell_passes_every_check(tmp_path, name):
    source, out = exported(tmp_path, name)
    report = verify_export(out, family=CELLS[name].family, source=str(source))
    assert verdicts(report) == dict.fromkeys(FULL, True), report.as_text()
    assert report.passed


@pytest.mark.case("hf", 39)
def test_one_bit_of_a_weight_is_found(spoilt, capsys):
    source, out = spoilt
    content = bytearray((out / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (out / WEIGHTS).write_bytes(content)
    code = main(["verify-export", str(out), "--hub-source", str(source)])
    assert code == 1
    report = verify_export(out, source=str(source))
    assert verdicts(report)["bytes"] is False
    assert "FAIL  bytes" in capsys.readouterr().out


@pytest.mark.case("hf", 39)
def test_a_dropped_key_is_found(spoilt):
    source, out = spoilt
    tensors = load_file(out / WEIGHTS)
    del tensors["classifier.bias"]
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})
    assert "classifier.bias" in fails_at(out, source, "structure")


@pytest.mark.case("hf", 39)
@pytest.mark.parametrize("name", ["BertForTokenClassification", "BertModel", "BertForNothing"])
def test_other_architectures_are_found(spoilt, name):
    source, out = spoilt
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"architectures": [name]}))
    fails_at(out, source, "structure")


def test_weights_of_another_source_are_found(spoilt, tmp_path):
    _, out = spoilt
    make_synthetic(tiny_config(CELLS["bert-seqcls"]), HeadKind.SEQCLS, tmp_path / "b", "another")
    report = verify_export(out, source=str(tmp_path / "b"))
    assert verdicts(report)["bytes"] is False
    assert verdicts(report)["source"] is False
    assert verdicts(report)["outputs"] is True


def test_a_difference_in_the_forward_of_flodl_is_found(spoilt, monkeypatch):
    source, out = spoilt
    open_again = AutoModel.from_pretrained_for_export

    def shifted(src, **options):
        graph = open_again(src, **options)
        with torch.no_grad():
            graph.get_parameter("classifier.bias").add_(1e-3)
        return graph

    monkeypatch.setattr(AutoModel, "from_pretrained_for_export", staticmethod(shifted))
    report = verify_export(out, source=str(source))
    assert verdicts(report) == {**dict.fromkeys(FULL, True), "outputs": False, "losses": False}


def test_the_family_can_be_demanded(bert):
    source, out = bert
    assert verify_export(out, family="bert", source=str(source)).passed
    report = verify_export(out, family="roberta", source=str(source))
    assert "family bert, not roberta" in report.as_text()


def test_without_a_source_only_that_part_is_left_out(bert):
    _, out = bert
    for report in (verify_export(out), verify_export(out, compare_source=False)):
        assert report.passed
        assert verdicts(report) == {
            "structure": True,
            "reference": True,
            "outputs": True,
            "losses": True,
            "source": None,
        }
    assert "does not name its source; name it with --hub-source" in verify_export(out).as_text()


def test_the_source_is_read_from_the_configuration(spoilt):
    source, out = spoilt
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"_name_or_path": str(source)}))
    assert verify_export(out).passed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_change_of_dtype_is_no_difference(bert, tmp_path, dtype):
    source, _ = bert
    out = tmp_path / "half"
    export_command(hub=str(source), checkpoint=None, out=out, dtype=dtype)
    report = verify_export(out, source=str(source))
    assert verdicts(report) == dict.fromkeys(FULL, True), report.as_text()
    assert f"transformers computes the same from {source} converted to {dtype}" in report.as_text()
    config = json.loads((out / "config.json").read_text())
    kept = {key: value for key, value in config.items() if not key.endswith("dtype")}
    (out / "config.json").write_text(json.dumps(kept))
    told = fails_at(out, source, "source")
    assert "outputs of transformers differ by" in told
    assert "converted" not in told


def test_outputs_that_differ_less_than_a_tolerance_are_not_those_of_the_source(spoilt):
    source, out = spoilt
    tensors = load_file(out / WEIGHTS)
    tensors["classifier.bias"] += 2e-6
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})
    report = verify_export(out, source=str(source))
    assert verdicts(report) == {**dict.fromkeys(FULL, True), "bytes": False, "source": False}
    (told,) = [check.detail for check in report.checks if check.name == "source"]
    assert 0 < float(re.search(r"differ by (\S+) from", told)[1]) < 1e-5


def test_a_tensor_the_source_lacks_is_found(bert, tmp_path):
    _, out = bert
    source = Path(shutil.copytree(out, tmp_path / "less"))
    tensors = load_file(source / WEIGHTS)
    del tensors["classifier.bias"]
    save_file(tensors, source / WEIGHTS, metadata={"format": "pt"})
    report = verify_export(out, source=str(source))
    (told,) = [check for check in report.checks if check.name == "bytes"]
    assert (told.passed, told.detail) == (False, "the source has no classifier.bias")


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_a_pooler_that_was_lost_is_found(tmp_path, name):
    source, out = exported(tmp_path, name)
    tensors = load_file(out / WEIGHTS)
    poolers = sorted(key for key in tensors if key.startswith("pooler"))
    assert len(poolers) == 2
    kept = {key: tensor for key, tensor in tensors.items() if key not in poolers}
    save_file(kept, out / WEIGHTS, metadata={"format": "pt"})
    told = fails_at(out, source, "bytes")
    assert told == f"the export has no {', '.join(poolers)}, which the source has"
    # Where the source has none either, none is lost.
    save_file(kept, source / WEIGHTS, metadata={"format": "pt"})
    assert verify_export(out, source=str(source)).passed


def test_an_encoder_taken_out_of_a_model_with_a_pooling_head_has_lost_nothing(tmp_path):
    source, _ = exported(tmp_path, "deberta-v2-seqcls")
    assert "pooler.dense.weight" in load_file(source / WEIGHTS)
    export_command(hub=str(source), checkpoint=None, out=tmp_path / "base", head=HeadKind.BASE)
    report = verify_export(tmp_path / "base", source=str(source))
    assert verdicts(report) == dict.fromkeys(FULL, True), report.as_text()


def test_without_the_reference_only_structure_is_checked(bert, monkeypatch, capsys):
    _, out = bert
    monkeypatch.setitem(sys.modules, "transformers", None)
    report = verify_export(out, structural=True)
    assert verdicts(report) == {"structure": True, "reload": True}
    assert main(["verify-export", str(out), "--no-hub-source"]) == 1
    assert "flodl[hf-verify]" in capsys.readouterr().err


def test_json_says_the_same(bert, capsys):
    source, out = bert
    assert main(["verify-export", str(out), "--hub-source", str(source), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] is True
    assert [check["name"] for check in told["checks"]] == FULL
    assert told["architecture"] == "BertForSequenceClassification"


@pytest.mark.case("hf", 40)
def test_a_fine_tuned_model_computes_the_same_in_the_reference(bert, tmp_path):
    source, _ = bert
    model = AutoModelForSequenceClassification.from_pretrained(source)
    torch.manual_seed(0)
    enc = batch_of_ids(torch.randint(3, 120, (4, 9)), torch.ones(4, 9, dtype=torch.int64))
    optimizer = torch.optim.Adam(model.graph.parameters(), lr=1e-3)
    model.graph.train()
    for _ in range(3):
        optimizer.zero_grad()
        model.compute_loss(enc, torch.tensor([0, 1, 2, 1])).backward()
        optimizer.step()
    model.graph.eval()
    model.graph.save_checkpoint(tmp_path / "model.fdl")
    assert (tmp_path / "model.config.json").exists()
    out = tmp_path / "out"
    words = ["--checkpoint", str(tmp_path / "model.fdl"), "--out", str(out)]
    assert main(["export", *words]) == 0
    loaded = load(out, out)
    inputs = {"input_ids": enc.input_ids, "attention_mask": enc.attention_mask}
    theirs = outputs_of_reference(loaded.model, inputs)["logits"]
    with torch.inference_mode():
        ours = model.forward_encoded(enc)
    assert float((ours - theirs).abs().max()) <= 1e-5
    before = outputs_of_reference(load(source, source).model, inputs)["logits"]
    assert float((ours - before).abs().max()) > 1e-3


@pytest.mark.case("hf", 40)
@pytest.mark.parametrize("name", ["bert-seqcls", "deberta-v2-mlm", "xlm-roberta-mlm"])
def test_exports_of_the_same_weights_are_the_same_from_the_hub_and_a_checkpoint(
    tmp_path, hub, name
):
    source, out = exported(tmp_path, name)
    AutoModel.from_pretrained_for_export(source).save_checkpoint(tmp_path / "m.fdl")
    export_command(hub=None, checkpoint=tmp_path / "m.fdl", out=tmp_path / "checkpoint")
    hub.add_repo("owner/name", source)
    done = hub.python(
        "import sys; from flodl.hf.__main__ import main; sys.exit(main(sys.argv[1:]))",
        tmp_path,
        *("export", "--hub", "owner/name", "--out", str(tmp_path / "hub")),
    )
    assert done.returncode == 0, done.stderr
    contents = {
        (folder / WEIGHTS).read_bytes()
        for folder in (out, tmp_path / "hub", tmp_path / "checkpoint")
    }
    assert len(contents) == 1


def test_a_class_of_another_family_with_the_same_keys_is_found(tmp_path):
    source, out = exported(tmp_path, "roberta-mlm")
    config = json.loads((out / "config.json").read_text())
    altered = config | {"architectures": ["XLMRobertaForMaskedLM"]}
    (out / "config.json").write_text(json.dumps(altered))
    assert "which is not RobertaForMaskedLM" in fails_at(out, source, "structure")


def test_where_the_tensors_lie_in_the_files_makes_no_difference(tmp_path):
    source, whole = exported(tmp_path, "bert")
    shards = tmp_path / "shards"
    export_command(hub=str(source), checkpoint=None, out=shards, max_shard_size="20KB")
    for word in ("fab2s writes Rust", "another", "x" * 40):
        report = verify_export(shards, source=str(whole), prompt=word)
        assert verdicts(report) == dict.fromkeys(FULL, True), report.as_text()


@pytest.mark.parametrize("prompt", ["", "word " * 1000])
def test_any_prompt_will_do(bert, prompt):
    source, out = bert
    report = verify_export(out, source=str(source), prompt=prompt)
    assert verdicts(report) == dict.fromkeys(FULL, True), report.as_text()


def test_a_prompt_is_cut_to_what_the_model_takes(spoilt):
    source, out = spoilt
    (out / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n")
    report = verify_export(out, source=str(source), prompt="word " * 1000)
    assert verdicts(report) == dict.fromkeys(FULL, True), report.as_text()


def test_what_a_model_stumbles_over_is_a_check_that_fails(bert, monkeypatch):
    _, out = bert

    def broken(*_, **__):
        raise RuntimeError("no such word\nlong story")

    monkeypatch.setattr("flodl.hf.verify.outputs_of_reference", broken)
    report = verify_export(out, compare_source=False)
    assert verdicts(report)["reference"] is False
    assert report.checks[1].detail == "RuntimeError: no such word"


def test_a_configuration_that_is_no_text_fails_the_structure(spoilt):
    source, out = spoilt
    (out / "config.json").write_bytes(b"\xff{}")
    assert "not text in UTF-8" in fails_at(out, source, "structure")


def test_a_revision_that_is_none_is_named(spoilt, capsys):
    _, out = spoilt
    config = json.loads((out / "config.json").read_text())
    named = {"flodl_source_repo": "owner/name", "flodl_source_revision": 5}
    (out / "config.json").write_text(json.dumps(config | named))
    assert main(["verify-export", str(out)]) == 1
    assert "flodl_source_revision of the export is 5" in capsys.readouterr().err
