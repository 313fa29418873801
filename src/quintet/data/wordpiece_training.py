"""Learning word pieces from counted words, the same pieces on every machine and in every run.

(The trainer of the `tokenizers` package decides ties by the order of a hash table, which changes from run to run.)
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise

CONTINUED = "##"  # before a piece that does not begin a word


def learn_pieces(words: Mapping[str, int], size: int) -> list[str]:
    """The letters of the words in alphabetical order, then joined pieces in the order learned, `size` in all.

    Again and again the most frequent pair of neighbouring pieces is joined into one, until `size` pieces are known or
    no pair is left. Of equally frequent pairs the first in the alphabet is joined. All letters are kept, also where
    they alone are more than `size`.

    >>> learn_pieces({"dog": 3, "dogs": 2, "do": 1}, size=7)
    ['##g', '##o', '##s', 'd', 'do', 'dog', 'dogs']
    """
    spelled = [[word[0], *(CONTINUED + letter for letter in word[1:])] for word in sorted(words)]
    counts = [words[word] for word in sorted(words)]
    pieces = sorted({piece for parts in spelled for piece in parts})
    known = set(pieces)
    pairs = Counter[tuple[str, str]]()
    where: dict[tuple[str, str], set[int]] = defaultdict(set)
    for number, parts in enumerate(spelled):
        for pair in pairwise(parts):
            pairs[pair] += counts[number]
            where[pair].add(number)
    heap = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(heap)
    while heap and len(pieces) < size:
        count, pair = heapq.heappop(heap)
        if -count != pairs[pair]:  # joined or recounted since; the newer count has an entry of its own
            continue
        joined = pair[0] + pair[1].removeprefix(CONTINUED)
        if joined not in known:
            known.add(joined)
            pieces.append(joined)
        changed = set()
        for number in where.pop(pair):
            before = spelled[number]
            spelled[number] = after = _join(before, pair, joined)
            for old in pairwise(before):
                pairs[old] -= counts[number]
                changed.add(old)
            for new in pairwise(after):
                pairs[new] += counts[number]
                where[new].add(number)
                changed.add(new)
        for other in changed:
            if pairs[other] > 0:
                heapq.heappush(heap, (-pairs[other], other))
    return pieces


def _join(parts: list[str], pair: tuple[str, str], joined: str) -> list[str]:
    out: list[str] = []
    place = 0
    while place < len(parts):
        if tuple(parts[place : place + 2]) == pair:
            out.append(joined)
            place += 2
        else:
            out.append(parts[place])
            place += 1
    return out
