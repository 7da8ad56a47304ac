"""Which numbers follow from a recipe? Batches, steps, learning rates, operations, what is kept and what is computed again."""
