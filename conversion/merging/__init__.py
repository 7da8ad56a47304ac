"""What comes of several models: sums, differences and paths between their weights, row by row where their vocabularies differ."""
