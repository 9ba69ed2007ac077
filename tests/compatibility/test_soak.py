"""`make soak` notices growth, and tells a peak from it. What it finds in the server is tested in tests/http/test_server_soak.py."""

import pytest

import soak
import support

pytestmark = [pytest.mark.ringloop_only, pytest.mark.any_backend]
MB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "grows"),
    [
        ([80] * 12, False),
        ([40, 60, 70, 75, 78, *[80] * 5], False),
        ([*[80] * 8, 200, 80, 80], False),
        ([80 + round_ for round_ in range(30)], True),
        ([*[80] * 9, *[95] * 3], True),
    ],
)
def test_growth_is_what_stays_after_the_first_rounds(sizes, grows):
    assert soak.memory_grows([size * MB for size in sizes]) is grows


def test_memory_that_was_returned_does_not_count():
    support.needs_gil()  # Without one, Python has another allocator, which gives memory back later.
    before = soak.resident_bytes()
    pieces = [bytes(1000) for _ in range(100_000)]
    held = soak.resident_bytes()
    del pieces
    assert held - before > 80 * MB
    assert soak.resident_bytes() - before < 40 * MB
