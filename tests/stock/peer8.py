"""Stock protocol 8.0 peers out of llama-cpp-py-sync, each in a process of its own (needs cffi).

peer8.py FOLDER serve HOST:PORT                            an RPC server on the CPU with one thread
peer8.py FOLDER greedy MODEL N [HOST:PORT,...] [tensor]    token ids of a greedy answer, its layers on these servers, or
                                                           every layer split over them
peer8.py FOLDER behind MODEL TOKENS                        how far each token lies behind the best one, locally
peer8.py FOLDER speed MODEL N HOST:PORT,... PROMPT         tokens a second over a prompt of so many, and over N more
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

PROMPT = "The old lighthouse keeper climbed the stairs every evening to"
_SPLIT_TENSOR = 3


def serve(endpoint: str) -> None:
    from llama_cpp_py_sync.rpc import start_rpc_server

    start_rpc_server(endpoint, devices=["CPU"], n_threads=1)


class Client:
    """A model with a context of one sequence."""

    def __init__(self, model: str, endpoints: list[str], *, tensor: bool = False) -> None:
        from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib
        from llama_cpp_py_sync.rpc import rpc_devices

        self._ffi, self._lib = ffi, lib = get_ffi(), get_lib()
        lib.llama_backend_init()
        model_params = lib.llama_model_default_params()
        model_params.n_gpu_layers = 99 if endpoints else 0
        model_params.use_extra_bufts = False
        if endpoints:
            self._devices = ffi.new("ggml_backend_dev_t[]", [*rpc_devices(endpoints, include_local=False), ffi.NULL])
            model_params.devices = self._devices
        if tensor:
            model_params.split_mode = _SPLIT_TENSOR
        loaded = lib.llama_model_load_from_file(model.encode(), model_params)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch, params.flash_attn_type = 1024, 1, 1, 1
        self._context = lib.llama_init_from_model(loaded, params)
        if self._context == ffi.NULL:
            sys.exit("no context")
        self._vocabulary = lib.llama_model_get_vocab(loaded)
        self._words = lib.llama_vocab_n_tokens(self._vocabulary)

    def prompt(self) -> tuple[int, ...]:
        """The tokens of the prompt."""
        text, room = PROMPT.encode(), len(PROMPT) + 2
        tokens = self._ffi.new("llama_token[]", room)
        count = self._lib.llama_tokenize(self._vocabulary, text, len(text), tokens, room, True, True)
        return tuple(self._ffi.unpack(tokens, count))

    def decode(self, tokens: tuple[int, ...]) -> Any:
        """Logits after these tokens, which go in as one batch."""
        batch = self._ffi.new("llama_token[]", list(tokens))
        if self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(batch, len(tokens))):
            sys.exit("llama_decode failed")
        return self._ffi.unpack(self._lib.llama_get_logits_ith(self._context, -1), self._words)

    def clear(self) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)


def greedy(client: Client, count: int) -> list[int]:
    found: list[int] = []
    tokens = client.prompt()
    for _ in range(count):
        logits = client.decode(tokens)
        found.append(logits.index(max(logits)))
        tokens = (found[-1],)
    return found


def behind(client: Client, tokens: list[int]) -> list[float]:
    fed, gaps = client.prompt(), []
    for token in tokens:
        logits = client.decode(fed)
        gaps.append(max(logits) - logits[token])
        fed = (token,)
    return gaps


def speed(client: Client, count: int, prompt: int) -> tuple[float, float]:
    client.decode(client.prompt())
    client.clear()
    start = time.perf_counter()
    client.decode((504,) * prompt)
    middle = time.perf_counter()
    pp = prompt / (middle - start)
    start = time.perf_counter()
    for _ in range(count):
        client.decode((504,))
    return pp, count / (time.perf_counter() - start)


def main(folder: str, what: str, *rest: str) -> None:
    sys.path.insert(0, folder)
    if what == "serve":
        serve(rest[0])
    elif what == "greedy":
        endpoints = [each for each in (rest[2] if len(rest) > 2 else "").split(",") if each]
        print(greedy(Client(rest[0], endpoints, tensor=rest[3:] == ("tensor",)), int(rest[1])), flush=True)
    elif what == "behind":
        print(json.dumps(behind(Client(rest[0], []), json.loads(rest[1]))), flush=True)
    else:
        print(*speed(Client(rest[0], rest[2].split(",")), int(rest[1]), int(rest[3])), flush=True)
    os._exit(0)  # the library's own ending is not what is looked at


if __name__ == "__main__":
    main(*sys.argv[1:])
