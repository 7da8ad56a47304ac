"""Copy a folder and flush it to disk."""

import os
import shutil
import sys

source, target = sys.argv[1:]
shutil.copytree(source, target)
for folder, _, names in os.walk(target):
    for name in names:
        descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
