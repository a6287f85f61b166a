from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Sequence, Tuple, Type

import grpc

from ._messages import (
    KEEPALIVE,
    SERVICE,
    AnswerState,
    Delta,
    Message,
    Parameters,
    Prompt,
    error_of,
    generate_request,
    resume_request,
)
from .v1 import admin_pb2 as admin
from .v1 import generation_pb2 as generation
from .v1 import model_pb2 as model
from .v1 import tokenizer_pb2 as tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Answer(AnswerState, Iterator[Delta]):
    """An answer under way: iterate over its deltas, then look at `outputs` and `usage`."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call
        self._wait_for_accepted()

    def _wait_for_accepted(self) -> None:
        # So that errors of the request come at once, and request_id is known before the first token.
        try:
            self.take(next(self._call))
        except grpc.RpcError as error:
            raise error_of(error) from None

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> Delta:
        while True:
            try:
                delta = self.take(next(self._call))
            except grpc.RpcError as error:
                raise error_of(error) from None
            if delta is not None:
                return delta

    def read_all(self) -> Answer:
        """Reads the rest."""
        for _ in self:
            pass
        return self

    def cancel(self) -> None:
        """Ends the request at the server."""
        self._call.cancel()


class Client:
    """A client of a server's gRPC port, "host:port". Thread-safe; errors are WinnowError.

    `timeout` is in seconds, for each call until the end of its answer; None: the server's. `tls_ca`, `tls_cert` and
    `tls_key` are files (PEM) for a server with TLS: those who sign its certificate, and the client's own where one is
    needed; `tls_name` is the name in the server's certificate where it is not that of the address.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:8001",
        *,
        api_key: Optional[str] = None,
        timeout: Optional[float] = None,
        tls_ca: Optional[str] = None,
        tls_cert: Optional[str] = None,
        tls_key: Optional[str] = None,
        tls_name: Optional[str] = None,
    ) -> None:
        credentials, options = channel_arguments(tls_ca, tls_cert, tls_key, tls_name)
        self._channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )
        self._metadata = metadata_of(api_key)
        self._timeout = timeout

    def generate(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> Answer:
        """Sends a prompt: text as it is, token ids, or messages."""
        request = generate_request(prompt, parameters)
        answer = self._stream("GenerationService/Generate", request)
        answer.request = request
        return answer

    def chat(self, messages: Sequence[Message], **parameters: Unpack[Parameters]) -> Answer:
        """Sends the messages of a chat, to which the model's template is applied."""
        return self.generate(messages, **parameters)

    def resume(self, answer: AnswerState) -> Answer:
        """Goes on with an answer, of a resumable request, whose stream or server was lost. What was read stays in
        `outputs`, and grows. May be asked of any server of the cluster, while one does not answer again and again."""
        resumed = self._stream("GenerationService/Resume", resume_request(answer))
        resumed.request, resumed.outputs = answer.request, answer.outputs
        return resumed

    def fork(
        self,
        source_request_id: str,
        *,
        output_index: Optional[int] = None,
        request_id: Optional[str] = None,
        sample_index: Optional[int] = None,
        max_tokens: Optional[int] = None,
    ) -> Answer:
        """Goes on from the current token of an answer under way, with random numbers of its own."""
        request = generation.ForkRequest(
            source_request_id=source_request_id,
            output_index=output_index,
            request_id=request_id,
            sample_index=sample_index,
            max_tokens=max_tokens,
        )
        return self._stream("GenerationService/Fork", request)

    def abort(self, request_id: str) -> None:
        """Cancels a request by its id."""
        self._ask("GenerationService/Abort", generation.AbortRequest(request_id=request_id), generation.AbortResponse)

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> List[int]:
        request = tokenizer.TokenizeRequest(text=text, add_special_tokens=add_special_tokens)
        response = self._ask("TokenizerService/Tokenize", request, tokenizer.TokenizeResponse)
        return list(response.ids)

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        request = tokenizer.DetokenizeRequest(ids=ids, skip_special_tokens=skip_special_tokens)
        return str(self._ask("TokenizerService/Detokenize", request, tokenizer.DetokenizeResponse).text)

    def models(self) -> List[model.Model]:
        return list(self._ask("ModelService/ListModels", model.ListModelsRequest(), model.ListModelsResponse).models)

    def server_info(self) -> admin.GetServerInfoResponse:
        """With TLS for operators' certificates alone."""
        response: admin.GetServerInfoResponse = self._ask(
            "AdminService/GetServerInfo", admin.GetServerInfoRequest(), admin.GetServerInfoResponse
        )
        return response

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def _stream(self, method: str, request: Any) -> Answer:
        call = self._channel.unary_stream(
            SERVICE + method, type(request).SerializeToString, generation.GenerateResponse.FromString
        )
        return Answer(call(request, timeout=self._timeout, metadata=self._metadata))

    def _ask(self, method: str, request: Any, response: Any) -> Any:
        call = self._channel.unary_unary(SERVICE + method, type(request).SerializeToString, response.FromString)
        try:
            return call(request, timeout=self._timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise error_of(error) from None


def metadata_of(api_key: Optional[str]) -> List[Tuple[str, str]]:
    return [("authorization", f"Bearer {api_key}")] if api_key else []


def channel_arguments(
    ca: Optional[str], cert: Optional[str], key: Optional[str], name: Optional[str]
) -> Tuple[Any, List[Tuple[str, Any]]]:
    """Credentials, None without TLS, and options of a channel."""
    options: List[Tuple[str, Any]] = list(KEEPALIVE)
    if ca is None:
        return None, options
    files = [None if path is None else Path(path).read_bytes() for path in (ca, key, cert)]
    if name is not None:
        options.append(("grpc.ssl_target_name_override", name))
    return grpc.ssl_channel_credentials(*files), options
