"""Training recipes: plan and train with NeMo on Megatron-core."""
