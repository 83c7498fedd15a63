"""What people look at: one self-contained HTML page of any runs, and figures for papers. Reads ledgers only; nothing here needs torch.

The page draws with plotly.js 4.1.1, in the cartesian bundle that npm publishes (`plotly.js-cartesian-dist-min`, MIT; the licence lies
beside it). Measured in November 2026: the bundle inside PyPI's `plotly` is 4.82 MB, in a wheel of 9.7 MB, which leaves little of the 6 MB
that a page may have. The cartesian bundle is 1.50 MB and draws all we need (lines with bands, bars, boxes, heat maps, images) as SVG,
which it can save without a server. Apache ECharts (1.12 MB) draws a band between two curves only by stacking series; Observable Plot with
d3 (0.49 MB) is still before its version 1 and does not zoom; uPlot and Chart.js draw on a canvas, so they cannot save SVG.
"""

from __future__ import annotations

from coterie.results.report.figures import write_figures
from coterie.results.report.page import render, write_page

__all__ = ["render", "write_figures", "write_page"]
