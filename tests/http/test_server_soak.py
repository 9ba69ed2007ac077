"""`make soak ARGS=server` notices each kind of defect that it is there for."""

import pytest

import server_soak

pytestmark = [pytest.mark.ringloop_only, pytest.mark.any_backend]
SHORT = {"minutes": 0, "seed": 1, "kinds": ("plain",), "round_s": 0}
ROUNDS = server_soak.WARM_UP_ROUNDS + server_soak.LAST_ROUNDS


def test_a_good_server_passes(arm, capsys):
    many = (server_soak.keep_alive, server_soak.websocket_messages, server_soak.http2_requests)
    server_soak.soak([arm], **SHORT | {"kinds": ("plain", "TLS")}, many=many, once=(server_soak.failing,))
    output = capsys.readouterr().out
    assert f"{arm} plain: 10 clients in 1 rounds" in output
    assert f"{arm} TLS: 10 clients in 1 rounds" in output


@pytest.mark.many_cases(short=2)
@pytest.mark.parametrize(
    "what, message",
    [
        ("blocks", "blocks grow"),
        ("resident", "resident grow"),
        ("descriptors", "descriptors grow"),
        ("threads", "threads grow"),
        ("tasks", r"'tasks': \d+} when all clients are gone"),
        ("sockets", r"'sockets': \d+} when all clients are gone"),
        ("response", "b'wrong' is not b'right'"),
        ("log", "ERROR:    not expected"),
        ("exit", "plain: leak, seed"),
    ],
)
def test_what_is_wrong_is_noticed(arm, monkeypatch, what, message):
    monkeypatch.setattr(server_soak, "SETTLING_S", 1)
    many = (server_soak.leaking(what), server_soak.keep_alive)
    with pytest.raises(server_soak.Wrong, match=message):
        server_soak.soak([arm], **SHORT, many=many, once=(), rounds_min=ROUNDS)


def test_a_server_that_does_not_end_well_is_noticed(arm):
    with pytest.raises(server_soak.Wrong, match="has not ended by SIGTERM"):
        server_soak.soak([arm], **SHORT, many=(server_soak.leaking("signal"),), once=())
