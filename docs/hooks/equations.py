"""MkDocs hook: equations become MathML, which browsers render without a script."""

import html
import re

from latex2mathml.converter import convert

EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
REPAIRS = {  # of what latex2mathml writes
    r"<mi>log</mi>": '<mo lspace="0.17em" rspace="0.17em">log</mo>',  # as a name, it would touch its argument
    r"<mi>&#x027FA;</mi>": "<mo>&#x027FA;</mo>",  # likewise an arrow
    r"<mi>&#x0007E;</mi>": "<mo>&#x0223C;</mo>",  # \sim is no accent
    # After a relation or an opening bracket, a minus is a sign: no space after it, as in a subtraction.
    r"(<mo[^>]*>&#x(?:0003[CDE]|02248|0223C|00028|0005B);</mo>)<mo>(?=&#x02212;)": r'\1<mo form="prefix">',
}


def on_page_content(content: str, **_: object) -> str:
    def mathml(match: re.Match[str]) -> str:
        equation = convert(html.unescape(match[3]), display="block" if match[2] == "[" else "inline")
        for written, repaired in REPAIRS.items():
            equation = re.sub(written, repaired, equation)
        return equation

    return EQUATION.sub(mathml, content)
