"""A command that stays for ever before it gives a file its name, so that whoever ends it comes neither too early nor too late.

python -m tests.held_command END_OF_NAME MODULE ARGUMENTS ...  # as python -m MODULE ARGUMENTS ..., until that file is to be renamed
"""

from __future__ import annotations

import runpy
import sys
import time
from typing import Any

if __name__ == "__main__":
    _, what, module, *words = sys.argv
    end_of_name, _, wanted = what.partition(":")
    seen = 0

    def hold(event: str, arguments: tuple[Any, ...]) -> None:
        global seen
        if event == "os.rename" and str(arguments[0]).endswith(end_of_name):
            seen += 1
            while seen == int(wanted or 1):
                time.sleep(1)

    sys.addaudithook(hold)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
