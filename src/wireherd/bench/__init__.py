"""The bench room: llama-bench's cases, columns and formats, measured over a cluster.

`cases` says what is measured, `runner` measures it, `stats` condenses it, `report` prints it. `compare` alternates two
modes, `bed` starts workers behind a `link`, and `profile` tells where a token's time goes on the client. This room must
never change what it measures: it drives the same session as `wireherd run` does, and what it prints is what
llama-bench's readers expect, own keys after theirs. Start at `cases`.
"""
