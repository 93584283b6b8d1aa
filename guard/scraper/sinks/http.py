# SPDX-License-Identifier: GPL-2.0-or-later
"""One POST for a batch, and what its answer means. World room; by urllib3 (extra `scraper`)."""

import email.utils
import gzip
import time

from guard.base.faults import NodeFault
from guard.scraper.limits import ATTEMPT_S, RETRY_AFTER_MAX_S, SINK_BATCH_BYTES, SINK_BATCH_RECORDS
from guard.scraper.sinks.verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from guard.scraper.sinks.verdict import Item

_ANSWER_MAX_BYTES = 16 << 20
_SAID_MAX_CHARACTERS = 300
_TOO_LARGE = 413
BLAMES_CONTENT = (400, 406, _TOO_LARGE, 422)


class Answer:
    """status: of HTTP; body: at most 16 MiB of it; retry_after_s: what the peer asks us to wait, None for nothing."""

    __slots__ = ("body", "retry_after_s", "status")

    def __init__(self, status: int, body: bytes, retry_after_s: "float | None") -> None:
        self.status = status
        self.body = body
        self.retry_after_s = retry_after_s

    def said(self) -> str:
        """The answer for a person."""
        text = self.body[:_SAID_MAX_CHARACTERS].decode("utf-8", "replace").strip()
        return f"HTTP {self.status} {text}".strip()


class Poster:
    """Posts to one URL. headers: of every request, the credentials among them; ca_file: instead of the system's."""

    def __init__(self, url: str, headers: "dict[str, str]", ca_file: "str | None") -> None:
        import urllib3

        self._url = url
        self._headers = {"User-Agent": "eessi-arch-guard", **headers}
        self._errors = (urllib3.exceptions.HTTPError, OSError)
        more: "dict[str, Any]" = {"ca_certs": ca_file} if ca_file else {}
        # No retries and no redirects of its own: each attempt is ours to count, and credentials go nowhere else.
        self._pool = urllib3.PoolManager(
            retries=False, timeout=urllib3.Timeout(connect=ATTEMPT_S, read=ATTEMPT_S), maxsize=1, **more
        )

    def post(self, body: bytes, content_type: str) -> Answer:
        """Sends body, gzipped. Raises: NodeFault(sink-failed) - no whole answer came."""
        headers = {**self._headers, "Content-Type": content_type, "Content-Encoding": "gzip"}
        try:
            # Level 1: the node's CPU belongs to jobs, and log lines shrink tenfold at any level.
            response = self._pool.request(
                "POST",
                self._url,
                body=gzip.compress(body, 1, mtime=0),
                headers=headers,
                preload_content=False,
                redirect=False,
            )
            try:
                data = response.read(_ANSWER_MAX_BYTES)
            finally:
                response.release_conn()
        except self._errors as error:
            raise NodeFault("sink-failed", f"{self._url}: {error}"[:_SAID_MAX_CHARACTERS])
        return Answer(response.status, data, _retry_after_s(response.headers.get("Retry-After"), time.time()))

    def close(self) -> None:
        """Ends the connections."""
        self._pool.clear()


class HttpSink:
    """A sink whose batch is one request; what a kind of store differs in is request and read."""

    content_type = "application/json"
    lines_max = SINK_BATCH_RECORDS
    bytes_max = SINK_BATCH_BYTES

    def __init__(self, poster: Poster) -> None:
        self._poster = poster

    def request(self, items: "list[Item]") -> bytes:
        """The request's body for a batch."""
        raise NotImplementedError

    def read(self, _answer: Answer, _count: int) -> Verdict:
        """What an answer with a 2xx says of the batch: all is well, where the store has no more to say."""
        return Verdict()

    def send(self, items: "list[Item]") -> Verdict:
        """Posts the batch. Raises: NodeFault(sink-failed)."""
        answer = self._poster.post(self.request(items), self.content_type)
        return verdict(answer, len(items)) or self.read(answer, len(items))

    def reopen(self) -> None:
        """Nothing to do."""

    def idle(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Ends the connections."""
        self._poster.close()


def verdict(answer: Answer, count: int) -> "Verdict | None":
    """What an answer that speaks of the batch as a whole means; None for 2xx, which may still speak of single items.

    Only 400, 406, 413 and 422 blame the content. All else, 401 and 404 too, is a matter of the peer or of its
    configuration, and no reason to lose a line. Pure.
    """
    if 200 <= answer.status < 300:
        return None
    if answer.status in BLAMES_CONTENT:
        return Verdict(split="too-large" if answer.status == _TOO_LARGE else "refused", why=answer.said())
    return Verdict(retry=list(range(count)), wait_s=answer.retry_after_s, why=answer.said())


def _retry_after_s(text: "str | None", now_s: float) -> "float | None":
    """Seconds from the header, which holds seconds or a date (RFC 9110, 10.2.3)."""
    if not text:
        return None
    try:
        return min(RETRY_AFTER_MAX_S, max(0.0, float(text)))
    except ValueError:
        pass
    try:
        return min(RETRY_AFTER_MAX_S, max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now_s))
    except (TypeError, ValueError):
        return None
