"""``python -m trainwarden``: the command ``trainwarden``, for where its script is not on PATH."""

from trainwarden.cli.main import run

if __name__ == "__main__":
    run()
