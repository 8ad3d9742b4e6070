"""The webhook launcher: asks a service of your own, which speaks with whatever started the job.

Read `trainwarden.actions.launchers.webhook.client` first.
"""
