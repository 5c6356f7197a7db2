"""The compiled engine with another backend than inductor, which compiles C++ for seconds."""

import pytest
import torch


def compile_with(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine compile with this backend of torch, such as ``aot_eager``."""
    real = torch.compile

    def quick(function: object, *, options: object, **settings: object) -> object:
        assert options == {"fallback_random": True}
        return real(function, backend=backend, **settings)

    monkeypatch.setattr(torch, "compile", quick)
