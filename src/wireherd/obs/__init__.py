"""Observation: logs today; metrics and traces belong here too.

This room must never change what is observed: nothing here raises into its caller, blocks, or imports another room
than `errors` and `config`. Start reading at `log`.
"""
