"""Which revision, which weights and whose token: what the Hub is asked for, and how it refuses."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from tests.flodl.hf.fake_hub import Fault
from tests.flodl.hf.hub_loading import INDEX, index

# Revisions, errors, tokens


@pytest.mark.case("hf", 26)
def test_each_revision_gives_its_own_weights(hub, hub_load, repo_folder):
    branches = {
        "v1": repo_folder("old", weights="older"),
        "refs/pr/1": repo_folder("pr", weights="proposed"),
    }
    newest = hub.add_repo("owner/name", repo_folder("one", weights="newest"), branches)
    commit = hub.commit("owner/name", "v1")
    names = [None, "main", "v1", commit, "refs/pr/1"]
    loaded = hub_load(*(("owner/name", {"revision": name}) for name in names))
    assert [each.weights for each in loaded] == [
        *(["newest"], ["newest"], ["older"], ["older"], ["proposed"])
    ]
    assert [each.commit for each in loaded[:4]] == [newest, newest, commit, commit]


@pytest.mark.case("hf", 26)
def test_each_refusal_has_its_own_error(hub, hub_load, repo_folder):
    hub.add_repo("owner/name", repo_folder("one"))
    hub.add_repo("owner/bare", repo_folder("bare", without=("config.json",)))
    hub.add_repo("owner/empty", repo_folder("empty", without=("model.safetensors",)))
    hub.add_repo("owner/gated", repo_folder("one"), readers=["hf_reader"], gated=True)
    hub.add_repo("owner/private", repo_folder("one"), readers=["hf_reader", "hf_other"])
    token = {"token": "hf_other"}
    calls = [
        *(("owner/nobody", {}), ("owner/nobody", token), ("owner/private", {})),
        *(("owner/name", {"revision": "v9"}), ("owner/name", {"revision": "0" * 40})),
        *(("owner/bare", {}), ("owner/empty", {})),
        *(("owner/gated", {}), ("owner/gated", token)),
        *(("owner/name", {"token": "hf_unknown"}), ("a--b", {})),
    ]
    outcomes = hub_load(*calls)
    assert [each.error for each in outcomes] == [
        *(["RepoNotFound"] * 3),
        *(["RevisionNotFound"] * 2),
        *(["FileNotFoundOnHub"] * 2),
        *(["GatedRepo"] * 2),
        *("HubError", "RepoNotFound"),
    ]
    for (src, _), each in zip(calls, outcomes, strict=True):
        assert src in each.message
    messages = [each.message for each in outcomes]
    assert "'v9'" in messages[3]
    assert "config.json" in messages[5]
    assert "neither model.safetensors nor model.safetensors.index.json" in messages[6]
    assert f"accept its terms on {hub.url}/owner/gated," in messages[7]
    assert "hf_" not in hub_load.output


def files_with(token, folder):
    return [path for path in folder.rglob("*") if path.is_file() and token in path.read_bytes()]


@pytest.mark.case("hf", 26)
@pytest.mark.parametrize("way", ["argument", "HF_TOKEN"])
def test_the_token_is_sent_to_the_hub_and_never_shown(hub, hub_load, repo_folder, tmp_path, way):
    hub.add_repo("owner/private", repo_folder("one"), readers=["hf_reader"])
    hub.add_repo("owner/gated", repo_folder("one"), readers=["hf_member"], gated=True)
    access, env = ({"token": "hf_reader"}, {}) if way == "argument" else ({}, {way: "hf_reader"})
    hub.faults.append(Fault("private/resolve/main/vocab.txt", status=500))
    loaded, *refused = hub_load(
        *((f"owner/{name}", access) for name in ("private", "gated", "nobody")), **env
    )
    assert loaded.weights == ["weights"]
    assert [each.error for each in refused] == ["GatedRepo", "RepoNotFound"]
    assert {r.token for r in hub.requests if r.server == "hub"} == {"hf_reader"}
    assert {r.token for r in hub.requests if r.server == "cdn"} == {None}
    hub.stop()
    warned, offline = hub_load(("owner/private", access), ("owner/none", access), **env)
    assert (warned.weights, offline.error) == (["weights"], "HubOffline")
    assert len(hub_load.warnings) == 1
    assert "hf_reader" not in hub_load.output
    assert files_with(b"hf_reader", tmp_path / "hf-home") == []


def test_false_sends_no_token_and_true_demands_one(hub, hub_load, repo_folder):
    hub.add_repo("owner/name", repo_folder("one"))
    hub.tokens.add("hf_mine")
    hub_load(("owner/name", {"token": False}), HF_TOKEN="hf_mine")
    assert {r.token for r in hub.requests} == {None}
    failed = hub_load(("owner/name", {"token": True}))
    assert failed.error == "HubError"
    assert "token=True, but no token is stored" in failed.message


def test_a_commit_that_could_be_a_path_is_refused(hub, hub_load, repo_folder):
    hub.add_repo("owner/name", repo_folder("one"))
    hub.faults.append(Fault("config.json", status=200, headers={"X-Repo-Commit": "../../up"}))
    failed = hub_load("owner/name")
    assert failed.error == "HubError"
    assert "returned an invalid commit for owner/name: '../../up'" in failed.message


# Which weights


def test_the_shards_that_the_index_names_are_fetched(hub, hub_load, repo_folder):
    files = {"b.safetensors": "b", "a.safetensors": "a", "c.safetensors": "c"}
    source = repo_folder("one", {**files, INDEX: index("a", "b")}, without=("model.safetensors",))
    hub.add_repo("owner/name", source)
    loaded = hub_load("owner/name")
    assert (loaded.weights, loaded.index) == (["a", "b"], INDEX)
    assert not any("c.safetensors" in r.path for r in hub.requests)


@pytest.mark.parametrize("shard", ["../../owner/other/resolve/main/x.safetensors", "x.bin"])
def test_a_shard_that_is_none_is_not_asked_for(hub, hub_load, repo_folder, shard):
    text = json.dumps({"weight_map": {"x": shard}})
    hub.add_repo("owner/name", repo_folder("one", {INDEX: text}, without=("model.safetensors",)))
    failed = hub_load("owner/name")
    assert failed.error == "CheckpointFormatError"
    assert INDEX in failed.message
    assert [r.path for r in hub.requests if r.path.endswith(("x.safetensors", "x.bin"))] == []


def test_a_shard_that_the_repository_lacks_is_named(hub, hub_load, repo_folder):
    hub.add_repo(
        "owner/name", repo_folder("one", {INDEX: index("a")}, without=("model.safetensors",))
    )
    failed = hub_load("owner/name")
    assert failed.error == "CheckpointFormatError"
    assert "a.safetensors, which is missing" in failed.message


class _Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.case("hf", 20)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_a_repository_of_pickles_names_the_command_and_fetches_none(
    hub, hub_load, repo_folder, tmp_path, name
):
    source = repo_folder("one", without=("model.safetensors",))
    (source / name).write_bytes(pickle.dumps(_Harmful(tmp_path / "ran")))
    hub.add_repo("owner/name", source, {"v1": source})
    default, tagged = hub_load("owner/name", ("owner/name", {"revision": "v1"}))
    assert (default.error, tagged.error) == ("PickleOnlyError", "PickleOnlyError")
    command = "fdl flodl-hf convert owner/name"
    assert default.message.splitlines()[-1].strip() == command
    assert tagged.message.splitlines()[-1].strip() == f"{command} --revision v1"
    assert {path.rpartition("/")[2] for path in hub.bodies()} == {"config.json"}
    assert not (tmp_path / "ran").exists()


def test_converted_weights_come_first(hub, hub_load, repo_folder, tmp_path):
    older = repo_folder("old", weights="older")
    commit = hub.add_repo("owner/name", repo_folder("one"), {"v1": older})
    converted = tmp_path / "hf-home/flodl-converted/owner/name"
    converted.mkdir(parents=True)
    (converted / "model.safetensors").write_text("of an older version")
    v1 = ("owner/name", {"revision": "v1"})
    by_commit = ("owner/name", {"revision": commit})
    assert [each.weights for each in hub_load("owner/name", v1, by_commit)] == [
        *(["of an older version"], ["older"], ["weights"])
    ]
    (converted / commit).mkdir()
    (converted / commit / "model.safetensors").write_text("of this commit")
    assert [each.weights for each in hub_load("owner/name", v1, by_commit)] == [
        *(["of this commit"], ["older"], ["of this commit"])
    ]


def test_it_is_said_that_converted_weights_are_used(hub, repo_folder, tmp_path):
    commit = hub.add_repo("owner/name", repo_folder("one"))
    file = tmp_path / "hf-home/flodl-converted/owner/name" / commit / "model.safetensors"
    file.parent.mkdir(parents=True)
    file.write_text("converted")
    program = "from flodl.hf.hub import locate\nlocate('owner/name').weight_files()"
    done = hub.python(program, tmp_path, FLODL_VERBOSITY="verbose")
    assert done.stdout == f"owner/name: using the converted weights {file}\n"


def test_a_subfolder_is_where_the_files_are(hub, hub_load, repo_folder):
    inner = {"inner/model.safetensors": "inner weights", "inner/config.json": "inner"}
    hub.add_repo("owner/name", repo_folder("one", inner))
    loaded, missing = hub_load(
        ("owner/name", {"subfolder": "inner"}), ("owner/name", {"subfolder": "none"})
    )
    assert (loaded.config, loaded.weights) == ("inner", ["inner weights"])
    assert loaded.vocabulary is None
    assert missing.error == "FileNotFoundOnHub"
    assert "none/config.json" in missing.message
    hub.stop()
    assert hub_load(("owner/name", {"subfolder": "inner"})).weights == ["inner weights"]


def test_a_name_without_an_owner_is_a_repository(hub, hub_load, repo_folder):
    hub.add_repo("bert-tiny", repo_folder("one"))
    assert hub_load("bert-tiny").weights == ["weights"]


_NAMES = """
from flodl.hf.hub import locate
from flodl.hf.errors import CheckpointFormatError
checkpoint = locate("owner/name")
print(repr(checkpoint), checkpoint.name, checkpoint.is_local)
for name in ("../secret", "/etc/passwd", "a//b"):
    try:
        checkpoint.file(name)
    except CheckpointFormatError as error:
        print(error)
"""


def test_a_name_that_leads_outside_is_not_asked_for(hub, repo_folder, tmp_path):
    commit = hub.add_repo("owner/name", repo_folder("one"))
    done = hub.python(_NAMES, tmp_path)
    assert done.stdout.splitlines() == [
        f"Repository('owner/name', commit={commit!r}) owner/name False",
        *(
            f"{name!r} is not the name of a file inside owner/name"
            for name in ("../secret", "/etc/passwd", "a//b")
        ),
    ]
    assert {Path(r.path).name for r in hub.requests} == {"config.json"}


@pytest.mark.parametrize("noted", [b"\xff\xfe", b"../../../up"])
def test_a_note_in_the_cache_that_is_no_commit_counts_for_nothing(
    hub, hub_load, repo_folder, tmp_path, noted
):
    commit = hub.add_repo("owner/name", repo_folder("one"))
    note = tmp_path / "hf-home/hub/models--owner--name/refs/main"
    note.parent.mkdir(parents=True)
    note.write_bytes(noted)
    assert hub_load("owner/name", HF_HUB_OFFLINE="1").error == "HubOffline"
    assert hub_load("owner/name").commit == commit
    assert note.read_text() == commit


def test_the_password_of_an_endpoint_is_never_shown(hub, hub_load):
    hub.stop()
    failed = hub_load("owner/name", HF_ENDPOINT=hub.url.replace("//", "//me:secret@"))
    assert failed.error == "HubOffline"
    assert f"{hub.url} cannot be reached" in failed.message
    assert "secret" not in failed.message
