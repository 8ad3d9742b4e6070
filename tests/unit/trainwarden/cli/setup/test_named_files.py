"""`check-config` looks at the files and addresses that settings name: each mistake in one sentence, with its line."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from trainwarden.cli.setup.check_config import check_config
from trainwarden.errors import ConfigError

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)


def certificate(
    folder: Path, name: str, *, ends: datetime.timedelta = DAY, by: str | None = None, authority: bool = False
) -> None:
    """`name`.pem and `name`.key, signed by itself or with `by`.key; it began ten days ago and ends `ends` from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = by or name
    signing = key if by is None else _key(folder / f"{by}.key")
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - 10 * DAY)
        .not_valid_after(NOW + ends)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .sign(signing, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    clear = serialization.NoEncryption()
    held = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, clear)
    (folder / f"{name}.key").write_bytes(held)


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    certificate(folder, "good")
    certificate(folder, "old", ends=-DAY)
    certificate(folder, "ca", authority=True)
    certificate(folder, "old_ca", authority=True, ends=-DAY)
    certificate(folder, "node", by="ca")
    certificate(folder, "late", by="ca", ends=-DAY)
    (folder / "text").write_text("words, and no certificate\n")
    for name, held, mode in (
        ("tokens", "ann act a-long-secret-word\n", 0o600),
        ("open", "ann act a-long-secret-word\n", 0o644),
        ("twice", "bob observe a-long-secret-word\n", 0o600),
        ("wrong", "ann act a-long-secret-word\nbob reads another-long-word\n", 0o600),
        ("short", "abc\n", 0o600),
        ("shared", "one-word-that-nodes-share\n", 0o600),
    ):
        (folder / name).write_text(held)
        (folder / name).chmod(mode)
    os.mkfifo(folder / "pipe")
    return folder


def said(files: Path, text: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What is said of settings in which ``@`` stands for the folder of `files`."""
    path = files / "t.toml"
    path.write_text(text.replace("@", f"{files}/"))
    code = check_config(path)
    told = [line for line in capsys.readouterr().err.splitlines() if " note: " not in line]
    assert code == (2 if told else 0)
    return [line.removeprefix(f"trainwarden: {path}:").replace(f"{files}/", "@") for line in told]


SERVE = "[serve]\n"
LAUNCH = "[launch]\n"
TORCHRUN = '[engine]\nlauncher = "torchrun"\n[engine.launcher_settings]\nendpoint = "10.0.0.1:29401"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SERVE + 'tokens = "@none"', "2: serve.tokens: @none cannot be read (No such file or directory)"),
        (SERVE + 'tokens = "@pipe"', "2: serve.tokens: @pipe is a pipe, not a file"),
        (SERVE + 'tokens = "/dev/zero"', "2: serve.tokens: /dev/zero is a device, not a file"),
        (SERVE + 'tokens = "/"', "2: serve.tokens: / is a folder, not a file"),
        (SERVE + 'tokens = "@open"', "2: tokens: others may read @open; chmod 600 it"),
        (SERVE + 'tokens = "@wrong"', "2: tokens: @wrong, line 2: the role is observe, approve or act, not 'reads'"),
        (SERVE + 'tokens = ["@tokens", "@twice"]', "2: tokens: @twice: the token of bob stands in another file"),
        (SERVE + 'slack_secret_file = "@short"', "2: serve.slack_secret_file: @short holds fewer than 16 bytes"),
        (SERVE + 'grafana_secret_file = "@pipe"', "2: serve.grafana_secret_file: @pipe is a pipe, not a file"),
        (SERVE + 'tls_certificate = "@good.pem"', "2: serve: tls_certificate and tls_key need each other"),
        (
            SERVE + 'tls_certificate = "@good.pem"\ntls_key = "@none"',
            "3: serve.tls_key: @none cannot be read (No such file or directory)",
        ),
        (
            SERVE + 'tls_certificate = "@good.pem"\ntls_key = "@old.key"',
            "2: serve.tls_certificate: @good.pem with @old.key cannot be used (key values mismatch)",
        ),
        (
            SERVE + 'tls_certificate = "@text"\ntls_key = "@good.key"',
            "2: serve.tls_certificate: @text with @good.key cannot be used",
        ),
        (
            SERVE + 'tls_certificate = "@old.pem"\ntls_key = "@old.key"',
            "2: serve.tls_certificate: @old.pem: certificate has expired",
        ),
        (
            SERVE + 'tls_certificate = "@good.pem"\ntls_key = "@good.key"\ntls_client_ca = "@old_ca.pem"',
            "4: serve.tls_client_ca: @old_ca.pem: certificate has expired",
        ),
        (
            LAUNCH + 'tls_ca = "@ca.pem"\ntls_certificate = "@late.pem"\ntls_key = "@late.key"',
            "2: launch: @late.pem by @ca.pem: certificate has expired",
        ),
        (
            LAUNCH + 'tls_ca = "@old_ca.pem"\ntls_certificate = "@node.pem"\ntls_key = "@node.key"',
            "2: launch: @node.pem by @old_ca.pem: unable to get local issuer certificate",
        ),
        (LAUNCH + 'tls_key = "@node.key"', "2: tls: the authority (tls-ca), the certificate and its key need each"),
        (TORCHRUN.replace("29401", ""), "4: launcher_settings.endpoint: '10.0.0.1:' is not HOST:PORT"),
        (TORCHRUN + 'token_file = "@short"', "5: token: @short has to hold one word of 16 characters at least"),
        (TORCHRUN + 'tls_ca = "@none"', "5: engine.launcher_settings.tls_ca: @none cannot be read"),
        ('[kafka]\ntls = true\nca_file = "/"', "3: kafka.ca_file: / is a folder, not a file"),
        (
            '[kafka]\ntls = true\ncert_file = "@old.pem"\nkey_file = "@old.key"',
            "3: kafka.cert_file: @old.pem: certificate has expired",
        ),
        ('[kafka]\ntls = true\ncert_file = "@good.pem"', "1: kafka: cert_file and key_file are given together"),
        ('[commands]\nkey = "@pipe"', "2: commands.key: @pipe is a pipe, not a file"),
        ('metrics_web_config = "/dev/zero"', "1: metrics_web_config: /dev/zero is a device, not a file"),
    ],
)
def test_what_settings_name_is_looked_at(
    files: Path, text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (told,) = said(files, text, capsys)
    assert told.startswith(sentence)


def test_all_that_is_wrong_with_a_launcher_is_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TORCHRUN.replace(":29401", "") + 'token_file = "@open"\ntls_ca = "@none"\n'
    assert [line.partition(":")[0] for line in said(files, text, capsys)] == ["4", "5", "6"]


def test_files_that_are_right_are_fine(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tls = 'tls_ca = "@ca.pem"\ntls_certificate = "@node.pem"\ntls_key = "@node.key"\n'
    serve = 'tls_certificate = "@good.pem"\ntls_key = "@good.key"\ntls_client_ca = "@ca.pem"\n'
    kafka = '[kafka]\ntls = true\nca_file = "@ca.pem"\ncert_file = "@good.pem"\nkey_file = "@good.key"\n'
    text = f'{SERVE}tokens = "@tokens"\nslack_secret_file = "@shared"\n{serve}{LAUNCH}{tls}{kafka}'
    assert said(files, text + f'{TORCHRUN}token_file = "@shared"\n{tls}', capsys) == []


def test_a_certificate_that_is_out_of_date_in_a_web_configuration_is_said(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "web.yml").write_text("tls_server_config: {cert_file: old.pem, key_file: old.key}")
    told = said(files, 'metrics_web_config = "@web.yml"', capsys)
    assert told == ["1: @web.yml: @old.pem: certificate has expired"]


@pytest.mark.parametrize(
    ("name", "why"),
    [("/dev/zero", "is a device, not a file"), ("pipe", "is a pipe, not a file"), (".", "is a folder, not a file")],
)
def test_what_is_no_file_is_one_sentence(files: Path, name: str, why: str) -> None:
    """A device may have no end, and at a pipe that nobody fills one would wait for ever."""
    with pytest.raises(ConfigError, match=why):
        check_config(files / name)


def test_a_settings_file_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_bytes(b"#" * 2_000_000)
    with pytest.raises(ConfigError, match="has more than 1048576 bytes"):
        check_config(path)


def test_a_number_of_thousands_of_digits_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text("a = " + "1" * 5_000)
    with pytest.raises(ConfigError, match="is not valid TOML"):
        check_config(path)
