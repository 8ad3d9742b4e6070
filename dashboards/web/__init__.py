"""The HTTP server: roles, the detection API, and the page's routes.

Read `trainwarden.dashboards.web.app` first.
"""
