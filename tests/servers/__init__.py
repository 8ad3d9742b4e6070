"""Real servers that tests start themselves. Each says why it cannot run here, if it cannot."""
