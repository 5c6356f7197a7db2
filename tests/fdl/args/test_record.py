"""Who wins when several places set one value, and what the record of a run says about it."""

import json
from typing import Any

import pytest

from fdl import FdlArgs, FdlArgsError, arg, option
from fdl.base.secrets import REDACTED
from tests.rows import each_row

MANIFESTS = {
    "fdl.yml": "commands:\n  train:\n",
    "fdl.ci.yml": "{}\n",
    "train/fdl.yml": """
        entry: python main.py --depth 3
        training:
          lr: 0.01
          seed: 1
        commands:
          quick:
            training:
              lr: 0.02
            options:
              tags: [a, b]
              flag: true
        """,
    "train/fdl.ci.yml": """
        training:
          lr: 0.05
        """,
    "train/main.py": """
        import json

        from fdl import FdlArgs, option


        class Args(FdlArgs):
            lr: float = option(default=0.003, env="LR")
            seed: int = option(default=0)
            depth: int = option(default=1, env="DEPTH")
            tags: list[str] = option(env="TAGS", short="t")
            flag: bool = option()
            hub_token: str | None = option()


        print(json.dumps(Args.parse_or_schema().resolved()))
        """,
}


@pytest.fixture
def train(light_fdl, project):
    """Type ``fdl train WORDS`` and return the record of the run."""
    project(MANIFESTS)

    def run(*words: str, **env: str) -> Any:
        done = light_fdl(*words, env=env)
        assert done.exit == 0, done.err
        return json.loads(done.out)

    return run


def test_a_value_of_the_manifest_has_its_place_and_its_field(train):
    record = train("train")
    assert record["lr"] == {
        "value": 0.01,
        "origin": "train/fdl.yml:3:7",
        "field": "training.lr",
        "overrides": [{"value": 0.003, "origin": "default"}],
    }
    assert record["tags"] == {"value": [], "origin": "default"}
    assert record["depth"]["origin"] == "train/fdl.yml:1:8"
    assert record["depth"]["field"] == "entry"


def test_typed_beats_variable_beats_preset_beats_manifest_beats_default(train):
    stack = [
        {"value": 0.1, "origin": "command line"},
        {"value": 0.5, "origin": "env LR"},
        {"value": 0.02, "origin": "train/fdl.yml:8:11", "field": "training.lr"},
        {"value": 0.05, "origin": "train/fdl.ci.yml:2:7", "field": "training.lr"},
        {"value": 0.01, "origin": "train/fdl.yml:3:7", "field": "training.lr"},
        {"value": 0.003, "origin": "default"},
    ]
    whole = train("ci", "train", "quick", "--lr", "0.1", LR="0.5")
    assert whole["lr"] == {**stack[0], "overrides": stack[1:]}
    assert train("ci", "train", "quick", LR="0.5")["lr"] == {**stack[1], "overrides": stack[2:]}
    assert train("ci", "train", "quick", LR="")["lr"] == {**stack[2], "overrides": stack[3:]}


def test_a_variable_beats_what_the_entry_itself_says(train):
    assert train("train", DEPTH="7")["depth"]["value"] == 7
    assert train("train", "--depth", "9", DEPTH="7")["depth"]["value"] == 9
    assert train("train")["depth"]["value"] == 3


def test_a_typed_list_takes_the_place_of_the_one_in_the_manifest(train):
    assert train("train", "quick")["tags"]["value"] == ["a", "b"]
    assert train("train", "quick", TAGS="x")["tags"]["value"] == ["x"]
    typed = train("train", "quick", "--tags", "c,d", "-t", "e")["tags"]
    assert (typed["value"], typed["origin"]) == (["c", "d", "e"], "command line")
    assert [one["value"] for one in typed["overrides"]] == [["a", "b"], []]


def test_what_was_typed_twice_is_recorded_twice(train):
    record = train("train", "--seed", "5", "--seed", "6")["seed"]
    assert (record["value"], record["origin"]) == (6, "command line")
    assert [(one["value"], one["origin"]) for one in record["overrides"]] == [
        (5, "command line"),
        (1, "train/fdl.yml:4:9"),
        (0, "default"),
    ]


def test_a_variable_out_of_a_manifest_has_its_place(train, tmp_path):
    with (tmp_path / "train/fdl.yml").open("a") as stream:
        stream.write("env:\n  LR: 0.7\n")
    record = train("train")["lr"]
    assert (record["value"], record["origin"], record["field"]) == (
        0.7,
        "train/fdl.yml:13:7",
        "env.LR",
    )
    assert train("train", LR="0.8")["lr"]["origin"] == "env LR"


def test_secrets_are_not_recorded(train, tmp_path):
    manifest = tmp_path / "train/fdl.yml"
    manifest.write_text(manifest.read_text().replace("lr: 0.02", "lr: !secret 0.02"))
    (tmp_path / "train/secrets.env").write_text("TAGS=planted\n")
    with manifest.open("a") as stream:
        stream.write("env_file: secrets.env\n")
    record = train("train", "quick", "--hub-token", "hf_planted")
    assert record["hub_token"]["value"] == REDACTED
    assert record["hub_token"]["overrides"] == [{"value": None, "origin": "default"}]
    assert record["lr"]["value"] == REDACTED
    assert record["tags"]["value"] == REDACTED
    assert "planted" not in json.dumps(record)
    # What takes the place of a secret is a secret as well.
    assert train("train", "quick", "--lr", "0.625")["lr"]["value"] == REDACTED


def test_a_bad_value_of_the_manifest_is_refused_with_its_place(fdl, project, tmp_path):
    project(MANIFESTS)
    # Otherwise fdl would refuse it before the program starts.
    main = tmp_path / "train/main.py"
    main.write_text(main.read_text().replace("Args.parse", "(lambda: Args)().parse"))
    manifest = tmp_path / "train/fdl.yml"
    manifest.write_text(manifest.read_text().replace("tags: [a, b]", "depth: deep"))
    done = fdl("train", "quick")
    assert done.exit == 2
    assert (
        "error: invalid value `deep` for `--depth` -- not an integer (train/fdl.yml:10:14)"
        in done.err.splitlines()
    )


class Args(FdlArgs):
    lr: float = option(default=0.1, env="RECORD_LR")
    names: list[str] = arg(variadic=True)


def handed_down(monkeypatch, plan: object) -> None:
    monkeypatch.setenv("FDL_PLAN", plan if isinstance(plan, str) else json.dumps(plan))


def test_a_plan_for_other_arguments_is_not_believed(monkeypatch):
    flags = [{"index": 1, "count": 2, "origin": "fdl.yml:1:1", "field": "training.lr"}]
    handed_down(monkeypatch, {"argv": ["main.py", "--lr", "3"], "flags": flags, "typed": 0})
    assert Args.try_parse_from(["--lr", "3"]).resolved()["lr"]["origin"] == "fdl.yml:1:1"
    assert Args.try_parse_from(["--lr", "4"]).resolved()["lr"]["origin"] == "command line"
    assert Args.try_parse_from([]).resolved()["lr"]["origin"] == "default"


@each_row("plan", ["", "{broken", "[]", "3", "{}"])
def test_a_plan_that_is_none_changes_nothing(monkeypatch, plan):
    handed_down(monkeypatch, plan)
    assert Args.try_parse_from(["--lr", "3"]).resolved() == {
        "lr": {
            "value": 3.0,
            "origin": "command line",
            "overrides": [{"value": 0.1, "origin": "default"}],
        },
        "names": {"value": [], "origin": "default"},
    }


def test_a_refused_variable_is_named(monkeypatch):
    monkeypatch.setenv("RECORD_LR", "fast")
    with pytest.raises(FdlArgsError, match=r"invalid value `fast` for `--lr` .* \(env RECORD_LR\)"):
        Args.try_parse_from([])


def test_what_the_program_sets_itself_is_recorded_as_its_own():
    assert Args(lr=0.5).resolved()["lr"] == {"value": 0.5, "origin": "program"}
    changed = Args.try_parse_from(["--lr", "3"]).model_copy(update={"lr": 4.0})
    assert changed.resolved()["lr"] == {
        "value": 4.0,
        "origin": "program",
        "overrides": [
            {"value": 3.0, "origin": "command line"},
            {"value": 0.1, "origin": "default"},
        ],
    }


def test_a_value_marked_public_is_kept_in_the_record(fdl, project):
    project(
        {
            **MANIFESTS,
            "train/fdl.yml": "entry: python main.py\n"
            "commands:\n"
            "  open: {options: {hub_token: !public team-name}}\n"
            "  closed: {options: {hub_token: team-name}}\n",
        }
    )
    shown = {name: json.loads(fdl("train", name).out)["hub_token"] for name in ("open", "closed")}
    assert shown["open"]["value"] == "team-name"
    assert shown["closed"]["value"] == REDACTED
    typed = json.loads(fdl("train", "open", "--hub-token", "typed-value").out)["hub_token"]
    assert typed["value"] == REDACTED, "the mark is that of the manifest's value"
