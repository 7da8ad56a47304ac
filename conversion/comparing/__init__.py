"""Which transfer is best? Variants of one model measured and compared."""
