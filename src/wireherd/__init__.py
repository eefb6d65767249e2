"""Run one GGUF model over several machines, driven from Python.

Two halves that work together and apart: a client, which is a ggml backend written in Python and plugged into an
unmodified llama.cpp library, and a worker, which owns devices, buffers and graphs and runs them with ggml.
Start reading at `wireherd.cli` (what a user does), `wireherd.client` and `wireherd.worker` (the two halves) or
`wireherd.protocol` (what travels between them).
"""

__version__ = "0.1.0"
