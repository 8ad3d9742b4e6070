"""Sends notices to webhooks and chats: what is wrong, the evidence, and the command to act.

Read `dashboards.notices.notices` first.
"""
