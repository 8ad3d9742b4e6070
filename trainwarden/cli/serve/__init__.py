"""Commands that are one process of the warden, until it is stopped; read `process` first: how such a process begins."""
