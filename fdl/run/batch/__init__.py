"""Commands on a cluster: jobs of SLURM, submitted with submitit."""
