"""The HTTP server: roles, the detection API, and the page's routes.

Read `dashboards.web.app` first.
"""
