"""Quintet: match images and texts.

>>> import quintet
>>> "vse++" in quintet.list_models()
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Imported when first used: `import quintet` stays quick, and a matcher needs torch, numpy and pydantic only.
_PUBLIC = {
    "Codes": "quintet.codes",
    "ImageBatch": "quintet.data.batches",
    "TextBatch": "quintet.data.batches",
    "Corpus": "quintet.data.corpus",
    "QuintetError": "quintet.errors",
    "Evaluation": "quintet.evaluation.evaluator",
    "check_corpus": "quintet.report.corpus_check",
    "add_results": "quintet.evaluation.leaderboard",
    "backup_index": "quintet.search.safekeeping",
    "build_index": "quintet.search.indexing",
    "convert": "quintet.runs.convert",
    "create_model": "quintet.models",
    "evaluate": "quintet.evaluation.evaluator",
    "extract_features": "quintet.features.extract",
    "import_corpus": "quintet.data.formats",
    "list_models": "quintet.models",
    "load": "quintet.runs.run",
    "mine": "quintet.mining.mine",
    "open_index": "quintet.search.searcher",
    "push": "quintet.runs.hub_upload",
    "Run": "quintet.runs.run",
    "Searcher": "quintet.search.searcher",
    "train": "quintet.training.stages",
    "verify_index": "quintet.search.safekeeping",
}

if TYPE_CHECKING:
    from quintet.codes import Codes as Codes
    from quintet.data.batches import ImageBatch as ImageBatch
    from quintet.data.batches import TextBatch as TextBatch
    from quintet.data.corpus import Corpus as Corpus
    from quintet.data.formats import import_corpus as import_corpus
    from quintet.errors import QuintetError as QuintetError
    from quintet.evaluation.evaluator import Evaluation as Evaluation
    from quintet.evaluation.evaluator import evaluate as evaluate
    from quintet.evaluation.leaderboard import add_results as add_results
    from quintet.features.extract import extract_features as extract_features
    from quintet.mining.mine import mine as mine
    from quintet.models import create_model as create_model
    from quintet.models import list_models as list_models
    from quintet.report.corpus_check import check_corpus as check_corpus
    from quintet.runs.convert import convert as convert
    from quintet.runs.hub_upload import push as push
    from quintet.runs.run import Run as Run
    from quintet.runs.run import load as load
    from quintet.search.indexing import build_index as build_index
    from quintet.search.safekeeping import backup_index as backup_index
    from quintet.search.safekeeping import verify_index as verify_index
    from quintet.search.searcher import Searcher as Searcher
    from quintet.search.searcher import open_index as open_index
    from quintet.training.stages import train as train

__all__ = [*_PUBLIC, "__version__"]


if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        if name in _PUBLIC:
            return getattr(import_module(_PUBLIC[name]), name)
        raise AttributeError(f"module 'quintet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
