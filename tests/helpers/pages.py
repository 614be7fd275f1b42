"""Reads an HTML page for tests."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Fails on unbalanced elements; collects ids, references and texts."""

    VOID = ("meta", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.refers, self.tags, self.texts = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self._note(attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def _note(self, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "xlink:href", "src", "data", "action"):
                self.refers.append(value)
