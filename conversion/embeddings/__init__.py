"""Embedding transfer: rows for the tokens of a new vocabulary, made from those of an old one.

`METHODS` lists the methods by the name that the command takes; each decides where every row comes from.  To add one, write
a function from `TransferInputs` to `RowPlan`, give it a row here and a test against a plain implementation.
"""

from __future__ import annotations

from conversion.embeddings.focus import focus_method
from conversion.embeddings.method import Method
from conversion.embeddings.simple_methods import mean_method, random_method

METHODS: dict[str, Method] = {"random": random_method, "mean": mean_method, "focus": focus_method}

# Which methods read which option; an option that a method would silently ignore is an error.
READS_TEXT = frozenset({"focus"})
