"""The page with what its address asks for: data for its scripts and, where those do not run, plain HTML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from string import Template
from typing import Any
from urllib.parse import urlencode

from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

from quintet.errors import QuintetError
from quintet.search import EmptyQuery
from quintet.search.items import Kind
from quintet.serve.guard import STATUS, finite, trouble
from quintet.serve.schemas import (
    LAST_ITEM,
    FacetAnswer,
    Facets,
    HitAnswer,
    ItemAnswer,
    NewestQuery,
    Results,
    SimilarQuery,
    Text,
    TextQuery,
)
from quintet.serve.service import Service

PAGE = 40  # results on one, as the scripts ask for them
HTML = "text/html; charset=utf-8"
NAMES = {"year": "Year", "folder": "Folder", "camera": "Camera", "orientation": "Shape", "place": "Place"}


class Address(BaseModel):
    """What the address of the page can say; what else is in it means nothing."""

    q: Text = ""
    without: Text = Field("", max_length=200)
    like: Text = Field("", max_length=4096)
    photo: Text = Field("", max_length=4096)
    kind: Kind = "image"
    where: Text = Field("", max_length=1000)
    page: int = Field(1, ge=1, le=LAST_ITEM // PAGE)

    def to(self, **changes: Any) -> str:
        """Another address with these changes."""
        parts = self.model_dump() | {"page": 1, "photo": ""} | changes
        plain = {name: value for name, value in parts.items() if value and (name, value) not in _DEFAULTS}
        return "/?" + urlencode(plain, errors="replace") if plain else "/"


_DEFAULTS = (("kind", "image"), ("page", 1))


class Page:
    """`template`: the text of index.html."""

    def __init__(self, template: str) -> None:
        self._template = Template(template)

    async def answer(self, service: Service, parameters: Mapping[str, str], facts: BaseModel | None) -> Response:
        """`facts`: of the index, None for who has to log in first."""
        if facts is None:
            return self._response(200, "Quintet", Address(), _LOG_IN, {})
        data: dict[str, Any] = {"facts": facts}
        try:
            asked = Address.model_validate({name: value.strip() for name, value in parameters.items() if value.strip()})
        except ValidationError as error:
            first = error.errors()[0]
            message = f"{'.'.join(map(str, first['loc']))} in the address: {first['msg']}"
            return self._response(422, "Quintet", Address(), trouble(message), data)
        log_out = _LOG_OUT if getattr(facts, "session", False) else ""
        try:
            if asked.photo:
                item = ItemAnswer.of(await service.item(asked.photo))
                data["item"] = item
                return self._response(200, _name(item), asked, _photo(item, asked), data)
            parts = [await self._find(service, asked, data), log_out]
            return self._response(200, asked.q or asked.where or "Quintet", asked, "".join(parts), data)
        except QuintetError as error:
            status, code = next(entry for kind, entry in STATUS.items() if isinstance(error, kind))
            if not asked.photo:
                data = {"facts": facts, "problem": {"code": code, "message": str(error)}}
            return self._response(status, "Quintet", asked, trouble(str(error)), data)

    async def _find(self, service: Service, asked: Address, data: dict[str, Any]) -> str:
        """Puts the answers into `data`, as the API gives them; returns them as HTML."""
        window: dict[str, Any] = {"kind": asked.kind, "limit": PAGE, "offset": PAGE * (asked.page - 1)}
        window["where"] = asked.where or None
        exclude = [asked.without] if asked.without else []
        try:
            if asked.like:
                data["like"] = ItemAnswer.of(await service.item(asked.like))
                similar = SimilarQuery(
                    id=asked.like, query=asked.q or None, exclude=exclude, duplicates=False, **window
                )
                results = await service.similar(similar)
            elif asked.q:
                text = TextQuery(query=asked.q, exclude=exclude, duplicates=False, **window)
                results = await service.search_text(asked.q, text)
            elif exclude:
                raise EmptyQuery("say also what the photo shows, not only what it does not show")
            else:
                results = await service.newest(NewestQuery(**window))
        except ValidationError:
            raise QuintetError("there are no further results; narrow the search by words or filters") from None
        if asked.page == 1:
            data["results"] = results
        facets = Facets(facets=[FacetAnswer.of(facet) for facet in await service.facets(asked.where)])
        data["facets"] = facets
        parts = [_facets(facets, asked)]
        if asked == Address():
            links = "".join(f"<li>{_link(Address(q=query).to(), query)}</li>" for query, _ in service.known_examples())
            parts += [f'<section class="plain"><h2>Try a search</h2><ul>{links}</ul></section>'] if links else []
        return "".join([*parts, _results(results, asked)])

    def _response(self, status: int, title: str, asked: Address, plain: str, data: dict[str, Any]) -> Response:
        values = {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in data.items()}
        # "<" could end the element that the data are in.
        first = json.dumps(finite(values), separators=(",", ":")).replace("<", "\\u003c")
        filled = self._template.substitute(
            title=_e(title),
            query=_e(asked.q),
            without=_e(asked.without),
            where=_e(asked.where),
            plain=plain,
            first=first,
        )
        return Response(filled.encode("utf-8", "replace"), status, media_type=HTML)


_LOG_IN = (
    '<form class="log-in" method="post" action="/api/session/form"><h2>This server asks for its token</h2>'
    '<label for="plain-token">Token</label><input id="plain-token" name="token" type="password" required>'
    '<button class="main">Continue</button></form>'
)
_LOG_OUT = (
    '<form method="post" action="/api/session/form">'
    '<button class="quiet" name="leave" value="1">Log out</button></form>'
)


def _e(text: str) -> str:
    return escape(text, quote=True)


def _name(item: ItemAnswer) -> str:
    return item.text or (item.path or item.id).rpartition("/")[2]


def _link(address: str, text: str, more: str = "") -> str:
    return f'<a href="{_e(address)}"{more}>{_e(text)}</a>'


def _facets(facets: Facets, asked: Address) -> str:
    menus = []
    for facet in facets.facets:
        shown, links = NAMES[facet.name], []
        for choice in facet.choices:
            if choice.chosen:
                shown += f": {choice.label}"
            more = ' aria-current="true"' if choice.chosen else ""
            link = _link(asked.to(where=choice.where), f"{choice.label} ({choice.count:,})", more)
            links.append(f"<li>{link}</li>")
        menu = f'<details class="menu"><summary>{_e(shown)}</summary><ul>{"".join(links)}</ul></details>'
        menus.append(f'<div class="facet">{menu}</div>')
    return f'<div class="facets" role="group" aria-label="Filters">{"".join(menus)}</div>' if menus else ""


def _results(results: Results, asked: Address) -> str:
    if not results.hits:
        return f'<p class="plain">{"Nothing passes the filter." if asked.where else "There is nothing to show."}</p>'
    strong, weak = ([hit for hit in results.hits if hit.weak is is_weak] for is_weak in (False, True))
    start = PAGE * (asked.page - 1)
    head = "Results" if asked.q or asked.like else "Recent photos" if not asked.where else "Photos"
    parts = [f"<p>Note: {_e(results.note)}</p>" if results.note else ""]
    parts.append(f"<h2>{head}</h2>{_list(strong, asked, start)}" if strong else "")
    if weak:
        parts.append("<h2>Weaker matches</h2><p>Random words fit these as well.</p>")
        parts.append(_list(weak, asked, start + len(strong)))
    if asked.kind == "image":
        parts.append('<p><button class="quiet">Download the selected photos</button></p>')
    pages = []
    if asked.page > 1:
        pages.append(_link(asked.to(page=asked.page - 1), "Previous page", ' rel="prev"'))
    if results.more:
        pages.append(_link(asked.to(page=asked.page + 1), "Next page", ' rel="next"'))
    navigation = f'<nav class="pages" aria-label="Pages">{" ".join(pages)}</nav>' if pages else ""
    return f'<form class="plain" action="/api/download">{"".join(parts)}</form>{navigation}'


def _list(hits: Iterable[HitAnswer], asked: Address, start: int) -> str:
    return f'<ol class="grid" start="{start + 1}">{"".join(_card(hit, asked) for hit in hits)}</ol>'


def _card(hit: HitAnswer, asked: Address) -> str:
    item, name = hit.item, _e(_name(hit.item))
    address = _e(asked.to(photo=item.id, page=asked.page))
    if item.kind == "text":
        return f'<li class="card text"><a class="open" href="{address}"><span class="said">{name}</span></a></li>'
    image = f'<img src="{_thumbnail(item, 320)}" alt="{name}" loading="lazy">'
    box = f'<input type="checkbox" name="id" value="{_e(item.id)}" aria-label="Select {name}">'
    alike = ""
    if hit.duplicates:
        links = ", ".join(_link(asked.to(photo=each.id), _name(each)) for each in hit.duplicates)
        alike = f'<details class="alike"><summary>+{len(hit.duplicates)} alike</summary>{links}</details>'
    return f'<li class="card"><a class="open" href="{address}">{image}</a><label class="tick">{box}</label>{alike}</li>'


def _thumbnail(item: ItemAnswer, size: int) -> str:
    return _e("/api/thumbnail?" + urlencode({"id": item.id, "size": size}))


def _photo(item: ItemAnswer, asked: Address) -> str:
    links = [_link(asked.to(page=asked.page), "Back"), _link(Address(like=item.id).to(), "More like this")]
    name, whole = "A text", f"<blockquote>{_e(item.text or '')}</blockquote>"
    if item.kind == "image":
        file = "/api/image?" + urlencode({"id": item.id})
        links += [_link(file, "Open the file"), _link(file, "Download", " download")]
        name, whole = _name(item), f'<img class="whole" src="{_thumbnail(item, 1600)}" alt="{_e(_name(item))}">'
    facts = ({"path": item.path} if item.path else {}) | item.metadata
    rows = "".join(f"<dt>{_e(field)}</dt><dd>{_e(str(value))}</dd>" for field, value in facts.items())
    doings = f'<p class="doings">{" ".join(links)}</p>'
    return f'<article class="plain"><h2>{_e(name)}</h2>{whole}{doings}<dl>{rows}</dl></article>'
