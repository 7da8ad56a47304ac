"""Folders that Megatron-LM and Megatron-Bridge make around the same distributed checkpoint, and the files they need beside the weights."""
