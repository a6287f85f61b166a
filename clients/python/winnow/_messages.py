"""Requests and answers, as both clients make and read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, TypedDict, Union

import grpc
from google.protobuf import json_format

from .v1 import generation_pb2 as generation
from .v1 import rank_pb2 as rank
from .v1 import sampling_pb2 as sampling

Message = Mapping[str, str]
"""{"role": "user", "content": "..."}"""

Prompt = Union[str, Sequence[int], Sequence[Message]]
"""Text, taken as it is; token ids; or the messages of a chat, which the model's template is applied to."""

SERVICE = "/winnow.v1."
KEEPALIVE: List[Tuple[str, int]] = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
]


class WinnowError(Exception):
    """What the server said, or why it said nothing."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


def error_of(error: grpc.RpcError) -> WinnowError:
    return WinnowError(error.code(), error.details() or "")


@dataclass
class Delta:
    """New tokens of one output, and the text that is final with them: they may differ by a few tokens."""

    text: str
    tokens: List[rank.Token]
    output_index: int = 0

    @property
    def token_ids(self) -> List[int]:
        return [token.id for token in self.tokens]


@dataclass
class Output:
    """One sample, complete once its finish_reason is set."""

    text: str = ""
    tokens: List[rank.Token] = field(default_factory=list)
    finish_reason: Optional[str] = None
    """"stop" or "length"."""
    stop_match: Optional[str] = None
    """The stop string that ended it."""
    selection: Optional[rank.SelectionStats] = None
    """What the selection of KV rows did."""

    @property
    def token_ids(self) -> List[int]:
        return [token.id for token in self.tokens]


class AnswerState:
    """What an answer has said so far; `outputs` grow while it is read."""

    def __init__(self) -> None:
        self.request_id = ""
        self.prompt_tokens = 0
        self.selection = ""
        """The selection in force, as text."""
        self.forked_tokens = 0
        """Of a fork: the tokens of its source with which it begins, and which are not repeated."""
        self.resume_token = ""
        """Of a resumable request: what `resume` needs."""
        self.request: Optional[generation.GenerateRequest] = None
        """As it was sent; None of a fork."""
        self.outputs: List[Output] = [Output()]
        self.usage: Optional[generation.GenerateResponse.Usage] = None

    @property
    def text(self) -> str:
        """Of the first output, as far as it has been read."""
        return self.outputs[0].text

    def take(self, event: generation.GenerateResponse) -> Optional[Delta]:
        """Adds an event; a Delta is what the caller is to see."""
        kind = event.WhichOneof("event")
        if kind == "accepted":
            accepted = event.accepted
            self.request_id, self.prompt_tokens = accepted.request_id, accepted.prompt_tokens
            self.selection, self.forked_tokens = accepted.selection, accepted.forked_tokens
            self.resume_token = accepted.resume_token
        elif kind == "delta":
            delta = Delta(event.delta.text, list(event.delta.tokens), event.delta.output_index)
            output = self._output(delta.output_index)
            output.text += delta.text
            output.tokens += delta.tokens
            return delta
        elif kind == "output_finished":
            end = event.output_finished
            output = self._output(end.output_index)
            output.finish_reason = rank.FinishReason.Name(end.reason).rpartition("_")[2].lower()
            output.stop_match = end.stop_match if end.HasField("stop_match") else None
            output.selection = end.selection if end.HasField("selection") else None
        elif kind == "usage":
            self.usage = event.usage
        return None

    def _output(self, index: int) -> Output:
        while len(self.outputs) <= index:
            self.outputs.append(Output())
        return self.outputs[index]


def resume_request(answer: AnswerState) -> generation.ResumeRequest:
    if answer.request is None or not answer.resume_token:
        raise ValueError("this answer cannot be resumed: its request was not resumable")
    positions = [
        generation.OutputPosition(next_index=len(output.tokens), text_bytes=len(output.text.encode()))
        for output in answer.outputs
    ]
    return generation.ResumeRequest(resume_token=answer.resume_token, request=answer.request, positions=positions)


class Parameters(TypedDict, total=False):
    """What a request may say beside its prompt. Absent: the server's default, which docs/api.md names."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    n: int
    """Samples: the answer has as many outputs."""
    stop: Union[str, List[str]]
    selection: str
    """Preset or specification of the selection: "winnow", "predictor=temporal,window=16"."""
    budget: int
    """Selected rows per head."""
    request_id: str
    resumable: bool
    """The answer can go on after its stream or its server was lost: `resume`."""
    model: str
    fields: Dict[str, Any]
    """Everything else: fields of GenerateRequest in protobuf's JSON, {"topLogprobs": 5}."""


def generate_request(prompt: Prompt, parameters: Parameters) -> generation.GenerateRequest:
    unknown = parameters.keys() - Parameters.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown parameters: {', '.join(sorted(unknown))}; fields=... takes those of the protocol")
    stop = parameters.get("stop", [])
    request = generation.GenerateRequest(
        request_id=parameters.get("request_id"),
        model=parameters.get("model"),
        max_tokens=parameters.get("max_tokens"),
        n=parameters.get("n"),
        stop=[stop] if isinstance(stop, str) else stop,
        sampling=sampling.SamplingParams(
            temperature=parameters.get("temperature"), top_p=parameters.get("top_p"), seed=parameters.get("seed")
        ),
        selection=generation.SelectionOptions(
            specification=parameters.get("selection"), budget_tokens=parameters.get("budget")
        ),
    )
    if parameters.get("resumable"):
        request.resumable = True
    if isinstance(prompt, str):
        request.text = prompt
    elif all(isinstance(item, int) for item in prompt):
        request.token_ids.ids.extend(prompt)
    else:
        for message in prompt:
            if not isinstance(message, Mapping) or message.keys() != {"role", "content"}:
                raise TypeError(f"a message has a role and a content, not {message!r}")
            request.messages.messages.add(role=message["role"], content=message["content"])
    json_format.ParseDict(parameters.get("fields", {}), request)
    return request
