"""The parts of a training run that NeMo lacks: freezing, checkpoints, what is logged, when it stops."""
