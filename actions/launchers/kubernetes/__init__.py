"""The Kubernetes launcher: JobSets and PyTorchJobs restarted, stopped, and taken off nodes that are cordoned.

Read `trainwarden.actions.launchers.kubernetes.client` first.
"""
