"""Tests; a package so that a foreign `tests` in the environment cannot take its place."""
