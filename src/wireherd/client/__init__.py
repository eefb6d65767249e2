"""client: the ggml backend written in Python, plugged into an unmodified llama.cpp.

One file a ggml vtable, each a class whose methods are the slots: `reg.py`, `device.py`, `buffer_type.py`, `buffer.py`,
`backend.py`. `endpoint.py` is one worker as the slots see it (session, numbers, handles, failure), `graphs.py` knows
which graphs each worker holds, `support.py` which operations it can run, `plugin.py` ties a cluster together.
`comm.py` and `comm_stock.py` form groups of workers that add up tensors among themselves, `blank.py` is a device
without a worker.

Callbacks come from C, mostly on the thread that runs `llama_decode`. None may raise into C, none may wait unless data
must come back, and after a failure none may touch the wire: sets become nothing, gets give zeros, graphs fail, and
`Cluster.check` says why as one exception. It must never know how bytes travel, and never interpret a model.

Start with `plugin.Cluster`, then `backend.py` for what happens per token.
"""
