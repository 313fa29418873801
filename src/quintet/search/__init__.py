"""Search in images and texts by an index. Here: what can go wrong, for people and for servers that answer them."""

from __future__ import annotations

from quintet.errors import QuintetError

MOST_RESULTS = 100_000  # of a query
MOST_RERANKED = 10_000_000


class SearchError(QuintetError):
    """A search or an index that cannot be."""


class EmptyQuery(SearchError):  # noqa: N818 (what happened, not "an error")
    """There is nothing to search for."""


class QueryTooLong(SearchError):  # noqa: N818 (what happened, not "an error")
    """A query far longer than a text."""


class UnknownWords(SearchError):  # noqa: N818 (what happened, not "an error")
    """The matcher knows no word of the query."""


class UnknownItem(SearchError):  # noqa: N818 (what happened, not "an error")
    """The index has no item of this id."""


class MissingImage(SearchError):  # noqa: N818 (what happened, not "an error")
    """The image file of an item is gone, or lies outside the indexed folders."""


class StaleIndex(SearchError):  # noqa: N818 (what happened, not "an error")
    """The index was built by other runs, by another version, or is damaged."""


class StoreError(SearchError):
    """A store that does not exist, is in use, is damaged, or was asked for something it cannot hold."""


class StoreUnavailable(StoreError):  # noqa: N818
    """The engine that holds the vectors does not answer."""


class WhereError(SearchError):
    """A filter that is not written as filters are."""
