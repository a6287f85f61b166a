"""Asks a running server a question about a text: ask.py HOST:PORT FILE QUESTION"""

import os
import sys
from pathlib import Path

from winnow import Client, WinnowError

address, path, question = sys.argv[1:]
document = Path(path).read_text()

with Client(address, api_key=os.environ.get("WINNOW_API_KEY"), timeout=120) as client:
    try:
        messages = [{"role": "user", "content": f"{document}\n\n{question}"}]
        answer = client.chat(messages, max_tokens=100, temperature=0, budget=256)
        for delta in answer:
            print(delta.text, end="", flush=True)
    except WinnowError as error:
        sys.exit(error.message)

assert answer.usage is not None
print(f"\n({answer.usage.prompt_tokens} tokens read, {answer.usage.completion_tokens} written)")
