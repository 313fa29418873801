"""The study of MMCA: how wide, and how much of the cross-attention module (Tables 4 to 6 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence

from quintet.errors import RecipeError
from quintet.evaluation.metrics import RECALLS
from quintet.training.recipe_models import Recipe
from quintet.training.studies.overrides import Overrides
from quintet.training.studies.study import Layout, Study

MMCA = "mmca"
DIMENSIONS = (64, 128, 256, 512)
ALPHAS = (0.1, 0.2, 0.4, 0.8)


def mmca_study(
    base: Recipe,
    *,
    ablations: bool = False,
    dimension: Sequence[int] = (),
    alpha: Sequence[float] = (),
    without_cross: bool = False,
) -> Study:
    """MMCA, and by option other dimensions (Tables 4, 5), other alpha or no cross module (Table 6), one at a time:

    - `dimension`: other dimensions of the hidden space (Tables 4 and 5);
    - `alpha`: other weights of the cross-attention module (Table 6);
    - `without_cross`: the self-attention module alone, which is alpha = 0 (section 4.4);
    - `ablations`: all of these with the paper's values.
    """
    if base.matcher.name != MMCA:
        raise RecipeError(
            f"the study of MMCA needs a recipe of the matcher 'mmca'; {base.name!r} is of {base.matcher.name!r}"
        )
    if ablations:
        dimension, alpha, without_cross = dimension or DIMENSIONS, alpha or ALPHAS, True
    plan = Overrides(base, MMCA, "MMCA")
    tables = [Layout("The recipe itself (Tables 1 to 3 of the paper)", (plan.row(MMCA, "MMCA"),))]
    rows = [plan.row(f"dim{d}", f"{d}d", f"matcher.embed_dim={d}") for d in dict.fromkeys(dimension)]
    if rows:
        tables.append(Layout("Dimension of the hidden space (Tables 4 and 5 of the paper)", tuple(rows), RECALLS))
    rows = [plan.row("without-cross", "α = 0, no cross module", "matcher.cross=false")] if without_cross else []  # noqa: RUF001
    rows += [plan.row(f"alpha{a:g}", f"α = {a:g}", f"matcher.alpha={a:g}") for a in dict.fromkeys(alpha)]  # noqa: RUF001
    if rows:
        tables.append(Layout("Weight of the cross-attention module (Table 6 of the paper)", tuple(rows), RECALLS))
    return Study(MMCA, base.name, MMCA, tuple(plan.variants), tuple(tables))
