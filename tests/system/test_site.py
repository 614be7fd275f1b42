"""`make docs` imports the public modules without what they need: docs/conf.py names all of it.

The site itself is built by `make docs`, whose warnings are errors.
"""

import json
import re
import runpy
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE = re.compile(
    r"^\.\. automodule:: ([\w.]+)$|^\.\. autofunction:: ([\w.]+)\.\w+$", re.MULTILINE
)
# Imports modules where nothing is installed; prints what they needed, by the names of packages.
IMPORTS = """
import importlib, importlib.machinery, json, sys, types

class Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Made,), {})  # each of its own: a class may have two of them as bases

class Made(metaclass=Meta):
    def __new__(cls, *_, **__):
        return object.__new__(cls)
    def __init__(self, *_, **__): pass
    def __class_getitem__(cls, _): return cls
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Made
    def __call__(self, *_, **__): return Made()

needed = set()

class Finder:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package not in INSTALLED:
            return None
        needed.add(package)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: getattr(Made, name, Made)
        return module
    def exec_module(self, module): pass

sys.meta_path.insert(0, Finder())
for module in MODULES:
    for name in getattr(importlib.import_module(module), "__all__", ()):
        getattr(importlib.import_module(module), name)
print(json.dumps(sorted(needed)))
"""


def needed(modules):
    ours = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    installed = sorted({*packages_distributions()} - ours)
    program = f"INSTALLED = {installed}\nMODULES = {modules}\n{IMPORTS}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.slow
def test_all_that_the_public_modules_import_is_left_out_of_the_site_by_name():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    modules = [module or of_function for module, of_function in MODULE.findall(page)]
    assert {"multicast", "multicast.faust", "multicast.tracing.context"} <= set(modules)
    found = needed(modules)
    assert {"faust", "opentelemetry"} <= found
    assert found <= set(runpy.run_path(str(ROOT / "docs" / "conf.py"))["autodoc_mock_imports"])
