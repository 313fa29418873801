"""What filters could choose next: the years, folders, cameras, orientations and places of an index, with counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from quintet.search.items import ItemDatabase, Kind
from quintet.search.stores.where import Clause, Where

MOST = 40  # values of a facet
PLAIN = ("year", "camera", "orientation")  # whose values are those of the field of that name
NEAR = 0.3  # degrees north and south of a city; its box is as wide as high


@dataclass(frozen=True)
class Choice:
    """One value of a facet. `where`: the filter that has it as the facet's value, or no value where it is `chosen`."""

    label: str
    count: int
    where: str
    chosen: bool = False


@dataclass(frozen=True)
class Facet:
    name: str  # year, folder, camera, orientation or place
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class _Value:
    label: str
    count: int
    clauses: tuple[Clause, ...]


def facets(items: ItemDatabase, where: Where | None, kind: Kind = "image") -> list[Facet]:
    """Those that have two values to choose from, or a chosen one.

    A facet counts the items that fit the rest of the filter, without its own condition: so another of its values can
    be chosen. Of a filter with `or` no condition is a facet's own.
    """
    found = []
    for name in ("year", "folder", "camera", "orientation", "place"):
        clauses = where.clauses if where and not where.others else ()
        own = tuple(clause for clause in clauses if _is_own(name, clause))
        rest = Where(tuple(clause for clause in clauses if clause not in own)) if own else where or Where(())
        values = _values(items, name, own, rest, kind)
        if len(values) < 2 and not own:
            continue
        choices = [
            Choice(value.label, value.count, str(rest if value.clauses == own else rest & Where(value.clauses)), same)
            for value in values
            if (same := value.clauses == own) or value.count
        ]
        if own and not any(choice.chosen for choice in choices):
            count = items.count(kind, rest & Where(own))
            choices.insert(0, Choice(" and ".join(map(str, own)), count, str(rest), chosen=True))
        found.append(Facet(name, tuple(choices)))
    return found


def _is_own(name: str, clause: Clause) -> bool:
    if name == "place":
        return clause.field in ("latitude", "longitude")
    if name == "folder" and clause.field == "path":  # as `_folders` writes it
        return clause.operator == "~" and clause.literal.endswith("/*") and not set("*?") & set(clause.literal[:-1])
    return clause.field == name and clause.operator == "="


def _values(items: ItemDatabase, name: str, own: tuple[Clause, ...], rest: Where, kind: Kind) -> list[_Value]:
    if name == "place":
        latitude, longitude = (items.numbers_of(field, kind, rest) for field in ("latitude", "longitude"))
        both = latitude.keys() & longitude.keys()
        return _places(np.array([(latitude[number], longitude[number]) for number in both], float).reshape(-1, 2))
    counts = items.counts_of(name, kind, rest)
    if name == "folder":
        return _folders({str(folder): count for folder, count in counts.items()}, own)
    found = [
        _Value(str(value), count, (Clause(name, "=", str(value), quoted=isinstance(value, str)),))
        for value, count in counts.items()
    ]
    if name == "year":
        return sorted(found, key=lambda value: value.label, reverse=True)[:MOST]
    return _most(found)


def _most(values: Iterable[_Value]) -> list[_Value]:
    return sorted(values, key=lambda value: (-value.count, value.label))[:MOST]


# Folders


def _folders(counts: dict[str, int], own: tuple[Clause, ...]) -> list[_Value]:
    """The folders at the top, or in the chosen one, or beside it; one that has folders inside stands for these, too."""
    at: list[str] = []
    if own and own[0].literal != ".":
        path = own[0].literal.split("/")
        at = path[:-1]  # without the last folder, or without the star
    sums: Counter[str] = Counter()
    nested: set[str] = set()
    for folder, count in counts.items():
        path = folder.split("/")
        if path[: len(at)] == at:
            child = "/".join(path[: len(at) + 1])
            sums[child] += count
            if len(path) > len(at) + 1:
                nested.add(child)
    outer = "/".join(at)
    labels = {".": "top folder", outer: f"directly in {outer}"}
    found = [
        _Value(labels.get(name, name.removeprefix(f"{outer}/")), count, (_folder_clause(name, name in nested),))
        for name, count in sums.items()
    ]
    whole = [_Value(outer, sum(sums.values()), (_folder_clause(outer, nested=True),))] if at else []
    return [*whole, *_most(found)]


def _folder_clause(folder: str, nested: bool) -> Clause:
    return Clause("path", "~", f"{folder}/*", quoted=True) if nested else Clause("folder", "=", folder, quoted=True)


# Places


def _places(positions: np.ndarray) -> list[_Value]:
    """Boxes with positions (n, 2) in them: those around large cities, and for the others squares of one degree."""
    if not len(positions):
        return []
    north, east = positions.T
    found, lonely = [], np.ones(len(positions), bool)
    for city, latitude, longitude in CITIES:
        width = NEAR / math.cos(math.radians(latitude))
        clauses = _box(latitude - NEAR, latitude + NEAR, longitude - width, longitude + width, "<=")
        inside = _inside(north, east, clauses)
        if inside.any():
            found.append(_Value(city, int(inside.sum()), clauses))
            lonely &= ~inside
    for corner in {(math.floor(lat), math.floor(lon)) for lat, lon in positions[lonely].tolist()}:
        clauses = _box(corner[0], corner[0] + 1, corner[1], corner[1] + 1, "<")
        found.append(_Value(_degrees(*corner), int(_inside(north, east, clauses).sum()), clauses))
    return _most(value for value in found if value.count)


def _box(south: float, north: float, west: float, east: float, behind: str) -> tuple[Clause, ...]:
    edges = [(">=", south), (behind, north), (">=", west), (behind, east)]
    fields = ("latitude", "latitude", "longitude", "longitude")
    return tuple(Clause(field, sign, f"{round(edge, 2):g}") for field, (sign, edge) in zip(fields, edges, strict=True))


def _inside(north: np.ndarray, east: np.ndarray, clauses: tuple[Clause, ...]) -> np.ndarray:
    south, top, west, right = (float(clause.literal) for clause in clauses)
    if clauses[1].operator == "<":
        return (north >= south) & (north < top) & (east >= west) & (east < right)
    return (north >= south) & (north <= top) & (east >= west) & (east <= right)


def _degrees(latitude: int, longitude: int) -> str:
    """
    >>> _degrees(52, -4)
    '52° N, 4° W'
    """
    return f"{abs(latitude)}° {'S' if latitude < 0 else 'N'}, {abs(longitude)}° {'W' if longitude < 0 else 'E'}"


# Names, latitudes and longitudes of large cities, to a tenth of a degree.
_TABLE = """
Abidjan 5.3 -4.0; Accra 5.6 -0.2; Addis Ababa 9.0 38.7; Algiers 36.8 3.1; Amsterdam 52.4 4.9; Ankara 39.9 32.9;
Athens 38.0 23.7; Atlanta 33.7 -84.4; Auckland -36.8 174.8; Baghdad 33.3 44.4; Baku 40.4 49.9; Bangkok 13.8 100.5;
Barcelona 41.4 2.2; Beijing 39.9 116.4; Beirut 33.9 35.5; Belgrade 44.8 20.5; Bengaluru 13.0 77.6; Berlin 52.5 13.4;
Bern 46.9 7.4; Bogota 4.7 -74.1; Bordeaux 44.8 -0.6; Boston 42.4 -71.1; Brasilia -15.8 -47.9; Bratislava 48.1 17.1;
Brisbane -27.5 153.0; Brussels 50.8 4.4; Bucharest 44.4 26.1; Budapest 47.5 19.0; Buenos Aires -34.6 -58.4;
Cairo 30.0 31.2; Calgary 51.0 -114.1; Cape Town -33.9 18.4; Caracas 10.5 -66.9; Casablanca 33.6 -7.6;
Chennai 13.1 80.3; Chicago 41.9 -87.6; Cologne 50.9 7.0; Colombo 6.9 79.9; Copenhagen 55.7 12.6; Dakar 14.7 -17.4;
Dallas 32.8 -96.8; Dar es Salaam -6.8 39.3; Delhi 28.6 77.2; Denver 39.7 -105.0; Detroit 42.3 -83.0; Dhaka 23.8 90.4;
Dubai 25.2 55.3; Dublin 53.3 -6.3; Edinburgh 55.9 -3.2; Florence 43.8 11.3; Frankfurt 50.1 8.7; Geneva 46.2 6.1;
Glasgow 55.9 -4.3; Gothenburg 57.7 12.0; Granada 37.2 -3.6; Guangzhou 23.1 113.3; Hamburg 53.6 10.0; Hanoi 21.0 105.8;
Havana 23.1 -82.4; Helsinki 60.2 24.9; Ho Chi Minh City 10.8 106.7; Hong Kong 22.3 114.2; Honolulu 21.3 -157.9;
Houston 29.8 -95.4; Hyderabad 17.4 78.5; Istanbul 41.0 29.0; Jakarta -6.2 106.8; Jerusalem 31.8 35.2;
Johannesburg -26.2 28.0; Kampala 0.3 32.6; Karachi 24.9 67.0; Kathmandu 27.7 85.3; Kinshasa -4.3 15.3;
Kolkata 22.6 88.4; Krakow 50.1 19.9; Kuala Lumpur 3.1 101.7; Kyiv 50.5 30.5; Kyoto 35.0 135.8; La Paz -16.5 -68.1;
Lagos 6.5 3.4; Lahore 31.5 74.3; Las Vegas 36.2 -115.1; Leipzig 51.3 12.4; Lille 50.6 3.1; Lima -12.0 -77.0;
Lisbon 38.7 -9.1; Ljubljana 46.1 14.5; London 51.5 -0.1; Los Angeles 34.1 -118.2; Luxembourg 49.6 6.1; Lyon 45.8 4.8;
Madrid 40.4 -3.7; Manchester 53.5 -2.2; Manila 14.6 121.0; Marrakesh 31.6 -8.0; Marseille 43.3 5.4;
Medellin 6.2 -75.6; Melbourne -37.8 145.0; Mexico City 19.4 -99.1; Miami 25.8 -80.2; Milan 45.5 9.2;
Minneapolis 45.0 -93.3; Montevideo -34.9 -56.2; Montreal 45.5 -73.6; Moscow 55.8 37.6; Mumbai 19.1 72.9;
Munich 48.1 11.6; Nairobi -1.3 36.8; Naples 40.9 14.3; New Orleans 30.0 -90.1; New York 40.7 -74.0; Nice 43.7 7.3;
Nuremberg 49.5 11.1; Osaka 34.7 135.5; Oslo 59.9 10.8; Ottawa 45.4 -75.7; Panama City 9.0 -79.5; Paris 48.9 2.3;
Perth -32.0 115.9; Philadelphia 40.0 -75.2; Phoenix 33.4 -112.1; Porto 41.1 -8.6; Portland 45.5 -122.7;
Prague 50.1 14.4; Quito -0.2 -78.5; Reykjavik 64.1 -21.9; Riga 56.9 24.1; Rio de Janeiro -22.9 -43.2;
Riyadh 24.7 46.7; Rome 41.9 12.5; Salt Lake City 40.8 -111.9; San Diego 32.7 -117.2; San Francisco 37.8 -122.4;
Santiago -33.4 -70.7; Sao Paulo -23.5 -46.6; Sapporo 43.1 141.4; Sarajevo 43.9 18.4; Seattle 47.6 -122.3;
Seoul 37.6 127.0; Seville 37.4 -6.0; Shanghai 31.2 121.5; Singapore 1.3 103.8; Sofia 42.7 23.3;
St Petersburg 59.9 30.3; Stockholm 59.3 18.1; Stuttgart 48.8 9.2; Sydney -33.9 151.2; Taipei 25.0 121.5;
Tallinn 59.4 24.8; Tbilisi 41.7 44.8; Tehran 35.7 51.4; Tel Aviv 32.1 34.8; Tokyo 35.7 139.7; Toronto 43.7 -79.4;
Toulouse 43.6 1.4; Tunis 36.8 10.2; Turin 45.1 7.7; Ulaanbaatar 47.9 106.9; Valencia 39.5 -0.4; Vancouver 49.3 -123.1;
Venice 45.4 12.3; Vienna 48.2 16.4; Vilnius 54.7 25.3; Warsaw 52.2 21.0; Washington 38.9 -77.0;
Wellington -41.3 174.8; Yangon 16.8 96.2; Zagreb 45.8 16.0; Zurich 47.4 8.5
"""


def _read(table: str) -> list[tuple[str, float, float]]:
    cities = (entry.split() for entry in table.replace("\n", " ").split(";"))
    return [(" ".join(name), float(latitude), float(longitude)) for *name, latitude, longitude in cities]


CITIES = _read(_TABLE)
