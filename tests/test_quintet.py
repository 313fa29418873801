from __future__ import annotations

import subprocess
import sys

import pytest

import quintet

BLOCKED = (  # pydantic is not: it checks the arguments of a matcher
    "PIL",
    "yaml",
    "safetensors",
    "rich",
    "typer",
    "transformers",
    "tokenizers",
    "pyarrow",
    "tensorboard",
)

WITHOUT_OTHER_PACKAGES = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)

sys.meta_path.insert(0, Blocker())
"""

USE = """
import quintet
from quintet import Codes, ImageBatch, TextBatch, QuintetError, create_model, list_models
import torch

assert "vse++" in list_models()
matcher = create_model("vse++", vocabulary_size=10, image_dim=8, embed_dim=4, word_dim=4)
images = matcher.encode_images(ImageBatch(fragments=torch.randn(2, 5, 8)))
texts = matcher.encode_texts(TextBatch(torch.ones(3, 4, dtype=torch.int64), [4, 2, 1]))
assert matcher.score(images, texts).shape == (2, 3)
assert len(Codes.cat([images, images])) == 4
print("works")
"""

TIMED = """
import time
start = time.perf_counter()
import quintet
print(time.perf_counter() - start)
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_numpy_and_pydantic_are_enough_for_a_matcher() -> None:
    assert run(WITHOUT_OTHER_PACKAGES + USE).strip() == "works"


def test_the_blocker_blocks() -> None:
    code = WITHOUT_OTHER_PACKAGES + "\ntry:\n    import yaml\nexcept ModuleNotFoundError:\n    print('blocked')"
    assert run(code).strip() == "blocked"


def test_the_import_is_quick() -> None:
    assert float(run(TIMED)) < 1  # a few milliseconds on an idle machine


def test_importing_quintet_does_not_import_torch_yet() -> None:
    assert run("import sys, quintet; print('torch' in sys.modules)").strip() == "False"


def test_public_names_can_be_had() -> None:
    for name in quintet.__all__:
        assert getattr(quintet, name) is not None, name
        assert name in dir(quintet)
    assert quintet.__version__
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        quintet.absent  # noqa: B018
