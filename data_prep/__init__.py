"""From raw text to tokenizer and Megatron data files.  Stages import only stages before them:
data_prep <- nemo_patches <- conversion <- recipes <- slurm, eval; all stand on `common`.
"""
