"""Results of many checkpoints made into one report."""
