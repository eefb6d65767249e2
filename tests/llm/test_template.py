"""Chat templates: what transformers offers is there, what is hostile is not."""

import contextlib
import re

import pytest

from wireherd.errors import ModelError, UsageError
from wireherd.llm.template import ChatTemplate

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HI = [{"role": "user", "content": "hi"}]


def test_chatml():
    template = ChatTemplate(CHATML)
    assert template.render(HI) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(HI, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_what_transformers_offers():
    source = (
        "{{ bos_token }}{% for m in messages %}\n"
        "    {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}{{ strftime_now('%Y') }}{{ eos_token }}"
    )
    text = ChatTemplate(source, bos="<s>", eos="</s>").render(
        [{"role": "user", "content": "<é>"}, {"role": "user", "content": "no"}]
    )
    assert re.fullmatch(r'<s>\{"role": "user", "content": "<é>"\}\d{4}</s>', text)


def test_extra_values_reach_the_template():
    assert ChatTemplate("{{ enable_thinking }}").render(HI, enable_thinking=False) == "False"


def test_raise_exception_is_the_users_fault():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(UsageError, match="roles must alternate"):
        template.render(HI)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ (lipsum|attr('__globals__'))['os'].popen('id').read() }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_hostile_templates_get_nothing(source):
    with contextlib.suppress(ModelError):  # else: a forbidden attribute that is only printed is an undefined value
        assert ChatTemplate(source).render(HI) == ""


def test_messages_are_not_changed():
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(ModelError):
        ChatTemplate("{{ messages[0].update({'content': 'x'}) }}").render(messages)
    assert messages == HI


def test_invalid_template():
    with pytest.raises(ModelError, match="cannot be read"):
        ChatTemplate("{% for %}")
