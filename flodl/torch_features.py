"""What differs between the versions of torch that flodl takes."""

import torch

DIFFERENTIATES_LOOPS = torch.__version__ >= "2.10"  # compared by numbers
"""Whether the gradient of a loop that a compiler keeps as a loop is right.

The operator ``while_loop`` gives a gradient of zeros in PyTorch 2.8 and an error in 2.9.
"""


def is_exporting() -> bool:
    """Whether :func:`torch.export.export` traces this call.

    In PyTorch 2.8, ``torch.compiler.is_exporting`` is True in every trace of Dynamo, also in one of
    :func:`torch.compile`. So this reads what ``torch.export`` itself sets.
    """
    return torch.compiler._is_exporting_flag
