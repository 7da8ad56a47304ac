"""Tokens in the files that Megatron reads."""
