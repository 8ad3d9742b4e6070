"""What can only be known with a GPU: one command that checks it, on several ranks of one GPU over NCCL.

    make gpu-check

It writes ``gpu-check.json``, a row for each check, and recorded folders of every job that it ran under ``gpu-check/``.
Without a GPU it says so, and every row says that it was not seen on hardware. ``--backend gloo`` runs what can run on
processors, so that the check itself is checked.

Read `tests.gpu_check.table` first.
"""
