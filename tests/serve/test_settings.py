from __future__ import annotations

from pathlib import Path

import pytest

from quintet.errors import QuintetError
from quintet.serve.settings import Settings, is_loopback, read_token, tls_context

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_server_beyond_loopback_refuses_to_start_without_a_token(host: str) -> None:
    with pytest.raises(QuintetError, match="token is needed"):
        Settings(host=host)
    Settings(host=host, token=TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert is_loopback(host)
    assert Settings(host=host).token is None


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(QuintetError, match="can be guessed"):
        Settings(token="hunter2")


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(QuintetError, match="not an address"):
        Settings(host="no such host")


def test_the_token_comes_from_a_file_or_else_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINTET_TOKEN", "from-the-environment")
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
    assert read_token(None) == "from-the-environment"
    monkeypatch.setenv("QUINTET_TOKEN", "")
    assert read_token(None) is None
    file.write_text("\n")
    with pytest.raises(QuintetError, match="is empty"):
        read_token(file)
    with pytest.raises(QuintetError, match="does not exist"):
        read_token(tmp_path / "absent")


def test_a_certificate_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    assert tls_context(None, None) is None
    with pytest.raises(QuintetError, match="--tls-cert"):
        tls_context(None, tmp_path / "key.pem")
    (tmp_path / "cert.pem").write_text("not a certificate")
    for name in ("cert.pem", "absent.pem"):
        with pytest.raises(QuintetError, match=f"certificate.*{name}"):
            tls_context(tmp_path / name, None)


def test_proxies_are_addresses() -> None:
    assert Settings(proxies=("127.0.0.1", "10.0.0.0/8")).proxies
    with pytest.raises(QuintetError, match="proxy"):
        Settings(proxies=("my-proxy",))
