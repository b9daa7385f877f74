"""Who calls: what an access file may say, and whom the metadata and the certificate of a call stand for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import structlog

from service_shell import watched_file
from service_shell.access import Access, Caller, parse_access
from service_shell.watched_file import FileError, WatchedFile


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


FILE = f"""
[tokens]
"{digest("of acme")}" = "acme"
"{digest("of an operator").upper()}" = "*"

[certificates]
"gateway.test" = "acme"
"spiffe://test/batch" = "batch"
"""


class Call:
    """What a call tells of its caller."""

    def __init__(self, authorization: str | None = None, names: Mapping[str, Sequence[bytes]] | None = None) -> None:
        self._metadata = () if authorization is None else (("x-other", "of acme"), ("authorization", authorization))
        self._names = names or {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return self._names


def dns(*names: bytes) -> dict[str, Sequence[bytes]]:
    return {"transport_security_type": [b"ssl"], "x509_subject_alternative_name": names}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "access.toml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize(
    ("call", "tenant"),
    [
        (Call("Bearer of acme"), "acme"),
        (Call("bearer  of acme "), "acme"),
        (Call("Bearer of an operator"), "*"),
        (Call("Bearer of nobody"), None),
        (Call("Bearer "), None),
        (Call("Bearer"), None),
        (Call("Basic of acme"), None),
        (Call("of acme"), None),
        (Call(f"Bearer {digest('of acme')}"), None),
        (Call(), None),
        (Call(None, dns(b"other.test", b"gateway.test")), "acme"),
        (Call(None, dns(b"spiffe://test/batch")), "batch"),
        (Call(None, {"x509_common_name": [b"gateway.test"]}), "acme"),
        (Call(None, dns(b"\xff", b"other.test")), None),
        (Call("Bearer of an operator", dns(b"gateway.test")), "*"),
        (Call("Bearer of nobody", dns(b"gateway.test")), None),
    ],
    ids=[
        "token",
        "spaces",
        "operator",
        "wrong token",
        "empty token",
        "no token",
        "other scheme",
        "no scheme",
        "hash of a token",
        "nothing",
        "certificate",
        "uri",
        "common name",
        "unknown certificate",
        "token before certificate",
        "wrong token with a certificate",
    ],
)
def test_a_caller_is_whom_its_token_or_else_its_certificate_stands_for(
    path: Path, call: Call, tenant: str | None
) -> None:
    assert Access(path).caller(call) == (None if tenant is None else Caller(tenant=tenant))


def test_an_operator_acts_for_everybody_and_a_tenant_for_itself() -> None:
    operator, acme = Caller(tenant="*"), Caller(tenant="acme")
    assert (operator.is_operator, operator.may_act_for("acme"), operator.may_act_for("")) == (True, True, True)
    assert (acme.is_operator, acme.may_act_for("acme"), acme.may_act_for("")) == (False, True, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lets nobody in"),
        ("[tokens]\n", "lets nobody in"),
        ("[tokens", "is no TOML"),
        ("[token]\n", "has 'token', which is neither"),
        ("tokens = 1", "has 'tokens', which is no table"),
        ('[tokens]\n"plain secret" = "acme"', "entry 1 of [tokens], whose key is not the SHA-256"),
        (f'[tokens]\n"{"0" * 63}" = "acme"', "whose key is not the SHA-256"),
        (f'[tokens]\n"{"0" * 64}" = ""', "entry 1 of [tokens] without the name of a tenant"),
        (f'[tokens]\n"{"0" * 64}" = 1', "without the name of a tenant"),
        ('[certificates]\n"a" = "x"\n"b" = {}', "entry 2 of [certificates] without"),
    ],
)
def test_a_file_that_nobody_understands_is_refused_and_no_token_in_it_is_repeated(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        parse_access(text)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def rewrite(path: Path, text: str) -> None:
    """With another time of writing, whatever the clock of the file system."""
    written = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(written + 10**9, written + 10**9))


def test_a_file_that_changes_is_read_again_and_what_is_wrong_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_file, "LOOK_INTERVAL_S", 0.0)
    path = tmp_path / "number"
    path.write_text("1")

    def parse(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise ValueError("is no number") from None

    file = WatchedFile("--number", path, parse)
    assert file.contents == 1
    with structlog.testing.capture_logs() as logs:
        rewrite(path, "2")
        assert (file.contents, file.contents) == (2, 2)
        rewrite(path, "secret")
        assert (file.contents, file.contents) == (2, 2)
        path.unlink()
        assert (file.contents, file.contents) == (2, 2)
        path.write_text("3")
        assert file.contents == 3
    assert [entry["event"] for entry in logs] == ["file_reloaded", "file_refused", "file_refused", "file_reloaded"]
    assert logs[1]["error"] == f"--number {path} is no number"
    assert "secret" not in str(logs)


def test_a_file_is_not_looked_at_again_at_once(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("before")
    file = WatchedFile("--text", path, str)
    rewrite(path, "after")
    assert file.contents == "before"


def test_a_file_that_cannot_be_used_at_the_start_is_told(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    with pytest.raises(FileError, match=r"cannot read --access-file .*: No such file or directory"):
        Access(path)
    path.write_bytes(b"\xff")
    with pytest.raises(FileError, match=r"--access-file .* 'utf-8' codec can't decode"):
        Access(path)
