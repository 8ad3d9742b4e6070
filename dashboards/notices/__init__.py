"""Notices to others: what is wrong, the evidence, and the exact command to act.

Read `dashboards.notices.notices` first.
"""
