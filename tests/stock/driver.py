"""Stock clients as programs that `wireherd bench --driver-a` measures through.

With tests/ on the path: python -m stock.driver VERSION MODEL [flags]. One JSON line for each run, as
`wireherd.bench.driver` says. Protocol 8 is libllama through cffi, timed around llama_decode and llama_synchronize as
llama-bench does it. Protocol 7 is tests/stock/seven/greedy.cpp, started anew for each run. Protocols 4 and 5 are
llama-server, by its own `timings`, which hold greedy sampling, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from typing import Any

from stock.get_stock import stock


class Stock8:
    """llama-cpp-py-sync: protocol 8.0."""

    build = "b11739"

    def __init__(self, o: argparse.Namespace) -> None:
        sys.path.insert(0, str(stock("8")))
        from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib
        from llama_cpp_py_sync.rpc import rpc_devices

        self.ffi, self.lib = ffi, lib = get_ffi(), get_lib()
        self.quiet = ffi.callback("void(enum ggml_log_level, const char *, void *)", lambda *_: None)
        lib.llama_log_set(self.quiet, ffi.NULL)
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 99 if o.rpc else 0
        params.split_mode = {"none": 0, "layer": 1, "tensor": 3}[o.sm]
        if o.rpc:
            self.devices = ffi.new(
                "ggml_backend_dev_t[]", [*rpc_devices(o.rpc.split(","), include_local=False), ffi.NULL]
            )
            params.devices = self.devices
        model = lib.llama_model_load_from_file(o.model.encode(), params)
        if model == ffi.NULL:
            raise RuntimeError("the stock client cannot load the model")
        context = lib.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = o.ctx, 2048, o.ub
        context.n_threads = context.n_threads_batch = o.t
        context.no_perf = True
        self.context = lib.llama_init_from_model(model, context)
        if self.context == ffi.NULL:
            raise RuntimeError("the stock client cannot make a context")
        self.words = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self.memory = lib.llama_get_memory(self.context)
        self.buffer = ffi.new("llama_token[]", 2048)
        self.random = random.Random(1)

    def decode(self, count: int) -> None:
        while count:
            size = min(count, 2048)
            for place in range(size):
                self.buffer[place] = self.random.randrange(self.words)
            if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(self.buffer, size)):
                raise RuntimeError("llama_decode failed")
            count -= size
        self.lib.llama_synchronize(self.context)

    def run(self, prompt: int, generated: int, depth: int) -> int:
        self.lib.llama_memory_clear(self.memory, False)
        self.decode(depth)
        begun = time.perf_counter_ns()
        self.decode(prompt)
        for _ in range(generated):
            self.decode(1)
        return time.perf_counter_ns() - begun

    def close(self) -> None:
        """The process ends without the library's own ending."""


class Stock7:
    """A program of tests on libllama of protocol 7.0."""

    build = "llama-cpp-python 0.3.36"

    def __init__(self, o: argparse.Namespace) -> None:
        self.command = [str(stock("7") / "bin" / "greedy"), o.model]
        self.rpc = o.rpc

    def run(self, prompt: int, generated: int, depth: int) -> int:
        if depth or (prompt and generated):
            raise RuntimeError("this client measures a prompt or generated tokens on an empty context")
        words = [*self.command, str(generated or 1), self.rpc, str(prompt or 8)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the client failed")
        rates = [float(word) for word in done.stdout.split()[-2:]]
        return round(1e9 * (prompt / rates[0] if prompt else generated / rates[1]))

    def close(self) -> None:
        """Each run was a process of its own."""


class StockServer:
    """llama-server of protocol 4.0 or 5.0."""

    def __init__(self, o: argparse.Namespace) -> None:
        from stock.running import LlamaServer

        self.build = {"4": "b10068", "5": "b10434"}[o.version]
        self.server = LlamaServer(stock(o.version) / "bin", o.model, o.rpc.split(","))
        self.server.complete("a", 1)
        self.random = random.Random(1)

    def run(self, prompt: int, generated: int, depth: int) -> int:
        if depth:
            raise RuntimeError("this client measures on an empty context")
        body: dict[str, Any] = {
            "prompt": [self.random.randrange(100, 1000) for _ in range(prompt or 1)],
            "n_predict": generated + 1,  # the first one's logits come with the prompt
            "temperature": 0,
            "cache_prompt": False,
            "ignore_eos": True,
        }
        timings = self.server._ask("/completion", body, timeout_s=600)["timings"]
        taken = timings["prompt_ms"] if prompt else 0.0
        if generated:
            # it counts one token more than it computes
            taken += timings["predicted_ms"] * generated / max(1, timings["predicted_n"] - 1)
        return round(1e6 * taken)

    def close(self) -> None:
        self.server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", choices=("4", "5", "7", "8"))
    parser.add_argument("model")
    parser.add_argument("--rpc", default="")
    parser.add_argument("--sm", default="layer")
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--ub", type=int, default=512)
    parser.add_argument("-t", type=int, default=1)
    options = parser.parse_args()
    # the library speaks on descriptor 1, too
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        client = {"7": Stock7, "8": Stock8}.get(options.version, StockServer)(options)
    except (RuntimeError, AssertionError) as error:
        answers.write(json.dumps({"error": str(error)}) + "\n")
        sys.exit(1)
    answers.write(json.dumps({"build": client.build}) + "\n")
    for line in sys.stdin:
        case = json.loads(line)
        try:
            answer: dict[str, Any] = {"ns": client.run(case["n_prompt"], case["n_gen"], case["n_depth"])}
        except RuntimeError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
    client.close()
    answers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
