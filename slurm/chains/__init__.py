"""One training run over many jobs: attempts, why they ended, what comes next."""
