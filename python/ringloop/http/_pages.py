"""The pages that the server answers itself, without the application: its health, metrics, and files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ._applications import Receive, Scope, Send

    _Handler = Callable[[Scope, Send], Awaitable[None]]
    _FolderHandler = Callable[[Scope, Send, bytes], Awaitable[None]]


class Pages:
    """An ASGI application of the server's own.

    The native server passes requests to it by their paths, whatever the interface of the user's application is, so that
    other requests have no extra cost. All paths are under `root_path`.
    """

    def __init__(self, root_path: str) -> None:
        self._root = root_path
        self._pages: dict[str, _Handler] = {}
        self._folders: dict[str, _FolderHandler] = {}
        self.unlogged: list[str] = []
        """The paths whose requests are not in the access log."""

    @property
    def paths(self) -> list[str]:
        """The paths of single pages."""
        return list(self._pages)

    @property
    def prefixes(self) -> list[str]:
        """The paths of folders, without a slash at the end."""
        return list(self._folders)

    def add_page(self, path: str, handler: _Handler, *, is_logged: bool) -> None:
        """Answer at a path. GET and HEAD are allowed."""
        self._pages[path] = handler
        if not is_logged:
            self.unlogged.append(path)

    def add_folder(self, prefix: str, handler: _FolderHandler) -> None:
        """Answer for a path, and for all under it. The handler also gets the rest of the path as the client wrote it."""
        self._folders[prefix] = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await send_text(send, 405, "Method Not Allowed", (b"allow", b"GET, HEAD"))
            return
        path: str = scope["path"][len(self._root) :]
        if (page := self._pages.get(path)) is not None:
            await page(scope, send)
            return
        # The innermost of those that were found natively.
        prefixes = (each for each in self._folders if path == each or path.startswith(each + "/"))
        prefix = max(prefixes, key=len)
        await self._folders[prefix](scope, send, scope["raw_path"][len(self._root.encode()) :])


async def send_text(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    """Answer with a line of text. The server drops the text if the request is HEAD."""
    body = text.encode()
    fields = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


def health(is_draining: Callable[[], Any]) -> _Handler:
    """Return the page for load balancers: 200, or 503 once the server has been told to shut down."""

    async def answer(_: Scope, send: Send) -> None:
        status, text = (503, "draining") if is_draining() else (200, "ok")
        await send_text(send, status, text, (b"cache-control", b"no-store"))

    return answer
