"""The syntax of tool calls, from which grammars are made.

A `CallSyntax` is the text of a call with variables, and with {} where a chat template inserts the suffix of its tags:

    $NAME            the name of the tool
    $INDEX $ID       a number; ten letters and digits
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
    format of values that is otherwise like JSON, without quotes around keys. In a format with a `tag_prefix`, which
    no value contains, the properties of an object are parameters, too, and so are the elements of a list, named `item`.
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
    tag_prefix: str = ""
    before: str = ""


    def with_suffix(self, suffix: str) -> "CallSyntax":
        """Return the syntax with this suffix in its tags."""
        return self._replace(call=self.call.replace("{}", suffix), parameter=self.parameter.replace("{}", suffix))


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
HUNYUAN3 = CallSyntax(
    "<tool_call{}>$NAME<tool_sep{}>\n$PARAMETERS</tool_call{}>\n", "\n", "",
    parameter="<arg_key{}>$KEY</arg_key{}>\n<arg_value{}>$VALUE</arg_value{}>\n",
)  # fmt: skip
HUNYUAN4 = CallSyntax(
    "<tool_call{}>$NAME$PARAMETERS</tool_call{}>", separator="",
    parameter="<arg_key{}>$KEY</arg_key{}><arg_value{}>$VALUE</arg_value{}>",
)  # fmt: skip
MINICPM = CallSyntax('$NAME">$PARAMETERS', between="\n", parameter='<param name="$KEY">$VALUE</param>')
MINIMAX_M3 = CallSyntax(
    ']<]minimax[>[<invoke name="$NAME">$PARAMETERS]<]minimax[>[</invoke>\n', "\n", "",
    parameter="]<]minimax[>[<$KEY>$VALUE]<]minimax[>[</$KEY>", tag_prefix="]<]minimax[>[",
)  # fmt: skip
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
SOLAR = CallSyntax(
    "<|tool_call:begin|>$ID<|tool_call:name|>$NAME<|tool_call:args|>$ARGUMENTS<|tool_call:end|>", separator="",
    before="<|think|>$TEXT<|end|><|begin|>assistant",
)  # fmt: skip
PLAMO = CallSyntax(
    "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>$NAME<|plamo:end_tool_name:plamo|>"
    "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>$ARGUMENTS"
    "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
    separator="",
)
PYTHONIC = CallSyntax(
    "$NAME($PARAMETERS)", "[", ", ", "]", parameter="$KEY=$VALUE", parameter_separator=", ", quoted=True
)
OLMO = PYTHONIC._replace(begin="", separator="\n", end="")
COMMAND = CallSyntax(
    '    {"tool_call_id": "$INDEX", "tool_name": "$NAME", "parameters": $ARGUMENTS}', "[\n", ",\n", "\n]"
)
COMMAND_R = CallSyntax('    {"tool_name": "$NAME", "parameters": $ARGUMENTS}', "\n[\n", ",\n", "\n]\n")
GEMMA = CallSyntax(
    "call:$NAME{$PARAMETERS}", between="", parameter="$KEY:$VALUE", parameter_separator=",", quotes='<|"|>'
)
FUNCTION_GEMMA = GEMMA._replace(quotes="<escape>")
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
