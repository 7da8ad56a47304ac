"""From raw text to tokenizer and Megatron data files.  Stages import only stages before them:
data_prep <- nemo_patches <- conversion <- recipes <- slurm, eval; all stand on `common`.
"""

import os
import sys

# No command here multiplies large matrices, but the library that numpy does it with starts a thread for each core when it is loaded, and they
# spin for a while: 0.1 CPU seconds with two.  `python -m` says so while it looks for a module of this package; who imports it is left alone.
if sys.argv[:1] == ["-m"]:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
