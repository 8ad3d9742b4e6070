"""Certificates of an authority of our own, good and bad ones."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)


class Authority:
    """An authority whose own certificate is at `ca`, and who signs others into `folder`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.ca = str(folder / f"{name}.pem")
        basic = x509.BasicConstraints(ca=True, path_length=0)
        made = self._builder(self._name, self._key, ends=DAY).add_extension(basic, critical=True)
        self._write(Path(self.ca), made)

    def issue(self, name: str, *sans: str, ends: datetime.timedelta = DAY) -> tuple[str, str]:
        """Files of a certificate and its key for the names and addresses `sans`; out of date if `ends` is negative."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        names = [_san(san) for san in sans or (name,)]
        made = self._builder(subject, key, ends=ends).add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate, key_file = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        self._write(certificate, made)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return str(certificate), str(key_file)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ends: datetime.timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 9 * DAY)
            .not_valid_after(now + ends)
        )

    def _write(self, path: Path, made: x509.CertificateBuilder) -> None:
        path.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _san(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
