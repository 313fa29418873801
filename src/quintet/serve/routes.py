"""The routes of the HTTP API."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, BinaryIO
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from quintet.serve import prometheus as metrics
from quintet.serve.access import SESSION_S, Access
from quintet.serve.download import file_name, zipped
from quintet.serve.guard import (
    COOKIE,
    IncompleteError,
    Json,
    client_of,
    documented,
    problem,
    problem_page,
    session_of,
    too_many,
)
from quintet.serve.schemas import (
    Example,
    Examples,
    ExplainQuery,
    ExplanationAnswer,
    FacetAnswer,
    Facets,
    FacetsQuery,
    Files,
    Health,
    ImageQuery,
    IndexAnswer,
    ItemAnswer,
    NewestQuery,
    Paths,
    Readiness,
    Results,
    Session,
    SimilarQuery,
    TextQuery,
    ThumbnailSize,
)
from quintet.serve.service import Service

KEEP = "private, max-age=86400"  # an id is made of the content, so the image of an id never changes
UPLOAD = {
    "requestBody": {
        "required": True,
        "description": "The bytes of an image file, not a form.",
        "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}},
    }
}
BYTES = {"schema": {"type": "string", "format": "binary"}}
# What a read-only token is told of the index: what the page needs.
READ_FACTS = ("matcher", "counts", "dim", "can_rerank", "can_explain_regions", "can_search_by_image")


async def _service(request: Request) -> Service:  # FastAPI would run a plain function in a thread
    service: Service = request.app.state.service
    return service


Asked = Annotated[Service, Depends(_service)]
ItemId = Annotated[str, Query(description="An item's id, as a search gives it.", max_length=4096)]
router = APIRouter()


@router.post("/api/search", response_model=Results, responses=documented(400, 413, 422))
async def search(query: TextQuery, service: Asked) -> Response:
    """Search for the images, or the texts, that match a text best."""
    return Json(await service.search_text(query.query, query))


@router.post("/api/search/picture", include_in_schema=False)  # its earlier name
@router.post("/api/search/image", response_model=Results, responses=documented(400, 413, 422), openapi_extra=UPLOAD)
async def search_by_image(query: Annotated[ImageQuery, Query()], request: Request, service: Asked) -> Response:
    """Search for the images, or the texts, that match an uploaded image best, and a text beside it."""
    return Json(await service.search_image(request.stream(), query))


@router.get("/api/similar", response_model=Results, responses=documented(404, 422))
async def similar(query: Annotated[SimilarQuery, Query()], service: Asked) -> Response:
    """Search for the items that are most similar to an item of the index."""
    return Json(await service.similar(query))


@router.get("/api/newest", response_model=Results, responses=documented(422))
async def newest(query: Annotated[NewestQuery, Query()], service: Asked) -> Response:
    """Items by their date, the latest first."""
    return Json(await service.newest(query))


@router.get("/api/facets", responses=documented(422))
async def facets(query: Annotated[FacetsQuery, Query()], service: Asked) -> Facets:
    """What a filter could choose next: years, folders, cameras, orientations and places, with counts of images."""
    return Facets(facets=[FacetAnswer.of(facet) for facet in await service.facets(query.where)])


@router.get("/api/examples", responses=documented(422))
async def examples(service: Asked) -> Examples:
    """Queries that fit images of this index well."""
    found = await service.examples()
    return Examples(examples=[Example(query=query, item=ItemAnswer.of(item)) for query, item in found])


@router.post("/api/explain", responses=documented(400, 404, 413, 422))
async def explain(query: ExplainQuery, service: Asked) -> ExplanationAnswer:
    """The weight of each word of a text for an item and, for some matchers, the image regions it attends to."""
    return ExplanationAnswer.of(await service.search(lambda searcher: searcher.explain(query.query, query.id)))


@router.get("/api/item", responses=documented(404, 422))
async def item(id: ItemId, service: Asked) -> ItemAnswer:
    """Metadata of an item."""
    return ItemAnswer.of(await service.item(id))


@router.get(
    "/api/thumbnail",
    response_class=Response,
    responses=documented(404, 410, 422)
    | {200: {"content": {"image/jpeg": BYTES, "image/png": BYTES}}, 304: {"description": "Not modified."}},
)
async def thumbnail(id: ItemId, request: Request, service: Asked, size: ThumbnailSize = ThumbnailSize(320)) -> Response:
    """A thumbnail of an image, upright, its longer side at most `size` pixels."""
    small = await service.thumbnail(id, size)
    headers = {"ETag": f'"{small.tag}"', "Cache-Control": KEEP}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(small.data, media_type=small.media_type, headers=headers)


@router.get("/api/picture", include_in_schema=False)  # its earlier name
@router.get(
    "/api/image",
    response_class=Response,
    responses=documented(404, 410, 422) | {200: {"content": {"image/*": BYTES}}},
)
async def image_path(id: ItemId, service: Asked) -> Response:
    """The unchanged image file."""
    name = file_name(await service.item(id))
    file, media_type = await service.image_file(id)
    size = os.fstat(file.fileno()).st_size
    disposition = f"inline; filename*=UTF-8''{quote(name, safe='')}"
    headers = {"Content-Length": str(size), "Cache-Control": KEEP, "Content-Disposition": disposition}
    return StreamingResponse(_chunks(file, size), media_type=media_type, headers=headers)


@router.get(
    "/api/download",
    response_class=Response,
    responses=documented(404, 410, 413, 422) | {200: {"content": {"application/zip": BYTES}}},
)
async def download(query: Annotated[Files, Query()], service: Asked) -> Response:
    """The unchanged files of several images in one ZIP file; those that are gone are named in a text file inside."""
    files = await service.files(query.id)
    size, limit = sum(path.stat().st_size for _, path in files), service.settings.max_download_bytes
    if size > limit:
        raise HTTPException(413, f"these files have {size / 1e9:.1f} GB, more than {limit / 1e9:.1f}; choose fewer")
    headers = {"Content-Disposition": 'attachment; filename="photos.zip"'}
    return StreamingResponse(zipped(service, [item for item, _ in files]), 200, headers, "application/zip")


@router.get("/api/paths", responses=documented(404, 410, 422))
async def paths(query: Annotated[Files, Query()], service: Asked) -> Paths:
    """Where the files of images lie on the server's computer."""
    return Paths(paths=[str(path) for _, path in await service.files(query.id)])


@router.get("/api/index", responses=documented())
async def index(request: Request, service: Asked) -> IndexAnswer:
    """Facts about the index in use, and the limits of the server."""
    return await index_answer(request, service)


async def index_answer(request: Request, service: Service) -> IndexAnswer:
    facts, error = await service.look_up(lambda searcher: searcher.describe()), service.index_error
    full = request.state.access == Access.FULL
    return IndexAnswer(
        index=facts if full else {name: facts[name] for name in READ_FACTS if name in facts},
        index_error=error if full or error is None else "the index is damaged or cannot be opened",
        access="full" if full else "read",
        session=service.keys.of_session(session_of(request.headers)) > Access.NONE,
        max_upload_bytes=service.settings.max_upload_bytes,
    )


@router.post("/api/session", status_code=204, response_class=Response, responses=documented(400, 413, 422))
async def begin_session(session: Session, request: Request, service: Asked) -> Response:
    """Exchange a token for a cookie, so that the page can show images."""
    return _begin(session.token, request, service, Response(status_code=204))


@router.post("/api/session/form", include_in_schema=False)
async def session_form(request: Request, service: Asked) -> Response:
    """The same for the page without JavaScript, and logging out."""
    try:
        sent = parse_qs((await request.body()).decode(), max_num_fields=10)
    except ValueError:
        return problem_page(400, "the form cannot be read")
    answer = Response(status_code=303, headers={"Location": "/"})
    if "leave" in sent:
        return _end(request, service, answer)
    found = _begin(sent.get("token", [""])[0].strip(), request, service, answer)
    if found is not answer:
        return problem_page(found.status_code, "this is not a token of the server, or too many wrong ones came")
    return found


def _begin(token: str, request: Request, service: Service, answer: Response) -> Response:
    """The answer with the cookie of a new session, or why there is none."""
    client = client_of(request.scope)
    if wait := service.clients.wrong_wait(client):
        return too_many(wait, "too many wrong tokens came from this address")
    access = service.keys.of_token(token)
    if not access:
        service.clients.wrong(client)
        return problem(401, "token_needed", "this is not a token of the server")
    secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
    value = service.keys.begin(access)
    answer.set_cookie(COOKIE, value, max_age=int(SESSION_S), httponly=True, samesite="strict", secure=secure)
    return answer


@router.delete("/api/session", status_code=204, response_class=Response, responses=documented())
async def end_session(request: Request, service: Asked) -> Response:
    """Log out: the cookie is worth nothing from now on, also where it was copied."""
    return _end(request, service, Response(status_code=204))


def _end(request: Request, service: Service, answer: Response) -> Response:
    service.keys.end(session_of(request.headers))
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@router.delete("/api/sessions", status_code=204, response_class=Response, responses=documented())
async def end_all_sessions(service: Asked) -> Response:
    """Log everybody out."""
    service.keys.end_all()
    return Response(status_code=204)


@router.get("/health", responses={503: documented()[503]})
async def health(service: Asked) -> Health:
    """Whether the server answers."""
    return Health(status="degraded" if service.index_error else "ok")


@router.get("/ready", responses={503: documented()[503]})
async def ready(service: Asked) -> Readiness:
    """Whether requests should be sent here: 503 while the index or its store does not answer, or the server stops."""
    await service.check()
    return Readiness(status="ready")


@router.get(
    "/metrics", response_class=Response, responses=documented() | {200: {"content": {"text/plain": {"schema": {}}}}}
)
async def prometheus(service: Asked) -> Response:
    """Metrics in the text format of Prometheus."""
    return Response(service.metrics.text(), media_type=metrics.MEDIA_TYPE)


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Exactly `size` bytes, even if the file grows meanwhile."""
    with file:
        file.seek(0)
        while size:
            try:
                chunk = file.read(min(size, 2**16))
            except OSError:
                chunk = b""
            if not chunk:
                raise IncompleteError
            size -= len(chunk)
            yield chunk
