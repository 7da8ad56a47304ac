"""Whole commands as a user calls them, beside peers and limits: what `benchmarks.all` measures, keeps and shows."""
