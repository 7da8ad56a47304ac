"""Folders that Megatron-LM and Megatron-Bridge make around the same distributed checkpoint: what they need beside the weights."""
