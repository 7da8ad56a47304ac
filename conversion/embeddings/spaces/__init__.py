"""Which tokens are similar? Vectors of words and tokens, and their nearest neighbours."""
