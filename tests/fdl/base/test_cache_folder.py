"""The folder of the user's caches is the one that platformdirs names."""

import platformdirs
import pytest

from fdl.base.cache_folder import cache_folder


@pytest.mark.parametrize(
    "variables", [{}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "/somewhere"}]
)
def test_it_is_where_platformdirs_would_put_it(variables, monkeypatch):
    for name in ("FLODL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert cache_folder() == platformdirs.user_cache_path("flodl", appauthor=False)


def test_a_variable_names_another_one(monkeypatch, tmp_path):
    monkeypatch.setenv("FLODL_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path
