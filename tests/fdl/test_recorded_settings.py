"""What a run records about its settings is what the program got."""

import json

import pytest

PAIRS = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("mode", choices=["fit", "test"])
p.add_argument("data", nargs="?", default="none")
p.add_argument("--tag", action="append")
p.add_argument("-w", "--warn", action="count", default=0)
p.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True)
p.add_argument("--set", action="append")
p.add_argument("--commit")
p.add_argument("--sizes", nargs="+", type=int)
p.add_argument("--rate", type=float, choices=[0.1, 1], default=0.1)
a = p.parse_args()
print(a.mode, a.data, a.tag, a.warn, a.shuffle, a.set, a.commit, a.sizes)
"""
MANIFEST = """
entry: python main.py
commands:
  p: {options: {mode: fit}}
  q: {options: {mode: test, tag: [a], warn: 2, sizes: [1, 2], shuffle: false}}
  hidden: {options: {mode: fit, data: !secret zq}}
"""


@pytest.fixture
def recorded(project, light_fdl):
    """A project; types a command, and returns what the program prints and what was recorded."""
    folder = project({"fdl.yml": MANIFEST, "main.py": PAIRS})

    def run(*words: str, env: dict[str, str] | None = None):
        done = light_fdl("-q", *words, env=env)
        assert done.exit == 0, done.err
        (made,) = folder.glob("runs/**/config.json")
        settings = json.loads(made.read_text())
        made.unlink()
        return done.out.strip(), settings

    return run


def test_an_argument_has_its_name(recorded, fdl):
    said, settings = recorded("p", "images")
    assert said.startswith("fit images ")
    assert settings["mode"] == {"value": "fit", "origin": "fdl.yml:3:23"}
    assert "fit" not in settings
    plan = json.loads(fdl("-n", "--json", "p").out)
    assert [flag["name"] for flag in plan["flags"]] == ["<mode>"]
    assert fdl("why", "mode", "p").out.startswith("options.mode = fit\n")
    assert "zq" not in fdl("-n", "hidden").out
    assert "refused" not in fdl("p", "--help").out


def test_an_argument_of_the_manifest_counts_in_a_sweep(project, light_fdl):
    project({"fdl.yml": MANIFEST, "main.py": PAIRS})
    assert "fit b " in light_fdl("p", "--each", "data=a,b").out
    refused = light_fdl("p", "--each", "mode=fit,test").err
    assert "the manifest sets `<mode>`, and a second value would follow it" in refused


def test_flags_have_the_values_that_the_program_got(recorded):
    said, settings = recorded("p")
    assert said == "fit none None 0 True None None None"
    assert settings["shuffle"] == {"value": True, "origin": "default"}
    assert "sizes" not in settings
    assert recorded("p", "--rate", "1.0")[1]["rate"]["value"] == 1
    said, settings = recorded("p", "--no-shuf", "-ww", "--tag", "a", "--commit", "297e7814231")
    assert said == "fit none ['a'] 2 False None 297e7814231 None"
    values = {name: one["value"] for name, one in settings.items()}
    assert (values["shuffle"], values["warn"], values["tag"]) == (False, 2, ["a"])
    assert values["commit"] == "297e7814231"


def test_what_adds_up_has_the_values_of_the_manifest_and_those_that_were_typed(recorded, fdl):
    line = ("q", "--tag", "b", "-w", "--sizes", "3")
    said, settings = recorded(*line)
    assert said == "test none ['a', 'b'] 3 False None None [3]"
    assert settings["tag"] == {"value": ["a", "b"], "origin": "command line"}
    assert (settings["warn"]["value"], settings["sizes"]["value"]) == (3, [3])
    assert fdl("why", "options.tag", *line).out == (
        "options.tag = [a, b]\n"
        "  wins        [b]                command line\n"
        "  part of it  [a]  fdl.yml:4:34  preset q\n"
    )
    assert fdl("why", "options.warn", *line).out.startswith("options.warn = 3\n")


def test_a_value_with_an_equals_sign_is_not_another_setting(recorded):
    said, settings = recorded("p", "--set", "lr=0.1")
    assert "['lr=0.1']" in said
    assert settings["set"]["value"] == ["lr=0.1"]
    assert "lr" not in settings


READS = """
import click

@click.command()
@click.option("--lr", type=float, default=0.1, envvar="LR")
@click.option("--shuffle/--no-shuffle", default=True, envvar="SHUFFLE")
@click.option("--out", type=click.Path(), default="o")
def main(lr, shuffle, out):
    print(lr, shuffle, out)

main()
"""


def test_a_variable_that_the_program_reads_is_recorded(project, recorded):
    project({"main.py": READS, "fdl.yml": "entry: python main.py\ncommands:\n  p: {options: {}}\n"
             "  q: {options: {lr: 1, shuffle: false}}\n"})  # fmt: skip
    said, settings = recorded("p", env={"LR": "0.5"})
    assert said == "0.5 True o"
    assert settings["lr"] == {"value": 0.5, "origin": "env LR"}
    said, settings = recorded("q", "--out", "s3://a/./b", env={"LR": "0.5", "SHUFFLE": "true"})
    assert said == "0.5 True s3://a/./b"
    assert settings["shuffle"] == {"value": True, "origin": "env SHUFFLE"}
    assert settings["out"] == {"value": "s3://a/./b", "origin": "command line"}
    said, settings = recorded("q", "--lr", "3", env={"LR": "0.5"})
    assert said == "3.0 False o"
    assert settings["lr"] == {"value": 3.0, "origin": "command line"}


OWN = """
from fdl import FdlArgs, option

class Args(FdlArgs):
    tags: list[str] = option()
    ids: list[int] = option(default=[1])
    name: str = option(default="n")

args = Args.parse_or_schema()
print(args.tags, args.ids, args.name)
"""


def test_a_class_of_arguments_gets_text_like_a_number_and_no_half_items(project, recorded, fdl):
    project({"main.py": OWN, "fdl.yml": """
        entry: python main.py
        commands:
          p: {options: {tags: [a, ""], name: "-5"}}
          q: {options: {tags: ["a,b", c]}}
          r: {options: {tags: "a,b", ids: []}}
        """})  # fmt: skip
    said, settings = recorded("p")
    assert said == "['a'] [1] -5"
    assert (settings["tags"]["value"], settings["name"]["value"]) == (["a"], "-5")
    refused = fdl("q").err
    assert "fdl.yml:4:24: preset `fdl q`: `a,b` has a comma, and `--tags` takes commas" in refused
    assert recorded("r")[0] == "['a', 'b'] [] n"
