"""The command line: one file per verb, argparse in, rooms below called, text out; no logic of its own.

Each verb's file has `add_parser(subparsers)` and `main(args) -> int`; `main.py` lists the verbs and turns errors into
one sentence and an exit code (2 for usage, 1 for failure). It must never know what a frame, a tensor or a C pointer
is. Flags carry llama.cpp's names. Start at `main.py`.
"""
