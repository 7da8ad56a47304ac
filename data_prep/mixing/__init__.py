"""How much of each corpus, and what is held out."""
