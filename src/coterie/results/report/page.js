/* The sections of the page, one after the other. */
/* Headline */
const said = (protocol) => {
  const known = D.protocols[protocol];
  const sentence = known?.what ? `${known.what[0].toUpperCase()}${known.what.slice(1)}.` : "";
  return [sentence, known?.clients ? `Means are over ${known.clients} at the end.` : ""].filter(Boolean).join(" ");
};
const headline = () => {
  $("headline").replaceChildren(
    el("div", { class: "bar" }, choose("Measured under", Object.keys(D.protocols).map((p) => [p, p]), S.protocol, switchProtocol, "protocol"), el("p", { class: "why" }, said(S.protocol))),
    el("div", { class: "cards", id: "cards" }, ...D.cards[S.protocol].map((card) =>
      el("div", { class: "card" }, el("p", { class: "name" }, card.title), el("p", { class: "value" }, card.value), el("p", { class: "detail" }, card.detail)))));
};
const onProtocol = [];
const switchProtocol = (protocol) => {
  S.protocol = protocol;
  S.metric = D.protocols[protocol].metrics.includes(S.metric) ? S.metric : D.protocols[protocol].metrics[0];
  headline();
  $("protocol").focus();
  onProtocol.forEach((redraw) => redraw());
};

/* Curves */
const curves = () => {
  const section = open("curves", "Accuracy", "How fast each method learns: against rounds, against what was sent, and against the clock.");
  const metricBox = el("div");
  const make = () => {
    const found = D.curves[S.protocol][S.metric];
    const all = arms.filter((i) => found[i] && visible(i));
    const reach = Math.max(0, ...all.map((i) => D.axes[i][S.x].at(-1)));
    const still = (i) => S.x === "bytes" && D.axes[i].bytes[0] === D.axes[i].bytes.at(-1);
    const low = Math.min(...all.filter((i) => !still(i)).map((i) => D.axes[i][S.x].find((v) => v > 0) || Infinity), reach || 1);
    const bands = [], lines = [];
    for (const i of all) {
      const x = D.axes[i][S.x], curve = found[i], last = curve.mean.findLast((v) => v !== null);
      if (still(i)) {
        lines.push(lineOf(i, S.scale === "log" ? [low, reach || 10] : [0, reach || 1], [last, last], { line: { color: colour(i), width: 2, dash: "dot" }, hovertemplate: `<b>${D.arms[i].label}</b><br>sends nothing in its rounds<br>last: ${shown(last, S.metric)}<extra></extra>` }));
        continue;
      }
      if (S.spread === "band" && curve.seeds.length > 1) bands.push(...bandOf(i, x, curve.low, curve.high));
      if (S.spread === "seeds") curve.seeds.forEach((seed, k) => lines.push(lineOf(i, x, seed, { mode: "lines", opacity: 0.75, line: { color: colour(i), width: 1.2, dash: dash(i) }, showlegend: false, hovertemplate: `${D.arms[i].label}, seed ${D.arms[i].seeds[k]}<br>%{y}<extra></extra>` })));
      const text = curve.mean.map((v, k) => v === null ? "" : `round ${D.axes[i].rounds[k]} · ${bytes(D.axes[i].bytes[k])} · ${D.axes[i].seconds[k].toFixed(1)} s<br>${shown(v, S.metric)}${curve.seeds.length > 1 ? ` (${shown(curve.low[k], S.metric)} to ${shown(curve.high[k], S.metric)})` : ""}`);
      lines.push(lineOf(i, x, curve.mean, { text, hovertemplate: `<b>${D.arms[i].label}</b><br>%{text}<extra></extra>` }));
    }
    const axis = { title: { text: AXES[S.x] }, type: S.scale, ...(S.x === "bytes" ? { tickformat: "~s", ticksuffix: "B" } : {}) };
    if (S.scale === "linear") axis.rangemode = "tozero";
    if (S.scale === "linear" && S.x === "rounds" && reach < 10) axis.dtick = 1;
    if (S.scale === "log") axis.dtick = reach > 1000 * low ? 1 : "D2";
    return { data: [...bands, ...lines], layout: { xaxis: axis, yaxis: { title: { text: `${D.metrics[S.metric] || S.metric}, ${S.protocol}` }, ...(isShare(S.metric) ? PERCENT : S.metric === "loss" ? { rangemode: "nonnegative" } : {}) } } };
  };
  const several = D.arms.some((arm) => arm.seeds.length > 1);
  const note = () => [several && S.spread === "band" ? "Lines are means over seeds; bands reach from the lowest to the highest seed." : "",
    S.x === "bytes" ? "Payload of all clients together, up and down, setup included; a method that sends nothing in its rounds is a level line at its last value." : "", D.thinned].filter(Boolean).join(" ");
  const redraw = () => { chart.redraw(); scores.redraw(); legends.forEach((fill) => fill()); };
  const chart = chartPanel("chart-curves", "Learning curves", make, {
    controls: [metricBox,
      press("Against", [["rounds", "Rounds"], ["bytes", "Bytes"], ["seconds", "Time"]], S.x, (v) => { S.x = v; chart.redraw(); }, "x"),
      several ? press("Seeds", [["band", "Band"], ["seeds", "Each"], ["none", "Mean"]], S.spread, (v) => { S.spread = v; chart.redraw(); }, "spread") : "",
      press("Scale", [["linear", "Linear"], ["log", "Log"]], S.scale, (v) => { S.scale = v; chart.redraw(); }, "scale")],
    legend: legendOf(() => figures.forEach((each) => each()), (i) => D.curves[S.protocol][S.metric][i]), note });
  const scores = tablePanel("table-scores", several ? "Scores, mean ± standard deviation over seeds" : "Scores", () => D.scores[S.protocol][S.metric] || D.scores[S.protocol].accuracy);
  const fill = () => metricBox.replaceChildren(choose("Metric", D.protocols[S.protocol].metrics.map((m) => [m, D.metrics[m] || m]), S.metric, (v) => { S.metric = v; redraw(); }, "metric"));
  fill();
  onProtocol.push(() => { fill(); redraw(); });
  section.append(chart.node, scores.node);
  if (Object.keys(D.differences).length) section.append(differences());
  if (Object.keys(D.domains).length) section.append(domains());
  section.append(tablePanel("table-protocols", "What each protocol measures", () => D.measures).node);
};
const empty = { columns: ["method"], rows: [], numeric: [false], csv: "", note: "Nothing was measured for this." };
const differences = () => {
  let base = [D.arms.findIndex((arm) => arm.label === "fedavg"), D.arms.findIndex((arm) => !arm.bound), 0].find((i) => i >= 0);  // what most papers compare with
  const bar = el("div", { class: "bar" });
  const table = tablePanel("table-differences", "Paired differences of last accuracy", () => (D.differences[S.protocol] || [])[base] || empty, { controls: [bar] });
  const fill = () => {
    const known = arms.filter((i) => (D.differences[S.protocol] || [])[i]);
    if (!known.includes(base)) base = known[0] ?? 0;
    bar.replaceChildren(choose("Against", known.map((i) => [String(i), D.arms[i].label]), String(base), (v) => { base = +v; table.redraw(); }, "baseline"));
    table.redraw();
  };
  fill();
  onProtocol.push(fill);
  return table.node;
};
const domains = () => {
  const table = tablePanel("table-domains", "Accuracy domain by domain", () => D.domains[S.protocol] || empty);
  const fill = () => { table.redraw(); table.node.hidden = !D.domains[S.protocol]; };
  fill();
  onProtocol.push(fill);
  return table.node;
};

/* Bars that lie: one row an arm. */
const rows = (list) => ({ type: "category", categoryorder: "array", categoryarray: list.map((i) => D.arms[i].label).reverse(), showgrid: false });
const lying = (list, title, more = {}) => ({ height: 70 + Math.max(2, list.length) * 44, xaxis: { title: { text: title }, rangemode: "tozero", ...more }, yaxis: rows(list) });

const targets = () => {
  const under = () => D.targets[S.protocol] || {};
  const names = [...new Set(Object.values(D.targets).flatMap((each) => Object.keys(each)))];
  if (!names.length) return;
  const section = open("targets", "Rounds to target", "What reaching an accuracy took. The first crossing is the first round at or above it; the running mean asks it of the mean of five rounds, which luck does not reach.");
  const reached = (n) => under()[n]?.first_crossing.reached.some((each) => each && each[0]);
  const T = { target: names.findLast(reached) || names.at(-1), rule: "first_crossing", what: "rounds" };
  const get = () => under()[T.target]?.[T.rule];
  const make = () => {
    const found = get();
    const list = arms.filter((i) => found && found.bars[i] && visible(i));
    const text = list.map((i) => {
      const [reached, of] = found.reached[i];
      return reached ? spent[T.what](found.bars[i][T.what]) + (reached < of ? ` (${reached} of ${of} seeds)` : "") : "not reached";
    });
    const longest = Math.max(0, ...list.map((i) => found.bars[i][T.what] || 0)) || 1;
    const data = list.map((i, k) => ({ type: "bar", orientation: "h", y: [D.arms[i].label], x: [found.bars[i][T.what] || 0], name: D.arms[i].label, text: [text[k]], textposition: "outside", cliponaxis: false,
      marker: { color: colour(i), pattern: { shape: PATTERNS[i % 8], fillmode: "overlay", fgcolor: faint(dark() ? "#0e1318" : "#ffffff", 0.75), fgopacity: 1, size: 8, solidity: 0.22 } }, width: 0.6, hovertemplate: `<b>${D.arms[i].label}</b><br>${text[k]}<extra></extra>` }));
    const axis = T.what === "bytes" ? { tickformat: "~s", ticksuffix: "B" } : T.what === "rounds" && longest < 10 ? { dtick: 1 } : {};
    return { data, layout: { ...lying(list, T.what === "bytes" ? "sent, up and down" : T.what, { range: [0, longest * (narrow() ? 1.75 : 1.3)], ...axis, visible: list.some((i) => found.bars[i][T.what] !== null) }), saveLegend: false } };
  };
  const redraw = () => { chart.redraw(); table.redraw(); };
  const chart = chartPanel("chart-targets", "What the target cost", make, { controls: [
    choose("Target", names.map((n) => [n, n]), T.target, (v) => { T.target = v; redraw(); }, "target"),
    choose("Counts when", [["first_crossing", "first crossing"], ["running_mean", "running mean of five"]], T.rule, (v) => { T.rule = v; redraw(); }, "rule"),
    press("Cost in", [["rounds", "Rounds"], ["bytes", "Bytes"], ["seconds", "Time"]], T.what, (v) => { T.what = v; chart.redraw(); }, "cost")] });
  const table = tablePanel("table-targets", "Cost of the target", () => get()?.table || empty);
  onProtocol.push(redraw);
  section.append(chart.node, table.node);
};

const clients = () => {
  const names = Object.keys(D.clients);
  if (!names.length) return;
  const section = open("clients", "Clients", "A mean hides who is left behind. Every dot is a client as it was measured at the end; a box holds the middle half of them, and its whiskers reach the worst and the best.");
  let under = names.includes(S.protocol) ? S.protocol : names[0];
  const make = () => {
    const list = arms.filter((i) => D.clients[under].boxes[i] && visible(i));
    const boxes = list.map((i) => {
      const five = D.clients[under].boxes[i];
      return { type: "box", orientation: "h", y: [D.arms[i].label], lowerfence: [five.lowest], q1: [five.first], median: [five.median], q3: [five.third], upperfence: [five.highest],
        name: D.arms[i].label, width: 0.62, line: { color: colour(i), width: 1.6 }, fillcolor: faint(colour(i), 0.13), hoverinfo: "skip",
        x: [D.clients[under].dots[i].map((d) => d[0])], boxpoints: "all", jitter: 0.75, pointpos: 0, marker: { color: colour(i), size: 5, opacity: 0.65, symbol: SYMBOLS[i % 8] },
        text: [D.clients[under].dots[i].map((d) => `seed ${d[1]}, client ${d[2]}`)], hoveron: "points", hovertemplate: `<b>${D.arms[i].label}</b><br>%{text}<br>%{x:.2%}<extra></extra>` };
    });
    return { data: boxes, layout: { ...lying(list, `accuracy, ${under}`, { ...PERCENT, rangemode: "normal" }), height: 90 + Math.max(2, list.length) * 78, saveLegend: false } };
  };
  const redraw = () => { chart.redraw(); summary.redraw(); worst.redraw(); };
  const chart = chartPanel("chart-clients", "Accuracy client by client", make, {
    controls: names.length > 1 ? [choose("Measured under", names.map((n) => [n, n]), under, (v) => { under = v; redraw(); }, "clients-protocol")] : [],
    note: () => [`${under}: ${said(under)}`, D.clients[under].cut].filter(Boolean).join(" ") });
  const summary = tablePanel("table-clients", "Quartiles over clients", () => D.clients[under].summary);
  const worst = tablePanel("table-worst", "Worst clients", () => D.clients[under].worst, { folded: true });
  section.append(chart.node, summary.node, worst.node);
};

const square = { get width() { return narrow() ? undefined : 560; }, get height() { return narrow() ? 330 : 500; } };
const blues = () => (dark() ? [[0, "#16222c"], [0.5, "#2f86c4"], [1, "#c4e6fb"]] : [[0, "#f3f8fb"], [0.5, "#6fb1da"], [1, "#003a63"]]);
/* Numbers in the cells of a heat map, each readable on its own colour. */
const inCells = (z, x, y, [low, high], format) => ({ annotations: z.flatMap((row, r) => row.map((value, c) => ({ x: x[c], y: y[r], text: value === null ? "" : format(value), showarrow: false,
  font: { size: 11, color: (value - low) / (high - low) > 0.55 === dark() ? "#08131c" : "#ffffff" } }))) });
const classes = () => {
  const names = Object.keys(D.classes);
  if (!names.length) return;
  const section = open("classes", "Classes", "Which classes a model knows, and what it takes the others for.");
  let under = names.includes(S.protocol) ? S.protocol : names[0];
  const make = () => {
    const list = arms.filter((i) => D.classes[under].accuracy[i].length && visible(i));
    const data = list.map((i) => lineOf(i, D.classes[under].accuracy[i].map((_, k) => k), D.classes[under].accuracy[i], { mode: "markers", marker: { color: colour(i), size: 9, symbol: SYMBOLS[i % 8], opacity: 0.9 },
      hovertemplate: `<b>${D.arms[i].label}</b><br>class %{x}: %{y:.2%}<extra></extra>` }));
    const most = Math.max(...list.map((i) => D.classes[under].accuracy[i].length), 1);
    return { data, layout: { xaxis: { title: { text: "class" }, ...(most <= 20 ? { dtick: 1 } : {}), range: [-0.5, most - 0.5] }, yaxis: { title: { text: `accuracy, ${under}` }, ...PERCENT, rangemode: "tozero" } } };
  };
  const chart = chartPanel("chart-classes", "Accuracy class by class", make, {
    controls: names.length > 1 ? [choose("Measured under", names.map((n) => [n, n]), under, (v) => { under = v; chart.redraw(); table.redraw(); confusion(); }, "classes-protocol")] : [],
    legend: legendOf(() => figures.forEach((each) => each()), (i) => D.classes[under].accuracy[i].length), note: () => "At the end, mean over seeds." });
  const table = tablePanel("table-classes", "Accuracy class by class", () => D.classes[under].table, { folded: true });
  const place = el("div");
  const confusion = () => {
    const known = arms.filter((i) => D.classes[under].confusion[i]);
    if (!known.length) { place.replaceChildren(); return; }
    let whose = known[0];
    const drawn = chartPanel("chart-confusion", "What was taken for what", () => matrix(D.classes[under].confusion[whose]), {
      controls: [choose("Method", known.map((i) => [String(i), D.arms[i].label]), String(whose), (v) => { whose = +v; drawn.redraw(); }, "confusion-arm")],
      note: () => "Of the test examples of a class, the share that the model took for each class; all seeds together." });
    place.replaceChildren(drawn.node);
    drawn.redraw();
  };
  const matrix = (values) => {
    const few = values.length <= 12 && !narrow(), whole = values.length <= 20 ? { dtick: 1 } : { tickformat: "d" };
    return { data: [{ type: "heatmap", z: values, colorscale: blues(), zmin: 0, zmax: 1, xgap: few ? 2 : 0, ygap: few ? 2 : 0, showscale: !few, colorbar: { thickness: 10, outlinewidth: 0, tickformat: ".0%", tickfont: { size: 11, color: token("muted") } },
      hovertemplate: "class %{y}, taken for %{x}: %{z:.1%}<extra></extra>" }],
    layout: { ...square, ...(few ? inCells(values, [...values.keys()], [...values.keys()], [0, 1], (v) => `${Math.round(100 * v)}%`) : {}), xaxis: { title: { text: "taken for class" }, showgrid: false, constrain: "domain", ...whole },
      yaxis: { title: { text: "class" }, autorange: "reversed", showgrid: false, scaleanchor: "x", constrain: "domain", ...whole }, saveLegend: false } };
  };
  section.append(chart.node, table.node, place);
  confusion();
};

const partition = () => {
  if (!D.partitions.length) return;
  const section = open("partition", "Partition", "Who holds what: samples of each class at each client, and above them how much each client holds.");
  let at = 0;
  const make = () => {
    const P = D.partitions[at], ids = P.counts.map((_, k) => k), labels = [...Array(P.classes).keys()];
    const domain = (k) => (P.domain_of ? P.domains[P.domain_of[k]] : "");
    const z = labels.map((c) => P.counts.map((row) => row[c] || null));
    const text = labels.map((c) => P.counts.map((row, k) => `client ${k}${domain(k) ? ` (${domain(k)})` : ""}, class ${c}: ${row[c]} samples`));
    const sums = P.counts.map((row) => row.reduce((a, b) => a + b, 0));
    const scale = dark() ? [[0, "#1d3a52"], [0.5, "#2f86c4"], [1, "#c4e6fb"]] : [[0, "#dcebf5"], [0.5, "#4a9bcd"], [1, "#00406b"]];
    const data = [
      { type: "heatmap", x: ids, y: labels, z, text, hovertemplate: "%{text}<extra></extra>", colorscale: scale, zmin: 0, zmax: Math.max(1, ...P.counts.flat()), xgap: ids.length > 80 ? 0 : 1.5, ygap: labels.length > 40 ? 0 : 1.5,
        colorbar: { title: { text: "samples", side: "right", font: { size: 12 } }, thickness: 10, outlinewidth: 0, tickfont: { size: 11, color: token("muted") }, len: 0.76, y: 0, yanchor: "bottom" }, showscale: !narrow() },
      { type: "bar", x: ids, y: sums, yaxis: "y2", marker: { color: P.domain_of ? P.domain_of.map((d) => colour(d)) : colour(0) }, text: ids.map((k) => `client ${k}${domain(k) ? ` (${domain(k)})` : ""}: ${sums[k]} samples`), textposition: "none", hovertemplate: "%{text}<extra></extra>", showlegend: false }];
    return { data, layout: { height: Math.min(560, 190 + Math.max(6, labels.length) * (narrow() ? 17 : 24)), bargap: 0.25, saveLegend: false,
      xaxis: { title: { text: "client" }, showgrid: false, tickmode: ids.length <= 20 ? "linear" : "auto", dtick: 1 },
      yaxis: { title: { text: "class" }, showgrid: false, tickmode: labels.length <= 20 ? "linear" : "auto", dtick: 1, domain: [0, 0.76] },
      yaxis2: { title: { text: "samples" }, domain: [0.81, 1], nticks: 3, rangemode: "tozero" } } };
  };
  const chart = chartPanel("chart-partition", "Classes at clients", make, {
    controls: D.partitions.length > 1 ? [choose("Seed", D.partitions.map((p, k) => [String(k), p.seeds.join(", ")]), "0", (v) => { at = +v; chart.redraw(); table.redraw(); }, "partition-seed")] : [],
    note: () => { const P = D.partitions[at]; return [P.cut, P.note, P.domain_of ? `Colours of the bars above are domains: ${P.domains.join(", ")}.` : ""].filter(Boolean).join(" "); } });
  const table = tablePanel("table-partition", "Samples by client and class", () => D.partitions[at].table, { folded: true });
  section.append(chart.node, table.node);
};

const stacked = (names, bars) => {
  const list = arms.filter(visible);
  const data = names.map((name, k) => ({ type: "bar", orientation: "h", name, y: list.map((i) => D.arms[i].label), x: list.map((i) => bars[k][i]), width: 0.6,
    marker: { color: colour(k), line: { color: token("surface"), width: 1 }, pattern: { shape: PATTERNS[k % 8], fillmode: "overlay", fgcolor: faint(dark() ? "#0e1318" : "#ffffff", 0.75), fgopacity: 1, size: 8, solidity: 0.22 } } }));
  return { list, data };
};
const key = { showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal", itemclick: false, itemdoubleclick: false }, barmode: "stack" };

const traffic = () => {
  const section = open("traffic", "Communication", "What crossed the network, by kind of content. Setup is what moved before the first round.");
  let way = "both";
  const make = () => {
    const { up, down } = D.traffic.bars;
    const bars = D.traffic.kinds.map((_, k) => arms.map((i) => (way === "down" ? 0 : up[k][i]) + (way === "up" ? 0 : down[k][i])));
    const { list, data } = stacked(D.traffic.kinds, bars);
    data.forEach((trace) => { trace.hovertemplate = trace.y.map((label, k) => `<b>${label}</b><br>${trace.name}: ${bytes(trace.x[k])}<extra></extra>`); });
    return { data, layout: { ...lying(list, "bytes per run", { tickformat: "~s", ticksuffix: "B" }), ...key, height: 120 + Math.max(2, list.length) * 44 } };
  };
  const chart = chartPanel("chart-traffic", "Bytes by kind of content", make, { controls: [press("Direction", [["both", "Both"], ["up", "Up"], ["down", "Down"]], way, (v) => { way = v; chart.redraw(); }, "way")] });
  section.append(chart.node, tablePanel("table-traffic", "Bytes by kind and direction", () => D.traffic.table).node);
};

const work = () => {
  if (!D.work) return;
  const section = open("work", "Local work", "How much training it took. Methods that trained more may be better for that alone.");
  const make = () => {
    const { list, data } = stacked(D.work.parts, D.work.bars);
    data.forEach((trace) => { trace.hovertemplate = `<b>%{y}</b><br>${trace.name}: %{x:,} steps<extra></extra>`; });
    return { data, layout: { ...lying(list, "gradient steps per run", { tickformat: "~s" }), ...key, height: 120 + Math.max(2, list.length) * 44 } };
  };
  section.append(chartPanel("chart-work", "Gradient steps", make).node, tablePanel("table-work", "Gradient steps by purpose", () => D.work.table).node);
  if (!D.work.losses) return;
  const losses = () => {
    const list = arms.filter((i) => D.work.losses[i] && visible(i));
    const data = [...list.flatMap((i) => (D.work.losses[i].seeds.length > 1 ? bandOf(i, D.work.losses[i].rounds, D.work.losses[i].low, D.work.losses[i].high) : [])),
      ...list.map((i) => lineOf(i, D.work.losses[i].rounds, D.work.losses[i].mean, { hovertemplate: `<b>${D.arms[i].label}</b><br>round %{x}: %{y:.4f}<extra></extra>` }))];
    const most = Math.max(0, ...list.map((i) => D.work.losses[i].rounds.at(-1)));
    return { data, layout: { xaxis: { title: { text: "round" }, rangemode: "tozero", ...(most < 10 ? { dtick: 1 } : {}) }, yaxis: { title: { text: "training loss" }, rangemode: "tozero" } } };
  };
  section.append(chartPanel("chart-losses", "Training loss", losses, { legend: legendOf(() => figures.forEach((each) => each()), (i) => D.work.losses[i]),
    note: () => "The mean loss of the training in each round, weighted by samples, over whoever took part; lines are means over seeds." }).node);
};

const newClients = () => {
  if (!D.new_clients) return;
  const section = open("new-clients", "New clients", "Clients kept out of the training that join at the end: how well they do on arrival, and after epochs of their own training.");
  const make = () => {
    const list = arms.filter((i) => D.new_clients.curves[i] && visible(i));
    const epochs = (i) => D.new_clients.curves[i].mean.map((_, k) => k);
    const data = [...list.flatMap((i) => bandOf(i, epochs(i), D.new_clients.curves[i].low, D.new_clients.curves[i].high)),
      ...list.map((i) => lineOf(i, epochs(i), D.new_clients.curves[i].mean, { hovertemplate: `<b>${D.arms[i].label}</b><br>epoch %{x}: %{y:.2%}<extra></extra>` }))];
    return { data, layout: { xaxis: { title: { text: "epochs of own training" }, tickformat: "d", ...(Math.max(...list.map((i) => epochs(i).length)) < 12 ? { dtick: 1 } : {}) }, yaxis: { title: { text: "accuracy of new clients" }, ...PERCENT } } };
  };
  const chart = chartPanel("chart-new-clients", "Accuracy of new clients", make, { legend: legendOf(() => figures.forEach((each) => each()), (i) => D.new_clients.curves[i]), note: () => "Lines are means over new clients and seeds; bands reach from the lowest to the highest." });
  section.append(chart.node, tablePanel("table-new-clients", "New clients one by one", () => D.new_clients.table, { folded: true }).node);
};

const logs = () => {
  if (!D.logs.length) return;
  const section = open("logs", "Inside the methods", "What the methods logged of their inner workings.", "Logs");
  const whose = arms.filter((i) => D.logs.some((each) => each.arm === i));
  let arm = whose[0];
  const panels = [...new Map(D.logs.map((each) => [each.name, each.title]))].map(([name, title], number) => {
    const list = () => D.logs.filter((each) => each.name === name && each.arm === arm);
    let at = 0;
    const bar = el("div", { class: "bar" });
    const chart = chartPanel(`chart-log-${number}`, title, () => (list()[at] ? drawLog(list()[at]) : { data: [], layout: {} }), { controls: [bar], note: () => {
      const each = list()[at];
      return each ? [`${D.arms[arm].label}, ${each.draw === "lines" ? "up to" : "in"} round ${each.round}, ${each.who}, seed ${each.seed}`, each.note].filter(Boolean).join("; ") + "." : "";
    } });
    const fill = () => {
      at = 0;
      chart.node.hidden = !list().length;
      bar.replaceChildren(list().length > 1 ? choose("Whose", list().map((each, k) => [String(k), `${each.who}, seed ${each.seed}`]), "0", (v) => { at = +v; chart.redraw(); }, `log-${number}`) : "");
      chart.redraw();
    };
    return { node: chart.node, fill };
  });
  const pick = choose("Method", whose.map((i) => [String(i), D.arms[i].label]), String(arm), (v) => { arm = +v; panels.forEach((panel) => panel.fill()); }, "logs-arm");
  section.append(whose.length > 1 ? el("div", { class: "bar" }, pick) : "", ...panels.map((panel) => panel.node));
  panels.forEach((panel) => panel.fill());
};
const drawLog = (e) => {
  const axes = (x, y, more = {}) => ({ xaxis: { title: { text: e.x || x } }, yaxis: { title: { text: e.y || y } }, ...more });
  if (e.draw === "lines") {
    const data = e.values.map((y, k) => ({ type: "scatter", mode: "lines+markers", x: e.rounds, y, name: e.names[k], line: { color: colour(k), width: 1.9, dash: dash(k) }, marker: { size: 6, color: colour(k), symbol: SYMBOLS[k % 8], maxdisplayed: 6 }, hovertemplate: `${e.names[k]}<br>round %{x}: %{y:.4g}<extra></extra>` }));
    const all = e.values.flat(), layout = axes("round", "value");
    if (Math.min(...all) >= 0) layout.yaxis.rangemode = "tozero";
    if (e.rounds.at(-1) < 10) layout.xaxis.dtick = 1;
    return { data, layout: { ...layout, showlegend: e.values.length > 1, legend: { ...key.legend, font: { size: 12 } } } };
  }
  if (e.draw === "heatmap") {
    const flat = e.values.flat().filter((v) => v !== null), signed = Math.min(...flat) < 0;
    const scale = signed ? [[0, "#D55E00"], [0.5, dark() ? "#20272e" : "#f7f7f7"], [1, "#0072B2"]] : blues();
    const most = Math.max(...flat.map(Math.abs), 1e-12);
    const even = e.values.length === e.values[0].length && !e.columns, whole = (n) => (n <= 20 ? { dtick: 1 } : { tickformat: "d" });
    const range = e.high !== undefined ? { zmin: e.low, zmax: e.high } : signed ? { zmin: -most, zmax: most } : {};
    const named = e.rows ? { x: e.columns, y: e.rows, xgap: 2, ygap: 2, showscale: false } : e.columns ? { x: e.columns } : {};
    return { data: [{ type: "heatmap", z: e.values, colorscale: scale, ...range, colorbar: { thickness: 10, outlinewidth: 0, tickfont: { size: 11, color: token("muted") } }, hovertemplate: "row %{y}, column %{x}: %{z:.4g}<extra></extra>", ...named }],
      layout: { ...(even ? square : {}), ...(e.rows ? inCells(e.values, e.columns, e.rows, [e.low, e.high], (v) => v.toFixed(1)) : {}), xaxis: { title: { text: e.x || "column" }, showgrid: false, constrain: "domain", ...(e.rows ? {} : whole(e.values[0].length)) },
        yaxis: { title: { text: e.y || "row" }, autorange: "reversed", showgrid: false, ...(e.rows ? {} : whole(e.values.length)), ...(even ? { scaleanchor: "x", constrain: "domain" } : {}) }, saveLegend: false } };
  }
  return { data: [{ type: "image", source: e.values, hoverinfo: "skip", zsmooth: false }], layout: { height: Math.max(120, Math.min(480, (Math.min(1050, window.innerWidth - 60) * e.shape[0]) / e.shape[1])), xaxis: { visible: false }, yaxis: { visible: false }, saveLegend: false } };
};

const rejected = () => {
  const total = D.rejected.counts.reduce((a, b) => a + b, 0);
  const section = open("rejected", "Rejected replies and faults", total ? `${total} replies were dropped or clients failed; the rounds went on without them.` : "Every reply was admitted and no client failed.", "Faults");
  if (D.rejected.stops.length) section.append(el("div", { class: "panel" }, el("h3", {}, "Stopped and resumed"), el("ul", {}, ...D.rejected.stops.map((text) => el("li", {}, text)))));
  if (total) section.append(tablePanel("table-reasons", "Reasons", () => D.rejected.reasons).node, tablePanel("table-rejected", "One by one", () => D.rejected.table, { folded: true }).node);
};

const seconds = () => {
  const section = open("seconds", "Seconds", "Where the time of a run went on the machine it ran on; other work on that machine counts too.");
  const make = () => {
    const { list, data } = stacked(D.seconds.places, D.seconds.bars);
    data.forEach((trace) => { trace.hovertemplate = `<b>%{y}</b><br>${trace.name}: %{x:.1f} s<extra></extra>`; });
    return { data, layout: { ...lying(list, "seconds per run"), ...key, height: 120 + Math.max(2, list.length) * 44 } };
  };
  section.append(chartPanel("chart-seconds", "Where the seconds went", make).node, tablePanel("table-seconds", "Seconds by place", () => D.seconds.table).node);
};

const experiment = () => {
  const section = open("experiment", "Experiment", "What was run, as it was resolved: with this and the seeds, the same bits come out.");
  section.append(tablePanel("table-runs", "Runs", () => D.runs).node, tablePanel("table-settings", "Resolved settings", () => D.settings, { folded: true }).node, tablePanel("table-versions", "Versions", () => D.versions, { folded: true }).node);
};

/* The theme: the reader's system's, until the button says otherwise. */
const system = window.matchMedia("(prefers-color-scheme: dark)");
const wear = (theme) => {
  root.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", `Switch to the ${theme === "dark" ? "light" : "dark"} theme`);
  legends.forEach((fill) => fill());
  figures.forEach((redraw) => redraw());
};
const remembered = (() => { try { return localStorage.getItem("coterie-theme"); } catch { return null; } })();
let chosen = remembered !== null;
$("theme").addEventListener("click", () => {
  chosen = true;
  wear(dark() ? "light" : "dark");
  try { localStorage.setItem("coterie-theme", root.dataset.theme); } catch { /* a reader that keeps nothing */ }
});
window.addEventListener("storage", ({ key, newValue }) => { if (key === "coterie-theme" && newValue && newValue !== root.dataset.theme) { chosen = true; wear(newValue); } });  // chosen on another page, or beside this one
system.addEventListener("change", () => { if (!chosen) wear(system.matches ? "dark" : "light"); });

root.dataset.theme = remembered || (system.matches ? "dark" : "light");
$("title").textContent = D.title;
$("subtitle").textContent = D.subtitle;
$("facts").textContent = D.facts;
if (D.notices.length) $("notices").append(el("div", { class: "notice" }, el("strong", {}, "Please note"), el("ul", {}, ...D.notices.map((text) => el("li", {}, text)))));
if (D.thinned) $("notices").append(el("p", { class: "notice calm" }, D.thinned));
if (S.protocol) {
  S.metric = D.protocols[S.protocol].metrics[0];
  headline();
  curves();
  targets();
} else $("notices").append(el("p", { class: "notice" }, "No model was measured in these runs, so there is no accuracy to show."));
clients();
classes();
partition();
traffic();
work();
newClients();
logs();
rejected();
seconds();
experiment();
wear(root.dataset.theme);
/* On paper: light, and only what would fill pages stays folded. */
let worn = null;
window.addEventListener("beforeprint", () => {
  worn ??= root.dataset.theme;
  wear("light");
  for (const each of document.querySelectorAll("details")) if (each.querySelectorAll("tbody tr").length <= 4 * LONG) each.open = true;
});
window.addEventListener("afterprint", () => { wear(worn ?? root.dataset.theme); worn = null; });
/* Inside another page, `#curves` would be a place of that page. */
const jump = (event) => {
  const link = event.target.closest("a[href^='#']"), place = link && $(link.hash.slice(1));
  if (!place) return;
  event.preventDefault();
  place.scrollIntoView();
  place.focus({ preventScroll: true });
};
if (window.parent !== window) document.addEventListener("click", jump);
let small = narrow();
window.addEventListener("resize", () => { if (small !== narrow()) { small = narrow(); figures.forEach((redraw) => redraw()); } });
root.dataset.ready = "yes";
