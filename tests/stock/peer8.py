"""Stock protocol 8.0 peers out of llama-cpp-py-sync, each in a process of its own (needs cffi).

peer8.py FOLDER serve HOST:PORT                  an RPC server on the CPU with one thread
peer8.py FOLDER greedy MODEL N [HOST:PORT,...]   token ids of a greedy answer, its layers on these servers
"""

from __future__ import annotations

import os
import sys

_PROMPT = (1, 504, 3575, 282, 4649, 314)


def serve(endpoint: str) -> None:
    from llama_cpp_py_sync.rpc import start_rpc_server

    start_rpc_server(endpoint, devices=["CPU"], n_threads=1)


def greedy(model: str, count: int, endpoints: list[str]) -> list[int]:
    from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib
    from llama_cpp_py_sync.rpc import rpc_devices

    ffi, lib = get_ffi(), get_lib()
    lib.llama_backend_init()
    model_params = lib.llama_model_default_params()
    model_params.n_gpu_layers = 99 if endpoints else 0
    model_params.use_extra_bufts = False
    if endpoints:
        devices = ffi.new("ggml_backend_dev_t[]", [*rpc_devices(endpoints, include_local=False), ffi.NULL])
        model_params.devices = devices
    loaded = lib.llama_model_load_from_file(model.encode(), model_params)
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch, params.flash_attn_type = 512, 1, 1, 1
    context = lib.llama_init_from_model(loaded, params)
    words = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(loaded))
    tokens = ffi.new("llama_token[]", list(_PROMPT))
    length, found = len(_PROMPT), []
    for _ in range(count):
        if lib.llama_decode(context, lib.llama_batch_get_one(tokens, length)):
            sys.exit("llama_decode failed")
        logits = ffi.unpack(lib.llama_get_logits_ith(context, -1), words)
        found.append(logits.index(max(logits)))
        tokens[0], length = found[-1], 1
    return found


if __name__ == "__main__":
    folder, what, *rest = sys.argv[1:]
    sys.path.insert(0, folder)
    if what == "serve":
        serve(rest[0])
    else:
        print(greedy(rest[0], int(rest[1]), rest[2].split(",") if len(rest) > 2 else []), flush=True)
        os._exit(0)  # the library's own ending is not what is looked at
