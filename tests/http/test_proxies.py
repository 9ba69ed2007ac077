"""X-Forwarded-For and X-Forwarded-Proto; uvicorn's middleware is the control."""

import asyncio

import pytest

from ringloop.http._proxies import TrustedProxies


def ours(trusted, scope):
    scope = {**scope, "headers": list(scope["headers"])}
    TrustedProxies(trusted).apply(scope)
    return scope["client"], scope["scheme"]


def uvicorns(trusted, scope):
    proxy_headers = pytest.importorskip(
        "uvicorn.middleware.proxy_headers", reason="uvicorn, the control, is not installed"
    )
    scope = {**scope, "headers": list(scope["headers"])}

    async def app(scope, receive, send):
        pass

    asyncio.run(proxy_headers.ProxyHeadersMiddleware(app, trusted)(scope, None, None))
    return scope["client"], scope["scheme"]


TRUSTED = [
    "127.0.0.1",
    "127.0.0.1,::1",
    ["127.0.0.1", "10.0.0.0/8"],
    "*",
    ["*"],
    "",
    [],
    "127.0.0.1, 10.0.0.0/8, fd00::/8, proxy.example",
    "10.0.0.1/8",
    "unix",
    "0:0:0:0:0:0:0:1",
]
PEERS = [("127.0.0.1", 1), ("::1", 1), ("10.1.1.1", 1), ("192.0.2.1", 1), ("proxy.example", 0), None, ("", 0)]
HEADERS = [
    [],
    [(b"x-forwarded-for", b"203.0.113.7")],
    [(b"x-forwarded-for", b"203.0.113.7, 10.0.0.1"), (b"x-forwarded-proto", b"https")],
    [(b"x-forwarded-for", b"evil, 203.0.113.7:99"), (b"x-forwarded-for", b"127.0.0.1")],
    [(b"x-forwarded-for", b"10.0.0.2, 10.0.0.1, 127.0.0.1")],
    [(b"x-forwarded-for", b"[2001:db8::1]:443")],
    [(b"x-forwarded-for", b"2001:db8::1, [::1]")],
    [(b"x-forwarded-for", b"[2001:db8::1")],
    [(b"x-forwarded-for", b"[::1]x, [::1]")],
    [(b"x-forwarded-for", b"")],
    [(b"x-forwarded-for", b" , 127.0.0.1")],
    [(b"x-forwarded-for", b"1.2.3.4:port")],
    [(b"x-forwarded-for", b"\xff" * 300)],
    [(b"x-forwarded-proto", b" wss ")],
    [(b"x-forwarded-proto", b"gopher")],
    [(b"x-forwarded-proto", b"http"), (b"x-forwarded-proto", b"https")],
]


@pytest.mark.parametrize("type", ["http", "websocket"])
@pytest.mark.parametrize("trusted", TRUSTED, ids=str)
def test_as_uvicorn(trusted, type):
    for peer in PEERS:
        for headers in HEADERS:
            scope = {"type": type, "client": peer, "scheme": "http", "headers": headers}
            assert ours(trusted, scope) == uvicorns(trusted, scope), (peer, headers)


@pytest.mark.parametrize("wrong", [b"\x85", b"\x1c", b"\t", b"\x9b", b"\xa0"])
@pytest.mark.parametrize("trusted", ["*", "127.0.0.1"])
def test_a_client_cannot_break_lines_of_the_log(trusted, wrong):
    """Some readers take U+0085 for the end of a line. uvicorn takes any name."""
    client = ("127.0.0.1", 1)
    forwarded = b'1.2.3.4%bINFO: 9.9.9.9:1 - "GET /admin HTTP/1.1" 200' % wrong
    scope = {"type": "http", "client": client, "scheme": "http", "headers": [(b"x-forwarded-for", forwarded)]}
    assert ours(trusted, scope)[0] == client


@pytest.mark.parametrize("port", ["-1", "8_0", "\u0661", "123456", ""])
def test_what_python_takes_for_a_number_is_no_port(port):
    forwarded = f"1.2.3.4:{port}".encode()
    scope = {"type": "http", "client": ("127.0.0.1", 1), "scheme": "http", "headers": [(b"x-forwarded-for", forwarded)]}
    assert ours("127.0.0.1", scope)[0] == (forwarded.decode("latin-1"), 0)
