"""Request bodies, never larger than allowed."""

from __future__ import annotations

from fastapi import HTTPException, Request


async def read(request: Request, limit: int) -> bytes:
    """The body.

    Raises:
        HTTPException: 413, as soon as it is known to exceed `limit` bytes.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > limit:
            raise _too_large(limit)
    return bytes(content)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the body is too large: at most {limit >> 20} MiB")
