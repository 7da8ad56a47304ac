"""transformers without its warnings, and without progress bars that no terminal shows."""

from __future__ import annotations

import sys


def quiet_transformers() -> None:
    """Leave errors alone to it; what it would warn of is checked here, and said once. In a log its bars would be lines of control characters."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
