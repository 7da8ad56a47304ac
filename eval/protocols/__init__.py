"""The papers' evaluation protocols: which rows, which examples before them, how they are asked and how answers are scored."""
