"""NCCL's profiler plug-in (in C): a rank's collective calls with device times, and the collector of its file.

`plugin.c` is what NCCL calls, `shared_file.c` makes the file ``rank-<rank>-<pid>-<start>.nccl`` beside the hook's,
`tables.c` tells stale handles and impossible stamps; `layout.h` and `layout.py` say what lies in the file.

Read `trainwarden.collectors.nccl_profiler.collector` first.
"""
