"""The HTTP side: who may ask what, the detection API, and where the page hangs.

Read `dashboards.web.app` first.
"""
