"""Measure matchers honestly: exact ranks, the field's metrics and protocols, and how sure they are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Imported when first used: validation in training needs ranks and metrics only.
_PUBLIC = {
    "PROTOCOLS": "split_protocols",
    "Evaluation": "evaluator",
    "Member": "scoring",
    "Ranks": "ranks",
    "Result": "result",
    "bootstrap_intervals": "significance",
    "chance_level": "metrics",
    "count_ranks": "ranks",
    "evaluate": "evaluator",
    "evaluate_members": "evaluator",
    "find_protocol": "split_protocols",
    "load_ranks": "result",
    "member_scores": "scoring",
    "metrics_of_ranks": "metrics",
    "paired_test": "significance",
    "ranks_of_matrix": "ranks",
    "retrieval_metrics": "metrics",
    "write_result": "result",
}

if TYPE_CHECKING:
    from quintet.evaluation.evaluator import Evaluation as Evaluation
    from quintet.evaluation.evaluator import evaluate as evaluate
    from quintet.evaluation.evaluator import evaluate_members as evaluate_members
    from quintet.evaluation.metrics import chance_level as chance_level
    from quintet.evaluation.metrics import metrics_of_ranks as metrics_of_ranks
    from quintet.evaluation.metrics import retrieval_metrics as retrieval_metrics
    from quintet.evaluation.ranks import Ranks as Ranks
    from quintet.evaluation.ranks import count_ranks as count_ranks
    from quintet.evaluation.ranks import ranks_of_matrix as ranks_of_matrix
    from quintet.evaluation.result import Result as Result
    from quintet.evaluation.result import load_ranks as load_ranks
    from quintet.evaluation.result import write_result as write_result
    from quintet.evaluation.scoring import Member as Member
    from quintet.evaluation.scoring import member_scores as member_scores
    from quintet.evaluation.significance import bootstrap_intervals as bootstrap_intervals
    from quintet.evaluation.significance import paired_test as paired_test
    from quintet.evaluation.split_protocols import PROTOCOLS as PROTOCOLS
    from quintet.evaluation.split_protocols import find_protocol as find_protocol

__all__ = [*_PUBLIC]


if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        if name in _PUBLIC:
            return getattr(import_module(f"quintet.evaluation.{_PUBLIC[name]}"), name)
        raise AttributeError(f"module 'quintet.evaluation' has no attribute {name!r}")
