"""A job as data, as a script, and in Slurm's queue."""
