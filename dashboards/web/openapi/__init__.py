"""The page of the API, from the types by which it is asked and answered.

Read `trainwarden.dashboards.web.openapi.document` first.
"""
