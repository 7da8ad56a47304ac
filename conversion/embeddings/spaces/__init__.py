"""Which tokens are alike? Vectors of words and tokens, and their nearest neighbours."""
