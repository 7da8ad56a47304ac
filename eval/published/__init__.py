"""Published evaluation sets: their files as their publishers ship them, and the rows that the protocols read."""
