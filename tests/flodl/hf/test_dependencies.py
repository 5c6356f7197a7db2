"""Packages of an extra are imported where they are needed, and missed by the extra's name."""

from __future__ import annotations

import json

import pytest

from flodl.errors import FlodlError
from flodl.hf.errors import MissingDependencyError, need


def test_an_installed_package_is_imported():
    assert need("json") is json
    assert need("json.decoder") is json.decoder


@pytest.mark.parametrize("package", ["flodl_absent", "flodl_absent.part"])
def test_a_missing_package_is_missed_by_the_name_of_its_extra(package):
    with pytest.raises(MissingDependencyError) as raised:
        need(package, "hf-verify")
    assert str(raised.value) == (
        'the package flodl_absent is not installed: run pip install "flodl[hf-verify]"'
    )
    assert isinstance(raised.value, FlodlError)
    assert isinstance(raised.value, ImportError)


def test_the_extra_is_hf_unless_said_otherwise():
    with pytest.raises(MissingDependencyError, match=r'pip install "flodl\[hf\]"'):
        need("flodl_absent")


def test_a_broken_package_is_not_taken_for_a_missing_one(tmp_path, monkeypatch):
    (tmp_path / "flodl_broken.py").write_text("import flodl_absent")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="flodl_absent") as raised:
        need("flodl_broken")
    assert not isinstance(raised.value, MissingDependencyError)
