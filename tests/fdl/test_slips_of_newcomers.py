"""What a newcomer types wrong in a project of ``fdl init``, and what ``fdl`` says about it."""

from __future__ import annotations

import pytest

FILES = {
    "fdl.yml": """
        commands:
          train:
            path: ./train/
          test:
            run: echo tested
        """,
    "train/fdl.yml": """
        description: Train
        entry: python main.py
        training:
          epochs: 10
          lr: 0.003
        commands:
          quick:
            training:
              epochs: 3
        """,
    "train/main.py": """
        from fdl import FdlArgs, option


        class Args(FdlArgs):
            '''Train.'''

            epochs: int = option(default=1)
            lr: float = option(default=0.5, short="l")
            resume: str | None = option(default="last")


        args = Args.parse_or_schema()
        print(f"epochs={args.epochs} lr={args.lr} resume={args.resume}")
        """,
}


@pytest.fixture
def demo(project):
    """The project, before its program was asked for its arguments."""
    return project(FILES)


@pytest.fixture
def opaque(project):
    """The same, with a class that the source does not name where it is used."""
    program = FILES["train/main.py"].replace("Args.parse", "(lambda: Args)().parse")
    return project({**FILES, "train/main.py": program})


@pytest.fixture(params=["opaque", "demo"])
def either(request):
    """A project whose program itself refuses, and one where fdl does."""
    return request.getfixturevalue(request.param)


# `training:` where no program reads it


@pytest.mark.parametrize(
    "words",
    ["--dry-run ci train", "ci train", "why lr train", "ci train quick",
     "config show ci train", "--env ci --jobs 2 train test"],
)  # fmt: skip
def test_settings_in_an_overlay_without_a_program_are_refused(demo, light_fdl, words):
    (demo / "fdl.ci.yml").write_text("training:\n  epochs: 1\n")
    env = {"FDL_ENV": "ci"} if words.startswith("why") else {}
    done = light_fdl(*words.split(), env=env)
    assert (done.exit, done.out) == (1, "")
    assert done.err == (
        "error: fdl.ci.yml:2:3: `training` has no effect: there is no `entry` at or above it that "
        "could read it\nhint: move it to train/fdl.ci.yml, beside the program of `fdl train`\n"
    )


def test_options_without_a_program_are_refused_like_settings(demo, light_fdl):
    (demo / "fdl.ci.yml").write_text("options: {weight_decay: 1}\n")
    done = light_fdl("ci", "train")
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith("error: fdl.ci.yml:1:10: `options` has no effect: ")


def test_an_option_that_the_program_does_not_have_is_blamed_on_its_line(opaque, light_fdl):
    """The program refuses it, because fdl does not know the options of the program yet."""
    file = opaque / "train/fdl.yml"
    file.write_text(file.read_text().replace("training:\n", "options: {l_r: 1}\ntraining:\n", 1))
    refused = light_fdl("train")
    assert refused.exit == 2
    assert "error: unknown option `--l-r`" in refused.err
    assert "(train/fdl.yml:3:16)" in refused.err
    typed = light_fdl("train", "--epoch", "3")
    assert "unknown option `--l-r`" in typed.err
    file.write_text(file.read_text().replace("options: {l_r: 1}\n", ""))
    typed = light_fdl("train", "--epoch", "3")
    assert "error: unknown option `--epoch`, did you mean `--epochs`?\n" in typed.err


def test_settings_in_the_root_manifest_without_a_program_are_refused(project, light_fdl):
    project({**FILES, "fdl.yml": f"training: {{lr: 1}}\n{FILES['fdl.yml'].replace(' ' * 8, '')}"})
    done = light_fdl("train")
    assert (done.exit, done.out) == (1, "")
    assert "error: fdl.yml:1:11: `training` has no effect" in done.err
    assert "hint: move it to train/fdl.yml, beside the program of `fdl train`\n" in done.err


@pytest.mark.parametrize(
    "words", ["--help", "train --help", "config show", "why training.lr", "test", "-n test"]
)
def test_what_reads_no_settings_warns_of_settings_without_a_program_once(project, light_fdl, words):
    project({**FILES, "fdl.yml": f"training: {{lr: 1}}\n{FILES['fdl.yml'].replace(' ' * 8, '')}"})
    done = light_fdl(*words.split())
    assert done.exit == 0
    assert done.out
    assert done.err.count("fdl.yml:1:11: `training` has no effect") == 1


def test_settings_that_a_program_inherits_are_read(project, light_fdl):
    manifest = "training: {epochs: 7}\ncommands: {train: , test: {run: echo tested}}\n"
    own = "inherit-from: ../fdl.yml\nentry: python main.py\n"
    project({**FILES, "fdl.yml": manifest, "train/fdl.yml": own})
    assert light_fdl("train").out == "epochs=7 lr=0.5 resume=None\n"
    assert light_fdl("test").out == "tested\n"


# An option without its value


@pytest.mark.parametrize(
    ("words", "option"),
    [("--lr", "--lr"), ("--lr=0.01 --epochs", "--epochs"), ("--epochs --lr 1", "--epochs"),
     ("-l", "--lr")],
)  # fmt: skip
@pytest.mark.usefixtures("either")
def test_an_option_needs_its_value(light_fdl, words, option):
    done = light_fdl("train", "quick", *words.split())
    assert (done.exit, done.out) == (2, "")
    assert f"error: `{option}` requires a value\n" in done.err


@pytest.mark.usefixtures("either")
def test_only_an_optional_option_may_stand_without_a_value(light_fdl):
    assert light_fdl("train", "quick", "--resume").out == "epochs=3 lr=0.003 resume=last\n"


# A preset with a slip


@pytest.mark.parametrize(
    "words", ["train qick", "--dry-run train qick", "config show train qick", "why lr train qick"]
)
@pytest.mark.usefixtures("demo")
def test_a_mistyped_preset_is_the_same_error_everywhere(light_fdl, words):
    light_fdl("train", "--help")  # from now on fdl knows the arguments of the program
    done = light_fdl(*words.split())
    assert done.exit
    assert done.out == ""
    assert done.err.startswith(
        "error: unexpected argument `qick`\nhint: did you mean `fdl train quick`?\n"
    )


@pytest.mark.parametrize("words", ["train qick", "config show train qick", "why lr train qick"])
@pytest.mark.usefixtures("demo")
def test_a_mistyped_preset_is_the_same_error_in_a_fresh_project(light_fdl, words):
    done = light_fdl(*words.split())
    assert done.exit
    assert done.err.startswith(
        "error: unexpected argument `qick`\nhint: did you mean `fdl train quick`?\n"
    )


@pytest.mark.usefixtures("opaque")
def test_a_dry_run_asks_no_program_and_notes_the_nearest_preset(light_fdl):
    done = light_fdl("--dry-run", "train", "qick")
    assert (done.exit, done.err) == (0, "")
    assert "`qick` is passed to the program; the nearest preset is `fdl train quick`" in done.out


@pytest.mark.parametrize("words", ["--dry-run train qick", "config show train qick"])
def test_a_word_may_be_an_argument_of_the_program(project, light_fdl, words):
    program = FILES["train/main.py"].replace("import FdlArgs", "import arg, FdlArgs")
    program = program.replace("lr: float", 'data: str = arg(default="x")\n            lr: float')
    project({**FILES, "train/main.py": program})
    done = light_fdl(*words.split())
    assert (done.exit, done.err) == (0, "")
    assert "qick" in done.out


@pytest.mark.usefixtures("either")
def test_a_preset_is_not_an_option(light_fdl):
    done = light_fdl("train", "--quick")
    assert done.exit
    assert "unknown option `--quick`" in done.err
    assert "hint: `quick` is a preset: fdl train quick\n" in done.err
    assert "--quiet" not in done.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("train --dry-run", "fdl --dry-run train"),
        ("train quick -n", "fdl -n train quick"),
        ("train --yes", "fdl --yes train"),
        ("train --jobs 2", "fdl --jobs N train"),
        ("train --gpus-each=1", "fdl --gpus-each N train"),
        ("train --json", "fdl --dry-run --json train"),
        ("train --force", "fdl --force train"),
    ],
)
@pytest.mark.usefixtures("either")
def test_an_option_of_fdl_stands_before_the_command(light_fdl, words, hint):
    done = light_fdl(*words.split())
    assert done.exit
    assert f"hint: options of fdl stand before the command: {hint}\n" in done.err


def test_an_option_of_fdl_stands_before_the_environment_too(demo, light_fdl):
    (demo / "train/fdl.ci.yml").write_text("training: {epochs: 2}\n")
    for line in (["self", "schema", "refresh", "train"], ["--version"]):
        light_fdl(*line)
        done = light_fdl("ci", "train", "--dry-run")
        assert "the command: fdl --dry-run --env ci train\n" in done.err


@pytest.mark.usefixtures("either")
def test_a_setting_is_typed_as_an_option(light_fdl):
    done = light_fdl("train", "quick", "lr=0.01")
    assert done.exit
    assert done.err.startswith("fdl: ") or done.err.startswith("error: ")
    assert "error: unexpected argument `lr=0.01`\nhint: did you mean `--lr 0.01`?\n" in done.err


# Several words that are one command


@pytest.mark.usefixtures("demo")
def test_a_command_with_its_preset_is_one_word_behind_jobs(light_fdl):
    done = light_fdl("--jobs", "2", "train", "quick")
    assert (done.exit, done.out) == (1, "")
    assert "error: unknown command: quick; and there is no fdl.quick.yml in" in done.err
    assert done.err.endswith(
        '\nhint: write words that belong together as one: fdl --jobs 2 "train quick"\n'
    )
    done = light_fdl("--jobs", "2", "test", "train", "quick")
    assert done.err.endswith('as one: fdl --jobs 2 test "train quick"\n')


@pytest.mark.usefixtures("demo")
def test_a_preset_before_its_command_is_told(light_fdl):
    for words in ("quick train", "quick", "-n quick train", "--jobs 2 quick test"):
        done = light_fdl(*words.split())
        assert (done.exit, done.out) == (1, "")
        assert "error: unknown command: quick" in done.err
        assert "\nhint: did you mean `fdl train quick`?\n" in done.err


@pytest.mark.usefixtures("demo")
def test_an_environment_without_a_file_is_told(light_fdl):
    for words in ("stage train", "config show stage train", "plan stage train"):
        done = light_fdl(*words.split())
        assert (done.exit, done.out) == (1, "")
        assert "error: unknown command: stage" in done.err
        assert "\nhint: to use an environment `stage`, create fdl.stage.yml\n" in done.err
    assert "hint" not in light_fdl("stage", "moon").err


# Manifests that are written as those of other tools


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("commands:\n  t: make all\n",
         'fdl.yml:2:6: `commands.t` must be a mapping, not the text "make all"; write '
         "`t: {run: …}`"),
        ("t:\n  run: make\n", "fdl.yml:1:1: unknown key `t`; commands stand below `commands:`"),
        ("commands:\n  t: {cmd: make}\n",
         "fdl.yml:2:7: unknown key `commands.t.cmd`; it is called `run` here"),
        ("commands:\n  t: {run: make, deps: [b]}\n",
         "fdl.yml:2:18: unknown key `commands.t.deps`; it is called `needs` here"),
        ("commands:\n  t: {run: make, dir: src}\n",
         "fdl.yml:2:18: unknown key `commands.t.dir`; it is called `cwd` here"),
        ("commands:\n  t: {run: make}\nsweeps: {s: {command: u, each: {lr: [1]}}}\n",
         "fdl.yml:3:23: unknown command: u; and there is no fdl.u.yml in"),
    ],
)  # fmt: skip
def test_a_manifest_of_another_tool_is_corrected(project, light_fdl, text, told):
    project({"fdl.yml": text})
    words = ["sweep", "run", "s"] if "sweeps" in text else ["t"]
    done = light_fdl(*words)
    assert (done.exit, done.out) == (1, "")
    assert f"error: {told}" in done.err


# A setting without its command


@pytest.mark.usefixtures("demo")
@pytest.mark.parametrize("field", ["lr", "training.lr"])
def test_a_setting_of_a_command_is_named_with_it(light_fdl, field):
    done = light_fdl("why", field)
    assert (done.exit, done.out) == (2, "")
    assert done.err == (
        f"error: nothing in fdl.yml sets `{field}`\n"
        "hint: did you mean `fdl why training.lr train`?\n"
    )


@pytest.mark.parametrize("field", ["lr", "training.lr"])
def test_a_setting_is_changed_for_its_command(demo, light_fdl, field):
    before = (demo / "fdl.yml").read_text()
    done = light_fdl("config", "set", field, "0.5")
    assert (done.exit, done.out) == (2, "")
    assert done.err == (
        f"error: no program reads `{field}` of fdl.yml: it is a setting of `fdl train`\n"
        "hint: fdl config set --for train training.lr 0.5\n"
    )
    assert (demo / "fdl.yml").read_text() == before
    done = light_fdl("config", "set", "--for", "train", "training.lr", "0.5")
    assert (done.exit, done.err) == (0, "")


def test_options_that_no_program_reads_are_not_written(demo, light_fdl):
    before = (demo / "fdl.yml").read_text()
    done = light_fdl("config", "set", "options.model", "cnn")
    assert (done.exit, done.out) == (1, "")
    assert "`options` has no effect: there is no `entry` at or above it" in done.err
    assert (demo / "fdl.yml").read_text() == before


# The program of an entry


def test_a_missing_program_is_told_with_the_nearest_file(demo, light_fdl):
    manifest = demo / "train/fdl.yml"
    manifest.write_text(manifest.read_text().replace("main.py", "mian.py"))
    for words in (["train"], ["train", "quick"], ["--jobs", "2", "train", "test"]):
        done = light_fdl(*words)
        assert done.exit == 1
        assert "error: train/fdl.yml:2:8: there is no mian.py in train/\n" in done.err
        assert "hint: did you mean `main.py`?\n" in done.err
        assert "can't open file" not in done.err


def test_a_missing_program_without_a_like_file_is_told_too(project, light_fdl):
    project({"fdl.yml": "entry: python -u src/other.py\ncommands: {p: {training: {lr: 1}}}\n"})
    done = light_fdl("p")
    assert done.exit == 1
    assert "error: fdl.yml:1:8: there is no src/other.py in the folder of the project\n" in done.err
    assert "hint: create it, or correct `entry`\n" in done.err


# Small ones


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("train --each lr=1..3..0", "--each lr=1..3"),
        ("train --each lr=3..1", "--each lr=1..3"),
        ("train --each lr=1..3..-1", "--each lr=1..3..1"),
        ("train --each", "fdl --each KEY=VALUES COMMAND"),
        ("--each", "fdl --each KEY=VALUES COMMAND"),
    ],
)
@pytest.mark.usefixtures("demo")
def test_the_hint_about_a_sweep_can_be_typed(light_fdl, words, hint):
    done = light_fdl(*words.split())
    assert done.exit == 1
    assert done.err.endswith(f"\nhint: {hint}\n")


@pytest.mark.parametrize("text", ["", "description: nothing yet\n"])
def test_a_manifest_without_commands_is_told(project, light_fdl, text):
    project({"fdl.yml": text})
    done = light_fdl("train")
    assert (done.exit, done.out) == (1, "")
    assert "error: unknown command: train; fdl.yml has no commands\n" in done.err
    assert "hint: add `commands: {train: {run: …}}` to fdl.yml" in done.err
