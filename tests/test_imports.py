"""No module imports itself by way of others, at the top of a file or inside a function."""

from __future__ import annotations

from collections import Counter

import grimp
import pytest


def cycles(imports: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Kosaraju: two searches, neither recursive)."""
    importers: dict[str, set[str]] = {module: set() for module in imports}
    for module, imported in imports.items():
        for other in imported:
            importers[other].add(module)
    finished: list[str] = []
    _search(imports, list(imports), set(), finished)
    seen: set[str] = set()
    found = []
    for module in reversed(finished):
        component: list[str] = []
        _search(importers, [module], seen, component)
        if len(component) > 1:
            found.append(sorted(component))
    return found


def _search(edges: dict[str, set[str]], starts: list[str], seen: set[str], finished: list[str]) -> None:
    """Depth first from each start; nodes join `finished` after all they lead to."""
    for start in starts:
        stack = [(start, False)]
        while stack:
            node, done = stack.pop()
            if done:
                finished.append(node)
            elif node not in seen:
                seen.add(node)
                stack += [(node, True), *((other, False) for other in sorted(edges[node]))]


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]]),
        ({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}, [["a", "b"], ["c", "d"]]),
    ],
)
def test_cycles_are_found(imports: dict[str, set[str]], expected: list[list[str]]) -> None:
    assert sorted(cycles(imports)) == expected


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("quintet", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 50
    assert not cycles(imports)


def test_no_two_modules_share_a_name() -> None:
    """`quintet.data.corpus` may be called the corpus module: there is one. Commands are called as what they run."""
    modules = sorted(grimp.build_graph("quintet").modules)
    packages = {module.rpartition(".")[0] for module in modules}
    stems = Counter(m.rpartition(".")[2] for m in modules if m not in packages and not m.startswith("quintet.cli."))
    assert not [stem for stem, count in stems.items() if count > 1]
