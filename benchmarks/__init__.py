"""Side-by-side measurements, one file per claim."""
