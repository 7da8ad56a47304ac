"""Which transfer is best? Variants of one model measured beside each other."""
