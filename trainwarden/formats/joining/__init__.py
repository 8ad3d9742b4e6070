"""One job from all that its files hold: tables joined, ranks and nodes named after files.

Read `trainwarden.formats.joining.joined` first.
"""
