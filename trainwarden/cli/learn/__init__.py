"""Commands from what was recorded to models: annotate, train, models."""
