"""trainwarden: a streaming anomaly-detection and observability pipeline for LLM training."""

__version__ = "0.1.0"
