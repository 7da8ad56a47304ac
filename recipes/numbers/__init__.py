"""Which numbers follow from a recipe? Batches, steps, learning rates, operations, activations kept and recomputed."""
