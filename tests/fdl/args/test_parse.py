"""Reading an argument vector: every shape, every spelling, every refusal in words."""

import enum
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field, field_validator, model_validator

from fdl import FdlArgs, FdlArgsError, arg, option
from fdl.base.secrets import REDACTED
from tests.rows import each_row


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Train(FdlArgs):
    """Train a   model."""

    version: ClassVar[str] = "3.1"

    data: Path = arg(help="Folder with the data")
    extra: list[str] = arg(variadic=True)
    epochs: int = option(default=10, short="n", help="Passes over the data")
    lr: float = option(default=1e-3, env="TRAIN_LR")
    size: Size = option(default=Size.SMALL)
    mode: Literal["fast", "exact"] = option(default="fast")
    report: str | None = option(default="report.html")
    note: str | None = option()
    """What to remember about this run."""
    tags: list[str] = option(short="t", env="TRAIN_TAGS")
    dry: bool = option(short="d")
    loud: bool = option(short="l")


def parse(*words: str) -> Train:
    return Train.try_parse_from(words)


def refused(*words: str) -> str:
    with pytest.raises(FdlArgsError) as caught:
        parse(*words)
    assert caught.value.exit_code == 2
    return caught.value.message


def test_absent_options_take_their_defaults():
    args = parse("data")
    assert args.data == Path("data")
    assert (args.epochs, args.lr, args.size, args.mode) == (10, 1e-3, Size.SMALL, "fast")
    assert (args.report, args.note, args.tags, args.extra) == (None, None, [], [])
    assert (args.dry, args.loud) == (False, False)


@each_row(
    "words",
    [
        ["--epochs", "3"],
        ["--epochs=3"],
        ["-n", "3"],
        ["-n=3"],
        ["-dln", "3"],
        ["-n", "9", "-n", "3"],
    ],
)
def test_every_spelling_of_a_value_is_understood(words):
    assert parse("data", *words).epochs == 3


def test_clusters_set_every_flag_and_only_the_last_takes_a_value():
    args = parse("data", "-dln", "3")
    assert (args.dry, args.loud, args.epochs) == (True, True, 3)
    assert "must come last" in refused("data", "-ndl", "3")


def test_the_last_scalar_wins_so_the_command_line_beats_generated_flags():
    assert parse("data", "--epochs", "3", "--epochs", "7").epochs == 7


def test_a_bare_option_takes_its_declared_default():
    assert parse("data", "--report").report == "report.html"
    assert parse("--report", "--epochs", "2", "data").report == "report.html"
    assert parse("data", "--report", "x.html").report == "x.html"
    assert refused("data", "--note") == "`--note` requires a value"


class Server(FdlArgs):
    port: int | None = option(short="p", env="SERVER_PORT", choices=[8080, 9])
    report: str | None = option(default="r.html")


@pytest.mark.case("cli", 43)
def test_a_variable_stands_in_for_an_absent_option_and_is_checked_alike(monkeypatch):
    def port(*words: str) -> int | None:
        return Server.try_parse_from(words).port

    monkeypatch.setenv("SERVER_PORT", "8080")
    assert port() == 8080
    assert port("--port=9") == 9
    assert port("-p=9") == 9
    monkeypatch.setenv("SERVER_PORT", "")
    assert port() is None
    monkeypatch.setenv("SERVER_PORT", "80")
    with pytest.raises(FdlArgsError) as caught:
        port()
    assert caught.value.exit_code == 2
    assert caught.value.message == (
        "invalid value `80` for `--port` -- allowed: 8080, 9 (env SERVER_PORT)"
    )


@pytest.mark.case("cli", 44)
def test_an_optional_is_none_when_absent_and_its_default_when_bare():
    assert Server.try_parse_from([]).report is None
    assert Server.try_parse_from(["--report"]).report == "r.html"
    assert Server.try_parse_from(["--report", "x"]).report == "x"


@each_row("words", [["--port", "8080", "--port"], ["--report", "-x"], ["-p"]])
def test_an_option_without_a_default_cannot_be_bare(words):
    with pytest.raises(FdlArgsError, match=r"`--port` requires a value|unknown option `-x`"):
        Server.try_parse_from(words)


def test_lists_split_commas_repeat_and_drop_blanks():
    assert parse("data", "--tags", "a,b,,", "-t", "c").tags == ["a", "b", "c"]


def test_negative_numbers_are_values_of_numeric_options_only():
    assert parse("data", "--lr", "-1e-2").lr == -1e-2
    assert refused("data", "--note", "-1") == "`--note` requires a value"
    assert parse("data", "--note=-1").note == "-1"


def test_a_double_dash_ends_the_flags():
    args = parse("data", "--", "--epochs", "-")
    assert args.extra == ["--epochs", "-"]
    assert args.epochs == 10


def test_the_environment_stands_between_argv_and_default(monkeypatch):
    monkeypatch.setenv("TRAIN_LR", "0.5")
    monkeypatch.setenv("TRAIN_TAGS", "x,y")
    assert parse("data").lr == 0.5
    assert parse("data").tags == ["x", "y"]
    assert parse("data", "--lr=0.25").lr == 0.25
    monkeypatch.setenv("TRAIN_LR", "")
    assert parse("data").lr == 1e-3
    monkeypatch.setenv("TRAIN_LR", "fast")
    assert refused("data") == "invalid value `fast` for `--lr` -- not a number (env TRAIN_LR)"


def test_choices_come_from_enums_and_literals():
    assert parse("data", "--size", "large").size is Size.LARGE
    assert parse("data", "--mode=exact").mode == "exact"
    assert (
        refused("data", "--mode", "x") == "invalid value `x` for `--mode` -- allowed: fast, exact"
    )


@each_row(
    ("words", "message"),
    [
        ([], "missing required argument <data>"),
        (["data", "--epoch", "3"], "unknown option `--epoch`, did you mean `--epochs`?"),
        (["data", "--nothing-like-it"], "unknown option `--nothing-like-it`"),
        (["data", "-x"], "unknown option `-x`"),
        (["data", "--dry=1"], "`--dry` takes no value"),
        (["data", "--epochs", "many"], "invalid value `many` for `--epochs` -- not an integer"),
        (["data", "--epochs", "1.5"], "invalid value `1.5` for `--epochs` -- not an integer"),
        (["data", "--tags"], "`--tags` requires a value"),
    ],
)
def test_bad_arguments_are_refused_in_words(words, message):
    assert refused(*words) == message


def test_surplus_positionals_are_refused():
    class One(FdlArgs):
        data: str = arg()

    with pytest.raises(FdlArgsError, match="unexpected argument `b`"):
        One.try_parse_from(["a", "b"])


class Secretive(FdlArgs):
    api_key: str = option(default="sk-default", choices=["sk-default", "sk-other"])
    max_tokens: int = option(default=1)
    endpoint: Literal["a", "b"] = option(default="a", env="ENDPOINT_PASSWORD")


def test_a_refused_secret_is_not_repeated(monkeypatch):
    def message(*words: str) -> str:
        with pytest.raises(FdlArgsError) as caught:
            Secretive.try_parse_from(words)
        return caught.value.message

    assert message("--api-key", "hunter2") == (
        f"invalid value `{REDACTED}` for `--api-key` -- allowed: sk-default, sk-other"
    )
    assert message("--max-tokens", "many") == (
        "invalid value `many` for `--max-tokens` -- not an integer"
    )
    monkeypatch.setenv("ENDPOINT_PASSWORD", "hunter2")
    assert "hunter2" not in message()


def test_validators_of_the_class_are_argument_errors():
    class Checked(FdlArgs):
        epochs: int = option(default=0)
        batch: Annotated[int, Field(ge=1)] = option(default=1)

        @field_validator("epochs")
        @classmethod
        def positive(cls, value: int) -> int:
            if value < 1:
                raise ValueError("must be at least 1")
            return value

        @model_validator(mode="after")
        def together(self) -> "Checked":
            if self.epochs > 9 and self.batch > 9:
                raise ValueError("too much work")
            return self

    def message(*words: str) -> str:
        with pytest.raises(FdlArgsError) as caught:
            Checked.try_parse_from(words)
        return caught.value.message

    assert Checked.try_parse_from(["--epochs", "2"]).epochs == 2
    assert message("--epochs", "-1") == "invalid value `-1` for `--epochs` -- must be at least 1"
    assert message("--batch=0").startswith("invalid value `0` for `--batch` -- Input should be")
    assert message("--epochs=10", "--batch=10") == "too much work"
    # What a class declares as its default is not the user's mistake.
    assert Checked.try_parse_from([]).epochs == 0


def test_an_optional_value_without_a_default_needs_a_value_also_if_none_is_written():
    class Limited(FdlArgs):
        limit: int | None = option(default=None)

    assert Limited.try_parse_from([]).limit is None
    assert Limited.try_parse_from(["--limit", "3"]).limit == 3
    with pytest.raises(FdlArgsError, match="`--limit` requires a value"):
        Limited.try_parse_from(["--limit"])
    assert "--limit INT" in Limited.render_help()
    assert Limited.schema()["options"] == {"limit": {"type": "int"}}
