"""`trainwarden hook`: the hook as one file, for images in which nothing else of trainwarden is installed."""

from __future__ import annotations

import sys


def hook() -> int:
    """Print the hook as one file that can be copied into an image: trainwarden hook > trainwarden_hook.py"""
    from trainwarden.cli.setup.hook_file import text

    sys.stdout.write(text())
    return 0
