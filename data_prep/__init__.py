"""From raw text to tokenizer and Megatron data files.  Stages import only stages before them:
data_prep <- nemo_patches <- conversion <- recipes <- slurm, eval; all stand on `common`.
"""

import os
import sys

# No command here multiplies large matrices, but the library that numpy does it with starts a thread for each core when it is loaded, and they
# spin for a while: 0.1 CPU seconds with two.  Who only imports the package is left alone.
_words = sys.orig_argv
if "-m" in _words[:-1] and _words[_words.index("-m") + 1].startswith("data_prep."):
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
