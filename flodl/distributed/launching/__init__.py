"""Turn processes into the ranks of one training."""
