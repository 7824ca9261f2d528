"""Answers with tool calls, in the format of each family of chat templates."""

from typing import Any

PARIS = {"city": "Paris"}
HARD = {"city": 'a "b" } </tool_call> {\\', "days": 2, "more": {"x": [1, None, True]}}
HARD_JSON = r'{"city": "a \"b\" } </tool_call> {\\", "days": 2, "more": {"x": [1, null, true]}}'
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "object"},
    }}}},
    {"type": "function", "function": {"name": "now"}},
]  # fmt: skip

HERMES, QWEN3 = "<tool_call>", "<tool_call> <function= <parameter="
MISTRAL, LLAMA, GLM = "[TOOL_CALLS]", "<|python_tag|>", "<tool_call> <arg_key>"
DEEPSEEK, KIMI = "<｜tool▁calls▁begin｜>", "<|tool_calls_section_begin|>"
MINICPM, MINIMAX = "<function name= <param name=", "]<]minimax[>["
HUNYUAN3, HUNYUAN4 = "{% set s = ':x' %} <tool_calls{} <tool_sep{} <arg_key{}", "<tool_calls:x> <arg_key:x>"
SOLAR = "<|tool_call:begin|>"
GEMMA, LFM = "<|tool_call>call:", "<|tool_call_start|>"
OPEN, CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"

ANSWERS: list[tuple[str, str, str, list[tuple[str, dict[str, Any]]]]] = [
    # the template's markers, the generated text, the parsed text, the parsed calls
    (HERMES, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
     "", [("get_weather", PARIS)]),
    (HERMES, f'<tool_call>{{"name": "get_weather", "arguments": {HARD_JSON}}}</tool_call>',
     "", [("get_weather", HARD)]),
    (HERMES, '<tool_call>\n{{"name": "now", "arguments": {}}}\n</tool_call>', "", [("now", {})]),
    (HERMES, '{{"name": "now", "arguments": {}}}', "", [("now", {})]),
    (HERMES, ('Let me see.\n\n<tool_call>{"name": "now", "arguments": {}}</tool_call>\n'
             '<tool_call>{"arguments": "{\\"city\\": \\"Paris\\"}", "name": "get_weather"}</tool_call>\nDone.'),
     "Let me see.Done.", [("now", {}), ("get_weather", PARIS)]),
    (HERMES, '<tool_call>{"name": "now"}', "", [("now", {})]),  # without the closing tag
    (HERMES, "I < 3 and <b> are <tool_c no call ", "I < 3 and <b> are <tool_c no call ", []),
    (HERMES, '```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```', "", [("get_weather", PARIS)]),
    (HERMES, '```python\nprint({"name": 1})\n```', '```python\nprint({"name": 1})\n```', []),
    (HERMES, '{"name": "Ada", "arguments": {}}', '{"name": "Ada", "arguments": {}}', []),
    (HERMES, '{"name": "get_weather"}', '{"name": "get_weather"}', []),
    (QWEN3, ("Yes.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\n\n\"York\n</parameter>\n"
            "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"),
     "Yes.", [("get_weather", {"city": 'New\n\n"York', "days": 2})]),
    (QWEN3, "<function=get_weather>\n<parameter=city>\n7\n</parameter>\n</function>\n</tool_call>", "",
     [("get_weather", {"city": "7"})]),
    (QWEN3, "<tool_call>\n<function=now>\n</function>\n</tool_call>", "", [("now", {})]),
    (QWEN3, ("<tool_call>\n<function=get_weather>\n<parameter=city>\n</function>\n</tool_call> x\n</parameter>\n"
             "</function>\n</tool_call>"), "", [("get_weather", {"city": "</function>\n</tool_call> x"})]),
    ("<seed:tool_call> <function=", ("<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
     "</function>\n</seed:tool_call>"), "", [("get_weather", PARIS)]),
    ("<function=", '<function=get_weather>{"city": "Paris"}</function>', "", [("get_weather", PARIS)]),
    (GLM, ("\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
          "<arg_key>more</arg_key>\n<arg_value>{\"x\": 1}</arg_value>\n</tool_call>"),
     "", [("get_weather", {"city": "Paris", "more": {"x": 1}})]),
    (GLM, "<tool_call>now\n</tool_call>", "", [("now", {})]),
    (LLAMA, '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [("get_weather", PARIS)]),
    (LLAMA, '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}', "", [("now", {}), ("now", {})]),
    (LLAMA, '{"type": "function", "name": "now", "parameters": {}}', "", [("now", {})]),
    (LLAMA, '<|python_tag|>{"name": "now", "parameters": {}}', "", [("now", {})]),
    (LLAMA, '<|python_tag|>get_weather.call(city="Paris")', "", [("get_weather", PARIS)]),
    (MISTRAL, ('Well. [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "[/]"}, "id": "abcdefghi"}, '
              '{"name": "now", "arguments": {}}]'), "Well.", [("get_weather", {"city": "[/]"}), ("now", {})]),
    (MISTRAL, f"[TOOL_CALLS]get_weather[ARGS]{HARD_JSON}[TOOL_CALLS]now[ARGS]{{}}", "",
     [("get_weather", HARD), ("now", {})]),
    (MISTRAL, "[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{}", "", [("now", {})]),
    (DEEPSEEK, (f'Hm{DEEPSEEK}{OPEN}get_weather<｜tool▁sep｜>{{"city": "Paris"}}{CLOSE}'
               f"{OPEN}now<｜tool▁sep｜>{{}}{CLOSE}<｜tool▁calls▁end｜>"), "Hm", [("get_weather", PARIS), ("now", {})]),
    (DEEPSEEK, (f'{DEEPSEEK}{OPEN}function<｜tool▁sep｜>get_weather\n```json\n{{"city": "Paris"}}\n```{CLOSE}'
               "<｜tool▁calls▁end｜>"), "", [("get_weather", PARIS)]),
    ("DSML function_calls", ('<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
     '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
     '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
     "</｜DSML｜function_calls>"),
     "", [("get_weather", {"city": "Paris", "days": 2})]),
    ("DSML", ('Hm\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>\n'
     '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">7</｜DSML｜parameter>\n'
     "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"), "Hm", [("now", {}), ("get_weather", {"city": "7"})]),
    (KIMI, ('<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>'
           '{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>'), "", [("get_weather", PARIS)]),
    ("<minimax:tool_call>", ('<minimax:tool_call>\n<invoke name="get_weather">\n'
     '<parameter name="city">Paris</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>'),
     "", [("get_weather", {"city": "Paris", "days": 2})]),
    (GEMMA, ('<|tool_call>call:get_weather{city:<|"|>a "b", c: {d<|"|>,days:2,more:{<|"|>x<|"|>:[true,<|"|>y<|"|>]}}'
            "<tool_call|>"), "", [("get_weather", {"city": 'a "b", c: {d', "days": 2, "more": {"x": [True, "y"]}})]),
    (LFM, '<|tool_call_start|>[get_weather(city="Paris", days=-2, more={"x": [True, None]}), now()]<|tool_call_end|>Ok',
     "Ok", [("get_weather", {"city": "Paris", "days": -2, "more": {"x": [True, None]}}), ("now", {})]),
    ("<|tool_call|>", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "",
     [("get_weather", PARIS)]),
    ("<|START_ACTION|>", '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "now", "parameters":{}}]<|END_ACTION|>',
     "", [("now", {})]),
    ("<TOOLCALL>", '<TOOLCALL>[{"name": "now", "arguments": {}}]</TOOLCALL>', "", [("now", {})]),
    ("<tool_calls>", '<tool_calls>[{"name": "now", "arguments": {}, "id": "1"}]</tool_calls>', "", [("now", {})]),
    (KIMI, ("I look.<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}"
           "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}"),
     "I look.", [("get_weather", PARIS), ("now", {})]),
    ("<|open|> <|sep|>", ('<|open|>response<|sep|>Hm<|close|>response<|sep|><|open|>tools<|sep|>'
     '<|open|>call tool="get_weather" index="1"<|sep|>'
     '<|open|>argument key="city" type="string"<|sep|>7<|close|>argument<|sep|>'
     '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|>'
     '<|close|>tools<|sep|><|close|>message<|sep|>'), "Hm", [("get_weather", {"city": "7", "days": 2})]),
    ("<seed:tool_call> <function=", ("<seed:tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n"
     "</parameter>\n</function>\n</seed:tool_call>"), "", [("get_weather", {"city": "\nParis\n"})]),
    (MINICPM, ('Hm\n<function name="get_weather"><param name="city"><![CDATA[</param></function>]]></param>'
               '<param name="days">2</param></function>\n<function name="now"></function>'),
     "Hm", [("get_weather", {"city": "</param></function>", "days": 2}), ("now", {})]),
    (MINIMAX, ('Hm<tool_call>\n<invoke name="get_weather"><city>7</city><days>2</days><more><x><item>1</item>'
               "<item>two</item></x><y></y></more></invoke>\n</tool_call>").replace("<", f"{MINIMAX}<"),
     "Hm", [("get_weather", {"city": "7", "days": 2, "more": {"x": [1, "two"], "y": ""}})]),
    ("<|tools_prefix|>", '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}, {"now": {}}]<|tools_suffix|>', "",
     [("get_weather", PARIS), ("now", {})]),
    ("<|function_call|>", 'Hm<|function_call|>{"name": "now", "arguments": {}}', "Hm", [("now", {})]),
    ("<|role_sep|> <|message_sep|>",
     'Hm<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "now", "arguments": {}}', "Hm", [("now", {})]),
    ("functools[", (' functools[{"name": "now", "arguments": {}}, '
                    '{"name": "get_weather", "arguments": {"city": "Paris"}}]'),
     "", [("now", {}), ("get_weather", PARIS)]),
    ("Action: <|CHATBOT_TOKEN|>", 'Hm\nAction:\n```json\n[{"tool_name": "now", "parameters": {}}]\n```', "Hm",
     [("now", {})]),
    ("List of tools: [ keep_past_thinking", "<|tool_call_start|>[now()]<|tool_call_end|>", "", [("now", {})]),
    (HUNYUAN3, ("Hm.<tool_calls:x>\n<tool_call:x>get_weather<tool_sep:x>\n<arg_key:x>city</arg_key:x>\n"
     "<arg_value:x>7 <b>\n</arg_value:x>\n<arg_key:x>more</arg_key:x>\n<arg_value:x>{\"x\": 1}</arg_value:x>\n"
     "</tool_call:x>\n<tool_call:x>now<tool_sep:x>\n</tool_call:x>\n</tool_calls:x>"),
     "Hm.", [("get_weather", {"city": "7 <b>\n", "more": {"x": 1}}), ("now", {})]),
    (HUNYUAN4, ("<tool_calls:x><tool_call:x>get_weather<arg_key:x>city</arg_key:x><arg_value:x></tool_calls:x>"
     "</arg_value:x></tool_call:x><tool_call:x>now</tool_call:x></tool_calls:x>"),
     "", [("get_weather", {"city": "</tool_calls:x>"}), ("now", {})]),
    ("<tool_calls> <arg_key>", "<tool_calls><tool_call>now</tool_call></tool_calls>", "", [("now", {})]),
    ("<answer> </think>", ('<answer>\nHm <tool_calls>[{"name": "now", "arguments": {}}]</tool_calls>\n</answer>'), "Hm",
     [("now", {})]),
    (SOLAR, ('<|content|>Hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>'
     'get_weather<|tool_call:args|>{"city": "Paris"}<|tool_call:end|>'
     '<|tool_call:begin|>b<|tool_call:name|>now<|tool_call:args|>{}'
     "<|tool_call:end|><|calls|>"), "Hm", [("get_weather", PARIS), ("now", {})]),
    ("plamo: tool_requests", ("<|plamo:begin_tool_requests:plamo|>\n<|plamo:begin_tool_request:plamo|>\n"
     "<|plamo:begin_tool_name:plamo|>get_weather<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>"
     '<|plamo:constrain|>json<|plamo:msg|>{"city": "Paris"}<|plamo:end_tool_arguments:plamo|>'
     "<|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>"), "", [("get_weather", PARIS)]),
    ("[unused11]", '[unused11][{"name": "now", "arguments": {}}][unused12]', "", [("now", {})]),
    ("<|tool|>", '<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>', "", [("now", {})]),
    ("<|tool|>", 'functools[{"name": "now", "arguments": {}}]', "", [("now", {})]),
    ("<tool_call> <response>", "<response>\nHello\n</response>", "Hello", []),
    ("<dots_function_call>", ('<dots_function_call>\n<invoke name="get_weather">\n<parameter name="city">7'
     "</parameter>\n</invoke>\n</dots_function_call>"), "", [("get_weather", {"city": "7"})]),
    ("<function_calls>", "<function_calls>get_weather(city='Paris', days=2)\nnow()</function_calls>", "",
     [("get_weather", {"city": "Paris", "days": 2}), ("now", {})]),
    ("<start_function_call>", ("<start_function_call>call:get_weather{city:<escape>a, b: {c<escape>,days:2}"
     "<end_function_call>"), "", [("get_weather", {"city": "a, b: {c", "days": 2})]),
    ("nothing that is known", '<tool_call>{"name": "now", "arguments": {}}</tool_call>', "", [("now", {})]),
]  # fmt: skip

BROKEN = [
    (HERMES, '<tool_call>{"name": "now", "arguments": {}</tool_call>'),
    (HERMES, 'So:\n<tool_call>{"name": "get_weather", "arguments": {"city": "Par'),
    (HERMES, "<tool_call>"),
    (HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    (HERMES, '<tool_call>{"name": "now", "arguments": {"x": NaN}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "now", "arguments": ' + '{"x":' * 100_000),
    (QWEN3, "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar"),
    (QWEN3, "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>"),
    (QWEN3, "<tool_call>hm</tool_call>"),
    (GLM, "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>"),
    (LLAMA, '<|python_tag|>print("Hello")\nprint()'),
    (LLAMA, "<|python_tag|>f(*x)"),
    (MISTRAL, '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "now", "argu'),
    (MISTRAL, '[TOOL_CALLS]get_weather[ARGS]{"city": "Par'),
    (MISTRAL, "[TOOL_CALLS]"),
    (DEEPSEEK, f"{DEEPSEEK}{OPEN}now<｜tool▁sep｜>{{}}"),
    (KIMI, "<|tool_calls_section_begin|>now<|tool_calls_section_end|>"),
    (GEMMA, '<|tool_call>call:get_weather{city:<|"|>Par'),
    (GEMMA, "<|tool_call>call:now{a:{b:1}<tool_call|>"),
    (LFM, '<|tool_call_start|>[get_weather(city="Par'),
    (MINICPM, '<function name="get_weather"><param name="city">Par'),
    (MINIMAX, f'{MINIMAX}<tool_call>{MINIMAX}<invoke name="now">{MINIMAX}<a>1{MINIMAX}</invoke>{MINIMAX}</tool_call>'),
    (MINIMAX, f'{MINIMAX}<tool_call>{MINIMAX}<invoke name="now">1{MINIMAX}</invoke>{MINIMAX}</tool_call>'),
    (HUNYUAN4, "<tool_calls:x><tool_call:x>now<arg_key:x>city</arg_key:x></tool_call:x></tool_calls:x>"),
    (HUNYUAN4, "<tool_calls:x><tool_call:x>now<arg_key:x>city</arg_key:x><arg_value:x>Par"),
    (SOLAR, "<|tool_calls|><|tool_call:begin|>a<|tool_call:name|>now<|tool_call:args|>{"),
    ("<function_calls>", "<function_calls>x = 1</function_calls>"),
    ("<start_function_call>", "<start_function_call>call:now{city:<escape>Par"),
    ("<|tools_prefix|>", "<|tools_prefix|>[1]<|tools_suffix|>"),
    ("functools[", 'functools[{"name": "now", "arg'),
]
