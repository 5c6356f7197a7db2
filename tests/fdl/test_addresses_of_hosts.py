"""Hosts of a manifest, before anything connects to them."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import pytest

from fdl.manifest.discover import find
from fdl.manifest.select.project import Project
from fdl.run.hosts.machines import Machine, machines
from tests.rows import each_row

MANIFEST = """
hosts:
  box: {address: -oProxyCommand=touch ran}
commands:
  hi: {run: echo hi}
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "--on", "box", "hi"), "fdl.yml:2:18: address '-oProxyCommand=touch ran'"),
        (("--on", "box", "-n", "hi"), "fdl.yml:2:18: address '-oProxyCommand=touch ran'"),
        (("plan", "--on", "box2,-oX", "hi"), "-oX is an option of ssh, and not a host"),
        (("--on", "box2, -oX", "-n", "hi"), "-oX is an option of ssh, and not a host"),
        (("--on", "box2, ,box3", "-n", "hi"), "`--on box2, ,box3`: a name is empty"),
    ],
)
def test_no_address_reaches_ssh_as_an_option(
    light_fdl: Any, project: Any, words: tuple[str, ...], said: str
) -> None:
    root = project({"fdl.yml": MANIFEST})
    done = light_fdl(*words, cwd=root)
    assert done.exit != 0
    assert said in done.err
    assert not (root / "ran").exists()


def test_names_of_hosts_may_have_blanks_between_them(light_fdl: Any, project: Any) -> None:
    hosts = "hosts:\n  beta: {address: me@b, folder: /data}\n"
    root = project({"fdl.yml": f"entry: python main.py\ncommands: {{train: {{path: .}}}}\n{hosts}"})
    done = light_fdl("--on", "here, beta", "-n", "train", cwd=root)
    typed = "fdl train --nodes 2 --rdzv HOST:PORT"
    assert done.out.splitlines()[1] == f"ssh me@b 'cd /data && {typed}'  # host 1: beta"


def test_a_dry_run_copies_files_to_the_other_hosts_only(fdl: Any, project: Any) -> None:
    root = project({"fdl.yml": "entry: python main.py\ncommands: {train: {path: .}}\n"})
    done = fdl("--on", "here,beta", "--sync", "-n", "train")
    typed = f"cd {root} && fdl train --nodes 2 --rdzv HOST:PORT"
    assert done.out.splitlines() == [
        f"{typed}  # host 0: here",
        f"rsync the tracked files to beta:{root}",
        f"ssh beta '{typed}'  # host 1: beta",
    ]


@each_row(
    ("folder", "typed"),
    [
        ("~/my project", "cd ~/'my project' && ~/'my env/bin/python' --version"),
        ("/data/my project", "cd '/data/my project' && ~/'my env/bin/python' --version"),
        ("project", "cd project && ~/'my env/bin/python' --version"),
    ],
)
def test_a_path_of_a_host_is_one_word_and_may_begin_in_its_home(folder: str, typed: str) -> None:
    machine = Machine("box", "box", folder, "~/my env/bin/python")
    assert machine.runs("--version") == f"ssh box {shlex.quote(typed)}"


@pytest.mark.parametrize(
    "words", ["--sync train", "-n --sync train", "train --sync", "--sync --on slurm train"]
)
def test_files_are_copied_only_to_hosts_that_are_named(
    light_fdl: Any, project: Any, words: str
) -> None:
    root = project({"fdl.yml": "entry: python main.py\ncommands: {train: {path: .}}\n"})
    done = light_fdl(*words.split(), cwd=root)
    assert done.exit == 1
    assert "`--sync` copies files to hosts, and `--on` names none" in done.err
    assert "fdl --sync --on HOST,HOST COMMAND" in done.err


def test_a_host_that_cannot_plan_the_command_is_to_show_it(fdl: Any, project: Any) -> None:
    commands = "commands: {hi: {run: echo hi}}\n"
    root = project({"fdl.yml": commands, "other/fdl.yml": commands.replace("hi:", "bye:")})
    here = f"{{folder: {root}/other, python: {sys.executable}}}"
    (root / "fdl.yml").write_text(f"hosts: {{here: {here}}}\n{commands}")
    done = fdl("plan", "--on", "here", "hi")
    assert "unknown command: hi" in done.err
    assert f"hint: here: cd {root}/other && {sys.executable} -m fdl -n hi\n" in done.err


def test_variables_of_a_host_are_written_as_those_of_a_command(project: Any) -> None:
    env = "{FAST: true, LEVEL: 2, NONE: ~}"
    root = project({"fdl.yml": f"hosts: {{box: {{env: {env}}}, far: ~}}\n"})
    found = find(str(root))
    assert found
    box, far = machines(Project(found), "box,far")
    assert (box.variables, far.variables) == ({"FAST": "true", "LEVEL": "2"}, {})


def test_this_machine_is_not_sought_with_ssh(fdl: Any, project: Any) -> None:
    # It ends what fdl has started on the host, the parent of its own parent.
    ends = 'kill -9 $(cut -d " " -f 4 /proc/$PPID/stat); sleep 60'
    here = f"{{python: {sys.executable}}}"
    root = project({"fdl.yml": f"hosts: {{here: {here}}}\ncommands: {{t: {{run: '{ends}'}}}}\n"})
    done = fdl("--on", "here", "t", cwd=root)
    assert done.exit == 1
    assert "here (rank 0): the connection has ended with code " in done.err
    assert "hint: ps -fu $(id -un)\n" in done.err
    assert "ssh" not in done.err
