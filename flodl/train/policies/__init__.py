"""When the ranks average: one loop per policy, driven by the training of a rank."""
