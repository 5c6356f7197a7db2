"""``fdl skill``: what is written where, and whether what it teaches is true."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from fdl.manifest.builtins import BUILTINS, OF_SELF
from fdl.scaffold import skill
from fdl.scaffold.skill import FILES, SKILLS, find
from tests.rows import each_row
from tests.test_guides import BLOCK, fits, sessions, typed

CLAUDE = [f".claude/skills/port/{name}" for name in FILES]


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_list_names_skills_and_tools(fdl, tmp_path):
    (tmp_path / ".cursor").mkdir()
    done = fdl("skill", "list")
    assert (done.exit, done.err) == (0, "")
    assert re.search(r"^  port +Port a PyTorch", done.out, re.MULTILINE)
    assert re.search(r"^  claude +\.claude/skills/SKILL/$", done.out, re.MULTILINE)
    assert re.search(r"^  cursor +\.cursorrules +\(found here\)$", done.out, re.MULTILINE)


def test_without_traces_it_goes_to_claude_and_says_so(fdl, tmp_path):
    done = fdl("skill", "install")
    assert done.exit == 0
    assert done.out.splitlines() == [f"wrote {name}" for name in CLAUDE]
    assert "taking claude" in done.err
    assert files(tmp_path) == sorted(CLAUDE)
    skill = find("port", tmp_path)
    for name in CLAUDE:
        text, seal, _ = (tmp_path / name).read_text().partition("<!-- fdl skill install: sha256 ")
        assert text == skill.texts[name.split("/")[-1]]
        assert seal


def test_a_second_installation_replaces_what_nobody_has_edited(fdl, project):
    folder = project({f"ai/port/{name}": f"first {name}\n" for name in FILES})
    fdl("skill", "install", "--tool", "claude-code")
    (folder / "ai/port/guide.md").write_text("second")
    done = fdl("skill", "install")
    assert (done.exit, done.out) == (0, "wrote .claude/skills/port/guide.md\n")
    assert "SKILL.md has the skill already" in done.err
    assert (folder / ".claude/skills/port/guide.md").read_text().startswith("second\n<!-- fdl")
    assert sorted(name for name in files(folder) if name[0] == ".") == sorted(CLAUDE)


@pytest.mark.parametrize("mine", ["my own\n", None])
def test_what_the_user_has_edited_stays_and_the_skill_goes_beside_it(fdl, tmp_path, mine):
    fdl("skill", "install", "--tool", "claude")
    guide = tmp_path / ".claude/skills/port/guide.md"
    whole = guide.read_text()
    mine = mine or whole.replace("port", "carry", 1)
    guide.write_text(mine)
    new = ".claude/skills/port/guide.md.new"
    dry = fdl("skill", "install", "-n")
    assert (dry.exit, dry.out) == (0, f"would write {new}\n")
    assert not (tmp_path / new).exists()
    for _ in range(2):
        done = fdl("skill", "install")
        assert (done.exit, done.out) == (0, f"wrote {new}\n")
        assert f"guide.md was edited, so it stays; compare it with {new}" in done.err
        assert guide.read_text() == mine
        assert (tmp_path / new).read_text() == whole


@pytest.mark.parametrize("before", ["", "# Mine\n\nBe kind.\n", "# Mine, without a last newline"])
def test_cursor_gets_the_skill_once_below_what_stands_there(fdl, tmp_path, before):
    rules = tmp_path / ".cursorrules"
    rules.write_text(before)
    done = fdl("skill", "install")
    assert (done.exit, done.out, done.err) == (0, "wrote .cursorrules\n", "")
    once = rules.read_text()
    assert once.startswith(before)
    assert once.count("# flodl porting\n") == 1
    assert "# A port, from beginning to end" in once
    again = fdl("skill", "install")
    assert again.exit == 0
    assert again.out == ""
    assert "has the skill already" in again.err
    assert rules.read_text() == once


def test_several_tools_all_get_it(fdl, tmp_path):
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".cursor").mkdir()
    assert fdl("skill", "install").exit == 0
    assert files(tmp_path) == sorted([*CLAUDE, ".cursorrules"])


def test_a_dry_run_writes_nothing(fdl, tmp_path):
    done = fdl("skill", "install", "--dry-run")
    assert done.out.splitlines() == [f"would write {name}" for name in CLAUDE]
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("flag", "value", "hint"),
    [("--tool", "cursr", "--tool cursor"), ("--skill", "prot", "--skill port")],
)
def test_an_unknown_tool_or_skill_is_an_error_that_suggests(fdl, tmp_path, flag, value, hint):
    done = fdl("skill", "install", flag, value)
    assert (done.exit, done.out) == (2, "")
    assert f"`{value}`" in done.err
    assert f"hint: fdl skill install {hint}" in done.err
    assert files(tmp_path) == []


def test_the_text_of_the_team_counts_up_to_five_levels_above(fdl, project):
    own = {f"ai/port/{name}": f"our {name}" for name in FILES}
    folder = project({**own, "a/b/c/d/e/f/here": ""})
    for place, expected in (("a/b/c/d/e", True), ("a/b/c/d/e/f", False)):
        assert fdl("skill", "install", cwd=place).exit == 0
        text = (folder / place / ".claude/skills/port/guide.md").read_text()
        assert text.startswith("our guide.md\n") is expected
    (folder / "ai/port/guide.md").unlink()
    assert fdl("skill", "install").exit == 0
    text = (folder / ".claude/skills/port/SKILL.md").read_text()
    assert not text.startswith("our SKILL.md")


def test_a_folder_that_cannot_be_made_is_an_error(fdl, tmp_path):
    (tmp_path / ".claude").write_text("a file\n")
    done = fdl("skill", "install")
    assert done.exit == 1
    assert "cannot be written" in done.err
    assert (tmp_path / ".claude").read_text() == "a file\n"


# What the skill teaches

PACKAGED = Path(skill.__file__).parent / "data/port"
TEXTS = {name: (PACKAGED / name).read_text() for name in FILES}


@pytest.mark.slow  # trains five times
def test_the_worked_example_of_the_guide_does_what_it_shows(tmp_path):
    commands = 0
    for language, name, text in BLOCK.findall(TEXTS["guide.md"]):
        if language == "console":
            for line, promised in sessions(text):
                seen = typed(line, tmp_path).splitlines()
                while promised and not promised[-1].strip():
                    promised.pop()
                assert fits(promised, seen), f"{line}\n" + "\n".join(seen)
                commands += 1
        elif name:
            target = tmp_path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    assert commands == 10


def test_every_name_of_flodl_in_the_table_exists():
    import flodl
    from flodl.train.builder import TrainerBuilder

    table = TEXTS["guide.md"].rpartition("## From PyTorch to flodl")[2] + TEXTS["instructions.md"]
    methods = set(re.findall(r"`\.(\w+)\(", table)) - {"to"}
    methods |= set(re.findall(r"`(also|also_with|split|merge|tag)\(", table))
    assert {"also", "split", "scheduler", "max_grad_norm"} <= methods
    known = {*dir(flodl.FlowBuilder), *dir(TrainerBuilder)}
    assert methods - known == set()
    for name in ("TensorDataSet", "FlowBuilder", "MergeOp", "record_scalar", "Trainer"):
        assert name in flodl.__all__
        assert name in TEXTS["guide.md"]


@each_row("name", FILES)
def test_every_fdl_command_that_is_mentioned_exists(name):
    mentioned = re.findall(r"`fdl ((?!-)[a-z-]+)[^`]*`", TEXTS[name])
    own = {"train", "NAME"}
    assert [word for word in mentioned if word not in (*BUILTINS, *OF_SELF, *own)] == []


def test_the_front_matter_names_the_skill_and_says_when_to_use_it():
    text = TEXTS["SKILL.md"]
    _, front, body = text.split("---\n", 2)
    matter = yaml.safe_load(front)
    assert matter.keys() == {"name", "description"}
    assert matter["name"] in SKILLS
    assert 100 < len(matter["description"]) < 1024
    links = re.findall(r"\]\(([^)]+)\)", body)
    assert sorted(links) == ["guide.md", "instructions.md"]
    assert shlex.split("fdl api-ref")[1] in OF_SELF
