"""Repositories are fetched once, of one commit, and what the cache holds does without the Hub."""

from __future__ import annotations

import re

import pytest

from tests.flodl.hf.fake_hub import Fault
from tests.flodl.hf.hub_loading import INDEX, index


def asked(hub, since=0):
    """What the Hub was asked for: method and path, those of large files left out."""
    return [(r.method, r.path) for r in hub.requests[since:] if r.server == "hub"]


# The cache


@pytest.mark.case("hf", 25)
def test_a_repository_is_fetched_once_and_then_does_without_the_hub(
    hub, hub_load, repo_folder, tmp_path
):
    commit = hub.add_repo("owner/name", repo_folder("one"))
    first = hub_load("owner/name")
    assert (first.commit, first.weights, first.vocabulary) == (commit, ["weights"], "[PAD]")
    assert first.tokenizer is None
    assert len(hub.bodies()) == 3

    seen = len(hub.requests)
    assert hub_load("owner/name") == first
    assert asked(hub, seen) == [("HEAD", "/owner/name/resolve/main/config.json")]
    assert hub_load.warnings == []

    hub.stop()
    empty = tmp_path / "empty"
    loaded, failed = hub_load("owner/name", ("owner/name", {"cache_dir": str(empty)}))
    assert loaded == first
    assert hub_load.warnings == [
        f"warning: owner/name: {hub.url} cannot be reached (Connection refused); using the cached "
        f"commit {commit} of main"
    ]
    assert failed.error == "HubOffline"
    assert failed.message == (
        f"owner/name (main): config.json is not in the cache {empty}, and {hub.url} cannot be "
        "reached (Connection refused). Fetch it once with a connection: hf download owner/name"
    )


def test_nothing_is_asked_for_a_commit_that_is_in_the_cache(hub, hub_load, repo_folder):
    commit = hub.add_repo("owner/name", repo_folder("one"))
    by_commit = ("owner/name", {"revision": commit})
    first = hub_load(by_commit)
    seen = len(hub.requests)
    assert hub_load(by_commit) == first
    assert hub.requests[seen:] == []


def test_the_configuration_is_asked_for_before_anything_else(hub, hub_load, repo_folder):
    hub.add_repo("owner/name", repo_folder("one"))
    hub_load("owner/name")
    gets = [r.path.rpartition("/")[2] for r in hub.requests if r.method == "GET"]
    assert gets[0] == "config.json"


def test_only_what_changed_is_fetched_of_the_next_commit(hub, hub_load, repo_folder):
    hub.add_repo("owner/name", repo_folder("one"))
    hub_load("owner/name")
    fetched = len(hub.bodies())
    second = hub.add_repo("owner/name", repo_folder("two", {"config.json": '{"new": 1}'}))
    loaded = hub_load("owner/name")
    assert (loaded.commit, loaded.config, loaded.weights) == (second, '{"new": 1}', ["weights"])
    assert hub.bodies()[fetched:] == [f"/owner/name/resolve/{second}/config.json"]


@pytest.mark.parametrize("moment", ["/config.json", "/model.safetensors", "/blob/"])
def test_all_files_are_of_the_commit_that_was_resolved_first(hub, hub_load, repo_folder, moment):
    first = hub.add_repo("owner/name", repo_folder("one", weights="of the first"))
    newer = {"config.json": "newer", "vocab.txt": "newer"}
    second = repo_folder("two", newer, weights="of the second")
    method = "HEAD" if moment == "/model.safetensors" else "GET"
    push = Fault(moment, method, before=lambda: hub.add_repo("owner/name", second))
    hub.faults.append(push)
    loaded = hub_load("owner/name")
    assert push.times == 0
    assert (loaded.commit, loaded.config, loaded.vocabulary) == (first, "{}", "[PAD]")
    assert loaded.weights == ["of the first"]
    assert hub_load("owner/name").weights == ["of the second"]


_OTHER_TOOL = """
import sys
from huggingface_hub import hf_hub_download, snapshot_download
if sys.argv[1] == "fetch":
    snapshot_download("owner/name")
else:
    print(open(hf_hub_download("owner/name", "model.safetensors", local_files_only=True)).read())
"""


def test_what_another_tool_has_fetched_is_not_fetched_again(hub, hub_load, repo_folder, tmp_path):
    hub.add_repo("owner/name", repo_folder("one"))
    assert hub.python(_OTHER_TOOL, tmp_path, "fetch").returncode == 0
    fetched = len(hub.bodies())
    assert fetched == 3
    assert hub_load("owner/name").weights == ["weights"]
    assert len(hub.bodies()) == fetched
    hub.stop()
    assert hub_load("owner/name").vocabulary == "[PAD]"
    assert len(hub_load.warnings) == 1


def test_what_was_fetched_is_there_for_other_tools(hub, hub_load, repo_folder, tmp_path):
    hub.add_repo("owner/name", repo_folder("one"))
    hub_load("owner/name")
    hub.stop()
    assert hub.python(_OTHER_TOOL, tmp_path, "read").stdout == "weights\n"


def test_the_cache_can_be_another_directory(hub, hub_load, repo_folder, tmp_path):
    commit = hub.add_repo("owner/name", repo_folder("one"))
    hub_load(("owner/name", {"cache_dir": str(tmp_path / "mine")}))
    snapshot = tmp_path / "mine/models--owner--name/snapshots" / commit
    assert (snapshot / "model.safetensors").read_text() == "weights"
    assert not (tmp_path / "hf-home/hub/models--owner--name").exists()


# Without a network


@pytest.mark.parametrize("how", ["local_files_only", "HF_HUB_OFFLINE"])
def test_nobody_is_asked_where_that_is_forbidden(hub, hub_load, repo_folder, how, tmp_path):
    hub.add_repo("owner/name", repo_folder("one"), {"v1": repo_folder("old")})
    access = {"local_files_only": True} if how == "local_files_only" else {}
    env = {} if access else {"HF_HUB_OFFLINE": "1"}
    hub_load("owner/name")
    seen = len(hub.requests)
    cached, unknown, other = hub_load(
        ("owner/name", access), ("owner/name", {**access, "revision": "v1"}), ("o/n", access), **env
    )
    assert cached.weights == ["weights"]
    assert hub_load.warnings == []
    assert hub.requests[seen:] == []
    assert (unknown.error, other.error) == ("HubOffline", "HubOffline")
    assert unknown.message == (
        f"owner/name (v1): config.json is not in the cache {tmp_path / 'hf-home/hub'}, and {how} "
        "forbids to fetch it. Fetch it once with a connection: hf download owner/name"
    )


@pytest.mark.parametrize("lost", ["model.safetensors", "b.safetensors", "config.json"])
def test_an_incomplete_snapshot_is_not_enough(hub, hub_load, repo_folder, tmp_path, lost):
    shards = {"a.safetensors": "a", "b.safetensors": "b", INDEX: index("a", "b")}
    single = lost == "model.safetensors"
    files, without = ({}, ()) if single else (shards, ("model.safetensors",))
    commit = hub.add_repo("owner/name", repo_folder("one", files, without=without))
    hub_load("owner/name")
    hub.stop()
    (tmp_path / "hf-home/hub/models--owner--name/snapshots" / commit / lost).unlink()
    failed = hub_load("owner/name")
    assert failed.error == "HubOffline"
    assert f"{lost} is not in the cache" in failed.message


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("config.json", status=503, times=99), "HTTP status 503"),
        (Fault("config.json", status=429, times=99), "HTTP status 429"),
        pytest.param(
            Fault("config.json", stall=True, times=99),
            "ReadTimeout|timed out",
            marks=pytest.mark.slow,  # it is waited for
        ),
        (Fault("config.json", status=200, times=99), "the endpoint is not a Hugging Face Hub"),
    ],
    ids=["down", "busy", "silent", "not a hub"],
)
def test_a_hub_that_gives_no_answer_is_as_good_as_none(
    hub, hub_load, repo_folder, tmp_path, fault, reason
):
    hub.add_repo("owner/name", repo_folder("one"))
    first = hub_load("owner/name")
    hub.faults.append(fault)
    elsewhere = ("owner/name", {"cache_dir": str(tmp_path / "empty")})
    cached, empty = hub_load("owner/name", elsewhere, HF_HUB_ETAG_TIMEOUT="1")
    (warning,) = hub_load.warnings
    assert re.search(rf"cannot be reached \(({reason}).*\); using the cached commit", warning)
    assert (cached, empty.error) == (first, "HubOffline")


def test_a_hub_that_stumbles_once_is_asked_again_if_there_is_no_snapshot(
    hub, hub_load, repo_folder
):
    hub.add_repo("owner/name", repo_folder("one"))
    hub.faults.append(Fault("config.json", status=502))
    assert hub_load("owner/name").weights == ["weights"]
    assert hub_load.warnings == []


def test_a_download_that_is_cut_goes_on(hub, hub_load, repo_folder):
    weights = "0123456789" * 20_000
    hub.add_repo("owner/name", repo_folder("one", weights=weights))
    cut = Fault("/blob/", cut_at=70_000)
    hub.faults.append(cut)
    assert hub_load("owner/name").weights == [weights]
    assert cut.times == 0


def test_a_download_that_fails_leaves_nothing_that_looks_complete(hub, hub_load, repo_folder):
    hub.add_repo("owner/name", repo_folder("one"))
    hub.faults.append(Fault("/blob/", status=500, times=99))
    failed = hub_load("owner/name")
    assert failed.error == "HubOffline"
    assert "model.safetensors is not in the cache" in failed.message
    assert "HTTP status 500" in failed.message
    hub.faults.clear()
    assert hub_load("owner/name").weights == ["weights"]


def test_a_new_commit_that_cannot_be_had_is_replaced_by_the_cached_one(hub, hub_load, repo_folder):
    hub.add_repo("owner/name", repo_folder("one"))
    first = hub_load("owner/name")
    hub.add_repo("owner/name", repo_folder("two", {"config.json": "newer"}))
    hub.faults.append(Fault("config.json", "GET", status=500, times=99))
    assert hub_load("owner/name") == first
    assert len(hub_load.warnings) == 1


def test_a_file_that_cannot_be_had_is_not_taken_for_one_that_does_not_exist(
    hub, hub_load, repo_folder
):
    hub.add_repo("owner/name", repo_folder("one"))
    hub.faults.append(Fault("/vocab.txt", status=503, times=99))
    failed = hub_load("owner/name")
    assert failed.error == "HubOffline"
    assert "vocab.txt is not in the cache" in failed.message
    hub.faults.clear()
    assert hub_load("owner/name").vocabulary == "[PAD]"
