"""Writes docs/results.md: every claim of the five papers with what committed results show of it, then each result.

    python docs/results.py

Results are in `results/NAME/`, as `coterie reproduce NAME --out results/NAME` wrote them; what there is none for was not run. A test
holds the committed page against what this writes, so that no number on it is typed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.results.verdicts import Finding
from coterie.studies.claims import PaperClaim, papers
from coterie.studies.judging import worded
from coterie.studies.recipe import Recipe, key_of, recipes

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "results.md"
LEARNED = RESULTS / "learned.md"
"""What we learned, in sentences: the only part that is written by hand."""
PICTURES = {
    "result.png": "every seed, the mean, and the paper's number",
    "answer.png": "why, arm by arm: paired differences or ratios, each with its own 95% interval, and every seed",
    "why.png": "what selection costs at G3, by how many maps there are and how long the server trains on them (`studies/selected_maps.py`)",
    "why-fedavg.png": "what of FedAvg's own upper part, above G3, is behind training on all maps (`studies/all_maps_and_fedavg.py`)",
    "why-mnist.png": "whether FML is behind FedAvg on MNIST because of the labels' weight, which is the rate (`studies/contrary.py`)",
    "why-noisy.png": "whether a client with random labels does harm, or is missed (`studies/contrary.py`)",
    "why-public.png": "what FCCL misses in Fashion-MNIST: colour, detail, light or categories (`studies/contrary.py`)",
    "why-rounds.png": "conv's rounds as a part of FedAvg's, by how near a milestone is to FedAvg's end (`studies/milestones.py`)",
    "fusion.png": "how much of the fused maps is the global extractor's, round by round",
}
"""What lies beside a result, and what it shows."""
HEAD = """# Results

What the five papers claim, and what runs of this version show of it. The numbers are in `results/NAME/`, as `coterie reproduce NAME` wrote
them, and this page is made of them by `python docs/results.py`. A study is smaller than the paper: what differs stands on each page.

- *shown*: the confidence interval of the paired effect lies where the claim says. *shown contrary*: all of it, of one comparison or
  more, lies elsewhere. *not shown*: neither; then it says what could have been seen. *not run*: there is no result of this version, or
  not of that cell.
- Differences of accuracy are means over seeds, with Student's t. Ratios of rounds are medians over seeds with the interval of the sign
  test; the round is the first in which the mean of five evaluations is at the target, and a target that was not reached is censored:
  all that counts is that it took longer.
- All comparisons that the paper's claims come to in one recipe are corrected for their number as Holm does, and the interval that is
  shown is the corrected one.
- Settings were fixed on pilot seeds (900 and up, or as a page says) or before; seeds here are others. "Ours" is the comparison that
  decides: the contrary one, else of those not shown the coarsest, else the least clear.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(written(), encoding="utf-8")


def written() -> str:
    """The page."""
    found = results()
    lines = [HEAD, "## Every claim", "", *claims_table(found), "", *learned(), *each_result(found), *not_run(found)]
    return "\n".join(lines).rstrip("\n") + "\n"


def results() -> dict[str, dict[str, Any]]:
    """What is committed, by recipe."""
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*/result.json"))}


def claims_table(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A row for each claim and recipe that tests it."""
    yield from ("| claim | what the paper says | its effect | ours | verdict | command | commit |", "|---|---|---|---|---|---|---|")
    known = {name: Recipe.load(name) for name in recipes()}
    for paper in papers():
        yield f"| **{paper.id}** | **{paper.name}**: {paper.citation} | | | | | |"
        for claim in paper.claims:
            testing = [name for name, recipe in known.items() if any(each.number == claim.number for each in recipe.claims)]
            yield from (row(claim, name, found.get(name)) for name in testing)
            if not testing:
                yield f"| {claim.number} | {claim.text} | {claim.effect} | | {claim.otherwise} | | |"


def row(claim: PaperClaim, name: str, result: Mapping[str, Any] | None) -> str:
    """What one recipe says of a claim."""
    head = f"| {claim.number} | {claim.text} | {claim.effect} |"
    if result is None:
        return f"{head} | not run | `coterie reproduce {name}` | |"
    mine = [each for each in result["claims"] if each["number"] == claim.number]
    verdict = (best if claim.some else worst)([each["verdict"] for each in mine])
    compared = [each for part in mine if part["verdict"] == verdict for each in part["comparisons"]]
    details = "; ".join(part["detail"] for part in mine)
    words = f"{head} {decisive(compared, result)} | **{verdict}** ({details})"
    return f"{words} | `{result['about']['command']}` | {result['about']['commit']} |"


def worst(verdicts: Sequence[str]) -> str:
    """One verdict for a claim that a recipe has in several parts."""
    order = ("shown contrary", "not shown", "not run", "shown")
    return next(each for each in order if each in verdicts)


def best(verdicts: Sequence[str]) -> str:
    """One verdict for a claim that is made of some case only: a recipe has a part for each case that it tries."""
    order = ("shown", "not shown", "not run", "shown contrary")
    return next(each for each in order if each in verdicts)


def decisive(compared: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> str:
    """The comparison that decides, with its effect and interval, and what is compared."""
    order = ("shown contrary", "not shown", "shown")
    ran = [each for each in compared if each["confidence"] is not None]
    if not ran:
        return "-"
    first = min(ran, key=lambda each: (order.index(each["outcome"]), weakness(each)))
    finding = Finding(*(first[key] for key in ("outcome", "middle", "low", "high", "confidence", "seeds", "ratio")))
    measure = measure_of(first["comparison"], result)
    return f"{worded(finding, measure)}: {first['comparison'].replace(' / ', ', ')}"


def weakness(compared: Mapping[str, Any]) -> float:
    """Smaller for what says less: by what could have been seen, where nothing is shown, else by the middle in units of the width."""
    if compared["outcome"] == "not shown" and compared["could_have_seen"] is not None:
        return float(compared["could_have_seen"] if compared["ratio"] else -compared["could_have_seen"])
    if compared["middle"] is None or compared["low"] is None or compared["high"] is None or compared["ratio"]:
        return 0.0
    return abs(compared["middle"]) / max(compared["high"] - compared["low"], 1e-12)


def measure_of(comparison: str, result: Mapping[str, Any]) -> Any:
    """What the left side of a comparison measures."""
    name = comparison.lstrip("(")
    cells = {f"{cell['table']} / {cell['row']} / {cell['column']}": cell["measure"] for cell in result["cells"]}
    return next(measure for cell, measure in cells.items() if name.startswith(cell) and key_of(cell))


def learned() -> list[str]:
    """What we learned, where there is something."""
    text = LEARNED.read_text(encoding="utf-8").strip() if LEARNED.is_file() else ""
    return ["## What we learned", "", text, ""] if text else []


def each_result(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Every result's own page, one heading lower, and its figures."""
    for name in found:
        page = (RESULTS / name / "result.md").read_text(encoding="utf-8")
        yield page.replace("# ", "## ", 1).rstrip("\n")
        yield ""
        for picture, shows in PICTURES.items():
            if (RESULTS / name / picture).is_file():
                yield f"![{name}: {shows}](../results/{name}/{picture})\n"


def not_run(found: Mapping[str, Any]) -> Iterator[str]:
    """What has no result of this version, and what it would cost."""
    yield from ("## Not run with this version", "", "| recipe | what | study | as in the paper |", "|---|---|---|---|")
    for name in recipes():
        if name not in found:
            recipe = Recipe.load(name)
            yield f"| `{name}` | {recipe.title} | {recipe.scales['study'].takes} | {recipe.scales['paper'].takes} |"


if __name__ == "__main__":
    main()
