"""The language model room: one session over llama.h, from a file name to streamed text.

It finds or fetches the model, decides with llama.cpp where its layers go, decodes, samples and turns tokens into
text. It knows devices only as what `client` and `ggml` hand over: it must never touch ctypes, a socket, or the wire,
and it prints nothing.

Start at `session.py` (load and decode), then `generate.py` (prompt in, pieces of text out); `models.py` and `hub.py`
bring model files onto this machine.
"""
