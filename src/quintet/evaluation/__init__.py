"""Measure matchers honestly: exact ranks, the field's metrics and protocols, and how sure they are."""

from __future__ import annotations

from quintet.evaluation.evaluator import Evaluation, evaluate, evaluate_members
from quintet.evaluation.metrics import chance_level, metrics_of_ranks, retrieval_metrics
from quintet.evaluation.ranks import Ranks, count_ranks, ranks_of_matrix
from quintet.evaluation.result import Result, load_ranks, write_result
from quintet.evaluation.scoring import Member, member_scores
from quintet.evaluation.significance import bootstrap_intervals, paired_test
from quintet.evaluation.split_protocols import PROTOCOLS, find_protocol

__all__ = [
    "PROTOCOLS",
    "Evaluation",
    "Member",
    "Ranks",
    "Result",
    "bootstrap_intervals",
    "chance_level",
    "count_ranks",
    "evaluate",
    "evaluate_members",
    "find_protocol",
    "load_ranks",
    "member_scores",
    "metrics_of_ranks",
    "paired_test",
    "ranks_of_matrix",
    "retrieval_metrics",
    "write_result",
]
