"""What is in a model folder, and what goes into one? Hugging Face and NeMo folders, adapters, factors, cards."""
