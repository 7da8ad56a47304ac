"""How are several models merged? Sums, differences and interpolations of their weights, by token where their vocabularies differ."""
