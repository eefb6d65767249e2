"""The language of the wire: what bytes mean and in which order they may come.

This room turns messages into bytes and back for every version of the ggml RPC protocol and for our extension of it.
It must never open a socket, look at a clock, start a thread or call native code: standard library and numpy only.

Start reading at `table.py`, the one row per command that everything else is derived from; then `fields.py` and the
three `messages_*.py` (a message's fields are its layout), `dialect.py` (what a version changes), `framing.py`
(headers), `connection.py` (who may say what when) and `numbering.py` (which number an operation has in which build).
"""
