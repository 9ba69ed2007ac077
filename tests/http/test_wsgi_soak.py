"""`make soak ARGS="server --interface wsgi"`: random views answer as they must, and defects are noticed."""

import pytest

import server_soak
import wsgi_soak

pytestmark = [pytest.mark.ringloop_only, pytest.mark.any_backend(matters=True)]
SHORT = {"subject": wsgi_soak.WSGI, "minutes": 0, "seed": 1, "round_s": 0}
ROUNDS = server_soak.WARM_UP_ROUNDS + server_soak.LAST_ROUNDS


@pytest.mark.long
def test_random_views_for_some_rounds(arm, capsys):
    server_soak.soak([arm], **SHORT, once=(), rounds_min=ROUNDS)
    output = capsys.readouterr().out
    assert f"{arm} plain: " in output
    assert f"in {ROUNDS} rounds" in output


def test_random_views(arm):
    many = (wsgi_soak.views, wsgi_soak.http2_views, wsgi_soak.aborting_views)
    server_soak.soak([arm], **SHORT, kinds=("plain",), many=many, once=())


@pytest.mark.many_cases(short=2)
@pytest.mark.any_backend
@pytest.mark.parametrize(
    "what, message",
    [
        ("blocks", "blocks grow"),
        ("threads", "threads grow"),
        ("descriptors", r"'descriptors': \d+.* when all clients are gone"),
        ("sockets", r"'sockets': \d+.* when all clients are gone"),
        ("iterables", r"'iterables': \d+.* when all clients are gone"),
        ("twice", "closed twice"),
        ("response", "b'wrong' is not b'right'"),
        ("log", "ERROR:    not expected"),
        ("exit", "plain: leak, seed"),
    ],
)
def test_what_is_wrong_is_noticed(arm, monkeypatch, what, message):
    monkeypatch.setattr(server_soak, "SETTLING_S", 1)
    with pytest.raises(server_soak.Wrong, match=message):
        server_soak.soak(
            [arm], **SHORT, kinds=("plain",), many=(server_soak.leaking(what),), once=(), rounds_min=ROUNDS
        )


@pytest.mark.any_backend
@pytest.mark.parametrize("wrong", ["body", "status", "is_complete"])
def test_a_wrong_response_is_noticed(arm, monkeypatch, wrong):
    """The client expects another response than the view gives."""
    right = wsgi_soak.wsgi_plans.Plan.expected

    def expected(plan):
        found = right(plan)
        other = {"body": found.body + b"x", "status": found.status + 1, "is_complete": not found.is_complete}
        return wsgi_soak.dataclasses.replace(found, **{wrong: other[wrong]})

    monkeypatch.setattr(wsgi_soak.wsgi_plans.Plan, "expected", expected)
    with pytest.raises(server_soak.Wrong, match=r"plain: views, seed .*Plan\(number="):
        server_soak.soak([arm], **SHORT, kinds=("plain",), many=(wsgi_soak.views,), once=())
