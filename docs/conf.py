"""How `make docs` builds the site: Sphinx reads the pages of the repository, and the docstrings.

The source folder is the repository's root, so that a link between pages is the same on the site and
in a checkout. A warning is an error: a link that leads nowhere, a page that no list names.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

project = "amcast"
author = "The authors of amcast"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "examples/**/README.md",
    "bench/workloads/README.md",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
html_theme = "furo"
html_title = "amcast"
html_copy_source = False
html_extra_path = ["site"]  # index.html, which leads to the page of all pages
highlight_language = "none"  # of blocks that name no language: commands and what they print
myst_heading_anchors = 4  # the deepest heading that any page links to
myst_enable_extensions = ["attrs_block"]
# Docstrings have names in single backticks, as Markdown has them.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# What the modules import is not needed to read their docstrings.
autodoc_mock_imports = [
    "kafka", "confluent_kafka", "crc32c", "faust", "mode", "opentelemetry",
    "prometheus_client", "pulp", "pyarrow", "pyspark",
]  # fmt: skip
# Types of other packages, and those of the project that are not public, have no page to link to.
nitpick_ignore_regex = [("py:.*", r".*")]
