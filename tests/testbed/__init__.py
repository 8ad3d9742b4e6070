"""Several nodes on one machine, for tests. Read `tests.testbed.nodes` first."""
