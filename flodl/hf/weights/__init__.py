"""How the tensors of safetensors files find their places in a module."""
