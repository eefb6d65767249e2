"""The testing room: what tests of this package, and of programs built on it, need again and again.

Linked streams, a proxy that damages connections on command, and test data derived from the message table. Shipped, so
that nobody has to write them a second time; nothing outside tests may import it.

Start at `streams.py`, then `faultproxy.py`.
"""
