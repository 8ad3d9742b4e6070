"""Policy, planners, the engine and the launchers."""
