"""R@1 of runs on hard and on infrequent test samples (HREM, Table 4)."""

from __future__ import annotations

from typing import Any

from quintet.data.corpus import Corpus
from quintet.evaluation.evaluator import encode_split, evaluate_members
from quintet.evaluation.scoring import Member, member_scores
from quintet.evaluation.special_samples import negative_means, special_samples
from quintet.runs.run import open_run
from quintet.training.studies.study import Trained


def special_samples_of(trained: Trained, variants: tuple[str, ...]) -> list[dict[str, Any]]:
    """The samples are chosen by the first variant's scores."""
    data = trained.recipes[variants[0]].data
    assert data.corpus is not None
    corpus = Corpus.open(data.corpus)
    split = corpus.split(data.test)
    members = {}
    for key in variants:
        run = open_run(trained.folders[key], device=trained.device)
        images, texts = run.image_batches(corpus, split.images), run.text_batches(split.texts)
        members[key] = Member(run.matcher, *encode_split(run.matcher, images, texts, split, trained.device), name=key)
    ranks = {
        key: evaluate_members([member], split, bootstrap=0, device=trained.device).ranks[0]
        for key, member in members.items()
    }
    scores = member_scores([members[variants[0]]], trained.device)
    return special_samples(ranks, *negative_means(scores, split.image_groups, split.text_groups))
