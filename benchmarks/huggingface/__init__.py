"""Models of HuggingFace: flodl beside transformers and sentence-transformers."""
