"""No public call imports transformers, or another package that flodl is compared with."""

from __future__ import annotations

import json
import re

import pytest

import flodl.hf
from flodl.hf.head_kind import HeadKind
from flodl.hf.weights.writing import save_safetensors_file_from_graph
from tests import fork_server
from tests.flodl.hf.models_material import FAMILIES, VOCABULARY, small_model

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", ".", "?"]

_PROGRAM = """
import json, sys
from pathlib import Path
import torch

REFERENCES = {"transformers", "peft", "sentence_transformers", "accelerate"}
root = Path(sys.argv[1])
for name, lines in json.loads((root / "calls.json").read_text()):
    exec(lines, globals())
    found = REFERENCES & {module.partition(".")[0] for module in sys.modules}
    assert not found, f"{name} imported {found}"
    print(name)
"""

_KINDS = {
    **{f"AutoModel{kind.suffix.removeprefix('Model')}": kind for kind in HeadKind},
    "AutoConfig": HeadKind.BASE,
    "AutoTokenizer": HeadKind.BASE,
    "PreTrainedTokenizerFast": HeadKind.BASE,
}


def place_of(name: str) -> str:
    """The folder of a checkpoint that a class can load, by the name of the class."""
    if name in _KINDS:
        return f"bert/{_KINDS[name]}"
    prefix, suffix = re.fullmatch(r"(.*?)((?:For|Model|Config|Tokenizer).*)", name).groups()
    kind = next((kind for kind in HeadKind if kind.suffix == suffix), HeadKind.BASE)
    spellings = {family.replace("-", ""): family for family in FAMILIES}
    return f"{spellings[prefix.lower()]}/{kind}"


LOADING = [
    name
    for name in sorted(flodl.hf.__all__)
    if isinstance(getattr(flodl.hf, name, None), type)
    and hasattr(getattr(flodl.hf, name), "from_pretrained")
    # EncoderConfig is of no family.
    and name != "EncoderConfig"
]

CALLS = [
    (
        "import",
        """
import flodl.hf as hf
from flodl.hf.errors import (
    CheckpointFormatError, CheckpointMismatchError, ConfigError, DiskFull, FileNotFoundOnHub,
    GatedRepo, HubError, HubOffline, MissingDependencyError, PickleOnlyError, RepoNotFound,
    RevisionNotFound, TokenizerMissingError, UnsupportedModelError,
)
from flodl.hf.layers.activations import ACTIVATIONS
from flodl.hf.lora import LoraLinear, LoraSettings
from flodl.hf.losses import (
    masked_lm_loss, question_answering_loss, sequence_classification_loss,
    token_classification_loss,
)
from flodl.hf.predict.answer import Answer
from flodl.hf.predict.fill_mask import MaskFill
from flodl.hf.predict.sequence import LabelScore
from flodl.hf.predict.tokens import Entity, TokenPrediction
from flodl.hf.weights.fill import LoadReport, fill
from flodl.hf.weights.writing import save_safetensors_file_from_graph
""",
    ),
    *((name, f"hf.{name}.from_pretrained(root / {place_of(name)!r})") for name in LOADING),
    (
        "export of a class",
        "hf.AutoModel.from_pretrained_for_export(root / 'bert/qa')",
    ),
    (
        "configurations",
        """
for made in (
    hf.AlbertConfig, hf.BertConfig, hf.DebertaV2Config, hf.DistilBertConfig, hf.ModernBertConfig,
    hf.RobertaConfig, hf.XLMRobertaConfig,
):
    config = made.from_json_str((root / made.model_type / "base/config.json").read_text())
    assert isinstance(config, hf.EncoderConfig)
    text = config.replace(id2label=["a", "b"]).to_json_string()
    assert hf.AutoConfig.from_json_str(text).model_type == config.model_type
""",
    ),
    (
        "fresh models",
        """
tiny = hf.AutoConfig.from_pretrained(root / "bert/base")
hf.BertModel.from_config(tiny)
hf.BertForTokenClassification.from_config(tiny, num_labels=3)
hf.BertForMaskedLM.from_config(tiny)
""",
    ),
    (
        "tokenizer",
        """
tokenizer = hf.PreTrainedTokenizerFast.from_file(root / "bert/base/vocab.txt").for_config(tiny)
enc = tokenizer(["a b", "c ."], truncation=True, max_length=8, return_tensors="pt")
pairs = tokenizer([("a ?", "b c .")], return_tensors="pt")
tokenizer.save(root / "tokenizer")
hf.PreTrainedTokenizerFast.from_inner(tokenizer.inner).encode("a")
assert isinstance(enc, hf.BatchEncoding)
""",
    ),
    (
        "a class per text",
        """
head = hf.BertForSequenceClassification.from_pretrained(root / "bert/seqcls")
((best, _), _) = head.predict(["a b", "c ."])
assert isinstance(best, LabelScore)
hf.set_unpad(head, True)
head.compute_loss(enc, torch.tensor([0, 1])).backward()
sequence_classification_loss(head.forward_encoded(enc), torch.tensor([0, 1]))
""",
    ),
    (
        "a label per token",
        """
tagger = hf.BertForTokenClassification.from_pretrained(root / "bert/tokcls")
assert isinstance(tagger.predict(["a b"])[0][0], TokenPrediction)
for way in ("simple", "first", "average", "max"):
    (found,) = tagger.predict(["a b"], aggregation=way)
    assert all(isinstance(entity, Entity) for entity in found)
labels = hf.align_labels([[0, 1], [1, 0]], enc)
tagger.compute_loss(enc, labels).backward()
token_classification_loss(tagger.forward_encoded(enc), labels)
""",
    ),
    (
        "answers",
        """
finder = hf.BertForQuestionAnswering.from_pretrained(root / "bert/qa")
assert isinstance(finder.answer("a ?", "a b c ."), Answer)
finder.answer_batch([("a ?", "a b c .")], top_k=2)
places = torch.tensor([4]), torch.tensor([5])
finder.compute_loss(pairs, *places).backward()
question_answering_loss(finder.forward_encoded(pairs), *places)
""",
    ),
    (
        "masks",
        """
filler = hf.BertForMaskedLM.from_pretrained(root / "bert/mlm")
assert isinstance(filler.fill_mask("a [MASK] .")[0][0], MaskFill)
filler.fill_mask_batch(["a [MASK] ."], targets=["b"])
masked = hf.DataCollatorForLanguageModeling(tokenizer)([tokenizer("a b c ."), tokenizer("b")])
labels = masked.pop("labels")
filler.compute_loss(masked, labels).backward()
masked_lm_loss(filler.forward_encoded(masked), labels)
""",
    ),
    (
        "embeddings",
        """
encoder = hf.SentenceTransformer(root / "bert/base")
encoder.encode(["a", "b c"], pooling="max", normalize_embeddings=True)
found = hf.backbone_outputs(encoder.graph, enc, hidden_states=True)
assert found.last_hidden_state.dim() == 3
""",
    ),
    (
        "sentences",
        """
sentences = hf.SentenceTransformer(root / "bert/base")
vectors = sentences.encode(["a", "b c"], convert_to_tensor=True)
assert sentences.similarity(vectors, vectors).shape == (2, 2)
""",
    ),
    (
        "habits",
        """
spoken = hf.AutoTokenizer.from_pretrained(root / "bert/base")
batch = spoken(["a b", "c ."], padding=True, return_tensors="pt")
assert isinstance(batch, hf.BatchEncoding)
hf.DataCollatorWithPadding(spoken)
hf.default_data_collator([{"label": 1, "input_ids": [1, 2]}])
hf.DataCollatorForTokenClassification(spoken)
hf.DataCollatorForLanguageModeling(spoken)
asked = dict(output_hidden_states=True, output_attentions=True)
for model, kind in (
    (hf.BertModel.from_pretrained(root / "bert/base"), hf.BaseModelOutputWithPooling),
    (head, hf.SequenceClassifierOutput),
    (tagger, hf.TokenClassifierOutput),
    (finder, hf.QuestionAnsweringModelOutput),
    (filler, hf.MaskedLMOutput),
):
    assert isinstance(model, hf.PretrainedModel)
    out = model(**batch, **asked)
    assert isinstance(out, kind) and isinstance(out, hf.ModelOutput)
head.gradient_checkpointing_enable()
head.train()(**batch, labels=torch.tensor([0, 1])).loss.backward()
head.eval()
""",
    ),
    (
        "small functions",
        """
ACTIVATIONS["gelu"](torch.ones(2))
assert hf.HeadKind("qa") is hf.HeadKind.QA
""",
    ),
    (
        "weights",
        """
file = root / "again.safetensors"
graph = filler.graph
save_safetensors_file_from_graph(graph, file)
from flodl.hf.source import WeightFiles
from flodl.hf.weights.stored import StoredFiles
report = fill(graph, StoredFiles(WeightFiles((file,))), filler.config)
assert isinstance(report, LoadReport)
""",
    ),
    (
        "surgery",
        """
hf.extract(head.graph, "bert")
hf.drop_layers(head.graph, [1])
head.resize_token_embeddings(70)
head.predict(["a"])
""",
    ),
    (
        "adapters",
        """
hf.add_lora(tagger.graph, "query", r=2)
adapted = [m for m in tagger.graph.modules() if isinstance(m, LoraLinear)]
assert adapted[0].lora == LoraSettings(r=2, alpha=16)
hf.save_lora(tagger.graph, root / "adapter")
hf.merge_lora(tagger.graph)
hf.unmerge_lora(tagger.graph)
hf.load_lora(hf.AutoModel.from_pretrained_for_export(root / "bert/tokcls"), root / "adapter")
""",
    ),
    (
        "a tiny model",
        "hf.AutoModel.from_pretrained(hf.write_tiny_model(root / 'tiny', head='seqcls'))",
    ),
    (
        "export",
        """
head.save_pretrained(root / "saved")
filler.save_pretrained(root / "out")
assert hf.verify_export(root / "out", structural=True).passed
""",
    ),
    (
        "convert",
        """
(root / "pickled").mkdir()
torch.save(filler.graph.state_dict(), root / "pickled/pytorch_model.bin")
hf.convert(root / "pickled")
""",
    ),
    (
        "errors",
        """
for error in (
    CheckpointFormatError, CheckpointMismatchError, ConfigError, DiskFull,
    FileNotFoundOnHub,
    GatedRepo, HubError, HubOffline, MissingDependencyError, PickleOnlyError,
    RepoNotFound, RevisionNotFound, TokenizerMissingError, UnsupportedModelError,
):
    assert str(error("said")) == "said"
""",
    ),
    (
        "commands",
        "from flodl.hf.__main__ import main\nassert main(['info', str(root / 'out')]) == 0",
    ),
]


@pytest.fixture
def checkpoints(tmp_path):
    """A folder of small checkpoints, ``<family>/<head>``, each with the files of a tokenizer."""
    for family in FAMILIES:
        for kind in HeadKind:
            folder = tmp_path / family / kind
            folder.mkdir(parents=True)
            graph = small_model(family, kind)
            save_safetensors_file_from_graph(graph, folder / "model.safetensors")
            (folder / "config.json").write_text(graph.source_config)
            more = [f"[unused{n}]" for n in range(VOCABULARY - len(_WORDS))]
            (folder / "vocab.txt").write_text("\n".join([*_WORDS, *more]) + "\n")
    return tmp_path


def test_every_public_name_is_tried():
    tried = {name for _, lines in CALLS for name in re.findall(r"\bhf\.(\w+)", lines)}
    assert set(flodl.hf.__all__) <= tried


@pytest.mark.case("hf", 28)
def test_no_public_call_imports_the_reference(checkpoints):
    (checkpoints / "calls.json").write_text(json.dumps(CALLS))
    done = fork_server.python("-c", _PROGRAM, str(checkpoints), torch=True, abrupt=True)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    assert [line for line in done.stdout.splitlines() if line in dict(CALLS)] == [*dict(CALLS)]


def test_a_call_that_did_import_it_would_be_found(tmp_path):
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "__init__.py").touch()
    call = ["other", "sys.path.insert(0, str(root))\nimport peft"]
    (tmp_path / "calls.json").write_text(json.dumps([call]))
    done = fork_server.python("-c", _PROGRAM, str(tmp_path), torch=True, abrupt=True)
    assert done.returncode == 1
    assert "other imported {'peft'}" in done.stderr
