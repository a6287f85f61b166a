#!/usr/bin/env python3
"""Serves random small models of many families and compares what comes out of HTTP with Hugging Face's transformers.

  compare_with_transformers.py PROGRAM [--models=N] [--jobs=N] [--seed=N] [--families=a,b] [--keep=DIR] [-- OPTIONS OF winnow up]

Each model is drawn by random_config.py, gets random weights, and is served by `PROGRAM up` from the checkpoint that transformers writes.
Greedy answers are read through /v1/completions; transformers then computes the log probability of each of their tokens from the same
checkpoint in f32, and whether another token was likelier. Without options it is served in f32, and the worst difference allowed is 2e-3;
with options --tolerance says it. A model that is refused counts as refused, with the reason. Exit status 1: a difference, or a crash.
Needs PyTorch and transformers.
"""
import argparse
import collections
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import torch
import transformers

from random_config import FAMILIES

PROMPT_TOKENS = (3, 41, 150, 330)
ANSWER_TOKENS = 24


def randomize(model, generator):
    """Gives norms, biases, sinks and buffers of routing, which begin as constants, values of their own.

    All are such that bf16 holds them: what is served in bf16 has the same weights.
    """
    for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
        if not tensor.is_floating_point() or "inv_freq" in name:
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if "correction_bias" in name or "sinks" in name or name.endswith("bias"):
            tensor.data.copy_(0.3 * noise)
        elif tensor.dim() == 1:
            tensor.data.add_(0.1 * noise)
        elif tensor.dim() > 2:
            tensor.data.copy_(0.2 * noise)
        tensor.data.copy_(tensor.bfloat16())


def write_checkpoint(family, seed, folder):
    rng = random.Random(f"{family} {seed}")
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family](rng))
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        randomize(model, torch.Generator().manual_seed(seed))
    model.save_pretrained(folder)
    return rng


def reference(folder):
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, experts_implementation="eager", **options).eval()
    except (TypeError, ValueError):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


class Refused(Exception):
    pass


def serve(program, folder, options):
    log = open(os.path.join(folder, "winnow.log"), "w")
    ports = ["--http=127.0.0.1:0", "--grpc=127.0.0.1:0", "--metrics=127.0.0.1:0"]
    process = subprocess.Popen([program, "up", f"--model={folder}", "--max-context=1024", *ports, *options],
                               stdout=subprocess.PIPE, stderr=log, text=True)
    address = re.search(r"http=(\S+)", process.stdout.readline())
    if address:
        return process, address.group(1)
    process.wait()
    with open(log.name) as lines:
        said = [line.strip() for line in lines if line.strip()]
    if process.returncode < 0 or not said:
        raise RuntimeError(f"exit status {process.returncode}: {said[-1:]}")
    raise Refused(said[-1])


def ask(address, prompt):
    body = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "logprobs": 1, "ignore_eos": True,
            "return_token_ids": True}
    request = urllib.request.Request(f"http://{address}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            choice = json.load(answer)["choices"][0]
    except urllib.error.HTTPError as error:
        raise RuntimeError(error.read().decode()[:300]) from error
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


@torch.no_grad()
def expect(model, prompt, ids):
    """Of each token: the reference's log probability, and how much likelier another one was."""
    logits = model(torch.tensor([prompt + ids[:-1]])).logits[0, len(prompt) - 1:].float()
    expected = torch.log_softmax(logits, -1)
    of_ids = expected.gather(1, torch.tensor(ids)[:, None])[:, 0]
    return of_ids, expected.max(-1).values - of_ids


def compare(task):
    family, seed, args = task
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(prefix=f"{family}-{seed}-", dir=args.keep)
    outcome = {"family": family, "seed": seed}
    try:
        rng = write_checkpoint(family, seed, folder)
        model = reference(folder)
        process, address = serve(args.program, folder, args.options)
        try:
            apart, misses, answers = [], [], []
            for tokens in PROMPT_TOKENS:
                prompt = [rng.randrange(model.config.get_text_config().vocab_size) for _ in range(tokens)]
                ids, logprobs = ask(address, prompt)
                expected, missed = expect(model, prompt, ids)
                apart += (expected - torch.tensor(logprobs)).abs().tolist()
                misses += missed.tolist()
                answers.append({"prompt": prompt, "ids": ids, "logprobs": logprobs, "expected": expected.tolist()})
            outcome |= {"median": statistics.median(apart), "worst": max(apart), "missed": max(misses)}
            outcome["result"] = "same" if max(apart) <= args.tolerance and max(misses) <= 2 * args.tolerance else "other"
            with open(os.path.join(folder, "answers.json"), "w") as file:
                json.dump(answers, file)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    except Refused as refused:
        outcome |= {"result": "refused", "why": str(refused)[-400:]}
    except Exception as error:  # pylint: disable=broad-except
        outcome |= {"result": "failed", "why": f"{type(error).__name__}: {error}"[:600]}
    if not args.keep or outcome["result"] == "same":
        shutil.rmtree(folder)
    return outcome


def main():
    own, options = sys.argv[1:], ["--compute=f32", "--kv-dtype=f32", "--threads=1"]
    if "--" in own:
        options = own[own.index("--") + 1:]
        own = own[:own.index("--")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--models", type=int, default=4, help="of each family")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--keep", help="folder for the checkpoints that are not served as transformers computes them")
    parser.add_argument("--tolerance", type=float, default=2e-3)
    args = parser.parse_args(own)
    args.options = options
    transformers.utils.logging.set_verbosity_error()
    tasks = [(family, args.seed + i, args) for i in range(args.models) for family in args.families.split(",")]
    results = collections.defaultdict(collections.Counter)
    with multiprocessing.get_context("fork").Pool(args.jobs, maxtasksperchild=8) as pool:
        for outcome in pool.imap_unordered(compare, tasks):
            results[outcome["family"]][outcome["result"]] += 1
            if outcome["result"] != "same":
                print(json.dumps(outcome), flush=True)
            elif args.tolerance > 2e-3:
                print(json.dumps(outcome), flush=True)
    for family, counts in sorted(results.items()):
        print(f"{family:14} " + ", ".join(f"{count} {result}" for result, count in sorted(counts.items())))
    bad = sum(counts[kind] for counts in results.values() for kind in ("other", "failed"))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
