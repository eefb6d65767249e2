"""A conversation with an instruct model: messages in, answers out, the context reused from turn to turn."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wireherd.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wireherd.llm.generate import GenerateOptions, Generation
    from wireherd.llm.session import LlmSession
    from wireherd.llm.template import Message


def prompt_tokens(session: LlmSession, messages: list[Message]) -> list[int]:
    """Turn a conversation into the tokens of a prompt, by the model's own template.

    Raises:
        UsageError: the model has no chat template, or its template refuses the conversation.
        ModelError: the template fails.
    """
    template = session.template
    if template is None:
        raise UsageError(f"{session.options.path.name} is a base model without a chat template: give a plain prompt")
    text = template.render(messages)
    # a template may write the token that the tokeniser would put first, too
    doubled = bool(template.bos) and text.startswith(template.bos)
    return session.tokenize(text, add_special=not doubled, parse_special=True)


class Conversation:
    """Messages so far, and how the next answer is made. `session` may be replaced by a fresh one at any time."""

    def __init__(self, session: LlmSession, options: GenerateOptions, system: str = "") -> None:
        self.session = session
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self.last: Generation | None = None
        self._options = replace(options, reuse=True)

    def ask(self, text: str) -> Iterator[str]:
        """Say something and stream the answer, which becomes part of the conversation even if it is cut short.

        Raises:
            UsageError: the conversation no longer fits the context, or the template refuses it; what was said is
                taken back then.
            WorkerError, ModelError: as in `LlmSession.decode`.
        """
        self.messages.append({"role": "user", "content": text})
        answer = ""
        try:
            self.last = self.session.generate(prompt_tokens(self.session, self.messages), self._options)
            for piece in self.last:
                answer += piece
                yield piece
        finally:
            if answer:
                self.messages.append({"role": "assistant", "content": answer})
            else:
                self.messages.pop()  # nothing was answered: two questions in a row confuse templates
