"""How processes become the ranks of one training."""
