"""Markdown in the web UI: what is rendered, and that it can never run a script or stop the page."""

from typing import Any

import pytest
from web_page import CHAT, answer_with, ask

ANSWER = """# Title

Some **bold** and `code`, <img src=x onerror=alert(1)> and [a link](https://example.org) [not](javascript:alert(1)).

1. one
   - inner
2. two

```python
print("<b>")
```

| a | b |
|---|---|
| 1 | 2 |
"""



def test_markdown_is_rendered_without_scripts(page: Any) -> None:
    answer_with(page, ANSWER, reasoning="Let me see.\nYes.")
    ask(page, "Show")
    shown = page.locator(".assistant .text")
    assert shown.locator("h3").inner_text() == "Title"
    assert shown.locator("strong").inner_text() == "bold"
    assert shown.locator("p code").inner_text() == "code"
    assert shown.locator("ol > li").count() == 2
    assert shown.locator("ol ul li").inner_text() == "inner"
    assert shown.locator("td").all_inner_texts() == ["1", "2"]
    assert shown.locator("img").count() == 0
    assert [each.get_attribute("href") for each in shown.locator("a").all()] == ["https://example.org"]
    page.click("text=Copy >> nth=1")
    assert page.evaluate("navigator.clipboard.readText()") == 'print("<b>")'
    assert not page.locator("details > div").is_visible()
    page.click("summary")
    assert page.locator("details > div").inner_text() == "Let me see.\nYes."


SYNTAX = r"""# One

## Two

Here is a table:
| Name | Value |
|:-----|------:|
| a \| b | line<br>break |

1. **First**

   A paragraph of the item.

   ```python
       indented()
   ```

1. Second
   - inner
     ```js
     let x;
     ```
- [ ] open
- [x] done

***Both***, \*stars\*, snake_case_name, &lt;b&gt;, end of a line\
and https://example.org/page. ![picture](https://example.org/a.png) [b](https://example.org/a_(b) "title")
> a quote
that goes on
"""


def test_syntax_that_models_write(page: Any) -> None:
    """Tables after a line of text, blocks in items of lists, tasks, escapes, entities, line breaks, addresses."""
    answer_with(page, SYNTAX)
    ask(page, "Show")
    page.wait_for_selector(".hljs-keyword")
    shown = page.locator(".assistant .text")
    assert shown.locator("h3, h4").all_inner_texts() == ["One", "Two"]
    assert shown.locator("th").all_inner_texts() == ["Name", "Value"]
    assert shown.locator("td").all_inner_texts() == ["a | b", "line\nbreak"]
    assert shown.locator("td").nth(1).evaluate("each => getComputedStyle(each).textAlign") == "right"
    assert shown.locator("ol > li").count() == 2
    assert shown.locator("ol > li >> nth=0").locator("> p").all_inner_texts() == ["First", "A paragraph of the item."]
    codes = shown.locator("ol code")
    assert [codes.nth(n).evaluate("each => each.textContent") for n in range(2)] == ["    indented()", "let x;"]
    assert shown.locator("ul > .task").all_inner_texts() == ["☐ open", "☑ done"]
    assert shown.locator("strong em, em strong").all_inner_texts() == ["Both"]
    last = shown.locator("> p").last
    assert ", *stars*, snake_case_name, <b>, end of a line\nand" in last.inner_text()
    addresses = [each.get_attribute("href") for each in last.locator("a").all()]
    assert addresses == [f"https://example.org/{path}" for path in ("page", "a.png", "a_(b)")]
    assert last.locator("a").nth(1).inner_text() == "picture"
    assert shown.locator("blockquote").inner_text() == "a quote that goes on"


SHOW = """async texts => {
    const { show } = await import("/page/markdown.js"), container = document.createElement("div");
    for (const text of texts) show(container, text);
    return [...container.querySelectorAll("p, a")].map(each => each.href ?? each.textContent);
}"""


def test_addresses_that_follow_their_links(page: Any) -> None:
    """A paragraph that is drawn already gets its link when the address arrives."""
    texts = ["See [the page].\n\nMore.", "See [the page].\n\nMore.\n\n[the page]: https://example.org/page\n"]
    assert page.evaluate(SHOW, texts[:1]) == ["See [the page].", "More."]
    assert page.evaluate(SHOW, texts) == ["See the page.", "https://example.org/page", "More."]


RUNS = "globalThis.hacked = true"
HOSTILE = (
    f"<script>{RUNS}</script>",
    f"<img src=x onerror='{RUNS}'>",
    f"<svg/onload={RUNS}>",
    f"<details open ontoggle={RUNS}>x",
    f"<iframe srcdoc='<script>parent.{RUNS}</script>'></iframe>",
    "<base href=//example.org>",
    "<style>*{display:none}</style>",
    "<meta http-equiv=refresh content='0;url=https://example.org'>",
    "<form action=//example.org><input autofocus></form>",
    f"[a](javascript:{RUNS})",
    f"[a](JaVaScRiPt:{RUNS})",
    f"[a](java\tscript:{RUNS})",
    f"[a](&#106;avascript:{RUNS})",
    f"[a](data:text/html,<script>{RUNS}</script>)",
    f"[a](vbscript:{RUNS})",
    "[a](//example.org)",
    "[a](file:///etc/passwd)",
    f"![a](x onerror={RUNS})",
    "![a](https://example.org/track.png)",
    f"[<img src=x onerror={RUNS}>](https://example.org)",
    f'[a](https://example.org/" onclick="{RUNS})',
    f'https://example.org/"onmouseover={RUNS}',
    f"`<script>{RUNS}</script>`",
    f"```<script>{RUNS}</script>\n</code></pre><script>{RUNS}</script>\n```",
    f"# <script>{RUNS}</script>",
    f"> <img src=x onerror={RUNS}>",
    f"- <img src=x onerror={RUNS}>",
    f"| <img src=x onerror={RUNS}> | b |\n|---|---|\n| a |",
    f"**<img src=x onerror={RUNS}>**",
    f"\u2028<script>{RUNS}</script>",
    f"<scr\0ipt>{RUNS}</script>",
    f"{{{{constructor.{RUNS}}}}}",
)
ALLOWED = "A BLOCKQUOTE BR BUTTON CODE DIV EM H3 H4 H5 H6 HR LI OL P PRE S STRONG TABLE TBODY TD TH THEAD TR UL"
FOUND = """[...document.querySelectorAll('.assistant .text *')].map(each => [
    each.tagName, each.tagName == 'A' ? each.href : '',
    ...each.getAttributeNames().filter(name => name.startsWith('on'))])"""


def test_hostile_markdown_runs_nothing(page: Any) -> None:
    """Neither a response nor its reasoning becomes a script, a request or an element that Markdown does not have. The
    fixture checks that no rule of the security policy was needed."""
    for content in ("\n\n".join(HOSTILE), "\n".join(HOSTILE)):
        answer_with(page, content, reasoning=content)
        ask(page, f"<img src=x onerror='{RUNS}'>")
        for tag, address, *handlers in page.evaluate(FOUND):
            assert tag in ALLOWED.split()
            assert address == "" or address.startswith(("https://", "http://", "mailto:"))
            assert handlers == []
        page.reload()
        page.wait_for_selector(".assistant .text > *")
        page.unroute(CHAT)
    assert page.evaluate("globalThis.hacked") is None


@pytest.mark.parametrize(
    "content",
    [
        "> " * 20_000 + "x",
        ">" * 20_000,
        "\n".join("  " * n + "- x" for n in range(1500)),
        "`" * 20_000,
        "*" * 20_000,
        "*_" * 10_000 + "x" + "_*" * 10_000,
        "[" * 20_000,
        "[a](" * 10_000,
        "~~" * 10_000,
        "# a" + " " * 20_000 + "b",
        "|" * 20_000 + "\n" + "|-" * 10_000,
        " " * 20_000 + "x",
        "**a" * 10_000,
        "`a``b" * 5_000,
    ],
    ids=lambda content: repr(content[:8]),
)
def test_no_markdown_stops_the_page(page: Any, content: str) -> None:
    """Deep nesting neither overflows the stack, nor does rendering take long."""
    answer_with(page, content)
    ask(page, "Show")
    assert page.locator(".assistant .text > *").count() > 0




FORMULAS = r"""Inline $x^2 + 1$ and \(\alpha\), for $5 or $10, and `$code$`.

$$
\frac{1}{2}
$$

\[ \sum_{i=1}^n i \]

$$ unfinished

After it, $\notacommand{$ stays.
"""


def test_formulas(page: Any) -> None:
    """Formulas are MathML; what is no formula, or cannot be read, is shown as it is."""
    answer_with(page, FORMULAS)
    ask(page, "Show")
    page.wait_for_selector(".assistant math >> nth=3")
    sources = [each.text_content() for each in page.locator(".assistant math annotation").all()]
    assert [source.strip() for source in sources] == ["x^2 + 1", r"\alpha", r"\frac{1}{2}", r"\sum_{i=1}^n i"]
    assert page.locator(".formula.display").count() == 2
    assert page.locator("mfrac").count() == 1
    shown = page.inner_text(".assistant .text")
    for text in ("for $5 or $10", "$code$", "$$ unfinished", r"$\notacommand{$ stays."):
        assert text in shown


def test_code_is_colored(page: Any) -> None:
    code = 'def f(x):\n    return "<b>" + x  # note'
    answer_with(page, f"```python\n{code}\n```\n\n```unknownlanguage\n{code}\n```\n\n```python\nnot_complete = 1")
    ask(page, "Show")
    page.wait_for_selector(".hljs-keyword")
    blocks = page.locator(".code code")
    assert blocks.nth(0).locator(".hljs-string").inner_text() == '"<b>"'
    assert [blocks.nth(n).inner_text() for n in range(3)] == [code, code, "not_complete = 1"]
    assert [blocks.nth(n).locator("span").count() > 0 for n in range(3)] == [True, False, False]
    page.click(".code button >> nth=0")
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == code


HOSTILE_FORMULAS = (
    rf"\href{{javascript:{RUNS}}}{{x}}",
    rf"\url{{javascript:{RUNS}}}",
    r"\includegraphics{https://example.org/a.png}",
    rf"\htmlData{{onclick={RUNS}}}{{x}}",
    r"\htmlStyle{position: fixed}{x}",
    r"\htmlClass{hidden}{x}",
    rf"\text{{<img src=x onerror={RUNS}>}}",
    rf"<script>{RUNS}</script>",
    r"\color{red} x \textcolor{#123456}{y} \colorbox{blue}{z}",
    r"\rule{1000em}{1000em}",
    r"\def\a{\a\a}\a",
    r"\begin{matrix} a & b \\ \hline c & d \end{matrix} \cancel{x} \boxed{y} \phantom{z} \raisebox{1em}{q}",
    "{" * 2000 + "x" + "}" * 2000,
    r"\sqrt{" * 200 + "x" + "}" * 200,
)
LANGUAGES = (
    "html", "xml", "javascript", "php", "python", "markdown", "constructor", "__proto__", "toString", 'html" onload="x',
)  # fmt: skip
HOSTILE_CODE = [f"```{name}\n{RUNS}\n<script>{RUNS}</script>\n<img src=x onerror='{RUNS}'>\n```" for name in LANGUAGES]
ATTRIBUTES = """[...document.querySelectorAll('.formula *, .code *')].flatMap(each => each.getAttributeNames()).filter(
    name => /^(on|style$|href$|src|xlink)/i.test(name))"""


def test_hostile_formulas_and_code_run_nothing(page: Any) -> None:
    """What KaTeX and highlight.js make has no script, address or style; the fixture checks that nothing was blocked."""
    for content in (
        "\n\n".join(f"$${each}$$ and ${each}$" for each in HOSTILE_FORMULAS),
        "\n\n".join(f"\\[\n{each}\n\\]\n\n\\({each}\\)" for each in HOSTILE_FORMULAS),
        "\n\n".join(HOSTILE_CODE),
    ):
        answer_with(page, content)
        ask(page, "Show")
        page.wait_for_selector(".formula, .hljs-tag")
        page.wait_for_selector("#messages math, .hljs-tag", state="attached")
        assert page.evaluate(ATTRIBUTES) == []
        assert page.locator(".formula a, .formula img, .code script, .code img").count() == 0
    assert page.evaluate("globalThis.hacked") is None


@pytest.mark.parametrize(
    "content", ["$" * 20_000, "$$\n" * 5_000, "\\(" * 10_000, "\\[ x\n" * 5_000, "$a" * 10_000, "$x$ " * 3_000],
    ids=lambda content: repr(content[:6]),
)  # fmt: skip
def test_no_formula_stops_the_page(page: Any, content: str) -> None:
    answer_with(page, content)
    ask(page, "Show")
    assert page.locator(".assistant .text > *").count() > 0
