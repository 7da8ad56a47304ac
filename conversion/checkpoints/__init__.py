"""What is in a model folder, and what is written into one? Hugging Face and NeMo folders, adapters, factors, model cards."""
