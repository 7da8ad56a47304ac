"""A run on GPUs that are not there: what it allocates, sends and waits for, rank by rank."""
