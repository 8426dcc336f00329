from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from rlctl.clients.reward import RewardClient
from rlctl.core.errors import AuthenticationError, ConfigError, DeadlineError
from rlctl.rpc.address import is_loopback, split_address
from rlctl.rpc.auth import check, read_token
from rlctl.rpc.channel import Channel
from rlctl.rpc.config import ChannelConfig, TLSConfig
from rlctl.rpc.metrics import serve_metrics
from support.certificates import Authority
from support.scoring import LengthService, items

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.7:0", "no-such-host.invalid:0"])
async def test_a_plaintext_bind_outside_loopback_is_refused(serve, listen: str) -> None:
    with pytest.raises(ConfigError, match=r"needs TLS: set tls\.cert"):
        await serve(LengthService(), listen=listen)


def test_a_plaintext_metrics_page_outside_loopback_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"metrics_listen: '0\.0\.0\.0:0' .* needs TLS"):
        serve_metrics("0.0.0.0:0")


@pytest.mark.parametrize(
    "host, loopback",
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("::", False)],
)
def test_loopback_is_told_from_the_rest(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("address", ["", "host", ":5", "host:", "host:x", "host:70000", "::1:5", "host:-1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is no address; write host:port"):
        split_address(address)


async def test_tls_serves_outside_loopback_to_those_who_know_the_authority(
    serve, connect, authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue("server")
    service = await serve(LengthService(), listen="0.0.0.0:0", tls={"cert": pair.cert, "key": pair.key})
    address = service.address.replace("0.0.0.0", "127.0.0.1")
    pool = connect(address, tls={"ca": authority.cert})
    assert (await RewardClient(pool).score(items("x"))).scores[0].reward == 3

    other = Authority(tmp_path, "other")
    stranger = connect(address, tls={"ca": other.cert}, timeout_s=1.0)
    with pytest.raises(DeadlineError, match=r"(?i)certificate"):
        await RewardClient(stranger).score(items("x"))
    plain = connect(address, timeout_s=1.0)
    with pytest.raises(DeadlineError):
        await RewardClient(plain).score(items("x"))


async def test_listening_everywhere_needs_an_address_to_tell(serve, authority: Authority) -> None:
    pair = authority.issue("server")
    tls = {"cert": pair.cert, "key": pair.key}
    with pytest.raises(ConfigError, match="set advertise to the host:port that clients reach"):
        await serve(LengthService(), listen="0.0.0.0:0", tls=tls, registry={"url": "nats://127.0.0.1:1"})


async def test_a_server_name_other_than_the_address_is_checked(serve, connect, authority: Authority) -> None:
    pair = authority.issue("generation.internal")
    service = await serve(LengthService(), tls={"cert": pair.cert, "key": pair.key})
    good = connect(service.address, tls={"ca": authority.cert, "server_name": "generation.internal"})
    assert (await RewardClient(good).score(items("x"))).scores[0].reward == 3
    bad = connect(service.address, tls={"ca": authority.cert, "server_name": "someone.else"}, timeout_s=1.0)
    with pytest.raises(DeadlineError):
        await RewardClient(bad).score(items("x"))


async def test_mutual_tls_demands_a_certificate_of_the_authority(
    serve, connect, authority: Authority, tmp_path: Path
) -> None:
    pair, own = authority.issue("server"), authority.issue("client")
    service = await serve(LengthService(), tls={"cert": pair.cert, "key": pair.key, "ca": authority.cert})
    known = connect(service.address, tls={"ca": authority.cert, "cert": own.cert, "key": own.key})
    assert (await RewardClient(known).score(items("x"))).scores[0].reward == 3
    nameless = connect(service.address, tls={"ca": authority.cert}, timeout_s=1.0)
    with pytest.raises(DeadlineError):
        await RewardClient(nameless).score(items("x"))
    forged = Authority(tmp_path, "forger").issue("forged")
    stranger = connect(
        service.address, tls={"ca": authority.cert, "cert": forged.cert, "key": forged.key}, timeout_s=1.0
    )
    with pytest.raises(DeadlineError):
        await RewardClient(stranger).score(items("x"))


async def test_a_key_that_is_not_the_certificates_is_told_at_start(serve, authority: Authority) -> None:
    one, two = authority.issue("one"), authority.issue("two")
    with pytest.raises(ConfigError, match="belong together"):
        await serve(LengthService(), tls={"cert": one.cert, "key": two.key})
    with pytest.raises(ConfigError, match=r"both tls\.cert and tls\.key"):
        await serve(LengthService(), tls={"cert": one.cert})
    with pytest.raises(ConfigError, match="cannot read"):
        await serve(LengthService(), tls={"cert": one.cert, "key": one.key.with_name("none.key")})


async def test_a_token_is_demanded_where_one_is_set(serve, connect, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret-token\n")
    wrong = tmp_path / "wrong"
    wrong.write_text("other")
    hosted = LengthService()
    service = await serve(hosted, token_file=file)
    assert (await RewardClient(connect(service.address, token_file=file)).score(items("x"))).scores[0].reward == 3
    with pytest.raises(AuthenticationError, match="set token_file") as missing:
        await RewardClient(connect(service.address)).score(items("x"))
    assert missing.value.reason == "TOKEN_MISSING"
    with pytest.raises(AuthenticationError) as refused:
        await RewardClient(connect(service.address, token_file=wrong)).score(items("x"))
    assert refused.value.reason == "TOKEN_WRONG"
    assert "s3cret" not in refused.value.message
    assert hosted.servicer.calls == 1


async def test_the_token_comes_from_the_environment_too(serve, connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCTL_TOKEN", "from-env")
    service = await serve(LengthService())
    assert (await RewardClient(connect(service.address)).score(items("x"))).scores[0].reward == 3
    with pytest.raises(AuthenticationError):
        check("Bearer other", read_token(None) or "")


def test_a_token_that_cannot_be_sent_is_refused_without_showing_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for text, words in [("", "is empty"), ("two words", "visible ASCII"), ("schlüssel", "visible ASCII")]:
        file.write_text(text)
        with pytest.raises(ConfigError, match=words) as caught:
            read_token(file)
        assert not text or text not in caught.value.message
    with pytest.raises(ConfigError, match="cannot read"):
        read_token(tmp_path / "missing")


async def test_a_token_never_leaves_the_machine_in_plaintext(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret")
    with pytest.raises(ConfigError, match="over TLS only"):
        Channel("reward", "192.0.2.7:5", ChannelConfig(token_file=file))


def test_the_metrics_page_speaks_tls_and_demands_the_token(authority: Authority) -> None:
    pair = authority.issue("server")
    page = serve_metrics("0.0.0.0:0", TLSConfig(cert=pair.cert, key=pair.key), "s3cret")
    url = f"https://{page.address.replace('0.0.0.0', '127.0.0.1')}/metrics"
    context = ssl.create_default_context(cafile=str(authority.cert))
    try:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url, context=context, timeout=10)
        assert caught.value.code == 401
        request = urllib.request.Request(url, headers={"Authorization": "Bearer s3cret"})
        with urllib.request.urlopen(request, context=context, timeout=10) as answer:
            assert b"rlctl_rpc_calls_total" in answer.read()
    finally:
        page.close()
