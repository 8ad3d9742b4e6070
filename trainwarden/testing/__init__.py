"""Contract checks for a plug-in's own test: collectors and launchers (detectors: `trainwarden.detectors.testing`).

Read `trainwarden.testing.plugin` first.
"""
