"""Which row of its table DeBERTa reads at which distance, beside the reference's own function."""

import torch

from flodl.hf.layers.relative import relative_rows
from tests.rows import each_row


@each_row(
    ("buckets", "farthest"),
    [(256, 512), (4, 4), (6, 59), (7, 9), (8, 38), (10, 12), (14, 100), (32, 128), (320, 1024)],
)
def test_every_distance_has_the_references_row(buckets, farthest):
    # Here, because it takes seconds that every collection of the tests would need.
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    length = 2 * farthest + 3
    distances = torch.arange(1 - length, length)
    theirs = make_log_bucket_position(distances, buckets, farthest).long()
    ours = relative_rows(length, buckets, farthest, torch.device("cpu"))
    assert ours.tolist() == theirs.tolist()
