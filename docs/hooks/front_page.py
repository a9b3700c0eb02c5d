"""MkDocs hook: the front page is README.md, with links as from docs/; what is outside of docs/ is named only."""

import re
from pathlib import Path

LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)([^)]*)\)")


def on_page_markdown(markdown: str, page: object, config: dict[str, str], **_: object) -> str:
    if page.file.src_uri != "index.md":
        return markdown
    readme = Path(config["config_file_path"]).parent / "README.md"
    return LINK.sub(_from_docs, readme.read_text(encoding="utf-8"))


def _from_docs(link: re.Match[str]) -> str:
    text, target = link.groups()
    return f"[{text}]({target.removeprefix('docs/')})" if target.startswith("docs/") else text
