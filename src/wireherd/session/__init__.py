"""The session room: the only joint of `protocol` (messages, no bytes moved) and `transport` (bytes, no meaning).

It runs one peer's conversation: the client's side posts, calls and waits; the server's side reads commands and hands
them to a dispatcher. It decides when bytes leave, who reads, how long anybody waits, and what a dead peer is. It must
never know what a tensor or a graph is, and never touch ctypes.

Start at `client.py` (`ClientSession`) and `server.py` (`serve`); `handshake.py` opens connections, `control.py` tells
a busy worker from a dead one, `group.py` keeps several sessions from waiting on each other.
"""
