"""What a manifest may hold, and the words for what it may not."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from fdl.base.errors import ManifestError
from fdl.manifest.discover import find_in
from fdl.manifest.load import load
from tests.conftest import Fdl, Project
from tests.rows import each_row


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def mistakes(text: str) -> list[str]:
    Path("fdl.yml").write_text(dedent(text).lstrip("\n"))
    found = find_in(".")
    assert found is not None
    try:
        load(found, write_cache=False)
    except ManifestError as error:
        return error.message.split("\n")
    return []


@pytest.mark.case("cli", 11)
def test_a_misspelt_root_key_is_named_with_its_line_and_the_right_spelling(
    project: Project, fdl: Fdl
) -> None:
    project({"fdl.yml": "description: typo\ncomands:\n  hello: {run: echo hi}\n"})
    session = fdl("hello")
    assert session.exit == 1
    assert session.out == ""
    assert "fdl.yml:2:1: unknown key `comands`; did you mean `commands`?" in session.err


EVERYTHING = """
    description: all of it
    entry: python train.py
    docker: dev
    arg-name: recipe
    compile: true
    inherit-from: ~
    schema: {args: [{name: x}], options: {model: {type: string}}}
    ddp: &ddp
      policy: cadence
      backend: nccl
      anchor: auto
      max_anchor: 0
      overhead_target: 0.1
      divergence_threshold: 5
      max_batch_diff: ~
      max_grad_norm: 1.0
      snapshot_timeout: 5
      checkpoint_every: 1
      progressive: auto
      speed_hint: {slow_rank: 1, ratio: 2.5}
      partition_ratios: [0.7, 0.3, 1]
      lr_scale_ratio: 1
      timeline: true
    training: {epochs: 5, batch_size: 32, batches_per_epoch: 100, lr: 1e-3, seed: 42, engine: auto}
    output: {dir: runs, monitor: 65535, timeline: false}
    commands:
      empty:
      quick:
        ddp: {mode: solo-0, anchor: 3, progressive: false, max_anchor: 200}
        training: {epochs: 1}
        output: {monitor: 0}
        options: {a: 1, b: [x, 2, 0.5, true], c: ~, d: text, e: []}
      script: {description: d, run: echo, append: -- -x, docker: dev}
      nested: {path: ./nested, entry: python other.py}
    """


def test_every_key_with_every_type_is_accepted() -> None:
    assert mistakes(EVERYTHING) == []


@each_row(
    "mode",
    [
        *("sync", "solo-0", "solo-12"),
        *("nccl-sync", "nccl-cadence", "nccl-async"),
        *("cpu-sync", "cpu-cadence", "cpu-async"),
    ],
)
def test_modes(mode: str) -> None:
    assert mistakes(f"ddp: {{mode: {mode}}}") == []


def test_all_mistakes_of_a_file_are_told_in_file_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdl.manifest.check._MOST_MISTAKES", 20)
    assert mistakes("""
        model: resnet
        scripts: {}
        lr: 0.1
        commands:
          t: {runn: x, options: {a: {b: [~]}, c: [1, ~]}}
          u: {ddp: {polcy: sync, mode: nccl-synk}}
        training: {epochs: five, lr: "0.1", seed: 1.5, timeline: true, engine: fast}
        output: {monitor: 70000, dir: 5}
        """) == [
        "fdl.yml:1:1: unknown key `model`: it is reserved; remove it",
        "fdl.yml:2:1: unknown key `scripts`: scripts have moved into `commands`: "
        "write `commands: {NAME: {run: …}}`",
        "fdl.yml:3:1: unknown key `lr`; `lr` belongs in `training`",
        "fdl.yml:5:7: unknown key `commands.t.runn`; did you mean `run`?",
        "fdl.yml:5:33: `commands.t.options.a.b` may not list a null",
        "fdl.yml:5:42: `commands.t.options.c` may not list a null",
        "fdl.yml:6:13: unknown key `commands.u.ddp.polcy`; did you mean `policy`?",
        "fdl.yml:6:32: `commands.u.ddp.mode` must be `solo-N` for one device, or one of `auto`, "
        "`sync`, `nccl-sync`, `nccl-cadence`, `nccl-async`, `cpu-sync`, `cpu-cadence`, "
        '`cpu-async`, not the text "nccl-synk"; did you mean `nccl-sync`?',
        'fdl.yml:7:20: `training.epochs` must be a whole number, not the text "five"',
        'fdl.yml:7:30: `training.lr` must be a number, not the text "0.1"; remove the quotes',
        "fdl.yml:7:43: `training.seed` must be a whole number, not 1.5",
        "fdl.yml:7:48: unknown key `training.timeline`; `timeline` belongs in `ddp`",
        "fdl.yml:7:72: `training.engine` must be `eager`, `auto`, `compiled` or `cuda_graph`, "
        'not the text "fast"',
        "fdl.yml:8:19: `output.monitor` must be at most 65535, not 70000",
        "fdl.yml:8:31: `output.dir` must be text, not 5; put it between quotes",
    ]


def test_of_many_mistakes_the_first_five_are_told_and_the_others_counted(
    project: Project, fdl: Fdl
) -> None:
    project({"fdl.yml": "".join(f"wrong{place}: 1\n" for place in range(1, 9))})
    session = fdl("hello")
    assert (session.exit, session.out) == (1, "")
    lines = session.err.splitlines()
    assert len(lines) == 6
    for place, line in enumerate(lines[:5], 1):
        assert f"fdl.yml:{place}:1: unknown key `wrong{place}`" in line
    assert lines[5] == "and 3 more mistakes"


@each_row(
    ("text", "place", "words"),
    [
        ("commands: [a]", "1:11", "`commands` must be a mapping, not a list"),
        ("commands: {x: 5}", "1:15", "`commands.x` must be a mapping, not 5"),
        ("commands: {a.b: {runn: x}}", "1:18", 'unknown key `commands."a.b".runn`'),
        ("training: {batch_size: 0}", "1:24", "`training.batch_size` must be at least 1, not 0"),
        ("ddp: sync", "1:6", '`ddp` must be a mapping, not the text "sync"'),
        ("zebra: 1", "1:1", "known here: description, commands,"),
        ("ddp: {policy: casual}", "1:15", "must be `sync`, `cadence`, `async` or `auto`"),
        ("ddp: {backend: gloo}", "1:16", "must be `nccl` or `cpu`"),
        ("ddp: {anchor: yes}", "1:15", "must be `auto` or a whole number"),
        ("ddp: {anchor: 0}", "1:15", "must be at least 1, not 0"),
        ("ddp: {ranks: 0}", "1:14", "must be at least 1, not 0"),
        ("ddp: {ranks: many}", "1:14", "must be `auto` or a whole number"),
        ("ddp: {nodes: 0}", "1:14", "must be at least 1, not 0"),
        ("ddp: {nodes: '2:1'}", "1:14", 'must be a whole number, or a range such as "1:2"'),
        ("ddp: {nodes: 1:2:3}", "1:14", 'must be a whole number, or a range such as "1:2"'),
        ("ddp: {nodes: 1.5}", "1:14", 'must be a whole number, or a range such as "1:2"'),
        ("ddp: {rdzv: gpu1}", "1:13", "must be a host and a port, such as `gpu1:29400`"),
        ("ddp: {rdzv: 'gpu1:70000'}", "1:13", "must be a host and a port"),
        ("ddp: {rdzv: 29400}", "1:13", "such as `gpu1:29400`, not 29400"),
        ("ddp: {max_restarts: -1}", "1:21", "must be at least 0, not -1"),
        ("ddp: {max_overshoot: 1.5}", "1:22", "must be a whole number"),
        ("ddp: {simulate_ms: [40, 0]}", "1:25", "must be greater than 0, not 0"),
        ("ddp: {simulate_ms: 40}", "1:20", "must be a list, not 40"),
        ("ddp: {no_divergence_guard: 1}", "1:28", "must be true or false, not 1"),
        ("ddp: {divergence_threshold: 0}", "1:29", "must be greater than 0, not 0"),
        ("ddp: {snapshot_timeout: 0}", "1:25", "must be greater than 0, not 0"),
        ("ddp: {max_grad_norm: -1}", "1:22", "must be greater than 0, not -1"),
        ("ddp: {checkpoint_every: 0}", "1:25", "must be at least 1, not 0"),
        ("ddp: {partition_ratios: [1, 0]}", "1:29", "must be greater than 0, not 0"),
        ("ddp: {anchor: true}", "1:15", "must be `auto` or a whole number, not true"),
        ("ddp: {progressive: 1}", "1:20", "must be `auto`, true or false, not 1"),
        ("ddp: {max_anchor: -1}", "1:19", "must be at least 0, not -1"),
        ("ddp: {max_batch_diff: -1}", "1:23", "must be at least 0"),
        ("ddp: {speed_hint: {slow_rank: 1}}", "1:19", "`ddp.speed_hint` needs `ratio`"),
        ("ddp: {speed_hint: {slow_rank: 1, ratio: 0}}", "1:41", "must be greater than 0, not 0"),
        ("ddp: {speed_hint: {slow_rank: 1, ratio: 2, rank: 1}}", "1:44", "`ddp.speed_hint.rank`"),
        ("ddp: {partition_ratios: [1, a]}", "1:29", "`ddp.partition_ratios[1]` must be a number"),
        ("ddp: {partition_ratios: 1}", "1:25", "must be a list, not 1"),
        ("ddp: {timeline: no}", "1:17", 'must be true or false, not the text "no"'),
        ("training: {lr: .inf}", "1:16", "must be a finite number, not .inf"),
        ("training: {lr: .nan}", "1:16", "must be a finite number, not .nan"),
        (f"training: {{lr: {'9' * 400}}}", "1:16", "must be a number, not 999"),
        ("ddp: {speed_hint: {slow_rank: ~, ratio: 1}}", "1:31", "must be a whole number, not null"),
        ("training: {epochs: true}", "1:20", "must be a whole number, not true"),
        ("output: {monitor: -1}", "1:19", "must be at least 0"),
        ("description: [a]", "1:14", "must be text, not a list"),
        ("compile: 1", "1:10", "must be true or false, not 1"),
        ("schema: x", "1:9", "must be a mapping"),
        ("inherit-from: base.yml", "1:15", "there is no such file"),
        (
            "inherit-from: 42",
            "1:15",
            "manifest to inherit from, not 42 (a number)",
        ),
        ("inherit-from: ''", "1:15", 'not the text ""'),
        ("inherit-from: [a]", "1:15", "not a list"),
        ("env: {A: [1]}", "1:10", "`env.A` is one variable"),
        ("env: [A]", "1:6", "`env` must be a mapping, not a list"),
        ("env: {A=B: 1}", "1:12", '`env."A=B"` names no variable'),
        ("env_file: 1", "1:11", "must be a path, or a list of paths"),
        ("env_file: [{path: x, required: no}]", "1:11", "must be a path, or a list of paths"),
        ("env: {API_KEY: [hunter2]}", "1:16", "`env.API_KEY` is one variable"),
        ("training: {seed: !secret hunter2}", "1:18", "must be a whole number, not <secret>"),
        ("training: !secret {seed: hunter2}", "1:26", "must be a whole number, not <secret>"),
        ("ddp: {partition_ratios: !secret [1, x]}", "1:37", "must be a number, not <secret>"),
        (f"entry: [{'x' * 99}]", "1:8", "must be text, not a list"),
        (f"training: {{seed: {'x' * 99}}}", "1:18", "x…"),
    ],
)
def test_refusals(text: str, place: str, words: str) -> None:
    (line,) = mistakes(text)
    assert line.startswith(f"fdl.yml:{place}: ")
    assert words in line


def test_a_value_that_a_sweep_refuses_is_not_repeated() -> None:
    assert mistakes("sweeps: {s: {command: t, each: {lr: [0.1, ''], tags: {}}}}") == [
        f"fdl.yml:1:{column}: `sweeps.s.each.{key}` must be a value, or a list of values, none of "
        "them empty"
        for column, key in ((37, "lr"), (54, "tags"))
    ]


def test_mode_excludes_policy_and_backend_within_one_section_only() -> None:
    assert mistakes("ddp: {policy: sync, lr: 1, mode: sync, backend: cpu}") == [
        "fdl.yml:1:15: `ddp.policy` cannot stand beside `mode`, which says the same; "
        "keep one of them",
        "fdl.yml:1:21: unknown key `ddp.lr`; `lr` belongs in `training`",
        "fdl.yml:1:49: `ddp.backend` cannot stand beside `mode`, which says the same; "
        "keep one of them",
    ]
    assert mistakes("ddp: {mode: sync, policy: ~}") == []
    assert mistakes("ddp: {mode: sync}\ncommands: {q: {ddp: {policy: async}}}") == []


def test_a_bad_sibling_combination_is_no_load_error() -> None:
    assert mistakes("commands: {a: {run: x, path: y}, b: {docker: dev}, c: {append: x}}") == []


def test_paths_in_errors_lead_there_from_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("fdl.yml").write_text("x: 1")
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    found = find_in(str(tmp_path))
    assert found is not None
    with pytest.raises(ManifestError, match=r"^\.\./\.\./fdl\.yml:1:1: "):
        load(found, write_cache=False)
