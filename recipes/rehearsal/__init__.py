"""A run on simulated GPUs: what it allocates, sends and waits for, rank by rank."""
