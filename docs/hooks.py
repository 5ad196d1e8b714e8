"""Extends MkDocs: pages from the root of the repository, links, and formulas.

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
    *(
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "results").rglob("README.md"))
    ),
    "models/README.md",
)
OTHERS = ("results/**/*.png", "models/**/*.png", "models/*.kq", "models/*.json")
# These pages are above `docs/` in the repository, and beside the others here.
ABOVE = re.compile(
    r"(\]\((?:\.\./)*)\.\./"
    r"(?=RESULTS\.md|results/|models/|CHANGELOG\.md|CONTRIBUTING\.md)"
)
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\([\[(])(.*?)\\[\])]</\1>', re.DOTALL
)
# A notebook becomes the index of a folder, so links start one level deeper.
LINK = re.compile(r'href="(?!\w+:)([^"#]+)\.(?:md|ipynb)(?=["#])')
PICTURE = re.compile(r'(<img\b[^>]* src=")(?!\w+:)')
CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
CODE = re.compile(r"(?<=<code>)[^<]*(?=</code>)")
# The plugin of notebooks copies each one beside its page.
DOWNLOAD = '<p><a href="{0}" download="{0}">Download this notebook</a></p>'


def on_files(files, config):
    """Adds the pages of the repository, with their pictures and models."""
    others = (
        path.relative_to(ROOT).as_posix()
        for pattern in OTHERS
        for path in sorted(ROOT.glob(pattern))
    )
    for name in (*PAGES, *others):
        files.append(
            File.generated(config, name, abs_src_path=str(ROOT / name))
        )
    return files


def on_page_markdown(markdown, page, **_):
    """Adapts links, and hides tables from the search.

    The search would find the many tables of results before the guides. In
    `<details>`, GitHub reads Markdown as well.
    """
    if page.file.src_uri.startswith(("RESULTS", "results/")):
        page.meta["search"] = {"exclude": True}
    if page.file.src_uri not in PAGES:
        markdown = ABOVE.sub(r"\1", markdown)
    return markdown.replace("<details>", "<details markdown>")


def on_page_content(content, page, **_):
    """Converts formulas to MathML, and adapts and adds links of notebooks."""
    if page.file.src_uri.endswith(".ipynb"):
        content = LINK.sub(r'href="../\1/', content)
        content = PICTURE.sub(r"\1../", content)
        name = page.file.src_uri.rpartition("/")[2]
        content = content.replace("</h1>", "</h1>" + DOWNLOAD.format(name), 1)

    def convert(match):
        _, bracket, formula = match.groups()
        display = "block" if bracket == "[" else "inline"
        math = latex2mathml.converter.convert(
            html.unescape(formula), display=display
        )
        if "\\" in math:  # a command that the converter does not know
            raise ValueError(f"Cannot convert a formula. Received: {formula}")
        return math

    content = CELL.sub(lambda cell: CODE.sub(_breakable, cell[0]), content)
    return FORMULA.sub(convert, content)


def _breakable(code):
    """Lets long code in tables continue on a new line where words end."""
    if len(code[0]) <= 16:
        return code[0]
    return re.sub(r"(?<=[\w)\]])([.(_=/])(?=\w)", r"\1<wbr>", code[0])
