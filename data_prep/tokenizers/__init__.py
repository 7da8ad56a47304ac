"""Training, reading, extending, measuring and comparing tokenizers."""
