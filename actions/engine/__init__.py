"""Incidents and people's words in, actions out: the gate before every call of a launcher.

Read `actions.engine.handler` first.
"""
