"""Parts of the page that were measured on 2026-11-23 under earlier rules, without a spread."""

from __future__ import annotations

from collections.abc import Mapping

_RULES = "Measured on 2026-11-23, before these pages had a spread."

_TABLES: Mapping[str, str] = {
    "import": """\
| program | s | ms over torch |
|---|---|---|
| `import torch` | 2.826 | +0 |
| `import torch, flodl.hf` | 2.812 | +66 |
| `import torch, flodl.hf and a class of it` | 2.941 | +94 |
| `import torch, transformers and a class of it` | 4.496 | +1653 |

The start of torch itself varies by a tenth of a second between processes here, so the second
line says no more than that: three runs of ten rounds gave -70, +26 and +66 ms.
`python -X importtime` counts 1.1 ms.""",
    "cold": """\
|  | s | time of flodl / its time | speed of flodl / its speed |
|---|---|---|---|
| flodl | 3.104 | 1.000 | 1.00 |
| transformers | 8.237 | 0.352 | 2.84 |
| floor | 2.931 | 1.049 | 0.95 |

Largest relative difference of the outputs: 2e-08. Rounds: 10. This part and the one
above were taken an hour after the others, when everything took a third longer.""",
    "classification": """\
|  | texts/s | time of flodl / its time | speed of flodl / its speed |
|---|---|---|---|
| flodl | 14.1 | 1.000 | 1.00 |
| transformers, in the given order | 6.8 | 0.489 | 2.04 |
| transformers, sorted by length | 11.8 | 0.826 | 1.21 |
| transformers, sorted, batches of 8 | 12.7 | 0.896 | 1.12 |

Largest relative difference of the outputs: 2e-06. Rounds: 5.""",
    "fine-tuning": """\
|  | texts/s | time of flodl / its time | speed of flodl / its speed |
|---|---|---|---|
| flodl | 4.0 | 1.000 | 1.00 |
| transformers | 2.1 | 0.525 | 1.90 |

Largest relative difference of the outputs: 3e-07. Rounds: 5.""",
    "embedding": """\
|  | texts/s | time of flodl / its time | speed of flodl / its speed |
|---|---|---|---|
| flodl | 9.6 | 1.000 | 1.00 |
| sentence-transformers | 8.9 | 0.930 | 1.08 |
| transformers, in the given order | 3.0 | 0.310 | 3.23 |

Largest relative difference of the outputs: 3e-07. Rounds: 5.""",
    "batches": """\
| batch | flodl, ms | transformers, ms | ratio of times | largest difference |
|---|---|---|---|---|
| BertModel, 8 × 128 tokens | 1280.1 | 1267.6 | 0.99 | 0e+00 |
| DebertaV2Model, 1 × 32 tokens | 727.2 | 1651.8 | 0.44 | 1e-06 |
| DebertaV2Model, 8 × 128 tokens | 12150.1 | 16232.8 | 0.85 | 1e-06 |
| one hidden token among 128, 250,002 words | 240.9 | 852.6 | 0.28 | 7e-07 |

Rounds: 3. Measured the day before.""",
}

PAGE: Mapping[str, str] = {name: f"{_RULES}\n\n{text}" for name, text in _TABLES.items()}
"""Part -> what stands on the page until the part is measured again."""
