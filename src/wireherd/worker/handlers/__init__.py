"""One function a command: takes the session's state and the message, gives back the answer.

Each file holds the commands about one kind of thing and ends in its table: opcode → handler. `dispatch.py` joins the
tables and proves that none is missing. A handler raises a `RemoteError` for what the peer did wrong; it must never
touch memory that `buffers.py` or `validate.py` has not led it to. Start with `tensor.py`.
"""
