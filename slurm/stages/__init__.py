"""The stages of a pipeline as jobs."""
