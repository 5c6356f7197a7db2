"""Models of Hugging Face: flodl beside transformers and sentence-transformers."""
