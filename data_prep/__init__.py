"""From raw text to tokenizer and Megatron data files; also the ground that every stage stands on.

The ground: `artifacts` (atomic outputs and their manifests), `command` (how a command ends), `progress`,
`tokenizer_files` (loading a tokenizer and its digest).  Stages import only stages before them:
data_prep <- nemo_patches <- conversion <- recipes <- slurm, eval.
"""
