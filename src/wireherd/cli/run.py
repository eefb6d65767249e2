"""`wireherd run`: generate text, once or in a chat."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wireherd.cli import drafting, options
from wireherd.cli.progress import bar
from wireherd.errors import UsageError
from wireherd.llm.chat import Conversation, prompt_tokens
from wireherd.llm.generate import GenerateOptions, Result
from wireherd.llm.interrupt import CtrlC
from wireherd.llm.sampler import SamplerSettings
from wireherd.llm.session import LlmSession
from wireherd.llm.stream import unescape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wireherd.llm.options import LlamaOptions

_DESCRIPTION: Final = """\
Generate text with one GGUF model, here or over workers.

  wireherd run -m model.gguf -p "Once upon a time"               continue a text
  wireherd run -m model.gguf -cnv -p "Who wrote Faust?"          one answer of an instruct model
  wireherd run -m model.gguf                                     chat: /exit leaves, Ctrl-C stops an answer
  wireherd run -m model.gguf --rpc 10.0.0.2:50052,10.0.0.3:50052 -p "Hello"

With -p or -f the prompt goes to the model as it is. With -cnv or -sys it becomes the user's message in the model's
own chat template. Text goes to stdout, everything else to stderr.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb and its flags."""
    parser = subparsers.add_parser(
        "run",
        help="generate text, or chat",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model(parser)
    group = parser.add_argument_group("prompt")
    group.add_argument("-p", "--prompt", metavar="TEXT", help="prompt; without it (and -f) a chat begins")
    group.add_argument("-f", "--file", type=Path, metavar="FILE", help="read the prompt from a file (- is stdin)")
    group.add_argument("-sys", "--system-prompt", metavar="TEXT", default="", help="system message; implies -cnv")
    group.add_argument("-cnv", "--conversation", "--chat", action="store_const", const=True, default=None,
                       dest="conversation", help="use the model's chat template")  # fmt: skip
    group.add_argument("-no-cnv", "--no-cnv", "--no-conversation", action="store_const", const=False,
                       dest="conversation", help="do not use it")  # fmt: skip
    group.add_argument("-e", "--escape", action="store_true", default=True, help=argparse.SUPPRESS)
    group.add_argument("--no-escape", action="store_false", dest="escape",
                       help=r"take \n, \t and the like in -p, -sys and --stop literally")  # fmt: skip
    group = parser.add_argument_group("generation")
    group.add_argument("-n", "--predict", "--n-predict", type=int, default=-1, metavar="N",
                       help="most tokens (default -1: until the model ends or the context is full)")  # fmt: skip
    group.add_argument("--stop", "-r", "--reverse-prompt", action="append", default=[], metavar="TEXT",
                       help="end the answer before this text (may be repeated)")  # fmt: skip
    group.add_argument("--ignore-eos", action="store_true", help="go on where the model would end")
    group.add_argument("-sp", "--special", action="store_true", help="show control tokens")
    defaults = SamplerSettings()
    for flags, name, kind in (
        (("--temp", "--temperature"), "temperature", float),
        (("--top-k",), "top_k", int),
        (("--top-p",), "top_p", float),
        (("--min-p",), "min_p", float),
        (("--repeat-penalty",), "repeat_penalty", float),
        (("--repeat-last-n",), "repeat_last_n", int),
        (("-s", "--seed"), "seed", int),
    ):
        default = getattr(defaults, name)
        group.add_argument(*flags, type=kind, dest=name, default=default, metavar="X", help=f"default {default}")
    drafting.add_draft(parser)
    options.add_compute(parser)
    options.add_cluster(parser)
    options.add_library(parser)
    parser.add_argument("--json", action="store_true", help="print one object: text, tokens, timings, workers")
    options.add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Generate once, or chat."""
    prompt = _prompt(args)
    if prompt is None and (args.json or args.conversation is False):
        raise UsageError(f"{'--json' if args.json else '-no-cnv'} needs a prompt: give -p or -f")
    if args.system_prompt and args.conversation is False:
        raise UsageError("-sys goes into the model's chat template, which -no-cnv forbids to use")
    generate = _generate_options(args)
    with bar() as progress:
        model = options.model_path(args, progress)
        draft = drafting.draft_options(args, progress)
    llama = replace(options.llama_options(args, model), draft=draft)
    if prompt is None:
        llama = replace(llama, swa_full=True)  # every turn goes on from the one before
    with CtrlC():
        session = _open(llama)
        if prompt is None:
            return _chat(session, llama, generate, _text(args, args.system_prompt))
        with session:
            _once(session, args, prompt, generate)
    return 0


def _prompt(args: argparse.Namespace) -> str | None:
    if args.prompt is not None and args.file is not None:
        raise UsageError("give the prompt by -p or by -f, not both")
    if args.file is None:
        return None if args.prompt is None else _text(args, args.prompt)
    try:
        if str(args.file) == "-":
            return sys.stdin.read()
        return Path(args.file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the prompt file {args.file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt file {args.file} is not UTF-8 text") from error


def _text(args: argparse.Namespace, text: str) -> str:
    return unescape(text) if args.escape else text


def _generate_options(args: argparse.Namespace) -> GenerateOptions:
    if not all(args.stop):
        raise UsageError("--stop needs a text: an empty one stops nothing")
    names = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "seed")
    return GenerateOptions(
        n_predict=args.predict,
        **{name: getattr(args, name) for name in names},
        stop=tuple(_text(args, stop) for stop in args.stop),
        ignore_eos=args.ignore_eos,
        special=args.special,
    )


def _open(llama: LlamaOptions) -> LlmSession:
    with bar() as progress:
        return LlmSession.open(llama, progress)


def _once(session: LlmSession, args: argparse.Namespace, prompt: str, generate: GenerateOptions) -> None:
    templated = args.conversation if args.conversation is not None else bool(args.system_prompt)
    if templated:
        messages = [{"role": "system", "content": _text(args, args.system_prompt)}] if args.system_prompt else []
        generation = session.generate(
            prompt_tokens(session, [*messages, {"role": "user", "content": prompt}]), generate
        )
    else:
        generation = session.generate(prompt, generate)
    if args.json:
        result = generation.run()
        answer = {
            "text": result.text,
            "tokens": result.tokens,
            "stop": result.stop,
            "seed": result.seed,
            **result.timings.figures(),
            "timings": result.timings.to_dict(),
            "workers": session.workers(),
        }
        print(json.dumps(answer))  # escaped: stdout need not be UTF-8, and what it lacks would come out as "?"
        return
    _stream(generation)
    _summary(generation.result)


def _stream(pieces: Iterable[str]) -> None:
    """Show text as it comes; whatever ends it, what was shown gets its line end."""
    shown = False
    try:
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
            shown = True
    finally:
        if shown:
            sys.stdout.write("\n")


def _summary(result: Result) -> None:
    """Tokens of the prompt, its t/s, t/s of the answer, tokens drafted, and how many of them were right."""
    if sys.stderr.isatty():
        figures = (f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                   for name, value in result.timings.figures().items())  # fmt: skip
        sys.stderr.write(f"[{result.timings.predicted_n} tokens: {', '.join(figures)}]\n")


def _chat(session: LlmSession, llama: LlamaOptions, generate: GenerateOptions, system: str) -> int:
    """Read lines until /exit or the end of input; an interrupted answer ends, the conversation goes on."""
    try:
        if session.template is None:
            raise UsageError(f"{llama.path.name} is a base model without a chat template: give a prompt with -p")
        conversation = Conversation(session, generate, system)
        terminal = sys.stdin.isatty()
        if terminal:
            sys.stderr.write("Chat: /exit leaves, Ctrl-C stops an answer.\n")
        while (line := _line("> " if terminal else "")) is not None and line.strip() not in {"/exit", "/quit"}:
            if not line.strip():
                continue
            try:
                _stream(conversation.ask(line))
            except KeyboardInterrupt:
                if terminal and not (conversation.last and conversation.last.result.tokens):
                    sys.stderr.write("\n")  # no answer has ended the line of the ^C
                if session.failed:  # its workers dropped the work, and with it the session
                    sys.stderr.write("(stopped; loading the model again)\n")
                    session.close()
                    session = conversation.session = _open(llama)
            if terminal and conversation.last and conversation.last.result.tokens:
                _summary(conversation.last.result)
        return 0
    finally:
        session.close()


def _line(prompt: str) -> str | None:
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt) as end:
        if prompt:
            sys.stderr.write("\n")  # the shell's own prompt belongs on a line of its own
        if isinstance(end, EOFError):
            return None
        raise
