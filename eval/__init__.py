"""lm-eval on exported checkpoints, bits per byte, reports."""
