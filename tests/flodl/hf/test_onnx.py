"""Models as ONNX files: the outputs of onnxruntime, and what is refused."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import flodl.hf.onnx_file as onnx_file
from flodl import SetupConfig, Trainer
from flodl.errors import FlodlError
from flodl.hf import AutoModelForSequenceClassification, add_lora, export_onnx
from flodl.hf.__main__ import main
from flodl.hf.config_json import AutoConfig
from flodl.hf.encoded import EncodedBatch
from flodl.hf.export import export_command
from flodl.hf.families import AutoModel
from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import all_cells, tiny_config
from flodl.hf.onnx_file import OPSET, OnnxFile, write_onnx
from flodl.hf.output_files import ONNX
from flodl.hf.reference import largest_difference, load, make_synthetic, outputs_of_reference
from flodl.hf.task_heads import inputs_of
from flodl.hf.verify import verify_export

CELLS = {cell.name: cell for cell in all_cells()}
SHAPES = ((1, 1), (1, 30), (3, 2), (5, 17))
"""Rows and tokens; the traced batch has another shape."""


def made(folder: Path, name: str) -> Path:
    """A random checkpoint of the reference."""
    cell = CELLS[name]
    make_synthetic(tiny_config(cell), HeadKind(cell.head), folder, name)
    return folder


def batch(config, rows: int, length: int) -> EncodedBatch:
    """Random ids, with padding on the right of every second row and on the left of every third."""
    generator = torch.Generator().manual_seed(rows * 100 + length)
    pad = config.pad_token_id or 0
    ids = torch.randint(pad + 1, config.vocab_size, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1::2, length // 2 + 1 :] = 0
    mask[2::3, : length // 2] = 0
    types = (torch.arange(length) >= length // 2).long().expand_as(ids) * mask
    return EncodedBatch(ids.masked_fill(mask == 0, pad), mask, types)


def ports_of(folder: Path):
    """A session, and the sizes of its inputs and outputs by name."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / ONNX, providers=["CPUExecutionProvider"])
    inputs = {port.name: port.shape for port in session.get_inputs()}
    outputs = {port.name: port.shape for port in session.get_outputs()}
    return session, inputs, outputs


def check_beside_the_reference(folder: Path, source: Path) -> tuple[dict, dict]:
    """Compare onnxruntime with transformers for all shapes; return inputs and outputs."""
    session, inputs, outputs = ports_of(folder)
    graph = AutoModel.from_pretrained_for_export(source)
    config = AutoConfig.from_json_str(str(graph.source_config))
    model = load(source, source).model
    for rows, length in SHAPES:
        enc = batch(config, rows, length)
        given = inputs_of(enc, config)
        found = session.run(list(outputs), {name: given[name].numpy() for name in inputs})
        ours = {name: torch.from_numpy(value) for name, value in zip(outputs, found, strict=True)}
        theirs = outputs_of_reference(model, given)
        assert largest_difference(ours, theirs, enc.attention_mask) < 1e-5, (rows, length)
    return inputs, outputs


@pytest.mark.slow
def test_a_classifier_is_exported_for_batches_of_any_size(tmp_path, capsys):
    source = made(tmp_path / "source", "bert-seqcls")
    out = tmp_path / "out"
    assert main(["export", "--hub", str(source), "--out", str(out), "--onnx"]) == 0
    told = capsys.readouterr()
    assert f"model.onnx: opset {OPSET}, input_ids, attention_mask, token_type_ids -> logits" in (
        told.err
    )
    assert "model.onnx: onnxruntime computes the same within " in told.err
    assert told.out.splitlines()[-1] == "  model.onnx"
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json", "model.onnx", "model.safetensors",
    ]  # fmt: skip
    inputs, outputs = check_beside_the_reference(out, source)
    both = ["batch_size", "sequence_length"]
    assert inputs == dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), both)
    assert outputs == {"logits": ["batch_size", 3]}
    # Paths of this machine do not belong into the file.
    assert b"flodl/hf" not in (out / ONNX).read_bytes()


OUTPUTS = {
    "base": {"last_hidden_state": ["batch_size", "sequence_length", 32]},
    "seqcls": {"logits": ["batch_size", 3]},
    "tokcls": {"logits": ["batch_size", "sequence_length", 3]},
    "qa": {name: ["batch_size", "sequence_length"] for name in ("start_logits", "end_logits")},
    "mlm": {"logits": ["batch_size", "sequence_length", 120]},
}
WITHOUT_TYPES = ("distilbert", "roberta", "xlm-roberta", "deberta-v2", "modernbert")


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_every_family_with_every_head_computes_what_transformers_computes(name, tmp_path):
    source = made(tmp_path / "source", name)
    out = tmp_path / "out"
    export_command(hub=str(source), checkpoint=None, out=out, onnx=write_onnx)
    inputs, outputs = check_beside_the_reference(out, source)
    report = verify_export(out, source=str(source))
    assert report.passed
    assert report.checks[-1].detail.startswith("onnxruntime computes the same within ")
    cell = CELLS[name]
    assert outputs == OUTPUTS[cell.head]
    names = ["input_ids", "attention_mask"]
    if cell.family not in WITHOUT_TYPES:
        names.append("token_type_ids")
    assert list(inputs) == names


@pytest.mark.slow
def test_shared_weights_are_stored_once_and_two_files_are_equal(tmp_path):
    source = made(tmp_path / "source", "bert-mlm")
    graph = AutoModel.from_pretrained_for_export(source)
    for name in ("one", "two"):
        export_onnx(graph, tmp_path / name)
    first, second = ((tmp_path / name / ONNX).read_bytes() for name in ("one", "two"))
    assert first == second
    table = graph.get_submodule("bert.embeddings.word_embeddings").weight.detach()
    # The head multiplies with the same table.
    assert first.count(table.numpy().tobytes()) == 1
    assert first.count(table.T.contiguous().numpy().tobytes()) == 0


@pytest.mark.slow
def test_a_trained_model_and_one_in_bfloat16_and_one_with_adapters_are_exported(tmp_path):
    source = made(tmp_path / "source", "bert-seqcls")
    trained = AutoModelForSequenceClassification.from_pretrained(source)
    Trainer.setup_head(
        trained, None, lambda ps: torch.optim.AdamW(ps, lr=1e-2), config=SetupConfig(device="cpu")
    )
    enc = batch(trained.config, 4, 9)
    trained.compute_loss(enc, torch.arange(4) % 3).backward()
    trained.graph.step()
    assert export_onnx(trained.graph, tmp_path / "trained").difference < 1e-5
    assert trained.training  # the model itself is not changed
    session, inputs, _ = ports_of(tmp_path / "trained")
    given = inputs_of(enc, trained.config)
    (found,) = session.run(None, {name: given[name].numpy() for name in inputs})
    trained.graph.eval()
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), trained.forward_encoded(enc))
    half = AutoModelForSequenceClassification.from_pretrained(source, dtype="bfloat16")
    assert export_onnx(half.graph, tmp_path / "half").difference < 1e-5
    assert half.dtype == torch.bfloat16
    add_lora(half.graph, ["query", "value"], r=2)
    assert export_onnx(half.graph, tmp_path / "adapted").difference < 1e-5


@pytest.mark.slow
def test_a_file_of_other_weights_is_refused(tmp_path):
    graph = AutoModel.from_pretrained_for_export(made(tmp_path / "source", "bert-tokcls"))
    config = AutoConfig.from_json_str(str(graph.source_config))
    export_onnx(graph, tmp_path / "out")
    assert onnx_file.onnx_difference(graph, config, tmp_path / "out" / ONNX) < 1e-5
    with torch.no_grad():
        next(graph.parameters()).mul_(1.5)
    with pytest.raises(FlodlError, match=r"model\.onnx: onnxruntime computes [\d.e-]+ apart"):
        onnx_file.onnx_difference(graph, config, tmp_path / "out" / ONNX)


def test_a_broken_onnx_file_fails_the_verification(tmp_path, monkeypatch):
    source, out = made(tmp_path / "source", "bert-qa"), tmp_path / "out"
    export_command(hub=str(source), checkpoint=None, out=out)
    assert "onnx" not in [check.name for check in verify_export(out, compare_source=False).checks]
    (out / ONNX).write_bytes(b"not a model")
    report = verify_export(out, compare_source=False)
    (failed,) = [check for check in report.checks if check.passed is False]
    assert failed.name == "onnx"
    assert failed.detail.startswith("model.onnx: onnxruntime cannot run it: ")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    report = verify_export(out, compare_source=False)
    (skipped,) = [check for check in report.checks if check.name == "onnx"]
    assert (skipped.passed, report.passed) == (None, True)
    assert skipped.detail == "not compared: run pip install onnxruntime"


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named_before_anything_is_read(package, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    words = ["export", "--hub", str(tmp_path / "no"), "--out", str(tmp_path / "out"), "--onnx"]
    assert main(words) == 1
    told = f'the package {package} is not installed: run pip install "flodl[onnx]"'
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_onnxruntime_a_note_says_how_to_compare(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    graph = AutoModel.from_pretrained_for_export(made(tmp_path / "source", "bert"))
    config = AutoConfig.from_json_str(str(graph.source_config))
    found = onnx_file.onnx_difference(graph, config, tmp_path / ONNX)
    assert found is None
    told = OnnxFile((ONNX,), ("input_ids",), ("logits",), found).notes()
    assert told[1].endswith("onnxruntime is not installed: run pip install onnxruntime")


def test_a_model_that_cannot_be_traced_leaves_an_earlier_export_alone(tmp_path, monkeypatch):
    def fail(*_args, **_options):
        raise RuntimeError("an operator is unknown\nand more")

    out = tmp_path / "out"
    export_command(hub=str(made(tmp_path / "one", "bert-qa")), checkpoint=None, out=out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setattr(torch.onnx, "export", fail)
    other = made(tmp_path / "two", "bert-seqcls")
    with pytest.raises(
        FlodlError,
        match=r"this bert cannot be written as ONNX: RuntimeError: an operator is unknown$",
    ):
        export_command(hub=str(other), checkpoint=None, out=out, onnx=write_onnx, force=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    with pytest.raises(FlodlError, match="cannot be written as ONNX"):
        export_command(hub=str(other), checkpoint=None, out=tmp_path / "new", onnx=write_onnx)
    assert not (tmp_path / "new").exists()


def test_an_export_without_onnx_removes_the_file_of_earlier_weights(tmp_path):
    source, out = made(tmp_path / "source", "bert-qa"), tmp_path / "out"
    out.mkdir()
    (out / ONNX).write_bytes(b"of an earlier model")
    with pytest.raises(FlodlError, match=r"holds model\.onnx already"):
        export_command(hub=str(source), checkpoint=None, out=out)
    assert (out / ONNX).exists()
    export_command(hub=str(source), checkpoint=None, out=out, force=True)
    assert not (out / ONNX).exists()
    assert load_file(out / "model.safetensors")
    assert json.loads((out / "config.json").read_text())["architectures"] == [
        "BertForQuestionAnswering"
    ]
