"""The tables that one run and a comparison are shown as. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any

from coterie.errors import counted
from coterie.ledger import to_json
from coterie.results.comparison import Contrast, Gap, OverClients, Reach, Standing
from coterie.results.statistics import RUNNING, Difference, Estimate
from coterie.results.tables import (
    Cell,
    Sheet,
    amount,
    as_csv,
    as_latex,
    as_markdown,
    bytes_cell,
    estimate_cell,
    number_cell,
    points,
    seconds_cell,
    share,
)
from coterie.results.tally import USUAL

__all__ = ["clients_text", "comparison", "difference_cells", "formatted", "outcome", "rounds_cell", "spent", "wide"]

FAIRNESS = ("worst client", "worst tenth", "spread")
FAIRNESS_NOTE = "worst tenth: mean of the worst tenth of clients; spread: standard deviation over clients, in points"


def outcome(title: str, summary: Mapping[str, Any]) -> list[Sheet]:
    """One run: every protocol's accuracy and what reaching each target took; of how many clients it is, and what the mean hides.

    >>> found = {"last": 0.9, "best": 0.9, "mean_of_last_five": 0.8, "clients": 10, "worst": 0.5, "worst_tenth": 0.5, "spread": 0.1}
    >>> sheets = outcome("demo", {"protocols": {"local_post": {"accuracy": found}}, "targets": {"local_post": {}}})
    >>> [[cell.text for cell in sheet.cells[0]] for sheet in sheets]
    [['local_post', '90.00%', '90.00%', '80.00%'], ['local_post', '10', '50.00%', '50.00%', '10.00']]
    """
    accuracies = {protocol: metrics["accuracy"] for protocol, metrics in summary["protocols"].items()}
    targets = list(next(iter(summary["targets"].values()), {}))
    rows, hidden = [], []
    fewer = {(each["clients"], each["curve_clients"]) for each in accuracies.values() if "curve_clients" in each}
    note = "; ".join(f"last is of {all_} clients, all else of the {fixed} whom every round measures" for all_, fixed in sorted(fewer))
    for protocol, found in accuracies.items():
        crossings = [_crossed(summary["targets"][protocol][target]["first_crossing"]) for target in targets]
        rows.append([protocol, *(number_cell(found[key]) for key in ("last", "best", "mean_of_last_five")), *crossings])
        if "worst" in found:
            spread = Cell(points(found["spread"]), values=(found["spread"],))
            hidden.append([protocol, found["clients"], number_cell(found["worst"]), number_cell(found["worst_tenth"]), spread])
    columns = ["protocol", "last", "best", f"mean of last {RUNNING}", *(f"rounds to {share(float(target))}" for target in targets)]
    over = Sheet("over clients, at the end", ["protocol", "clients", *FAIRNESS], hidden, FAIRNESS_NOTE)
    found_own = ((protocol, metric, each) for protocol, metrics in summary["protocols"].items() for metric, each in metrics.items())
    own = [[p, m, *(number_cell(each[key], m) for key in ("last", "mean_of_last_five"))] for p, m, each in found_own if m not in USUAL]
    others = Sheet("metrics of your own", ["protocol", "metric", "last", f"mean of last {RUNNING}"], own, keys=2)
    return [Sheet(title, columns, rows, note), *(each for each in (others, over) if each.rows)]


def spent(costs: Mapping[str, Any]) -> str:
    """What one run cost, in a line: from its summary, or from `costs_of`."""
    traffic, work = costs["bytes"], costs.get("work")
    setup = traffic["setup_up"] + traffic["setup_down"]
    words = [f"sent up {amount(traffic['up'])}, down {amount(traffic['down'])}, setup {amount(setup)}"]
    if work:
        steps = work["pretraining"]["steps"] + work["rounds"]["steps"]
        server, extra = work["server"]["steps"], work["evaluation"]["steps"]
        words.append(f"{_steps(steps, server)} steps" + (f", {extra:,} more to measure personal models" if extra else ""))
    return "; ".join([*words, f"{costs['seconds']:.1f} s"])


def comparison(title: str, found: Contrast) -> list[Sheet]:
    """A comparison as tables: accuracies, how clients stand, cost, what targets took, differences to the baseline."""
    sheets = [_accuracies(title, found), _own(found), _over_clients(found), _costs(found), _targets(found), _differences(found)]
    return [sheet for sheet in sheets if sheet.rows]


def _accuracies(title: str, found: Contrast) -> Sheet:
    protocols = list(dict.fromkeys(protocol for standing in found.standings for protocol in standing.accuracy))
    rivals = {p: [each.accuracy[p].mean for each in found.standings if p in each.accuracy and not each.bound] for p in protocols}
    heads = {protocol: _heading(protocol, found.standings) for protocol in protocols}
    to_the_end = not any(standing.stopped for standing in found.standings)

    def cell(standing: Standing, protocol: str) -> Cell:
        accuracy, over = standing.accuracy.get(protocol), standing.over_clients.get(protocol)
        more = f" ({clients_text(*over.clients)})" if over and heads[protocol] == protocol else ""
        best = accuracy is not None and not standing.bound and not more and accuracy.mean == max(rivals[protocol])
        return estimate_cell(accuracy, best=best and to_the_end and len(rivals[protocol]) > 1, more=more if accuracy else "")

    rows = [[standing.label, *(cell(standing, protocol) for protocol in protocols)] for standing in found.standings]
    seeds = max(standing.seconds.seeds for standing in found.standings)
    words = ["one seed" if seeds == 1 else f"mean ± standard deviation over {seeds} seeds", *(["best in bold"] if to_the_end else [])]
    bounds = [standing.label for standing in found.standings if standing.bound]
    words += [f"{', '.join(bounds)}: all data in one place, a bound and no rival"] if bounds else []
    warnings = "".join(f"\nnote: {warning}" for warning in found.warnings)
    return Sheet(f"{title}: last accuracy", ["method", *heads.values()], rows, "; ".join(words) + warnings)


def _own(found: Contrast) -> Sheet:
    """What a user measures beside; nobody knows whether more of it is better."""
    names = list(dict.fromkeys((protocol, metric) for each in found.standings for protocol, own in each.own.items() for metric in own))
    rows = [[each.label, *(estimate_cell(each.own.get(p, {}).get(metric), metric) for p, metric in names)] for each in found.standings]
    return Sheet("metrics of your own, last value", ["method", *(f"{metric}, {p}" for p, metric in names)], rows if names else [])


def _heading(protocol: str, standings: Iterable[Standing]) -> str:
    """With the number of clients, where that is the same for every arm."""
    counts = {each.over_clients[protocol].clients for each in standings if protocol in each.over_clients}
    return f"{protocol} ({clients_text(*counts.pop())})" if len(counts) == 1 else protocol


def clients_text(low: int, high: int | None = None) -> str:
    """How many clients a mean is over.

    >>> clients_text(1), clients_text(10, 10), clients_text(5, 10)
    ('1 client', '10 clients', '5 to 10 clients')
    """
    return counted(low, "client") if high in (None, low) else f"{low:,} to {high:,} clients"


def _over_clients(found: Contrast) -> Sheet:
    several = len({protocol for standing in found.standings for protocol in standing.over_clients}) > 1

    def row(standing: Standing, protocol: str, over: OverClients) -> list[Any]:
        cells = [estimate_cell(over.worst), estimate_cell(over.worst_tenth), Cell(points(over.spread.mean), values=(over.spread.mean,))]
        return [standing.label, *([protocol] if several else []), *cells]

    rows = [row(standing, protocol, over) for standing in found.standings for protocol, over in standing.over_clients.items()]
    names = list(dict.fromkeys(protocol for standing in found.standings for protocol in standing.over_clients))
    title = f"what the mean over clients hides{'' if several else f', {names[0]}' if names else ''}"
    columns = ["method", *(["protocol"] if several else []), *FAIRNESS]
    return Sheet(title, columns, sorted(rows, key=lambda row: names.index(row[1])) if several else rows, FAIRNESS_NOTE, keys=1 + several)


def _costs(found: Contrast) -> Sheet:
    worked = any(standing.steps or standing.server_steps for standing in found.standings)

    def row(standing: Standing) -> list[Any]:
        sent = [bytes_cell(size) for size in (standing.up, standing.down, standing.setup)]
        steps = [Cell(_steps(standing.steps, standing.server_steps), values=(standing.steps,))] if worked else []
        return [standing.label, *sent, *steps, seconds_cell(standing.seconds)]

    columns = ["method", "sent up", "sent down", "setup", *(["steps"] if worked else []), "seconds"]
    extra = sum(standing.evaluation_steps for standing in found.standings)
    words = ["a run, on average; setup: before the first round"]
    words += ["steps: gradient steps of all clients, pretraining included"] if worked else []
    words += [f"measuring personal models took {extra:,} further steps"] if extra else []
    words += ["seconds: when the run was made, beside whatever else ran then"]
    return Sheet("what it cost", columns, list(map(row, found.standings)), "; ".join(words))


def _steps(clients: int, server: int) -> str:
    """Steps of clients, and of the server where it trains.

    >>> _steps(8400, 0), _steps(0, 500), _steps(8400, 500)
    ('8,400', '500 at the server', '8,400 + 500 at the server')
    """
    words = [f"{clients:,}"] if clients or not server else []
    return " + ".join([*words, *([f"{server:,} at the server"] if server else [])])


def _targets(found: Contrast) -> Sheet:
    lowest: dict[tuple[str, float, str], float] = {}
    bounds = {standing.label for standing in found.standings if standing.bound}
    for reach in found.reaches:
        if reach.everywhere and reach.label not in bounds:
            for what in ("round", "bytes"):
                own = mean(getattr(each, what) for each in reach.there)
                lowest[reach.protocol, reach.target, what] = min(own, lowest.get((reach.protocol, reach.target, what), own))

    def cell(reach: Reach, what: str, text: str) -> Cell:
        took = mean(getattr(each, what) for each in reach.there)
        return Cell(text, reach.label not in bounds and took == lowest.get((reach.protocol, reach.target, what)), (took,))

    def row(reach: Reach) -> list[Any]:
        names = [reach.protocol, share(reach.target), reach.label]
        rounds, sent = reach.took("round"), reach.took("bytes")
        if not reach.everywhere or rounds is None or sent is None:
            words = f"{len(reach.there)} of {len(reach.found)} seeds" if reach.there else "not reached"
            return [*names, words, "-", "-", "-"]
        cells = cell(reach, "round", rounds_cell(rounds).text), cell(reach, "bytes", amount(sent.mean))
        return [*names, cells[0], _times(reach.fewer_rounds), cells[1], _times(reach.fewer_bytes)]

    columns = ["protocol", "target", "method", "rounds", "fewer rounds", "bytes", "fewer bytes"]
    note = f"first crossing; bytes up and down, setup included; 'fewer': how many times less than {found.baseline}"
    return Sheet("rounds and bytes to targets", columns, list(map(row, found.reaches)), note, keys=3)


def rounds_cell(found: Estimate) -> Cell:
    """Rounds over seeds."""
    text = f"{found.mean:,.4g}" if found.spread is None else f"{found.mean:,.1f} ± {found.spread:.1f}"
    return Cell(text, values=(found.mean, "" if found.spread is None else found.spread))


def _differences(found: Contrast) -> Sheet:
    rows = [[gap.label, gap.protocol, *difference_cells(gap.difference)] for gap in found.gaps]
    columns = ["method", "protocol", "difference", "95% interval", "verdict"]
    note = "percentage points, paired by seed; Student's t, each comparison by itself"
    return Sheet(f"differences to {found.baseline}", columns, rows, note, keys=2)


def difference_cells(found: Difference, metric: str = "accuracy") -> list[Cell]:
    """The difference, its interval, and what they show.

    >>> [cell.text for cell in difference_cells(Difference(0.4915, None, None, 2))]
    ['+49.15', '-', 'too few seeds']
    """

    def signed(value: float) -> str:
        return ("-" if value < 0 else "+") + points(abs(value), metric)

    bounds = "-" if found.low is None or found.high is None else f"{signed(found.low)} to {signed(found.high)}"
    ends = tuple("" if end is None else end for end in (found.low, found.high))
    return [Cell(signed(found.mean), values=(found.mean,)), Cell(bounds, values=ends), Cell(found.verdict)]


def wide(found: Contrast) -> list[dict[str, Any]]:
    """A comparison as one flat row of numbers for each arm."""
    rows: dict[str, dict[str, Any]] = {}
    for standing in found.standings:
        row = rows[standing.label] = {"method": standing.label, "seeds": standing.seconds.seeds}
        for protocol, accuracy in standing.accuracy.items():
            row |= {f"{protocol} mean": accuracy.mean, f"{protocol} sd": accuracy.spread}
        for protocol, own in standing.own.items():
            for metric, value in own.items():
                row |= {f"{protocol} {metric} mean": value.mean, f"{protocol} {metric} sd": value.spread}
        for protocol, over in standing.over_clients.items():
            row |= {f"{protocol} clients": over.clients[1], f"{protocol} worst": over.worst.mean}
            row |= {f"{protocol} worst tenth": over.worst_tenth.mean, f"{protocol} spread": over.spread.mean}
        row |= {"bytes up": standing.up, "bytes down": standing.down, "bytes setup": standing.setup}
        row |= {"steps": standing.steps, "server steps": standing.server_steps, "seconds": standing.seconds.mean}
    for reach in found.reaches:
        at, row = f"{reach.protocol} {reach.target}", rows[reach.label]
        rounds, sent = (mean(getattr(r, what) for r in reach.there) if reach.everywhere else None for what in ("round", "bytes"))
        row |= {f"rounds to {at}": rounds, f"bytes to {at}": sent, f"seeds at {at}": len(reach.there)}
        row |= {f"fewer rounds to {at}": reach.fewer_rounds, f"fewer bytes to {at}": reach.fewer_bytes}
    for gap in found.gaps:
        rows[gap.label] |= _flat(f"{gap.protocol} less {found.baseline}", gap)
    return list(rows.values())


def _flat(name: str, gap: Gap) -> dict[str, Any]:
    return {name: gap.difference.mean, f"{name} low": gap.difference.low, f"{name} high": gap.difference.high}


def formatted(form: str, sheets: Sequence[Sheet], found: Contrast, runs: Sequence[Mapping[str, Any]]) -> str:
    """A comparison in the format that a program or a paper takes: csv, latex, markdown or json."""
    match form:
        case "csv":
            return as_csv(wide(found))
        case "latex":
            return as_latex(sheets)
        case "markdown":
            return as_markdown(sheets)
    return to_json({**asdict(found), "runs": list(runs)}) + "\n"


def _times(ratio: float | None) -> Cell:
    return Cell("-", values=("",)) if ratio is None else Cell(f"{ratio:.1f}×", values=(ratio,))


def _crossed(crossing: Mapping[str, int] | None) -> str:
    return "not reached" if crossing is None else f"{crossing['round']} ({amount(crossing['bytes'])})"
