"""moto's S3 API that also refuses damaged bodies, as real stores do. Prints its URL, then serves."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
from typing import TYPE_CHECKING, Any, Final

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
from werkzeug.wrappers import Response

if TYPE_CHECKING:
    from collections.abc import Iterable

_REFUSAL: Final = "<?xml version='1.0'?><Error><Code>BadDigest</Code><Message>damaged</Message></Error>"


class Checking:
    """An application before which each digest that a request names is compared with its body."""

    def __init__(self, inner: Any) -> None:
        """Ask `inner` where the digests are right."""
        self.inner = inner

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if _damaged(environ, body):
            return Response(_REFUSAL, 400, content_type="application/xml")(environ, start_response)
        answer: Iterable[bytes] = self.inner(environ, start_response)
        return answer


def _damaged(environ: dict[str, Any], body: bytes) -> bool:
    signed = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "UNSIGNED-PAYLOAD")
    named = environ.get("HTTP_X_AMZ_CHECKSUM_SHA256")
    md5 = environ.get("HTTP_CONTENT_MD5")
    return (
        (signed != "UNSIGNED-PAYLOAD" and hashlib.sha256(body).hexdigest() != signed)
        or (named is not None and base64.b64encode(hashlib.sha256(body).digest()).decode() != named)
        or (md5 is not None and base64.b64encode(hashlib.md5(body).digest()).decode() != md5)
    )


def main() -> None:
    """Serve until the process is ended."""
    app = Checking(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    url = f"http://127.0.0.1:{server.server_port}"
    sys.stdout.write(url + "\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
