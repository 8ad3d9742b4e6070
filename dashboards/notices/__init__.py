"""Sends notices to webhooks and chats: what is wrong, the evidence, and the command to act.

Read `trainwarden.dashboards.notices.notices` first.
"""
