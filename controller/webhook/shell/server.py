"""HTTPS server for the API server's AdmissionReviews: one mutation per path."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.webhook import review
from pyvgpu.http import replies, tls_server

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping


class WebhookServer(tls_server.TlsServer):
    """Serves *routes*, a mutation for each path, until ``shutdown``."""

    def __init__(
        self,
        address: tuple[str, int],
        routes: Mapping[str, review.Mutation],
        context: Callable[[], ssl.SSLContext],
        observe: Callable[[str, str, float], None],
    ) -> None:
        """Listen; *observe* is called with the path, result and seconds of each request."""
        answers = {path: functools.partial(_answer, route) for path, route in routes.items()}
        super().__init__(address, answers, context, observe)


def _answer(mutation: review.Mutation, content: bytes) -> replies.Reply:
    try:
        request = review.read(content)
    except errors.DataError as exc:
        return replies.Reply(str(exc).encode(), "bad request", 400)
    answer = review.ask(mutation, request)
    return replies.Reply(review.write(request, answer), _result(answer))


def _result(answer: review.Review) -> str:
    if answer.failed:
        return "failed"
    if answer.refusal:
        return "refused"
    return "changed" if answer.operations else "unchanged"
