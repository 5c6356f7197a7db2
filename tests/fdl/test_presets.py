"""Sections and presets as the arguments of an entry."""

import json

import pytest

from fdl.plan.value import Plan

SHOW = "printf '%s\\n'"
ENTRY = f"entry: {SHOW}\n"


@pytest.fixture
def arguments(project, fdl):
    """The arguments an entry receives under a preset ``p`` and sections, both in YAML."""

    def run(preset, sections="", *tail):
        project({"fdl.yml": f"entry: {SHOW} got\n{sections}\ncommands:\n  p: {preset}\n"})
        done = fdl("p", *tail)
        assert done.exit == 0, done.err
        first, *rest = done.out.splitlines()
        assert first == "got"
        return rest

    return run


@pytest.mark.case("cli", 29)
def test_presets_override_field_by_field_and_the_tail_comes_last(arguments):
    found = arguments(
        "{training: {epochs: 1}, options: {model: linear, batches: 100}}",
        "training: {epochs: 5, seed: 42}",
        "--lr",
        "3",
    )
    expected = "--epochs 1 --seed 42 --batches 100 --model linear --lr 3"
    assert found == expected.split()


def test_options_of_the_manifest_hold_for_every_preset_that_does_not_replace_them(arguments):
    sections = "options: {weight_decay: 0.1, model: linear, optimizer: {name: sgd, beta: 1}}"
    found = arguments("{options: {model: conv, optimizer: {beta: 2}}}", sections)
    expected = "--model conv --optimizer.beta 2 --optimizer.name sgd --weight-decay 0.1"
    assert found == expected.split()
    assert arguments("{training: {}}", "options: {fast: true}") == ["--fast"]
    assert arguments("{options: {fast: false}}", "options: {fast: true}") == []


def test_options_of_the_manifest_reach_the_entry_without_a_preset(project, fdl):
    project({"fdl.yml": "commands: {t: {path: t}}", "t/fdl.yml": ENTRY + "options: {a_b: 2}\n"})
    assert fdl("t").out == "--a-b\n2\n"


def test_an_option_in_the_wrong_section_names_the_right_one(project, fdl):
    project({"fdl.yml": ENTRY + "training: {weight_decay: 1}\n"})
    refused = fdl("list")
    assert refused.exit == 1
    assert "fdl.yml:2:12: unknown key `training.weight_decay`" in refused.err
    assert "an option of the program's own belongs in `options`, beside `training`" in refused.err


@pytest.mark.case("cli", 30)
def test_options_become_flags_by_the_kind_of_their_value(arguments):
    preset = "{options: {flag: true, off: false, n: null, a_b: 2}}"
    assert arguments(preset) == ["--a-b", "2", "--flag"]


@pytest.mark.case("cli", 31)
def test_speed_hint_and_partition_ratios_are_written_in_short(arguments):
    preset = "{ddp: {speed_hint: {slow_rank: 1, ratio: 2.5}, partition_ratios: [0.7, 0.3]}}"
    expected = ["--speed-hint", "1:2.5", "--partition-ratios", "0.7,0.3"]
    assert arguments(preset) == expected


@pytest.mark.case("cli", 32)
def test_a_preset_can_switch_the_timeline_off(arguments):
    assert arguments("{ddp: {timeline: false}}", "ddp: {timeline: true}") == []
    assert arguments("{output: {timeline: false}}", "output: {timeline: true}") == []


def test_the_timeline_flag_appears_once(arguments):
    sections = "ddp: {timeline: true}\noutput: {timeline: true, monitor: 0}"
    assert arguments("{training: {}}", sections) == ["--timeline", "--monitor", "0"]
    sections = "output: {timeline: true}"
    assert arguments("{ddp: {timeline: false}}", sections) == ["--timeline"]


def test_every_field_has_its_flag_in_the_documented_order(arguments):
    ddp = (
        "{timeline: true, lr_scale_ratio: 0.5, progressive: false, checkpoint_every: 2, "
        "snapshot_timeout: 6, max_grad_norm: 1.5, max_batch_diff: 0, divergence_threshold: 0.1, "
        "overhead_target: 0.2, max_anchor: 50, anchor: auto, backend: cpu, policy: cadence}"
    )
    training = "{seed: 7, lr: 1e-3, batches_per_epoch: 9, batch_size: 8, epochs: 4}"
    output = "{monitor: 3000, dir: runs/x}"
    expected = (
        "--policy cadence --backend cpu --anchor auto --max-anchor 50 --overhead-target 0.2 "
        "--divergence-threshold 0.1 --max-batch-diff 0 --max-grad-norm 1.5 --snapshot-timeout 6 "
        "--checkpoint-every 2 --progressive false --lr-scale-ratio 0.5 --timeline "
        "--epochs 4 --batch-size 8 --batches 9 --lr 0.001 --seed 7 --output runs/x --monitor 3000"
    )
    preset = f"{{ddp: {ddp}, training: {training}, output: {output}}}"
    assert arguments(preset) == expected.split()


def test_null_removes_and_structures_replace_whole(arguments):
    sections = (
        "training: {lr: 0.1}\n"
        "ddp: {max_batch_diff: 3, partition_ratios: [0.5, 0.25, 0.25], "
        "speed_hint: {slow_rank: 0, ratio: 2}}"
    )
    preset = (
        "{training: {lr: null}, ddp: {max_batch_diff: null, partition_ratios: [0.9, 0.1], "
        "speed_hint: {slow_rank: 1, ratio: 4.0}}}"
    )
    expected = "--speed-hint 1:4.0 --partition-ratios 0.9,0.1"
    assert arguments(preset, sections) == expected.split()


@pytest.mark.parametrize(
    ("inherited", "preset", "expected"),
    [
        ("{mode: sync}", "{policy: async}", "--policy async"),
        ("{mode: sync}", "{backend: cpu}", "--backend cpu"),
        ("{policy: async, backend: cpu}", "{mode: solo-0}", "--mode solo-0"),
        ("{policy: async, backend: cpu}", "{backend: nccl}", "--policy async --backend nccl"),
        ("{mode: sync}", "{mode: null, anchor: 3}", "--anchor 3"),
    ],
)
def test_mode_and_its_two_halves_displace_each_other(arguments, inherited, preset, expected):
    assert arguments(f"{{ddp: {preset}}}", f"ddp: {inherited}") == expected.split()


@pytest.mark.parametrize(
    ("inherited", "preset", "expected"),
    [
        ("options: {mode: train, backend: gloo}", "{options: {mode: eval}}", "gloo eval"),
        ("options: {mode: train, backend: gloo}", "{options: {backend: mpi}}", "mpi train"),
    ],
)
def test_options_of_a_program_with_these_names_do_not(arguments, inherited, preset, expected):
    made = arguments(preset, inherited)
    backend, mode = expected.split()
    assert sorted([made[:2], made[2:]]) == [["--backend", backend], ["--mode", mode]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("[a, b]", ["--k", "a,b"]),
        ("[1, 2.5, true]", ["--k", "1,2.5,true"]),
        ("[a, 'b,c']", ["--k", "a", "--k", "b,c"]),
        ("[]", []),
        ("''", ["--k", ""]),
        ("-3", ["--k", "-3"]),
        ("-1e-3", ["--k", "-0.001"]),
        ("-x", ["--k=-x"]),
        ("'-'", ["--k", "-"]),
        ("a b $HOME", ["--k", "a b $HOME"]),
    ],
)
def test_option_values(project, fdl, value, expected):
    manifest = f"entry: {SHOW}\ncommands:\n  p:\n    options:\n      k: {value}\n      flag: true\n"
    project({"fdl.yml": manifest})
    assert fdl("p").out.splitlines() == ["--flag", *expected]


def test_sections_count_without_a_preset_too(project, fdl):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": f"entry: {SHOW} -u\ntraining: {{epochs: 3}}\n",
        }
    )
    assert fdl("train", "--epochs", "9").out.splitlines() == [
        "-u",
        "--epochs",
        "3",
        "--epochs",
        "9",
    ]


def test_each_generated_flag_knows_its_line(project, fdl):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": """
                entry: python -u main.py
                training:
                  epochs: 5
                  seed: 42
                commands:
                  quick:
                    training: {epochs: 1}
                    options: {tags: ["a,b", c], verbose: true}
                """,
        }
    )
    plan = json.loads(fdl("--dry-run", "--json", "train", "quick", "--lr", "1").out)
    argv = plan["argv"]
    tokens = {
        (flag["field"], flag["origin"]): argv[flag["index"] : flag["index"] + flag["count"]]
        for flag in plan["flags"]
        if flag["field"] != "options.tags"
    }
    assert tokens == {
        ("training.epochs", "train/fdl.yml:7:24"): ["--epochs", "1"],
        ("training.seed", "train/fdl.yml:4:9"): ["--seed", "42"],
        ("options.verbose", "train/fdl.yml:8:42"): ["--verbose"],
    }
    tags = [flag for flag in plan["flags"] if flag["field"] == "options.tags"]
    assert [argv[flag["index"] + 1] for flag in tags] == ["a,b", "c"]
    assert argv[-2:] == ["--lr", "1"]


def test_the_plan_reaches_the_program(project, fdl):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": "entry: sh show.sh\ntraining: {epochs: 5}\n",
            "train/show.sh": 'printf %s "$FDL_PLAN"\n',
        }
    )
    carried = json.loads(fdl("train", "x").out)
    assert carried["argv"] == ["sh", "show.sh", "--epochs", "5", "x"]
    assert carried["command"] == ["train"]
    assert carried["flags"][0]["origin"] == "train/fdl.yml:2:20"
    assert (carried["env"], "launch" in carried) == (None, False)
    assert set(Plan.field_names) - set(carried) == {
        *("confirm", "depends", "environment", "given", "grace", "launch", "notes", "ranks"),
        *("elastic", "record", "slurm", "stop_timeout", "subcommand"),
    }


def test_a_command_line_too_long_to_carry_still_runs(project, fdl):
    project({"fdl.yml": "commands: {p: }", "p/fdl.yml": "entry: sh show.sh\n"})
    project({"p/show.sh": 'printf "%s %s" "${#FDL_PLAN}" "${#1}"\n'})
    assert fdl("p", "y" * 120_000).out == "0 120000"


def test_a_preset_announces_its_command_line_on_stderr_unless_quiet(project, fdl):
    project({"fdl.yml": f"entry: {SHOW}\ncommands: {{p: {{options: {{k: a b}}}}}}"})
    done = fdl("p", "x")
    assert done.err == "fdl: printf '%s\\n' --k 'a b' x\n"
    assert fdl("-q", "p").err == ""


@pytest.mark.parametrize("entry", ["'  '", "python 'main.py"])
def test_an_entry_that_is_no_command_line_is_refused(project, fdl, entry):
    project({"fdl.yml": "commands: {p: }", "p/fdl.yml": f"entry: {entry}\n"})
    done = fdl("p")
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith("error: p/fdl.yml:1:8: `entry` ")


READS_LR = """
    entry: printf '%s\\n'
    training: {epochs: 2, lr: 0.1, seed: 7}
    commands: {quick: {training: {lr: 0.2}}}
    schema: {options: {lr: {type: float, env: LR}, seed: {type: int, env: SEED}}}
    """


def test_a_variable_the_program_reads_beats_the_manifest_and_loses_to_what_is_typed(project, fdl):
    project({"fdl.yml": "commands: {p: }", "p/fdl.yml": READS_LR})
    assert fdl("-q", "p", "quick").out.split() == ["--epochs", "2", "--lr", "0.2", "--seed", "7"]
    beaten = fdl("-q", "p", "quick", "--lr", "3", env={"LR": "0.5", "SEED": ""})
    assert beaten.out.split() == ["--epochs", "2", "--seed", "7", "--lr", "3"]
    plan = json.loads(fdl("-n", "--json", "p", "quick", env={"LR": "0.5"}).out)
    assert [(flag["name"], flag["index"]) for flag in plan["flags"]] == [
        ("--epochs", 2),
        ("--seed", 4),
    ]
    (variable,) = [one for one in plan["variables"] if one["name"] == "LR"]
    assert (variable["value"], variable["origin"]) == ("0.5", "shell")


def test_a_program_that_knows_its_origins_gets_every_flag(project, fdl):
    project(
        {
            "fdl.yml": "commands: {p: }",
            "p/fdl.yml": READS_LR.replace("{options", "{origins: true, options"),
        }
    )
    done = fdl("-q", "p", env={"LR": "0.5"})
    assert done.out.split() == ["--epochs", "2", "--lr", "0.1", "--seed", "7"]


def test_an_empty_section_makes_a_preset_and_one_file_can_hold_everything(project, fdl):
    project(
        {
            "fdl.yml": """
                entry: echo
                options: {lr: 1}
                commands:
                  train: {path: .}
                  plain: {options: {}}
                  same: {training: {}}
                  small: {options: {lr: 2}}
                """
        }
    )
    lines = {
        "train": "--lr 1",
        "plain": "--lr 1",
        "same": "--lr 1",
        "small": "--lr 2",
        "train small": "--lr 2",
        "train plain": "--lr 1",
    }
    for line, out in lines.items():
        done = fdl("-q", *line.split())
        assert (done.out, done.err) == (f"{out}\n", ""), line


def test_commands_of_a_command_are_sent_to_its_folder(project, fdl):
    project({"fdl.yml": "commands:\n  train:\n    commands: {quick: {training: {epochs: 1}}}\n"})
    done = fdl("train")
    assert done.exit == 1
    assert done.err == (
        "error: fdl.yml:3:5: unknown key `commands.train.commands`; a command holds no commands: "
        "write them into train/fdl.yml, or beside `train` with `path: .`\n"
    )


def test_a_null_of_a_preset_counts_in_every_layer(project, fdl):
    files = {
        "base.yml": "training: {epochs: 9}\n",
        "fdl.yml": """
            inherit-from: base.yml
            entry: echo
            training: {lr: 0.1}
            options: {opt: {name: sgd}, seed: 1}
            commands:
              bare: {training: {lr: null}, options: {opt: null}}
              twice: {training: {lr: null, epochs: 1}}
            """,
        "fdl.local.yml": """
            commands:
              mine: {training: {epochs: null}, options: {seed: null}}
              twice: {training: {lr: null, epochs: null}}
            """,
    }
    project(files)
    assert fdl("-q", "bare").out == "--epochs 9 --seed 1\n"
    assert fdl("-q", "mine").out == "--lr 0.1 --opt.name sgd\n"
    # The value of the preset itself is deleted, and that of the manifest counts.
    assert fdl("-q", "twice").out == "--epochs 9 --opt.name sgd --seed 1\n"
    assert "removed     null  fdl.yml:6:25  preset bare" in fdl("why", "training.lr", "bare").out


def test_an_overlay_can_delete_a_setting_of_hydra(project, fdl):
    project({"fdl.yml": "entry: echo\nstyle: hydra\ncommands: {p: {options: {a: 1}}}\n"})
    project({"fdl.ci.yml": "options: {'~callbacks': null}\n"})
    assert fdl("-q", "ci", "p").out == "a=1 ~callbacks\n"
