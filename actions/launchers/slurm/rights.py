"""Whom Slurm lets drain nodes: root, SlurmUser, and users whose AdminLevel is Administrator."""

from __future__ import annotations

import os
import pwd
import re

from trainwarden.actions.launchers.slurm.commands import Commands


def no_right_to_drain(commands: Commands) -> str | None:
    """None if this user may drain nodes, else one sentence why not.

    Raises
    ------
    LauncherUnavailable
        If nobody answers.
    LauncherError
        If Slurm does not say who may.
    """
    said = commands.run("scontrol", "show", "config")
    owner = re.search(r"^SlurmUser\s*= (\S+)\((\d+)\)", said, re.MULTILINE)
    uid = os.geteuid()
    if uid == 0 or (owner is not None and int(owner[2]) == uid):
        return None
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    if re.search(r"^AccountingStorageType\s*= accounting_storage/slurmdbd", said, re.MULTILINE):
        words = ("--noheader", "--parsable2", "show", "user", name, "format=AdminLevel")
        if commands.run("sacctmgr", *words).strip() == "Administrator":
            return None
    others = ["root", owner[1] if owner is not None else "SlurmUser"]
    who = ", ".join(dict.fromkeys(others))
    return f"user {name} may not drain nodes: Slurm lets {who} and users of AdminLevel Administrator"
