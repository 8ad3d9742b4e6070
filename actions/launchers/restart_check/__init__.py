"""What is measured before the ranks of a job that has trained start again: asked, measured in bounded time, concluded.

Read `trainwarden.actions.launchers.restart_check.messages` first.
"""
