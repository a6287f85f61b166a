"""The Python client against a running cluster."""

import asyncio
import os
import unittest

import grpc
from winnow import AsyncClient, Client, WinnowError

ADDRESS = os.environ["WINNOW_GRPC"]
QUESTION = "The code of nerita is 271828. What is the code of nerita?"
ANSWER = "The code of nerita is 271828."
CHAT = [{"role": "user", "content": QUESTION}]
ENDLESS = {"fields": {"ignoreEos": True}, "temperature": 0, "max_tokens": 3500}


class ClientTest(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Client(ADDRESS, timeout=60)
        self.addCleanup(self.client.close)

    def assert_fails(self, code: grpc.StatusCode, words: str, call, *args, **arguments) -> None:
        with self.assertRaises(WinnowError) as raised:
            call(*args, **arguments)
        self.assertEqual(raised.exception.code, code)
        self.assertIn(words, raised.exception.message)

    def test_a_chat_is_answered_piece_by_piece(self) -> None:
        answer = self.client.chat(CHAT, temperature=0, max_tokens=48)
        self.assertNotEqual(answer.request_id, "")
        self.assertGreater(answer.prompt_tokens, 10)
        deltas = list(answer)
        self.assertGreater(len(deltas), 1)
        self.assertEqual("".join(delta.text for delta in deltas), ANSWER)
        self.assertEqual(answer.text, ANSWER)
        self.assertEqual(answer.outputs[0].finish_reason, "stop")
        self.assertEqual(len(answer.outputs[0].token_ids), answer.usage.completion_tokens)
        self.assertGreater(answer.outputs[0].selection.decode_steps, 0)

    def test_text_and_its_tokens_are_the_same_prompt(self) -> None:
        ids = self.client.tokenize(QUESTION)
        self.assertEqual(self.client.detokenize(ids, skip_special_tokens=True), QUESTION)
        of_text = self.client.generate(QUESTION, temperature=0, max_tokens=16).read_all()
        of_ids = self.client.generate(ids, temperature=0, max_tokens=16).read_all()
        self.assertEqual(of_text.prompt_tokens, len(ids))
        self.assertEqual(of_text.outputs[0].token_ids, of_ids.outputs[0].token_ids)

    def test_parameters_reach_the_server(self) -> None:
        answer = self.client.chat(
            CHAT, n=2, seed=7, top_p=0.9, stop=" is ", selection="exact-token", budget=64, request_id="mine"
        ).read_all()
        self.assertEqual(answer.request_id, "mine")
        self.assertIn("exact-token", answer.selection)
        self.assertIn("budget=64", answer.selection)
        self.assertEqual(len(answer.outputs), 2)
        answer = self.client.chat(CHAT, temperature=0, stop=[" is "]).read_all()
        self.assertEqual((answer.text, answer.outputs[0].stop_match), ("The code of nerita", " is "))

    def test_other_fields_go_as_json(self) -> None:
        fields = {"structuredOutput": {"regex": "[0-9]{4}"}, "topLogprobs": 2}
        answer = self.client.generate("A year: ", fields=fields).read_all()
        self.assertRegex(answer.text, "^[0-9]{4}$")
        self.assertEqual(len(answer.outputs[0].tokens[0].top_logprobs), 2)

    def test_a_fork_goes_on_as_its_source_does(self) -> None:
        source = self.client.generate("On and on", **ENDLESS)
        while len(source.outputs[0].tokens) < 4:
            next(source)
        fork = self.client.fork(source.request_id, max_tokens=300).read_all()
        while len(source.outputs[0].tokens) < 300:
            next(source)
        source.cancel()
        self.assertGreaterEqual(fork.forked_tokens, 4)
        self.assertEqual(fork.outputs[0].token_ids, source.outputs[0].token_ids[fork.forked_tokens : 300])

    def test_an_answer_is_resumed_where_its_stream_was_lost(self) -> None:
        parameters = {**ENDLESS, "max_tokens": 120, "temperature": 1.0, "seed": 7}
        whole = self.client.generate("On and on", **parameters).read_all()
        lost = self.client.generate("On and on", resumable=True, **parameters)
        while len(lost.outputs[0].tokens) < 5:
            next(lost)
        lost.cancel()
        resumed = self.client.resume(lost).read_all()
        self.assertEqual(resumed.outputs[0].token_ids, whole.outputs[0].token_ids)
        self.assertEqual(resumed.text, whole.text)
        self.assertRaises(ValueError, self.client.resume, whole)

    def test_requests_end_by_abort_cancel_and_deadline(self) -> None:
        answer = self.client.generate("On and on", request_id="to-be-aborted", **ENDLESS)
        self.client.abort("to-be-aborted")
        self.assert_fails(grpc.StatusCode.CANCELLED, "", answer.read_all)
        self.assert_fails(grpc.StatusCode.NOT_FOUND, "never-begun", self.client.abort, "never-begun")
        answer = self.client.generate("On and on", **ENDLESS)
        answer.cancel()
        self.assert_fails(grpc.StatusCode.CANCELLED, "", answer.read_all)
        hurried = Client(ADDRESS, timeout=0.3)
        self.addCleanup(hurried.close)
        answer = hurried.generate("On and on", **ENDLESS)
        self.assert_fails(grpc.StatusCode.DEADLINE_EXCEEDED, "", answer.read_all)

    def test_models_and_server_are_described(self) -> None:
        (model,) = self.client.models()
        self.assertEqual(model.max_context_tokens, 4096)
        self.assertIn("max-queue", self.client.server_info().options_yaml)

    def test_errors_are_what_the_server_said(self) -> None:
        generate = self.client.generate
        self.assert_fails(grpc.StatusCode.NOT_FOUND, "another", generate, "x", model="another")
        self.assert_fails(grpc.StatusCode.INVALID_ARGUMENT, "psychic", generate, "x", selection="psychic")
        self.assert_fails(grpc.StatusCode.UNAVAILABLE, "connect", Client("127.0.0.1:1").tokenize, "x")
        with self.assertRaisesRegex(TypeError, "max_token"):
            generate("x", max_token=1)
        with self.assertRaisesRegex(TypeError, "role and a content"):
            generate([{"role": "user"}])


class AsyncClientTest(unittest.IsolatedAsyncioTestCase):
    async def test_answers_come_side_by_side(self) -> None:
        async with AsyncClient(ADDRESS, timeout=60) as client:
            async def ask() -> str:
                answer = await client.chat(CHAT, temperature=0, max_tokens=48)
                return "".join([delta.text async for delta in answer])

            self.assertEqual(await asyncio.gather(*[ask() for _ in range(4)]), [ANSWER] * 4)

    async def test_the_other_calls(self) -> None:
        async with AsyncClient(ADDRESS, timeout=60) as client:
            self.assertGreater(len(await client.tokenize(QUESTION)), 10)
            source = await client.generate("On and on", **ENDLESS)
            fork = await (await client.fork(source.request_id, max_tokens=100)).read_all()
            self.assertEqual(fork.forked_tokens + len(fork.outputs[0].tokens), 100)
            await client.abort(source.request_id)
            with self.assertRaises(WinnowError) as raised:
                await source.read_all()
            self.assertEqual(raised.exception.code, grpc.StatusCode.CANCELLED)
            source = await client.generate("On and on", **ENDLESS)
            source.cancel()
            with self.assertRaises(WinnowError) as raised:
                await source.read_all()
            self.assertEqual(raised.exception.code, grpc.StatusCode.CANCELLED)
            with self.assertRaises(WinnowError) as raised:
                await client.generate("x", model="another")
            self.assertEqual(raised.exception.code, grpc.StatusCode.NOT_FOUND)


if __name__ == "__main__":
    unittest.main()
