"""The version of a method's or a task's code: what changes it, and what does not."""

import importlib
import itertools
import sys

import pytest

from entropy_dynamics.config import load_config, versions_of
from entropy_dynamics.methods import method_types
from entropy_dynamics.results.versions import first_versions, version_of
from entropy_dynamics.tasks import tasks

NUMBERS = itertools.count()
FILES = {
    "__init__": "class Base:\n    limit = 3\n",
    "shared": "def half(x):\n    return x / 2\n\n\ndef other(x):\n    return x\n",
    "one": """
        from PACKAGE import Base
        from PACKAGE.shared import half
        from PACKAGE import tables
        import PACKAGE.places as places

        SHARE = 0.1
        try:
            from PACKAGE.missing import third
        except ImportError:

            def third(x):
                return x / 3


        class One(Base):
            generated = SHARE

            def weight(self, x: float) -> float:
                return half(x) * third(tables.ROWS[0])

            def check(self):
                return "PACKAGE.grading"


        class Two(Base):
            pass


        class Three:
            limit = places.PLACES
    """,
    "tables": "ROWS = [1, 2]\n",
    "places": "PLACES = 3\n",
    "grading": "def check(x):\n    return x == 1\n",
}


@pytest.fixture
def version(tmp_path, monkeypatch):
    """`version(file, old, new)` of the class One after an edit, in a package of a name of its own."""
    monkeypatch.syspath_prepend(tmp_path)

    def after(file="one", old="", new="", kind="One", without=()):
        top = f"edited{next(NUMBERS)}"
        folder = tmp_path / top / "methods"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").touch()
        for name, text in FILES.items():
            text = "\n".join(line.removeprefix(" " * 8) for line in text.splitlines()) + "\n"
            if name == file:
                assert old in text
                text = text.replace(old, new)
            (folder / f"{name}.py").write_text(text.replace("PACKAGE", f"{top}.methods"))
        module = importlib.import_module(f"{top}.methods.one")
        monkeypatch.delitem(sys.modules, module.__name__)
        return version_of(getattr(module, kind), without)

    return after


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("one", "half(x)", "half(x) + 1"),
        ("one", "SHARE = 0.1", "SHARE = 0.2"),
        ("one", "class One(Base):", "class One:"),
        ("one", "x: float", "x: int"),
        ("__init__", "limit = 3", "limit = 4"),
        ("shared", "x / 2", "x / 3"),
        ("tables", "[1, 2]", "[1, 3]"),
        ("one", "x / 3", "x / 4"),  # the fallback of an import
        ("one", "except ImportError:", "except Exception:"),
        ("grading", "x == 1", "x == 2"),  # which another process imports
    ],
)
def test_an_edit_of_what_a_class_uses_is_another_version(version, file, old, new):
    assert version(file, old, new) != version()


def test_an_edit_of_a_module_that_is_imported_whole_is_another_version(version):
    assert version("places", "PLACES = 3", "PLACES = 4", kind="Three") != version(kind="Three")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("one", "class One(Base):", 'class One(Base):\n    """What it does."""\n'),
        ("one", "    def weight", "    # why\n    def weight"),
        ("one", "half(x) *", "(half(\n    x)) *"),
        ("one", "    pass", "    other = 1"),  # of another class
        ("one", "from PACKAGE import Base", "from . import Base"),
        ("shared", "    return x\n", "    return x + 1\n"),  # another function
    ],
)
def test_words_about_it_its_layout_and_other_code_are_not(version, file, old, new):
    assert version(file, old, new) == version()  # whose package has another name


def test_an_attribute_can_be_left_out(version):
    assert version() != version(without=("generated",))
    assert version("one", "SHARE = 0.1", "SHARE = 0.2", without=("generated",)) == version(without=("generated",))


def test_versions_are_those_of_the_same_code_on_every_python(version):
    assert (version(), version(kind="Two")) == ("8807f4c3a799de38", "618894bebd439d60")


def test_results_without_versions_are_those_of_the_code_of_now():
    """A version that is not in first_versions.txt repeats all results of its code, which takes days at some scales."""
    versions = {f"methods.{name}": version_of(kind) for name, kind in method_types().items()}
    for name, task in tasks().items():
        versions[f"graders.{name}"] = version_of(type(task), ("generated", "solutions"))
        kinds = {"generators": task.generated, "solutions": task.solutions}
        versions |= {f"{kind}.{name}": version_of(of) for kind, of in kinds.items() if of}
    assert {name: version for name, version in versions.items() if version not in first_versions()} == {}


def test_a_run_has_the_versions_of_its_method_and_of_what_its_sets_use():
    config = load_config("laptop", "qwen2.5-7b-instruct", "clip_b")
    assert sorted(versions_of(config)) == [
        *("generators.countdown", "graders.countdown", "methods.clip_b", "solutions.countdown")
    ]
    config = load_config("paper", "qwen2.5-7b-instruct", "grpo")
    assert sorted(versions_of(config)) == ["graders.math", "methods.grpo"]
