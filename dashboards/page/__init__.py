"""The page of one's own: jobs, incidents, heat maps, votes and actions, live in a browser or frozen into one file.

Read `dashboards.page.pages` first.
"""
