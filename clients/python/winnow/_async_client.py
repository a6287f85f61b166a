from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any, AsyncIterator, List, Optional, Sequence, Type

import grpc
import grpc.aio

from ._client import channel_arguments, metadata_of
from ._messages import (
    SERVICE,
    AnswerState,
    Delta,
    Message,
    Parameters,
    Prompt,
    WinnowError,
    error_of,
    generate_request,
    resume_request,
)
from .v1 import generation_pb2 as generation
from .v1 import tokenizer_pb2 as tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncAnswer(AnswerState, AsyncIterator[Delta]):
    """As Answer, with `async for`."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self._events = call.__aiter__()
        self._call = call
        self._cancelled = False

    def __aiter__(self) -> AsyncAnswer:
        return self

    async def __anext__(self) -> Delta:
        while True:
            delta = await self._next()
            if delta is not None:
                return delta

    async def read_all(self) -> AsyncAnswer:
        """Reads the rest."""
        async for _ in self:
            pass
        return self

    def cancel(self) -> None:
        """Ends the request at the server."""
        self._cancelled = True
        self._call.cancel()

    async def _next(self) -> Optional[Delta]:
        try:
            return self.take(await self._events.__anext__())
        except grpc.RpcError as error:
            raise error_of(error) from None
        except asyncio.CancelledError:
            # gRPC says the same of a call that was cancelled and of a task that is.
            if not self._cancelled:
                raise
            raise WinnowError(grpc.StatusCode.CANCELLED, "cancelled by its caller") from None


class AsyncClient:
    """As Client, for asyncio."""

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
            grpc.aio.insecure_channel(address, options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options)
        )
        self._metadata = metadata_of(api_key)
        self._timeout = timeout

    async def generate(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> AsyncAnswer:
        request = generate_request(prompt, parameters)
        answer = await self._stream("GenerationService/Generate", request)
        answer.request = request
        return answer

    async def chat(self, messages: Sequence[Message], **parameters: Unpack[Parameters]) -> AsyncAnswer:
        return await self.generate(messages, **parameters)

    async def resume(self, answer: AnswerState) -> AsyncAnswer:
        resumed = await self._stream("GenerationService/Resume", resume_request(answer))
        resumed.request, resumed.outputs = answer.request, answer.outputs
        return resumed

    async def fork(
        self,
        source_request_id: str,
        *,
        output_index: Optional[int] = None,
        request_id: Optional[str] = None,
        sample_index: Optional[int] = None,
        max_tokens: Optional[int] = None,
    ) -> AsyncAnswer:
        request = generation.ForkRequest(
            source_request_id=source_request_id,
            output_index=output_index,
            request_id=request_id,
            sample_index=sample_index,
            max_tokens=max_tokens,
        )
        return await self._stream("GenerationService/Fork", request)

    async def abort(self, request_id: str) -> None:
        request = generation.AbortRequest(request_id=request_id)
        await self._ask("GenerationService/Abort", request, generation.AbortResponse)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> List[int]:
        request = tokenizer.TokenizeRequest(text=text, add_special_tokens=add_special_tokens)
        return list((await self._ask("TokenizerService/Tokenize", request, tokenizer.TokenizeResponse)).ids)

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    async def _stream(self, method: str, request: Any) -> AsyncAnswer:
        call = self._channel.unary_stream(
            SERVICE + method, type(request).SerializeToString, generation.GenerateResponse.FromString
        )
        answer = AsyncAnswer(call(request, timeout=self._timeout, metadata=self._metadata))
        await answer._next()  # Accepted, or the error of the request
        return answer

    async def _ask(self, method: str, request: Any, response: Any) -> Any:
        call = self._channel.unary_unary(SERVICE + method, type(request).SerializeToString, response.FromString)
        try:
            return await call(request, timeout=self._timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise error_of(error) from None
