"""An HTTP server on this machine alone that predicts with kept models; the door to FastAPI."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any

from fedtailor._version import __version__
from fedtailor.core.errors import UserError, describe_error
from fedtailor.serving.models import Model, Models
from fedtailor.serving.page import PAGE
from fedtailor.serving.requests import (
    Health,
    ModelCard,
    Prediction,
    Probabilities,
    Problem,
    Question,
)

if TYPE_CHECKING:
    from fastapi import FastAPI

PACKAGES = ("fastapi", "uvicorn")
LOOPBACK = "127.0.0.1"
OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
MEGABYTE = 1 << 20

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Gate:
    """What every request passes first: its Host must be this machine, its body small enough.

    The Host is looked at because any page in a browser may send requests to this machine under
    a name of its own.
    """

    def __init__(self, app: App, most_bytes: int) -> None:
        self.app = app
        self.most_bytes = most_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if _strip_port(host) not in OWN_NAMES:
            await _refuse(send, 421, "the Host of a request must be this machine")
            return
        length = headers.get(b"content-length", b"0").decode("latin-1")
        if not length.isdecimal() or int(length) > self.most_bytes:
            await _refuse(send, 413, self._explain_size())
            return
        body = await self._read_body(receive)
        if body is None:
            await _refuse(send, 413, self._explain_size())
            return
        await self.app(scope, _replay(body, receive), send)

    async def _read_body(self, receive: Receive) -> bytes | None:
        """The whole body, or None as soon as more has come than allowed."""
        body = b""
        is_complete = False
        while not is_complete:
            message = await receive()
            body += message.get("body", b"")
            is_complete = not message.get("more_body", False)
            if len(body) > self.most_bytes:
                return None
        return body

    def _explain_size(self) -> str:
        return f"a request may have {self.most_bytes // MEGABYTE} MB"


def _replay(body: bytes, receive: Receive) -> Receive:
    """What gives a body that was read already, and then what comes after it."""
    waiting = [body]

    async def replayed() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replayed


def _strip_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


async def _refuse(send: Send, status: int, why: str) -> None:
    body = Problem(error=why).model_dump_json().encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# ---------------------------------------------------------------- the application
def make_app(models: Models, most_megabytes: int = 16) -> FastAPI:
    """The application: ``/predict``, ``/predict_proba``, ``/models``, ``/healthz`` and a page."""
    from fastapi import FastAPI

    problems: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem} for status in (400, 413, 421, 422)
    }
    app = FastAPI(
        title=f"FedTailor: models of {models.path.name}",
        version=__version__,
        docs_url=None,  # these two pages load scripts from other hosts
        redoc_url=None,
        responses=problems,
    )
    _add_routes(app, models)
    _add_handlers(app)
    app.add_middleware(Gate, most_bytes=most_megabytes * MEGABYTE)
    return app


def _add_routes(app: FastAPI, models: Models) -> None:
    from fastapi.responses import HTMLResponse

    one_at_a_time = Lock()  # layers are bound to one client's tensors while they run

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def show_page() -> str:
        return PAGE

    @app.get("/healthz", summary="Whether the server answers")
    def tell_health() -> Health:
        return Health(status="ok", models=len(models.names()))

    @app.get("/models", summary="Whose models there are")
    def list_models() -> list[ModelCard]:
        with one_at_a_time:
            return [describe(models.find(name)) for name in models.names()]

    @app.post("/predict", summary="A label for every input")
    def predict(question: Question) -> Prediction:
        with one_at_a_time:
            model = _find(models, question)
            chosen = model.predict_proba(question.read(model.inputs)).argmax(-1)
        labels = [model.labels[i] for i in chosen.tolist()]
        return Prediction(client=model.name, predictions=labels)

    @app.post("/predict_proba", summary="The probability of every class")
    def predict_proba(question: Question) -> Probabilities:
        with one_at_a_time:
            model = _find(models, question)
            found = model.predict_proba(question.read(model.inputs))
        return Probabilities(
            client=model.name,
            labels=list(model.labels),
            probabilities=found.tolist(),
        )


def _find(models: Models, question: Question) -> Model:
    client = question.client
    return models.find(None if client is None else str(client))


def describe(model: Model) -> ModelCard:
    """What a model takes and gives."""
    spec = model.inputs
    return ModelCard(
        client=model.name,
        kind=spec.kind,
        shape=list(spec.shape),
        dtype=spec.dtype,
        columns=list(spec.columns),
        labels=list(model.labels),
    )


def _add_handlers(app: FastAPI) -> None:
    """Every error as JSON with one line."""
    from fastapi import HTTPException, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException as AnyHTTPException

    def answer(status: int, text: str) -> JSONResponse:
        return JSONResponse({"error": " ".join(text.split())}, status)

    @app.exception_handler(UserError)
    def tell_mistake(request: Request, error: UserError) -> JSONResponse:
        return answer(400, str(error))

    @app.exception_handler(RequestValidationError)
    def tell_form(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        return answer(422, f"{place}: {first['msg']}")

    @app.exception_handler(AnyHTTPException)
    def tell_status(request: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, str(error.detail))

    @app.exception_handler(Exception)
    def tell_fault(request: Request, error: Exception) -> JSONResponse:
        return answer(500, f"a fault of the server: {describe_error(error)}")


# ---------------------------------------------------------------- the server
def check_server_packages() -> None:
    """Refuse where FastAPI or uvicorn is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"serving needs {' and '.join(missing)}: pip install 'fedtailor[board]'"
        )


def listen(port: int) -> socket.socket:
    """A socket of this machine; port 0 takes any that is free."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
    except OSError as error:
        listening.close()
        raise UserError(
            f"port {port} cannot be had ({error.strerror}); choose another --port"
        ) from None
    return listening


def serve(app: FastAPI, listening: socket.socket) -> None:
    """Answer requests until the process is told to stop."""
    import uvicorn

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False
    )
    uvicorn.Server(config).run(sockets=[listening])
