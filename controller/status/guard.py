"""Authorization of the status page: TokenReview, then SubjectAccessReview for `get` on PATH.

Verdicts are cached for KEPT_SECONDS, keyed by the token's digest, never by the token. Reviews of
unknown tokens are rate-limited, so guessed tokens cannot flood the API server.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

PATH = "/pyvgpu/status"  # as a ClusterRole lists it under nonResourceURLs
VERB = "get"
KEPT_SECONDS = 15.0  # lifetime of a cached verdict
MOST_KEPT = 256
MOST_NEW = 20  # reviews of tokens not known to be allowed, per KEPT_SECONDS
LONGEST_TOKEN = 16 << 10
TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclasses.dataclass(frozen=True, slots=True)
class AccessVerdict:
    """Whether a request may see the page, as an HTTP status."""

    code: int  # 200: allowed
    why: str = ""  # if not allowed


NO_TOKEN = AccessVerdict(401, "This page requires a token of the cluster.")
NO_SUCH = AccessVerdict(
    401, "The cluster does not know this token: it may have expired, or belong to another cluster."
)
TOO_MANY = AccessVerdict(429, "Too many unknown tokens were sent: try again in some seconds.")
UNAVAILABLE = AccessVerdict(
    503, "The API server is unavailable, so this token cannot be reviewed: try again soon."
)


@dataclasses.dataclass(slots=True)
class _CachedVerdict:
    verdict: AccessVerdict
    until: float


class TokenGuard:
    """Authorizes bearer tokens; thread-safe."""

    def __init__(
        self, api: apiserver.ApiServer, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._clock = clock
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[bytes, _CachedVerdict] = collections.OrderedDict()
        self._new: collections.deque[float] = collections.deque(maxlen=MOST_NEW)

    def check(self, fields: Mapping[str, str]) -> AccessVerdict:
        """Return whether a request with headers *fields* (lower-case names) may see the page."""
        kind, _, token = fields.get("authorization", "").partition(" ")
        token = token.strip()
        if kind.lower() != "bearer" or not token:
            return NO_TOKEN
        if len(token) > LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            return NO_SUCH
        digest = hashlib.sha256(token.encode()).digest()
        now = self._clock()
        with self._lock:
            known = self._known.get(digest)
            if known is not None and now < known.until:
                return known.verdict
            if (known is None or known.verdict.code != 200) and not self._may_ask(now):
                return TOO_MANY
        return self._keep(digest, self._asked(token))

    def _may_ask(self, now: float) -> bool:
        if len(self._new) == MOST_NEW and now - self._new[0] < KEPT_SECONDS:
            return False
        self._new.append(now)
        return True

    def _keep(self, digest: bytes, verdict: AccessVerdict) -> AccessVerdict:
        if verdict is not UNAVAILABLE:
            with self._lock:
                self._known[digest] = _CachedVerdict(verdict, self._clock() + KEPT_SECONDS)
                self._known.move_to_end(digest)
                while len(self._known) > MOST_KEPT:
                    self._known.popitem(last=False)
        return verdict

    def _asked(self, token: str) -> AccessVerdict:
        try:
            status = self._review(TOKENS, "authentication", "TokenReview", {"token": token})
            if status.get("authenticated") is not True:
                return NO_SUCH
            user = objects.section(status, "user")
            name = str(user.get("username") or "")
            spec = {
                "user": name,
                "uid": str(user.get("uid") or ""),
                "groups": list(objects.words(user, "groups")),
                "extra": dict(objects.section(user, "extra")),
                "nonResourceAttributes": {"path": PATH, "verb": VERB},
            }
            status = self._review(ACCESS, "authorization", "SubjectAccessReview", spec)
        except apiserver.ServerError as exc:
            log.warning("could not review a token for the status page: %s", exc)
            return UNAVAILABLE
        if status.get("allowed") is True:
            return AccessVerdict(200)
        return AccessVerdict(403, f"{name} may not {VERB} {PATH}; a ClusterRole can grant it.")

    def _review(self, path: str, group: str, kind: str, spec: Mapping[str, Any]) -> objects.Object:
        body = {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec}
        return objects.section(self._api.call("POST", path, body=body), "status")
