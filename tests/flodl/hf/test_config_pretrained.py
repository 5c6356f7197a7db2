"""Reading a configuration where the checkpoint is: a directory or a repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from flodl.hf.errors import ConfigError, UnsupportedModelError
from flodl.hf.families import AutoConfig, RobertaConfig
from tests.flodl.hf.config_samples import text_of
from tests.flodl.hf.fake_hub import FakeHub
from tests.rows import each_row


def checkpoint(directory: Path, config: str) -> Path:
    """A directory whose weights cannot be read, not even opened."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(config)
    (directory / "model.safetensors").mkdir()
    return directory


def test_a_directory_gives_its_configuration_without_its_weights(tmp_path):
    config = AutoConfig.from_pretrained(str(checkpoint(tmp_path / "m", text_of("roberta", x=1))))
    assert isinstance(config, RobertaConfig)
    assert config.source["x"] == 1
    inside = AutoConfig.from_pretrained(tmp_path, subfolder="m")
    assert inside.to_json_string() == config.to_json_string()


@each_row(
    ("text", "kind", "said"),
    [
        (text_of("bert", model_type="gpt2"), UnsupportedModelError, "'model_type' is 'gpt2'"),
        (text_of("bert", "model_type"), UnsupportedModelError, "'model_type' is missing"),
        ("{", ConfigError, "not valid JSON"),
        (text_of("bert", id2label={"0": "a", "2": "b"}), ConfigError, "'id2label' is "),
        (
            text_of("bert", position_embedding_type="relative_key"),
            ConfigError,
            "'position_embedding_type' is ",
        ),
    ],
)
def test_a_refusal_names_the_file_and_the_field(tmp_path, text, kind, said):
    with pytest.raises(ConfigError, match=said) as caught:
        AutoConfig.from_pretrained(str(checkpoint(tmp_path / "m", text)))
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"{tmp_path / 'm'}/config.json: ")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "config.json").write_bytes(b'{"model_type": "b\xff"}')
    with pytest.raises(ConfigError, match="not valid JSON: 'utf-8'"):
        AutoConfig.from_pretrained(tmp_path)


def test_a_directory_without_a_configuration_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        AutoConfig.from_pretrained(tmp_path)


PROGRAM = """
import sys
from flodl.hf.families import AutoConfig
from flodl.hf.errors import ConfigError

for name in sys.argv[1:]:
    try:
        print(AutoConfig.from_pretrained(name).hidden_size)
    except ConfigError as error:
        print(type(error).__name__, error)
"""


def test_a_repository_gives_its_configuration_without_its_weights(hub: FakeHub, tmp_path):
    for name, text in (("good", text_of("albert")), ("bad", text_of("bert", model_type="t5"))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(text)
        (folder / "model.safetensors").write_bytes(b"never asked for")
        hub.add_repo(f"org/{name}", folder)

    done = hub.python(PROGRAM, tmp_path, "org/good", "org/bad")

    first, second = done.stdout.splitlines()
    assert first == "16"
    assert second.startswith("UnsupportedModelError org/bad/config.json: 'model_type' is 't5'")
    assert {path.rpartition("/")[2] for path in hub.bodies()} == {"config.json"}
    assert not any("safetensors" in request.path for request in hub.requests)
