"""Chat templates: the jinja2 text a model file brings along, run in a sandbox.

A template comes from a downloaded file, so it is hostile until shown otherwise: jinja2's immutable sandbox keeps it
from attributes and from changing what it is given, its output is bounded, and whatever it raises becomes one sentence.
The environment is the one templates are written for, that of Hugging Face transformers: trim_blocks, lstrip_blocks,
loop controls, the `generation` tag, and `raise_exception`, `strftime_now`, `tojson`.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from wireherd.errors import ModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2.parser import Parser

    from wireherd.ggml.llama import Model

#: what a rendered conversation may hold at most, in characters
OUTPUT_LIMIT: Final = 16 << 20

Message = dict[str, Any]


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training: here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Refused(Exception):  # noqa: N818 - the template's own words, never seen outside
    """The template called `raise_exception`."""


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(pattern: str) -> str:
    return dt.datetime.now().astimezone().strftime(pattern)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML, which models were not trained on
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A model's chat template, ready to render conversations."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        """Compile `source`; `bos` and `eos` are the texts of the model's tokens.

        Raises:
            ModelError: the template is no valid jinja2.
        """
        self.source = source
        self.bos = bos
        self.eos = eos
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelError(f"the chat template of the model cannot be read: {error}") from error

    @classmethod
    def of(cls, model: Model) -> ChatTemplate | None:
        """Give the template in a model's file; None for a base model.

        Raises:
            ModelError: as for a template by itself.
        """
        source = model.chat_template()
        if not source:
            return None
        vocab = model.vocab
        bos, eos = (
            vocab.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""
            for token in (vocab.bos, vocab.eos)
        )
        return cls(source, bos=bos, eos=eos)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **values: object
    ) -> str:
        """Turn a conversation into the text of a prompt.

        Args:
            messages: Dictionaries with at least `role` and `content`.
            add_generation_prompt: End with what opens the assistant's answer.
            values: Further variables of the template, such as `enable_thinking`.

        Raises:
            UsageError: the template refuses this conversation, in its own words.
            ModelError: the template fails, or writes more than `OUTPUT_LIMIT` characters.
        """
        context: dict[str, object] = {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos,
            "eos_token": self.eos,
            "tools": None,
            "documents": None,
            **values,
        }
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(context):
                length += len(piece)
                if length > OUTPUT_LIMIT:
                    raise ModelError(f"the chat template of the model writes more than {OUTPUT_LIMIT} characters")
                pieces.append(piece)
        except ModelError:
            raise
        except _Refused as refusal:
            raise UsageError(f"the model's chat template refuses this conversation: {refusal}") from refusal
        except Exception as error:  # the template is a foreign program: anything may come out of it
            reason = str(error) or type(error).__name__
            raise ModelError(f"the chat template of the model fails: {reason}") from error
        return "".join(pieces)
