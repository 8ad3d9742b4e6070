"""What has its turn about an incident: what is known of it, the table of remedies, and the next action.

Read `actions.remedies.planner` first.
"""
