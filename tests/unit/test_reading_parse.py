"""Every shape of a line, and the exact reason for every line that cannot be used."""

from __future__ import annotations

import json

import msgspec
import pytest

from common.records import Message, PromptJob
from producer.parse import InvalidLine, Prompt, parse_line


def parse(line):
    raw = (
        line
        if isinstance(line, bytes)
        else line.encode()
        if isinstance(line, str)
        else json.dumps(line).encode()
    )
    return parse_line(raw, line=7, index=5)


def reason(line):
    result = parse(line)
    assert isinstance(result, InvalidLine), result
    assert (result.index, result.line) == (5, 7)
    return result.reason


def test_a_prompt_becomes_one_user_message():
    assert parse({"prompt": "Why?"}) == Prompt(5, 7, "prompt-00000005", [Message("user", "Why?")], {})


def test_messages_keep_every_field_the_endpoint_knows():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]
    turns = [
        {"role": "system", "content": ""},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "", "tool_call_id": "c"},
        {"role": "user", "content": "and?", "weight": 1},
    ]
    assert parse({"messages": turns}).messages == [
        Message("system", ""),
        Message("developer", "d"),
        Message("user", parts, "ann"),
        Message("assistant", None, None, [call]),
        Message("tool", "", None, None, "c"),
        Message("user", "and?"),
    ]


def test_tool_calls_may_stand_without_content():
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [{"id": "c"}]}]
    assert parse({"messages": turns}).messages[1] == Message("assistant", None, None, [{"id": "c"}])


@pytest.mark.parametrize(
    "turns",
    [
        [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
        [
            {"from": "system", "value": "s"},
            {"from": "user", "value": "q"},
            {"from": "assistant", "value": "a"},
        ],
        [
            {"role": "system", "content": "s"},
            {"role": "human", "content": "q"},
            {"role": "gpt", "content": "a"},
        ],
        [{"role": "system", "value": "s"}, {"from": "user", "content": "q"}, {"from": "gpt", "value": "a"}],
    ],
)
def test_conversations_are_read_in_either_spelling(turns):
    expected = [Message("system", "s"), Message("user", "q"), Message("assistant", "a")]
    assert parse({"conversations": turns}).messages == expected


def test_a_conversation_may_end_with_the_assistant_or_a_tool():
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}, {"from": "tool", "value": "t"}]
    assert [m.role for m in parse({"conversations": turns[:2]}).messages] == ["user", "assistant"]
    assert [m.role for m in parse({"conversations": turns}).messages] == ["user", "assistant", "tool"]


def batch(**changes):
    line = {
        "custom_id": "r-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": "q"}], "max_tokens": 9, "top_p": 1},
    }
    return {**line, **changes}


def test_a_batch_line_brings_its_parameters():
    result = parse(batch(metadata={"a": 1}, params={"temperature": 0, "top_p": 0.5}))
    assert (result.id, result.messages) == ("r-1", [Message("user", "q")])
    assert result.params == {"model": "m", "max_output_tokens": 9, "top_p": 0.5, "temperature": 0}
    assert bytes(result.metadata) == b'{"a": 1}'


@pytest.mark.parametrize(
    ("given", "name"),
    [("a", "a"), (0, "0"), (-3, "-3"), (10**30, str(10**30)), ("ü\n", "ü\n"), ("x" * 512, "x" * 512)],
)
def test_ids_are_strings_or_integers(given, name):
    assert parse({"id": given, "prompt": "p"}).id == name
    assert parse({"custom_id": given, "prompt": "p"}).id == name


def test_null_means_not_given():
    nothing = dict.fromkeys(("id", "custom_id", "messages", "conversations", "body", "params"))
    assert parse({"prompt": "p", **nothing}) == Prompt(5, 7, "prompt-00000005", [Message("user", "p")], {})


@pytest.mark.parametrize(
    "metadata",
    [
        b"null",
        b"0",
        b'"x"',
        b"[]",
        b'{ "b":1.0,\t"a" : [1e5, 1e999, 12345678901234567890123] , "b":2}',
        b'"\\u00e9"',
    ],
)
def test_metadata_is_carried_byte_for_byte(metadata):
    result = parse(b'{"prompt":"p","metadata":  ' + metadata + b"  }")
    assert bytes(result.metadata) == metadata
    assert metadata in msgspec.json.encode(result.job())


def test_the_job_carries_all_but_the_line_number():
    result = parse({"id": "a", "prompt": "p", "params": {"seed": 1}})
    assert result.job(2) == PromptJob(
        index=5, id="a", messages=[Message("user", "p")], params={"seed": 1}, sample=2
    )


@pytest.mark.parametrize(
    "text",
    [
        " x ",
        "\u2028\u2029\x85",
        "a\rb\r\nc",
        "\x00\x01\x1f\x7f",
        "👩🏽‍🚀",
        "e\u0301 é",
        "\ufeff",
        "\u200e",
        "\U0010ffff",
    ],
)
def test_text_is_exact(text):
    for ascii_only in (True, False):
        assert (
            parse(json.dumps({"prompt": f"{text}!"}, ensure_ascii=ascii_only)).messages[0].content
            == f"{text}!"
        )


def test_line_ends_and_outer_white_space_do_not_matter():
    assert parse(b' \t{"prompt" : "p"} \r').messages == [Message("user", "p")]


USER = {"role": "user", "content": "q"}
KNOWN = "system, developer, user, assistant, tool"

UNREADABLE = [
    (b'{"prompt":"a\xff"}', "is not UTF-8 at byte 12 of the line"),
    (b'{"prompt":"a","metadata":"\xc3("}', "is not UTF-8 at byte 26 of the line"),
    (b'{"prompt":"a","other":"\xed\xa0\x80"}', "is not UTF-8 at byte 23 of the line"),
    (
        '\ufeff{"prompt":"a"}'.encode("utf-16-le"),
        "is not UTF-8; it looks like UTF-16: save the file as UTF-8",
    ),
    (b'{"prompt":"a\0"}', "holds a NUL byte at byte 12 of the line"),
    (b"\0\0\0", "holds a NUL byte at byte 0 of the line"),
    (
        b'\xef\xbb\xbf{"prompt":"a"}',
        "starts with a byte order mark, which belongs at the start of a file only",
    ),
    ("Why is the sky blue?", "is not JSON: Expecting value (character 0 of the line)"),
    ('{"prompt": "cut o', "is not JSON: Unterminated string starting at (character 11 of the line)"),
    ('{"prompt": "a"} {"prompt": "b"}', "is not JSON: Extra data (character 16 of the line)"),
    ('{"prompt": "a",}', None),  # the wording differs between Python versions
    (
        "{'prompt': 1}",
        "is not JSON: Expecting property name enclosed in double quotes (character 1 of the line)",
    ),
    ('{"prompt": "a\tb"}', "is not JSON: Invalid control character at (character 13 of the line)"),
    ('{"prompt": "a", "metadata": NaN}', "is not JSON: NaN is not a JSON value"),
    ('{"prompt": "a", "metadata": -Infinity}', "is not JSON: -Infinity is not a JSON value"),
    ("[]", "is not a JSON object but an array"),
    ('"text"', "is not a JSON object but a string"),
    ("17", "is not a JSON object but an integer"),
    ("null", "is not a JSON object but null"),
    (r'{"prompt": "\ud800"}', r"holds a lone surrogate, \ud800: half of a character"),
    (r'{"prompt": "\uDFFF tail"}', r"holds a lone surrogate, \udfff: half of a character"),
    (r'{"prompt": "\ud83d\ud83d\ude00"}', r"holds a lone surrogate, \ud83d: half of a character"),
    (r'{"id": "\ud800", "prompt": "a"}', r"holds a lone surrogate, \ud800: half of a character"),
    (r'{"prompt": "a", "metadata": {"\ude00": 1}}', r"holds a lone surrogate, \ude00: half of a character"),
    (
        r'{"prompt": "a", "params": {"stop": "\ud800"}}',
        r"holds a lone surrogate, \ud800: half of a character",
    ),
    ('{"prompt": "a", "metadata": ' + "[" * 100_000, "is nested too deeply"),
    ('{"prompt": "a", "params": {"temperature": 1e999}}', '"params" holds a number that is out of range'),
    ('{"id": ' + "9" * 5000 + ', "prompt": "a"}', '"id" holds a number that is out of range'),
]

UNUSABLE = [
    ({}, 'there is no prompt: give "prompt", "messages", "conversations" or "body"'),
    ({"text": "q"}, 'there is no prompt: give "prompt", "messages", "conversations" or "body"'),
    ({"prompt": None}, 'there is no prompt: give "prompt", "messages", "conversations" or "body"'),
    ({"prompt": "q", "messages": [USER]}, '"prompt" and "messages" are both there: give one of them'),
    (
        {"conversations": [], "messages": []},
        '"messages" and "conversations" are both there: give one of them',
    ),
    ({"prompt": ""}, '"prompt" is empty'),
    ({"prompt": " \n\u3000"}, '"prompt" holds only white space'),
    ({"prompt": 3}, '"prompt" must be a string, not an integer'),
    ({"prompt": 3.5}, '"prompt" must be a string, not a number with a fraction'),
    ({"prompt": True}, '"prompt" must be a string, not a boolean'),
    ({"prompt": ["q"]}, '"prompt" must be a string, not an array'),
    ({"prompt": {"text": "q"}}, '"prompt" must be a string, not an object'),
    ({"messages": []}, '"messages" is empty'),
    ({"conversations": []}, '"conversations" is empty'),
    ({"messages": "q"}, '"messages" must be an array, not a string'),
    ({"messages": ["q"]}, "messages[0] must be an object, not a string"),
    ({"conversations": [USER, None]}, "conversations[1] must be an object, not null"),
    ({"messages": [USER, {"content": "q"}]}, 'messages[1]: "role" is missing'),
    ({"messages": [{"from": "human", "value": "q"}]}, 'messages[0]: "role" is missing'),
    ({"messages": [{"role": 1, "content": "q"}]}, "messages[0]: the role must be a string, not an integer"),
    (
        {"messages": [{"role": "human", "content": "q"}]},
        f"messages[0]: the role 'human' is unknown; known are {KNOWN}",
    ),
    (
        {"messages": [{"role": "User", "content": "q"}]},
        f"messages[0]: the role 'User' is unknown; known are {KNOWN}",
    ),
    (
        {"conversations": [{"from": "bot", "value": "q"}]},
        f"conversations[0]: the role 'bot' is unknown; known are {KNOWN}, human, gpt",
    ),
    ({"conversations": [{"value": "q"}]}, 'conversations[0]: neither "role" nor "from" is there'),
    ({"messages": [{"role": "user"}]}, "messages[0]: the content is missing"),
    ({"messages": [USER, {"role": "assistant", "content": None}]}, "messages[1]: the content is missing"),
    ({"messages": [{"role": "user", "tool_calls": [{}]}]}, "messages[0]: the content is missing"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages[0]: the user's message is empty"),
    ({"messages": [{"role": "user", "content": " \n"}]}, "messages[0]: the user's message is empty"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
        "messages[0]: the user's message is empty",
    ),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "messages[0]: the content must be a string or an array of parts, not an integer",
    ),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0]: the content is an empty array"),
    (
        {"messages": [{"role": "user", "content": ["q"]}]},
        'messages[0]: every part of the content must be an object with a "type"',
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        'messages[0]: a part of type "text" must have its "text", a string',
    ),
    ({"messages": [{**USER, "name": 1}]}, 'messages[0]: "name" must be a string, not an integer'),
    (
        {"messages": [{**USER, "tool_call_id": []}]},
        'messages[0]: "tool_call_id" must be a string, not an array',
    ),
    ({"messages": [{**USER, "tool_calls": ["f"]}]}, 'messages[0]: "tool_calls" must be an array of objects'),
    ({"messages": [{"role": "system", "content": "s"}]}, '"messages" has no message of the user'),
    ({"id": "", "prompt": "q"}, '"id" is empty'),
    ({"id": " ", "prompt": "q"}, '"id" holds only white space'),
    ({"id": 1.5, "prompt": "q"}, '"id" must be a string or an integer, not a number with a fraction'),
    ({"id": True, "prompt": "q"}, '"id" must be a string or an integer, not a boolean'),
    ({"id": {}, "prompt": "q"}, '"id" must be a string or an integer, not an object'),
    ({"id": "x" * 513, "prompt": "q"}, '"id" has 513 characters; the most is 512'),
    ({"id": "a", "custom_id": "b", "prompt": "q"}, '"id" and "custom_id" are both there: give one of them'),
    ({"prompt": "q", "params": []}, '"params" must be an object, not an array'),
    (batch(body=[]), '"body" must be an object, not an array'),
    (batch(body={}), '"body.messages" must be an array, not null'),
    (batch(body={"messages": []}), '"body.messages" is empty'),
    (batch(body={"messages": ["q"]}), 'every item of "body.messages" must be an object'),
    (
        batch(body={"messages": [{"role": "human", "content": "q"}]}),
        f"body.messages[0]: the role 'human' is unknown; known are {KNOWN}",
    ),
    (
        batch(body={"messages": [USER], "top_p": 0}),
        'body: "top_p" must be a number above 0 and up to 1, not 0',
    ),
    (batch(custom_id=None), 'a batch line needs "custom_id"'),
    (batch(method="GET"), '"method" of a batch line must be "POST"'),
    (
        batch(url="/v1/embeddings"),
        '"url" of a batch line must be "/v1/chat/completions": only chat completions are made',
    ),
]

BATCH_START = '{"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": '

REPEATED = [
    ('{"prompt": "a", "prompt": "b"}', "prompt"),
    ('{"id": 1, "prompt": "a", "id" : 2}', "id"),
    ('{"prompt": "a", "\\u0070rompt": "b"}', "prompt"),
    ('{"messages": [{"role": "system", "role": "user", "content": "q"}]}', "role"),
    ('{"messages": [{"role": "user", "content": "q", "content": "q"}]}', "content"),
    ('{"conversations": [{"from": "gpt", "value": "q", "from": "human"}]}', "from"),
    ('{"prompt": "a", "params": {"top_p": 1, "top_p": 0.5}}', "top_p"),
    ('{"prompt": "a", "params": null, "params": {"top_p": 1}}', "params"),
    ('{"prompt": "a", "metadata": 1, "metadata": 2}', "metadata"),
    (
        BATCH_START + '{"messages": [{"role": "user", "content": "q"}], "model": "m", "model": "n"}}',
        "model",
    ),
    (
        BATCH_START
        + '{"messages": [{"role": "user", "content": "q"}], "messages": [{"role": "user", "content": "q"}]}}',
        "messages",
    ),
]


@pytest.mark.parametrize(("line", "expected"), UNREADABLE)
def test_unreadable_lines_say_why(line, expected):
    found = reason(line)
    assert found == expected if expected else found.startswith("is not JSON: ")


@pytest.mark.parametrize(("line", "expected"), UNUSABLE)
def test_unusable_lines_say_why(line, expected):
    assert reason(line) == expected


@pytest.mark.parametrize(("line", "key"), REPEATED)
def test_a_repeated_key_is_refused(line, key):
    assert reason(line) == f'the key "{key}" is there twice'


@pytest.mark.parametrize(
    "line",
    [
        {
            "prompt": 'the JSON is {"prompt": "a", "id": 1, "role": "user"}',
            "metadata": {"id": 1, "prompt": 2},
        },
        {"prompt": "q", "other": {"prompt": "x", "params": {}}, "params": {"extra_body": {"id": 1}}},
        {"messages": [{**USER, "extra": {"role": "r", "content": "c"}}]},
    ],
)
def test_the_same_name_in_other_places_is_no_repeated_key(line):
    assert isinstance(parse(line), Prompt)


@pytest.mark.parametrize("field", ["metadata", "params", "tool_calls", "content"])
def test_free_form_fields_may_nest_a_hundred_deep(field):
    def line(depth):
        if field in {"metadata", "params"}:
            value = '{"a":' * depth + "1" + "}" * depth
            return f'{{"prompt": "q", "{field}": {value}}}'
        inner = '{"a":' * (depth - 2) + "1" + "}" * (depth - 2)
        part = f'[{{"type": "x", "a": {inner}}}]'
        turn = {"tool_calls": f'"content": "q", "tool_calls": {part}', "content": f'"content": {part}'}[field]
        return f'{{"messages": [{{"role": "user", {turn}}}]}}'

    assert isinstance(parse(line(100)), Prompt)
    assert reason(line(101)).endswith("nested more than 100 deep")


def test_brackets_in_metadata_text_are_no_nesting():
    assert isinstance(parse({"prompt": "q", "metadata": "[{" * 200}), Prompt)
    assert isinstance(parse('{"prompt": "q", "metadata": [' + "[]," * 200 + "1e999]}"), Prompt)


def test_an_unusable_line_keeps_the_id_that_it_has():
    assert parse({"id": 9, "prompt": ""}).id == "9"
    assert parse({"id": "a", "messages": ["q"]}).id == "a"
    assert parse({"id": "x" * 513, "prompt": "q"}).id == "prompt-00000005"
    assert parse("nothing").id == "prompt-00000005"


def test_an_unusable_line_is_named_by_its_number():
    assert str(parse({"prompt": ""})) == 'line 7: "prompt" is empty'


def test_a_line_of_twenty_megabytes_is_a_line():
    text = "a\n" * 10_000_000
    assert parse({"prompt": text}).messages[0].content == text
