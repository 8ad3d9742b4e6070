"""Placeholder until the hook lands."""


def autoload() -> None:
    """Nothing yet."""
