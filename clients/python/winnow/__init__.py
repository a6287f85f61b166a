"""Client of a Winnow server: see Client, and AsyncClient for asyncio."""

from ._async_client import AsyncAnswer, AsyncClient
from ._client import Answer, Client
from ._messages import Delta, Message, Output, Parameters, Prompt, WinnowError

__all__ = [
    "Answer", "AsyncAnswer", "AsyncClient", "Client", "Delta", "Message", "Output", "Parameters", "Prompt", "WinnowError"
]
