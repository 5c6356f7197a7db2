"""Which rank trained which samples, and the proof of it."""
