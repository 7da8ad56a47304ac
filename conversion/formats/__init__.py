"""How do the bytes of checkpoints lie? safetensors, torch's zips and pickles, distributed checkpoints; nothing of models."""
