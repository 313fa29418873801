"""The Python code of the pages runs as it is written: the blocks of a page, one after the other, are one program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.docs.commands import PAGES

pytest.importorskip("onnxruntime")

# What a page speaks of and a reader has: run before its blocks.
SCENES = """
import quintet
corpus = quintet.import_corpus("scenes", "-", "corpora/scenes", train=12, dev=8, test=4, size=48)
small = ["stages.*.epochs=1", "stages.*.batches.size=8"]
"""
FIRST = SCENES + 'quintet.train("vse-scenes", corpus, out="runs/first", overrides=small)'
BEFORE = {
    "README.md": "",
    "docs/backbones.md": 'from PIL import Image; image = Image.open("dog.jpg")',
    "docs/convert.md": """
import quintet, torch
from pathlib import Path
from tests.runs.convert.test_translate import save_vsepp
save_vsepp(Path("model_best.pth.tar"), Path("f30k_precomp_vocab.json"))
features, ids, lengths = torch.randn(2, 1, 5), torch.tensor([[1, 5, 2]]), torch.tensor([3])
""",
    "docs/corpora.md": """
from pathlib import Path
from tests.data.formats.test_flickr import make_source
make_source(Path("flickr8k"))
""",
    "docs/evaluation.md": FIRST
    + """
import numpy as np
scores, image_groups, text_groups = np.random.rand(4, 8), np.arange(4), np.arange(8) // 2
""",
    "docs/methods/vse.md": "",
    "docs/mining.md": FIRST
    + """
import shutil
shutil.copytree("corpora/scenes", "corpora/f30k")
quintet.extract_features("corpora/f30k")
""",
    "docs/python.md": "",
    "docs/scenes.md": "",
    "docs/search.md": """
from pathlib import Path
import quintet
from quintet.runs.onnx_export import export_onnx
export_onnx(quintet.load("quintet-small", device="cpu"), Path("towers"))
""",
    "docs/serve.md": 'import quintet; quintet.build_index("quintet-small", "photos", "holiday.index")',
    "docs/stores.md": "",
    "docs/tutorials/add-a-method.md": "",
    "docs/text.md": """
from pathlib import Path
training_texts, other_texts = ["A dog's ball.", "a dog and a ball"] * 4, ["a cat's ball"]
Path("vocab.txt").write_text("\\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "ball"]))
Path("glove.6B.300d.txt").write_text("".join(f"{word} {' '.join(['0.5'] * 300)}\\n" for word in ("a", "dog")))
""",
}
TUTORIAL = """
import torch, quintet
matcher = build_best_pair(image_dim=8, vocabulary_size=9)
images = matcher.encode_images(quintet.ImageBatch(fragments=torch.randn(2, 5, 8)))
texts = matcher.encode_texts(quintet.TextBatch(torch.randint(1, 9, (3, 4)), [4, 1, 2]))
assert matcher.score(images, texts).shape == (2, 3)
assert matcher.score_pairs(images, texts[:2]).shape == (2,)
"""
AFTER = {
    "docs/tutorials/add-a-method.md": TUTORIAL,
    "docs/mining.md": "assert (lists.texts[7] >= -1).all()",
    "docs/serve.md": "assert app.routes",
}
NOT_RUN = {"docs/architecture.md": "the four verbs, as signatures"}
SMALLER = {
    "train=2000, dev=200, test=200": "train=12, dev=4, test=4",
    'pieces = WordPiece.load("bert-base-uncased")': "",  # asks the hub
}


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("page", BEFORE)
def test_the_code_of_a_page_runs(page: str, blocks_of: Callable[[str, str], list[Any]]) -> None:
    blocks = blocks_of(page, "python")
    assert blocks
    if page == "docs/serve.md":
        pytest.importorskip("fastapi")
    names: dict[str, Any] = {"__name__": "page"}
    exec(BEFORE[page], names)
    for block in blocks:
        text = block.text
        for written, run in SMALLER.items():
            text = text.replace(written, run)
        exec(compile("\n" * (block.line - 1) + text, str(block.page), "exec"), names)
    exec(AFTER.get(page, ""), names)


def test_no_page_with_code_is_forgotten(blocks_of: Callable[[str, str], list[Any]]) -> None:
    assert {page for page in PAGES if blocks_of(page, "python")} == BEFORE.keys() | NOT_RUN.keys()


def test_blocks_are_found_by_language(tmp_path: Path, blocks_of: Callable[[str, str], list[Any]]) -> None:
    (tmp_path / "page.md").write_text("text\n```python\na = 1\n```\n```sh\nls\n```\n```python\nb = a\n\nc = b\n```\n")
    found = blocks_of(str(tmp_path / "page.md"), "python")
    assert [(block.line, block.text) for block in found] == [(3, "a = 1"), (9, "b = a\n\nc = b")]
    assert [block.text for block in blocks_of(str(tmp_path / "page.md"), "sh")] == ["ls"]
