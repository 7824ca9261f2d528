"""The syntax of tool calls, from which grammars are made.

A `CallSyntax` is the text of a call with variables:

    $NAME $INDEX     the name of the tool; a number
    $ARGUMENTS       the arguments as a JSON object
    $PARAMETERS      the arguments one by one, each in the syntax of `parameter`, in which there are
    $KEY $VALUE      the name and the value
    $TYPE $IS_TEXT   the JSON type of the value; whether it is a string, as true or false
    $BREAK           an optional line break
"""

from typing import NamedTuple


class CallSyntax(NamedTuple):
    """The text between the delimiters of calls: `begin`, calls with a `separator` between them, `end`.

    Without a separator, each call has delimiters of its own, and `between` is the text between them; None means that
    there is only one call. `before` may precede a forced call; its $TEXT is any text, such as reasoning.

    Values are text, or JSON if they are not strings; with `quoted`, all are JSON. Other `quotes` enclose strings in a
    format of values that is otherwise like JSON, without quotes around keys.
    """

    call: str
    begin: str = ""
    separator: str | None = None
    end: str = ""
    between: str | None = None
    parameter: str = ""
    parameter_separator: str = ""
    quoted: bool = False
    quotes: str = ""
    before: str = ""


JSON_CALL = '{"name": "$NAME", "arguments": $ARGUMENTS}'
JSON_LIST = CallSyntax(JSON_CALL, "[", ", ", "]")
QWEN_CODER = CallSyntax(
    "\n<function=$NAME>\n$PARAMETERS</function>\n", between="\n", parameter="<parameter=$KEY>\n$VALUE\n</parameter>\n"
)
SEED = QWEN_CODER._replace(parameter="<parameter=$KEY>$VALUE</parameter>\n")
INVOKE = CallSyntax(
    '<invoke name="$NAME">\n$PARAMETERS</invoke>\n', "\n", "", parameter='<parameter name="$KEY">$VALUE</parameter>\n'
)
DSML = CallSyntax(
    '<｜DSML｜invoke name="$NAME">\n$PARAMETERS</｜DSML｜invoke>\n', "\n", "",
    parameter='<｜DSML｜parameter name="$KEY" string="$IS_TEXT">$VALUE</｜DSML｜parameter>\n',
)  # fmt: skip
GLM = CallSyntax(
    "$NAME$BREAK$PARAMETERS", between="\n",
    parameter="<arg_key>$KEY</arg_key>$BREAK<arg_value>$VALUE</arg_value>$BREAK",
)  # fmt: skip
MINICPM = CallSyntax('$NAME">$PARAMETERS', between="\n", parameter='<param name="$KEY">$VALUE</param>')
KIMI = CallSyntax(
    "<|tool_call_begin|>functions.$NAME:$INDEX<|tool_call_argument_begin|>$ARGUMENTS<|tool_call_end|>", separator=""
)
KIMI_K3 = CallSyntax(
    '<|open|>call tool="$NAME" index="$INDEX"<|sep|>$PARAMETERS<|close|>call<|sep|>', separator="",
    parameter='<|open|>argument key="$KEY" type="$TYPE"<|sep|>$VALUE<|close|>argument<|sep|>',
)  # fmt: skip
DEEPSEEK = CallSyntax("<｜tool▁call▁begin｜>$NAME<｜tool▁sep｜>$ARGUMENTS<｜tool▁call▁end｜>", separator="")
DEEPSEEK_R1 = CallSyntax(
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$NAME\n```json\n$ARGUMENTS\n```<｜tool▁call▁end｜>", separator="\n"
)
PYTHONIC = CallSyntax(
    "$NAME($PARAMETERS)", "[", ", ", "]", parameter="$KEY=$VALUE", parameter_separator=", ", quoted=True
)
COMMAND = CallSyntax(
    '    {"tool_call_id": "$INDEX", "tool_name": "$NAME", "parameters": $ARGUMENTS}', "[\n", ",\n", "\n]"
)
COMMAND_R = CallSyntax('    {"tool_name": "$NAME", "parameters": $ARGUMENTS}', "\n[\n", ",\n", "\n]\n")
GEMMA = CallSyntax(
    "call:$NAME{$PARAMETERS}", between="", parameter="$KEY:$VALUE", parameter_separator=",", quotes='<|"|>'
)
HARMONY_CALL = CallSyntax(
    "$NAME <|constrain|>json<|message|>$ARGUMENTS",
    before="<|channel|>analysis<|message|>$TEXT<|end|><|start|>assistant",
)
MUSE_CALL = CallSyntax(
    ' to=$NAME<|message|><atem:function_calls>\n<atem:invoke name="$NAME">\n$PARAMETERS</atem:invoke>\n'
    "</atem:function_calls>",
    parameter='<atem:parameter name="$KEY">$VALUE</atem:parameter>\n',
    before=" to=self<|message|>$TEXT<|eom|><|start|>assistant",
)
FUNCTIONARY_CALL = CallSyntax("$NAME\n$ARGUMENTS")
LLAMA = CallSyntax('{"name": "$NAME", "parameters": $ARGUMENTS}')
