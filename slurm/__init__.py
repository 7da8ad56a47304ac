"""Job scripts and chains for HPC centres under Slurm."""
