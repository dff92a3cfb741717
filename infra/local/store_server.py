"""ClickHouse's HTTP interface over the embedded engine: `python -m infra.local.store_server --path DIR --port N --token-file F`.

In: requests of the unmodified clickhouse-connect client, of clickhouse-migrations and of Grafana's data source. Out: what a
server would answer. One process owns the data folder, all others come here. Listens on the loopback address only; its door is
store_door. Started by infra.local.store.

Not served: ClickHouse's own block compression (compress=1), external tables, streaming of half-done results (answers are whole).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from infra.local.ports import LOOPBACK
from infra.local.store_door import AUTHENTICATION_FAILED, host_refused, token_fits, token_given
from infra.local.store_engine import Answer, Engine, EngineError, Question
from infra.local.store_wire import compress, decompress

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

THREADS = 6  # statements that run at once
# Who asks again just as an idle connection is closed meets a reset; uvicorn closes after 5 s, a pause of any busy machine.
KEEP_ALIVE_S = 75
LARGEST_BODY_BYTES = 512 * 1024 * 1024
# Of the request's URL, these are no settings.
TRANSPORT = frozenset(
    {
        *("query", "database", "default_format", "user", "password", "session_id", "session_timeout", "session_check"),
        *("query_id", "quota_key", "role", "readonly", "compress", "decompress", "enable_http_compression"),
        *("wait_end_of_query", "buffer_size", "client_protocol_version", "stacktrace", "send_progress_in_http_headers"),
        *("http_headers_progress_interval_ms", "cancel_http_readonly_queries_on_client_close"),
    }
)
HTTP_STATUS = {516: 403, 164: 403, 497: 403, 62: 400, 60: 404, 81: 404, 47: 404, 202: 503}


class StoreService:
    """Answers requests; one for the process."""

    def __init__(self, engine: Engine, token: str, port: int) -> None:
        self.engine = engine
        self._token = token
        self._port = port
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="statement")

    async def ping(self, request: Request) -> Response:
        """ClickHouse's liveness check; says nothing about the data, so it asks for no token."""
        from starlette.responses import PlainTextResponse

        refused = host_refused(request.headers, self._port)
        return PlainTextResponse(refused, status_code=403) if refused else PlainTextResponse("Ok.\n")

    async def statement(self, request: Request) -> Response:
        """One statement."""
        query_id = request.query_params.get("query_id") or str(uuid.uuid4())
        try:
            self._admit(request)
            question = await self._question(request)
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, self.engine.ask, question)
        except EngineError as problem:
            return _error(problem, query_id)
        except (ValueError, UnicodeDecodeError) as problem:
            return _error(EngineError(36, f"Code: 36. DB::Exception: {problem}. (BAD_ARGUMENTS)"), query_id)
        return _answer(answer, request, query_id)

    def close(self) -> None:
        """Waits for running statements, then closes the engine."""
        self._threads.shutdown(wait=True)
        self.engine.close()

    def _admit(self, request: Request) -> None:
        refused = host_refused(request.headers, self._port)
        if not refused and not token_fits(token_given(request.headers, request.query_params), self._token):
            refused = "the password is not this store's token"
        if refused:
            text = f"Code: {AUTHENTICATION_FAILED}. DB::Exception: {refused}. (AUTHENTICATION_FAILED)"
            raise EngineError(AUTHENTICATION_FAILED, text)

    @staticmethod
    async def _question(request: Request) -> Question:
        given = dict(request.query_params)
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise ValueError("multipart bodies are not served, send parameters in the URL")
        if "1" in (given.get("compress"), given.get("decompress")):
            raise ValueError("ClickHouse's block compression is not served, use Content-Encoding and Accept-Encoding")
        if int(request.headers.get("content-length") or 0) > LARGEST_BODY_BYTES:
            raise ValueError(f"the body is larger than {LARGEST_BODY_BYTES} bytes")
        body = decompress(await request.body(), request.headers.get("content-encoding", ""))
        query = given.get("query", "").encode()
        return Question(
            statement=query + b"\n" + body if query and body else query or body,
            database=given.get("database") or request.headers.get("x-clickhouse-database", ""),
            default_format=given.get("default_format") or request.headers.get("x-clickhouse-format") or "TabSeparated",
            settings={k: v for k, v in given.items() if k not in TRANSPORT and not k.startswith("param_")},
            parameters={k.removeprefix("param_"): v for k, v in given.items() if k.startswith("param_")},
            readonly=given.get("readonly", "0") != "0" or request.method == "GET",
            session_id=given.get("session_id", ""),
        )


def make_app(service: StoreService) -> Starlette:
    """The application: statements at "/", "/ping"."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    return Starlette(
        routes=[
            Route("/ping", service.ping, methods=["GET"]),
            Route("/", service.statement, methods=["GET", "POST"]),
        ]
    )


def _answer(answer: Answer, request: Request, query_id: str) -> Response:
    from starlette.responses import Response

    wanted = request.query_params.get("enable_http_compression") == "1"
    body, encoding = compress(answer.body, request.headers.get("accept-encoding", "") if wanted else "")
    headers = {
        "X-ClickHouse-Summary": json.dumps(answer.summary),
        "X-ClickHouse-Query-Id": query_id,
        "X-ClickHouse-Format": answer.format,
        "X-ClickHouse-Timezone": "UTC",
        "X-ClickHouse-Server-Display-Name": "spade",
    }
    if encoding:
        headers["Content-Encoding"] = encoding
    return Response(body, media_type="text/plain; charset=UTF-8", headers=headers)


def _error(problem: EngineError, query_id: str) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(
        f"{problem}\n",
        status_code=HTTP_STATUS.get(problem.code, 500),
        headers={"X-ClickHouse-Exception-Code": str(problem.code), "X-ClickHouse-Query-Id": query_id},
    )


def main(argv: Sequence[str]) -> int:
    """Serves until SIGTERM; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", type=Path, required=True, help="data folder, owned by this process")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token-file", type=Path, required=True, help="its first line is the password")
    arguments = parser.parse_args(argv)
    try:
        engine = Engine(arguments.path)
    except (EngineError, OSError) as problem:
        sys.stderr.write(f"store: {problem}\n")
        return 3
    service = StoreService(engine, arguments.token_file.read_text(encoding="utf-8").split("\n", 1)[0], arguments.port)

    import uvicorn

    config = uvicorn.Config(
        make_app(service),
        host=LOOPBACK,
        port=arguments.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    try:
        uvicorn.Server(config).run()
    finally:
        service.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
