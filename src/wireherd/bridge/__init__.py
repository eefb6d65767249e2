"""bridge: ggml's structs on one side, the wire's tensor records on the other.

`gather.py` reads a graph or a tensor out of the library's memory and turns it into records, `rebuild.py` makes a graph
of records that were checked, `numbering.py` maps operation and type numbers between builds. Everything is numpy over
whole arrays: a graph of a thousand nodes costs half a millisecond.

It must never talk to anybody, and never trust a number that came from the network: what is rebuilt was validated by
the worker before. Start with `gather.gather`.
"""
