"""No setting is lost, or overridden, without a word: slips of a newcomer, each with its place."""

from __future__ import annotations

import pytest

PROGRAM = """
    import argparse, sys

    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--model", choices=["small", "big"], default="small")
    parser.add_argument("--fast", action="store_true")
    if __name__ == "__main__":
        print(vars(parser.parse_args()))
    """


@pytest.fixture
def adopted(project, light_fdl):
    """A script of argparse, started by the given manifest."""

    def run(manifest, *words, overlay=""):
        files = {"fdl.yml": f"entry: python train.py\n{manifest}", "train.py": PROGRAM}
        files |= {"fdl.ci.yml": overlay} if overlay else {}
        folder = project({"train/fdl.yml": files["fdl.yml"], "train/train.py": PROGRAM,
                          "fdl.yml": "commands: {train: }\n",
                          **({"train/fdl.ci.yml": overlay} if overlay else {})})  # fmt: skip
        assert folder
        return light_fdl(*(["--env", "ci"] if overlay else []), *(words or ("train",)))

    return run


@pytest.mark.parametrize(
    ("manifest", "place", "said"),
    [
        ("options: {epochs: 3, lr:0.1}", "2:22", "write `lr: 0.1`, with a space after the colon"),
        ("options: {lr=0.1}", "2:11", "write `lr: 0.1`"),
        ("options:\n  bach_size:\n", "3:3", "did you mean `batch_size`?"),
        ("options:\n  epochs:\n", "3:3", "`options.epochs` has no value"),
        ("options:\n  epochs: # three\n  lr: 0.1\n", "3:3", "has no value"),
        ("training:\n  epochs:\n", "3:3", "`training.epochs` has no value"),
        ("training: {optimizer: {lr:0.1}}", "2:24", "write `lr: 0.1`"),
        ("ddp:\n  policy:\n", "3:3", "`ddp.policy` has no value"),
        ("output:\n  dir:\n", "3:3", "`output.dir` has no value"),
        ("env: {A:b}", "2:7", "write `A: b`"),
        ("options:\n\tlr: 0.1\n", "3:1", "a tab cannot indent YAML"),
        ("options: {lr: 0.1, lr: 0.2}", "2:20", "duplicate key `lr`"),
        ("options:\n  - lr 0.1\n", "3:3", "must be a mapping"),
        ("options:\n  - lr: 0.1\n", "3:3", "must be a mapping"),
        ("options:\n  lr=0.1\n", "3:3", "must be a mapping"),
        ("options: 'lr: 0.1'\n", "2:10", "must be a mapping"),
        ('options: {"lr ": 0.1}', "2:11", "has blanks"),
        ("lr: 0.1\n", "2:1", "`lr` belongs in `training`"),
        ("option: {lr: 0.1}\n", "2:1", "did you mean `options`?"),
        ("training: {options: {lr: 0.1}}\n", "2:12", "`options` stands beside `training`"),
        ("options: {training: {lr: 0.1}}\n", "2:26", "`training` stands beside `options`"),
        ("options: {options: {lr: 0.1}}\n", "2:11", "`options` stands beside `options`"),
        ("training: {lerning_rate: 0.1}\n", "2:12", "unknown key `training.lerning_rate`"),
        ("training: {lr: {value: 0.1}}\n", "2:16", "must be a number"),
        ("options: {lr: {value: 0.1}}\n", "2:23", "`--lr` takes a value, and not a mapping"),
        ("options: {fast: yes}\n", "2:17", "write `true` or `false`"),
        ("options: {fast: 'true'}\n", "2:17", "remove the quotes"),
        ("options: {fast: 1}\n", "2:17", "write `true` or `false`"),
        ("options: {epochs: three}\n", "2:19", "not an integer"),
        ("options: {epochs: 2.5}\n", "2:19", "(train/train.py:4)"),
        ("options: {lr: high}\n", "2:15", "(train/train.py:5)"),
        ("options: {model: bigg}\n", "2:18", "did you mean `big`?"),
        ("training: {lr: 0.1}\noptions: {lr: 0.2}\n", "3:15", "fdl.yml:2:16"),
        ("training: {batch_size: 4}\noptions: {batch-size: 8}\n", "3:23", "fdl.yml:2:24"),
        ("options: {batch_size: 4, batch-size: 8}\n", "2:", "`options.batch-size`"),
        ("commands: {p: {options: {epochs: }}}\n", "2:26", "`commands.p.options.epochs`"),
        ("commands: {p: {optoins: {epochs: 3}}}\n", "2:16", "did you mean `options`?"),
        ("commands: {p: {epochs: 3}}\n", "2:16", "belongs in `training`"),
    ],
)  # fmt: skip
def test_a_slip_is_an_error_with_its_place(adopted, manifest, place, said):
    done = adopted(f"{manifest}\n", "train", *(["p"] if "{p: " in manifest else []))
    assert done.exit != 0, done.out
    assert f"fdl.yml:{place}" in done.err
    assert said in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("base", "own"), [("training", "options"), ("options", "training")], ids=" over ".join
)
def test_a_preset_replaces_a_setting_of_another_section(adopted, base, own):
    manifest = f"{base}: {{lr: 0.1}}\ncommands: {{p: {{{own}: {{lr: 0.2}}}}}}\n"
    done = adopted(f"{manifest}\n", "train", "p")
    assert (done.exit, "'lr': 0.2," in done.out) == (0, True), done.err
    assert done.err.endswith("--lr 0.2\n")


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ("options: {'lr': 0.1, epochs : 3}", "'epochs': 3, 'lr': 0.1"),
        ('options: {"lr":0.1}', "'lr': 0.1"),
        ("options: {batch_size: 4}", "'batch_size': 4"),
        ("options: {epochs: '3', lr: 1}", "'epochs': 3, 'lr': 1.0"),
        ("options:\n  fast:\n", "'fast': True"),
        ("options: {fast: true}", "'fast': True"),
        ("options: {epochs: null, lr: ~}", "'epochs': 1, 'lr': 0.5"),
    ],
)
def test_what_is_clear_works(adopted, manifest, expected):
    done = adopted(f"{manifest}\n")
    assert done.exit == 0, done.err
    assert expected in done.out


@pytest.mark.parametrize("null", ["null", "~"])
@pytest.mark.parametrize("section", ["options", "training"])
def test_null_removes_an_inherited_option(adopted, light_fdl, section, null):
    base = f"{section}: {{epochs: 3, lr: 0.1}}\n"
    preset = f"{base}commands: {{p: {{{section}: {{lr: {null}}}}}}}\n"
    done = adopted(preset, "train", "p")
    assert "'epochs': 3, 'lr': 0.5" in done.out, done.err
    shown = light_fdl("--dry-run", "train", "p").out
    assert "--epochs 3" in shown
    assert "--lr" not in shown.partition("from")[0]
    listed = light_fdl("config", "show", "train", "p")
    assert listed.exit == 0, listed.err
    why = light_fdl("why", f"{section}.lr", "train", "p")
    assert why.exit == 0, why.err
    assert "train/fdl.yml:3" in why.out
    assert "0.1" in why.out
    done = adopted(base, "train", overlay=f"{section}: {{lr: {null}}}\n")
    assert "'epochs': 3, 'lr': 0.5" in done.out, done.err
    assert "0.1" in light_fdl("--env", "ci", "why", f"{section}.lr", "train").out


def test_an_empty_value_in_an_overlay_removes_nothing(adopted):
    done = adopted("options: {lr: 0.1}\n", "train", overlay="options:\n  lr:\n")
    assert done.exit != 0
    assert "fdl.ci.yml:2:3" in done.err
    assert "`null` removes" in done.err
    done = adopted("options: {lr: 0.1}\n", "train", overlay="options:\n  fast:\n")
    assert "'fast': True" in done.out, done.err
