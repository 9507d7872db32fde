from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from backends.local.messages import read_messages
from backends.local.template import ChatTemplate
from orchestration.core.errors import InvalidRequest

USER = [{"role": "user", "content": "hi"}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", now=lambda: datetime(2031, 5, 6))


def test_blocks_leave_no_lines_behind_and_tokens_are_known() -> None:
    loop = "{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}"
    source = "{{ bos_token }}\n" + loop + "\n{{ eos_token }}"

    assert template(source).render(USER) == "<s>\nuser\n</s>"


def test_json_keeps_letters_and_signs() -> None:
    assert template("{{ messages | tojson }}").render([{"role": "user", "content": "<é>"}]) == (
        '[{"role": "user", "content": "<é>"}]'
    )


def test_the_day_comes_from_the_clock() -> None:
    assert template("{{ strftime_now('%d %b %Y') }}").render(USER) == "06 May 2031"


def test_generation_blocks_and_breaks_are_read() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"

    assert template(source).render(USER * 2) == "hi"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[5].content }}",
        "{{ messages + 1 }}",
        "{{ messages[0].__class__.__mro__[1].__subclasses__() }}",
        "{% set _ = messages.append(1) %}",
    ],
)
def test_a_refusal_or_a_fault_of_the_template_names_messages(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        template(source).render(USER)

    assert caught.value.param == "messages"


def test_options_reach_the_template_and_replace_nothing_of_ours() -> None:
    rendered = template("{{ enable_thinking }} {{ bos_token }}").render(
        USER, options={"enable_thinking": False, "bos_token": "x"}
    )

    assert rendered == "False <s>"


def test_a_template_knows_tools_when_it_reads_them() -> None:
    assert template("{% if tools %}{{ tools | tojson }}{% endif %}").knows_tools
    assert not template("{{ messages }}").knows_tools


def test_parts_are_joined_and_developer_is_system() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
    ]

    assert read_messages(messages) == [
        {"role": "system", "content": "ab"},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
    ]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([*USER, {"role": "wizard", "content": "x"}], "messages[1].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
    ],
)
def test_a_wrong_message_is_refused_by_its_field(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_messages(messages)

    assert caught.value.param == param
