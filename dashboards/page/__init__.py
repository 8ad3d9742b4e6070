"""The page in a browser: jobs, incidents, heat maps, votes and actions, live or frozen into one file.

Read `trainwarden.dashboards.page.pages` first.
"""
