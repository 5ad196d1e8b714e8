"""Extends MkDocs: pages from the root of the repository, and formulas.

Formulas become MathML while the site is built. Browsers draw MathML without a
script, so the pages need no other host.
"""

import html
import pathlib
import re

import latex2mathml.converter
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
PAGES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "RESULTS.md",
    "results/paper/RESULTS.md",
    "results/gaps/RESULTS.md",
    "results/quantize/RESULTS.md",
    "results/few-solves/RESULTS.md",
    "results/appendix/RESULTS.md",
)
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\([\[(])(.*?)\\[\])]</\1>', re.DOTALL
)
# A notebook becomes the index of a folder, so links start one level deeper.
LINK = re.compile(r'href="(?!\w+:)([^"#]+)\.(?:md|ipynb)(?=["#])')
PICTURE = re.compile(r'(<img\b[^>]* src=")(?!\w+:)')


def on_files(files, config):
    """Adds the pages of the repository, and the pictures of the results."""
    pictures = (
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "results").rglob("*.png"))
    )
    for name in (*PAGES, *pictures):
        files.append(
            File.generated(config, name, abs_src_path=str(ROOT / name))
        )
    return files


def on_page_markdown(markdown, **_):
    """Lets Markdown work inside `<details>`, as it does on GitHub."""
    return markdown.replace("<details>", "<details markdown>")


def on_page_content(content, page, **_):
    """Converts formulas to MathML, and adapts the links of notebooks."""
    if page.file.src_uri.endswith(".ipynb"):
        content = LINK.sub(r'href="../\1/', content)
        content = PICTURE.sub(r"\1../", content)

    def convert(match):
        _, bracket, formula = match.groups()
        display = "block" if bracket == "[" else "inline"
        math = latex2mathml.converter.convert(
            html.unescape(formula), display=display
        )
        if "\\" in math:  # a command that the converter does not know
            raise ValueError(f"Cannot convert a formula. Received: {formula}")
        return math

    return FORMULA.sub(convert, content)
