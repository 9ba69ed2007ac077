"""The smallest ASGI application: it says hello to everyone. Run it with `ringloop serve hello_asgi:app`."""

from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Answer each HTTP request."""
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    body = b"hello from ringloop\n"
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
