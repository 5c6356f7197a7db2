"""Null in Hydra's configuration; text that Fire would read as a number."""

from __future__ import annotations

HYDRA = """
import hydra
from omegaconf import OmegaConf

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    print(OmegaConf.to_container(cfg))

main()
"""
CONFIG = "logger: wandb\nlr: 0.1\ncallbacks: {a: 1}\n"


def test_a_null_of_hydra_is_passed_if_it_is_marked(driven):
    call = driven(
        HYDRA,
        """
        quiet: {options: {logger: null}}
        marked: {options: {logger: !null }}
        text: {options: {logger: "null"}}
        without: {options: {"~callbacks": null}}
        listed: {options: {logger: [a, !null ]}}
        removed: {options: {lr: null}}
        """,
        above="options: {lr: 0.5}\n",
        config_yaml=CONFIG,
    )
    usual = "{'logger': 'wandb', 'lr': 0.5, 'callbacks': {'a': 1}}"
    told = call("quiet")
    assert told.startswith(
        "error: fdl.yml:4:29: preset `fdl quiet`: `null` removes an inherited option, and"
    )
    assert "hint: logger: !null" in told
    assert call("marked") == usual.replace("'wandb'", "None")
    assert call("text") == usual.replace("'wandb'", "'null'")
    assert call("without") == "{'logger': 'wandb', 'lr': 0.5}"
    assert call("listed") == usual.replace("'wandb'", "['a', None]")
    assert call("removed") == usual.replace("0.5", "0.1")


FIRE = """
import fire

def fit(commit="x", tag="y", version="z", layers=(1, 2), amp=True, lr=0.1, note=None):
    print(repr(commit), repr(tag), repr(version), repr(layers), amp, lr, note)

fire.Fire(fit)
"""


def test_text_of_a_manifest_stays_text_in_fire(driven):
    call = driven(
        FIRE,
        """
        run: {options: {commit: "297e7814231", tag: "True", version: "1.10"}}
        plain: {options: {commit: main, tag: a.b-c/d, version: 1.5}}
        odd: {options: {commit: "a,b", tag: "it's", version: "#1", note: "-x"}}
        other: {options: {layers: [3, "4", a], amp: false, lr: 1, note: true, tag: !null }}
        """,
    )
    assert call("run") == "'297e7814231' 'True' '1.10' (1, 2) True 0.1 None"
    assert call("plain") == "'main' 'a.b-c/d' 1.5 (1, 2) True 0.1 None"
    assert call("odd") == "'a,b' \"it's\" '#1' (1, 2) True 0.1 -x"
    assert call("other") == "'x' None 'z' [3, '4', 'a'] False 1 True"


def test_a_group_of_hydra_in_a_folder_is_chosen_and_not_replaced(driven):
    call = driven(
        HYDRA.replace('"."', '"conf"'),
        """
        nested: {options: {model: {encoder: vit, encoder.size: 5}}}
        dotted: {options: {model.encoder: vit}}
        slash: {options: {model/encoder: vit}}
        wrong: {options: {model/encoder: vitt}}
        """,
        **{
            "conf/config_yaml": "defaults: [{model/encoder: resnet}, _self_]\n",
            "conf/model/encoder/resnet_yaml": "depth: 3\n",
            "conf/model/encoder/vit_yaml": "size: 3\n",
        },
    )
    assert call("nested") == "{'model': {'encoder': {'size': 5}}}"
    assert call("dotted") == call("slash") == "{'model': {'encoder': {'size': 3}}}"
    assert "allowed: resnet, vit" in call("wrong")
