"""Files of tokens: what each line means, and one sentence for each mistake."""

from __future__ import annotations

import pytest

from trainwarden.errors import ConfigError
from trainwarden.metrics_http.access import Person, Role, Tokens, digest_of


def written(tmp_path, text: str, mode: int = 0o600):
    path = tmp_path / "tokens"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_who_a_token_stands_for(tmp_path):
    kept = digest_of("another-long-token")
    path = written(tmp_path, f"# who\n\nann act a-long-long-token\nbob observe sha256:{kept}\n")
    tokens = Tokens.of_file(path)
    assert tokens.who("a-long-long-token") == Person("ann", "act")
    assert tokens.who("another-long-token") == Person("bob", "observe")
    assert tokens.who(kept) is None  # whoever reads the digest has no token
    assert tokens.who("") is None


def test_roles():
    roles: tuple[Role, ...] = ("observe", "approve", "act")
    assert [Person("x", role).may(needed) for role in roles for needed in roles] == [
        True, False, False, True, True, False, True, True, True,
    ]  # fmt: skip


def test_a_file_for_each_role_and_no_token_in_two_of_them(tmp_path):
    paths = [tmp_path / role for role in ("observe", "approve")]
    for path in paths:
        path.write_text(f"{path.name}r {path.name} token-of-the-{path.name}r\n")
        path.chmod(0o600)
    tokens = Tokens.of_files(paths)
    assert tokens.who("token-of-the-approver") == Person("approver", "approve")
    assert tokens.who("token-of-the-observer") == Person("observer", "observe")
    paths[0].write_text("ann observe token-of-the-approver\n")
    with pytest.raises(ConfigError, match="the token of approver stands in another file as well"):
        Tokens.of_files(paths)
    paths[0].write_text("ann observe a-long-long-token\nann act a-long-long-token\n")
    with pytest.raises(ConfigError, match="line 2: the token of ann stands above as well"):
        Tokens.of_files(paths)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ann act", "a line is NAME ROLE TOKEN"),
        ("ann root a-long-long-token", "the role is observe, approve or act, not 'root'"),
        ("ann act short", "16 characters at least"),
        ("ann act ein-schlüssel-mit-ü", "ASCII characters"),
        ("", "holds no token"),
    ],
)
def test_mistakes(tmp_path, line, said):
    with pytest.raises(ConfigError, match=said):
        Tokens.of_file(written(tmp_path, line + "\n"))


def test_a_token_in_clear_is_its_owners_alone(tmp_path):
    with pytest.raises(ConfigError, match="chmod 600"):
        Tokens.of_file(written(tmp_path, "ann act a-long-long-token\n", 0o644))
    assert Tokens.of_file(written(tmp_path, f"ann act sha256:{digest_of('x')}\n", 0o644)).who("x") is not None


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Tokens.of_file(tmp_path / "none")
