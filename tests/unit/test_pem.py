"""Which certificates and keys a service takes, and what it says of others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from service_shell.pem import PemFile, TlsError, read_authorities, read_identity
from support.certificates import Authority, Identity


def files(identity: Identity) -> tuple[PemFile, PemFile]:
    return PemFile(flag="--certificate", path=identity.certificate), PemFile(flag="--key", path=identity.key)


def encrypt(key: Path) -> None:
    private_key = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        private_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )


def test_a_pair_is_taken_as_it_stands_in_its_files(authority: Authority) -> None:
    expires = datetime(2090, 1, 1, tzinfo=UTC)
    identity = authority.sign("service", expires=expires)
    read = read_identity(*files(identity))
    assert read.certificate_chain == identity.certificate.read_bytes()
    assert read.key == identity.key.read_bytes()
    assert read.expires == expires


def test_a_chain_expires_with_the_first_of_it(authority: Authority, tmp_path: Path) -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    short = authority.sign("other", expires=soon)
    identity = authority.sign("service")
    identity.certificate.write_bytes(identity.certificate.read_bytes() + short.certificate.read_bytes())
    assert read_identity(*files(identity)).expires == soon


def test_what_has_expired_is_told_with_its_time(authority: Authority) -> None:
    identity = authority.sign("service", expires=datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC))
    with pytest.raises(TlsError, match=r"^--certificate .*service.pem expired at 2020-02-03 04:05:06 UTC$"):
        read_identity(*files(identity))


def test_a_key_of_another_certificate_is_told(authority: Authority) -> None:
    certificate, _ = files(authority.sign("one"))
    _, key = files(authority.sign("other"))
    with pytest.raises(TlsError, match=r"^--certificate .*one.pem and --key .*other.key do not belong together$"):
        read_identity(certificate, key)


@pytest.mark.parametrize("content", [b"", b"none", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_is_told(authority: Authority, content: bytes) -> None:
    certificate, key = files(authority.sign("service"))
    certificate.path.write_bytes(content)
    with pytest.raises(TlsError, match=r"^--certificate .*service.pem holds no certificate$"):
        read_identity(certificate, key)
    with pytest.raises(TlsError, match=r"^--certificate .*service.pem holds no certificate$"):
        read_authorities(certificate)


def test_a_key_that_wants_a_password_is_told(authority: Authority) -> None:
    certificate, key = files(authority.sign("service"))
    encrypt(key.path)
    with pytest.raises(TlsError, match=r"^--key .*service.key holds no key that is not encrypted$"):
        read_identity(certificate, key)


def test_a_file_that_cannot_be_read_is_told(authority: Authority, tmp_path: Path) -> None:
    certificate, key = files(authority.sign("service"))
    key.path.unlink()
    with pytest.raises(TlsError, match=r"^cannot read --key .*service.key: No such file or directory$"):
        read_identity(certificate, key)
    with pytest.raises(TlsError, match=r"^cannot read --ca .*: Is a directory$"):
        read_authorities(PemFile(flag="--ca", path=tmp_path))


def test_authorities_are_one_or_more(authority: Authority, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(authority.ca.read_bytes() + Authority(tmp_path / "other").ca.read_bytes())
    assert read_authorities(PemFile(flag="--ca", path=bundle)) == bundle.read_bytes()
