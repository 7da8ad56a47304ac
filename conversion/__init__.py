"""Hugging Face checkpoints to NeMo and back, and the transfer of embeddings to a new vocabulary."""
