"""Media of a run: images, histograms, texts, tables and curves beside its metrics."""
