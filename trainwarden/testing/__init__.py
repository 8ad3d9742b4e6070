"""Contract checks that a plug-in's own test calls, for collectors and launchers (detectors: `detectors.testing`).

Read `trainwarden.testing.plugin` first.
"""
