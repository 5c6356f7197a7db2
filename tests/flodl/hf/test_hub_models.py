"""Models by the name of their repository, from the Hub and from what is left of it."""

from __future__ import annotations

import json

import pytest
import torch

from flodl.hf.head_kind import HeadKind
from flodl.hf.weights.writing import save_safetensors_file_from_graph
from tests.flodl.hf.models_material import small_model, some_ids

IDS, MASK = some_ids()

_LOGITS = """
import json, sys, traceback
import torch
from flodl.hf import AutoModelForSequenceClassification

def logits(src, ids, mask, **access):
    head = AutoModelForSequenceClassification.from_pretrained(src, **access)
    with torch.inference_mode():
        outputs = head.graph(torch.tensor(ids), torch.tensor(mask)).tolist()
    report = head.graph.load_report
    print(report, file=sys.stderr)
    return {"logits": outputs, "commit": report.commit}

def outcome(src, access):
    try:
        return logits(src, *given, **access)
    except Exception as error:
        traceback.print_exc()
        return {"error": type(error).__name__, "message": str(error)}

given, calls = json.loads(sys.argv[1])
print(json.dumps([outcome(*call) for call in calls]))
"""


@pytest.fixture
def checkpoint(tmp_path):
    """Write a small classifier: ``checkpoint("name", seed=0)``; its folder and its logits."""

    def make(name, seed=0):
        folder = tmp_path / "sources" / name
        folder.mkdir(parents=True)
        graph = small_model("bert", HeadKind.SEQCLS, seed=seed)
        save_safetensors_file_from_graph(graph, folder / "model.safetensors")
        (folder / "config.json").write_text(graph.source_config)
        with torch.inference_mode():
            return folder, graph(IDS, MASK)

    return make


@pytest.fixture
def load(hub, tmp_path):
    """Load classifiers by name in a process of their own."""

    def run(*calls, **env):
        given = json.dumps([[IDS.tolist(), MASK.tolist()], calls])
        done = hub.python(_LOGITS, tmp_path, given, **env)
        assert done.returncode == 0, done.stderr
        run.output = done.stdout + done.stderr
        return json.loads(done.stdout)

    return run


def same(outcome, logits):
    torch.testing.assert_close(torch.tensor(outcome["logits"]), logits, atol=1e-6, rtol=0)


@pytest.mark.case("hf", 25)
def test_a_model_is_fetched_once_and_then_does_without_the_hub(hub, load, checkpoint, tmp_path):
    folder, logits = checkpoint("one")
    commit = hub.add_repo("owner/name", folder)
    (first,) = load(["owner/name", {}])
    same(first, logits)
    assert first["commit"] == commit
    assert len(hub.bodies()) == 2

    assert load(["owner/name", {}]) == [first]
    assert len(hub.bodies()) == 2

    hub.stop()
    empty = {"cache_dir": str(tmp_path / "empty")}
    cached, failed = load(["owner/name", {}], ["owner/name", empty])
    assert (cached, failed["error"]) == (first, "HubOffline")
    assert load.output.count("cannot be reached (Connection refused); using the cached") == 1


@pytest.mark.case("hf", 26)
def test_two_revisions_are_two_models_and_the_token_is_in_no_report(hub, load, checkpoint):
    newest, logits = checkpoint("new", seed=1)
    older, older_logits = checkpoint("old", seed=2)
    hub.add_repo("owner/name", newest, {"v1": older}, readers=["hf_reader"])
    token = {"token": "hf_reader"}
    first, second = load(["owner/name", token], ["owner/name", {**token, "revision": "v1"}])
    same(first, logits)
    same(second, older_logits)
    assert (logits - older_logits).abs().max() > 1e-3
    assert [first["commit"], second["commit"]] == [
        hub.commit("owner/name"),
        hub.commit("owner/name", "v1"),
    ]
    assert "hf_reader" not in load.output


BAD = {
    "gpt2": ({"model_type": "gpt2"}, "UnsupportedModelError", "'model_type' is 'gpt2'"),
    "untyped": ({"model_type": None}, "UnsupportedModelError", "'model_type'"),
    "gap": ({"id2label": {"0": "a", "2": "b"}}, "ConfigError", "contiguous"),
    "relative": (
        {"position_embedding_type": "relative_key"},
        "ConfigError",
        "'position_embedding_type' is 'relative_key'",
    ),
    "shapeless": ({"hidden_size": None}, "ConfigError", "'hidden_size'"),
}


@pytest.mark.case("hf", 19)
def test_a_configuration_that_cannot_be_built_costs_no_weights(hub, load, checkpoint):
    for name, (changes, *_) in BAD.items():
        folder, _ = checkpoint(name)
        fields = json.loads((folder / "config.json").read_text()) | changes
        kept = {key: value for key, value in fields.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))
        hub.add_repo(f"owner/{name}", folder)
    folder, _ = checkpoint("broken")
    (folder / "config.json").write_text("{")
    hub.add_repo("owner/broken", folder)
    failed = load(*([f"owner/{name}", {}] for name in [*BAD, "broken"]))
    assert len(failed) == len(BAD) + 1
    for outcome, (name, (_, error, said)) in zip(failed, BAD.items(), strict=False):
        assert outcome["error"] == error
        assert outcome["message"].startswith(f"owner/{name}/config.json: ")
        assert said in outcome["message"]
    assert failed[-1]["error"] == "ConfigError"
    assert {request.path.rpartition("/")[2] for request in hub.requests} == {"config.json"}


@pytest.mark.case("hf", 19)
def test_labels_that_contradict_each_other_cost_no_weights(hub, load, checkpoint):
    folder, _ = checkpoint("one")
    hub.add_repo("owner/name", folder)
    wanted = {"num_labels": 3, "id2label": ["a", "b"]}
    (failed,) = load(["owner/name", wanted])
    assert failed["error"] == "ConfigError"
    assert failed["message"] == "num_labels is 3, but id2label has 2 names"
    assert {request.path.rpartition("/")[2] for request in hub.requests} == {"config.json"}
