"""``args:`` of a run command, as it is typed."""

import pytest

MANIFEST = {
    "fdl.yml": """
        commands:
          deploy:
            run: 'echo "$epochs $name_of_it ${dry_run:+dry} $rate" "$@"'
            args:
              epochs: 3
              name_of_it: {type: string, choices: [a, b], description: Which one}
              dry-run: false
              rate: {type: float, short: r, env: RATE}
              target: {positional: true, choices: [staging, production]}
              files: {type: path, positional: true, variadic: true, required: false}
        """
}


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        (["staging"], "3    staging"),
        (["--epochs", "5", "staging", "--dry-run"], "5  dry  staging"),
        (["production", "--name-of-it=b", "-r", "0.5"], "3 b  0.5 production"),
        (["staging", "a b", "$(touch x)", "'"], "3    staging a b $(touch x) '"),
        (["staging", "--", "-x", "y"], "3    staging -x y"),
    ],
)
def test_values_reach_the_script_as_variables_and_words(project, fdl, typed, printed):
    folder = project(MANIFEST)
    assert fdl("deploy", *typed).out == f"{printed}\n"
    assert not (folder / "x").exists()


def test_a_list_is_one_text(project, fdl):
    project({"fdl.yml": "commands: {t: {run: echo $tags, args: {tags: [a, b]}}}"})
    assert fdl("t").out == "a b\n"
    assert fdl("t", "--tags", "x,y", "--tags", "z").out == "x y z\n"


def test_a_variable_of_the_shell_gives_a_value(project, fdl):
    project(MANIFEST)
    assert fdl("deploy", "staging", env={"RATE": "0.25"}).out == "3   0.25 staging\n"


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ([], "missing required argument <target> -- allowed: staging, production"),
        (["moon"], "invalid value `moon` for `<target>` -- allowed: staging, production"),
        (["staging", "--epochs", "many"], "invalid value `many` for `--epochs` -- not an integer"),
        (["staging", "--epoch", "2"], "unknown option `--epoch`, did you mean `--epochs`?"),
        (["staging", "--name-of-it", "c"], "invalid value `c` for `--name-of-it` -- allowed: a, b"),
    ],
)
def test_words_that_do_not_fit_are_refused_before_anything_runs(project, fdl, typed, problem):
    project(MANIFEST)
    done = fdl("deploy", *typed)
    assert (done.exit, done.out) == (1, "")
    assert f"error: `fdl deploy`: {problem}" in done.err
    assert "fdl deploy [OPTIONS] <target> [<files>...]" in done.err


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ("{a: {type: text}}", "fdl.yml:1:44: in `args`: `a.type` is `text`, which is not one of"),
        ("{a: {choices: [1, x]}}", "fdl.yml:1:47: in `args`: `a.choices[1]` is `x`, which is not"),
        ("{a b: 1}", "fdl.yml:1:39: in `args`: `a b` cannot be the name of a variable"),
        ("{a: true}", "fdl.yml:1:37: in `args`: `default` of a switch is false"),
        ("{help: 1}", "fdl.yml:1:40: in `args`: `help` cannot be declared: fdl itself answers"),
        ("{a: {kind: int}}", "in `args`: `a.kind` "),
    ],
)
def test_a_wrong_declaration_is_an_error_with_its_place(project, fdl, args, problem):
    project({"fdl.yml": f"commands: {{t: {{run: echo, args: {args}}}}}"})
    done = fdl("t")
    assert (done.exit, done.out) == (1, "")
    assert problem in done.err


def test_help_describes_declared_arguments(project, fdl):
    project(MANIFEST)
    page = fdl("deploy", "--help").out
    assert "fdl deploy [OPTIONS] <target> [<files>...] [-- ARGS" in page
    assert "--epochs INT" in page
    assert "[default: 3]" in page
    assert "Which one" in page


def test_completion_offers_declared_arguments(project, fdl):
    project(MANIFEST)
    assert fdl("__complete", "bash", "--", "deploy", "").out == "staging\nproduction\n"
    assert fdl("__complete", "bash", "--", "deploy", "--e").out == "--epochs\n--env\n"
    assert fdl("__complete", "bash", "--", "deploy", "--name-of-it", "").out == "a\nb\n"


def test_arguments_without_run_are_refused(project, fdl):
    project({"fdl.yml": "commands: {t: {args: {a: 1}}}"})
    assert "`args` needs `run` beside it" in fdl("t").err


def test_a_value_reaches_the_script_as_it_was_typed(project, fdl):
    manifest = """
        commands:
          t:
            run: echo "$file" "$python" "$seed" "$@"
            args: {file: {type: path}, python: 3.11, seed: 1,
                   more: {type: path, positional: true, variadic: true}}
        """
    project({"fdl.yml": manifest})
    typed = ("--file", "./x", "--python", "3.10", "--seed", "-007", "s3://a", "b/")
    assert fdl("t", *typed).out == "./x 3.10 -007 s3://a b/\n"
    assert "invalid value `x` for `--seed` -- not an integer" in fdl("t", "--seed", "x", "a").err
