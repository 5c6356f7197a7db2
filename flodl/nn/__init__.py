"""Layers and functions that torch.nn lacks."""

from flodl.nn.attention import SelfAttention as SelfAttention
from flodl.nn.blur import GaussianBlur as GaussianBlur
from flodl.nn.blur import gaussian_blur_2d as gaussian_blur_2d
