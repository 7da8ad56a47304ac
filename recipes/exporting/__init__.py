"""A recipe in the words of the programs that come after NeMo 2: Megatron-Bridge and Megatron-LM."""
