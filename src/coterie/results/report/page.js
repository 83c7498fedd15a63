"use strict";
/* Draws and switches; every number and sentence comes from the data, made in Python. Text is only ever set as text. */
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const root = document.documentElement;

  /* Okabe and Ito's colours; the light ones darkened on white, the dark ones lightened on black, to 3:1 or better. */
  const COLOURS = {
    light: ["#0072B2", "#D55E00", "#00855F", "#B4578C", "#A87400", "#2A8CC4", "#857C00", "#000000"],
    dark: ["#4FA8E0", "#F0813A", "#1FC096", "#DB93BA", "#E8A81C", "#8CD0F5", "#F0E442", "#FFFFFF"],
  };
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const STROKES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4" };
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down"];
  const GLYPHS = ["●", "■", "◆", "▲", "✕", "✚", "★", "▼"];
  const PATTERNS = ["", "/", "x", ".", "\\", "-", "+", "|"];
  const AXES = { rounds: "round", bytes: "sent so far, up and down", seconds: "seconds" };

  const dark = () => root.dataset.theme === "dark";
  const token = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const colour = (i) => COLOURS[dark() ? "dark" : "light"][i % 8];
  const dash = (i) => DASHES[i % DASHES.length];
  const faint = (hex, alpha) => `rgba(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(",")},${alpha})`;
  const narrow = () => window.innerWidth < 620;
  const isShare = (metric) => metric === "accuracy" || metric === "top5";
  const shown = (value, metric) => (isShare(metric) ? `${(100 * value).toFixed(2)}%` : value.toFixed(4));
  const bytes = (size) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let at = 0;
    while (size >= 1000 && at < 4) { size /= 1000; at += 1; }
    return `${at ? size.toFixed(2) : Math.round(size)} ${units[at]}`;
  };
  const spent = { rounds: (v) => `${+v.toPrecision(4)} ${v === 1 ? "round" : "rounds"}`, bytes, seconds: (v) => `${v.toFixed(1)} s` };

  /* Building blocks */
  const el = (tag, props = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(props)) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== undefined && value !== null) node.setAttribute(key, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return node;
  };
  const say = (text) => { $("said").textContent = ""; setTimeout(() => { $("said").textContent = text; }, 30); };

  const choose = (label, options, value, change, id) => {
    const select = el("select", { id, onchange: () => change(select.value) });
    for (const [key, text] of options) {
      const option = el("option", { value: key }, text);
      option.selected = key === value;
      select.append(option);
    }
    return el("label", { class: "field" }, el("span", {}, label), select);
  };
  const press = (label, options, value, change, id) => {
    const group = el("span", { class: "group", role: "group", "aria-label": label, id });
    for (const [key, text] of options) {
      group.append(el("button", { type: "button", "data-value": key, "aria-pressed": String(key === value), onclick: () => {
        for (const each of group.children) each.setAttribute("aria-pressed", String(each.dataset.value === key));
        change(key);
      } }, text));
    }
    return el("div", { class: "field" }, el("span", {}, label), group);
  };
  const copy = async (text) => {
    try { await navigator.clipboard.writeText(text); }
    catch {
      const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  const copier = (table) => el("button", { type: "button", class: "quiet", onclick: async (event) => {
    const button = event.currentTarget;
    await copy(table().csv);
    button.textContent = "Copied";
    say("The table is copied as CSV.");
    setTimeout(() => { button.textContent = "Copy CSV"; }, 1500);
  } }, "Copy CSV");
  const tableOf = (name, table) => {
    const mark = (at, text = "") => (table.numeric[at] ? "n" : text.length > 48 ? "long" : undefined);
    const head = el("tr", {}, ...table.columns.map((text, at) => el("th", { scope: "col", class: mark(at) }, text)));
    const rows = table.rows.map((row) => el("tr", {}, ...row.map((cell, at) =>
      el("td", { class: mark(at, cell) }, Array.isArray(cell) ? el("strong", {}, cell[0]) : cell))));
    return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name },
      el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
  };
  /* A table with its heading and its button; `get` is asked again whenever `redraw` is called. */
  const tablePanel = (id, name, get, folded = false) => {
    const body = el("div", { id });
    const redraw = () => {
      const table = get();
      body.replaceChildren(tableOf(name, table), table.note ? el("p", { class: "note" }, table.note) : "");
    };
    redraw();
    const node = folded
      ? el("div", { class: "panel folded" }, el("details", {}, el("summary", {}, name, el("span", { class: "count" }, ` ${get().rows.length} rows`)), body), copier(get))
      : el("div", { class: "panel" }, el("div", { class: "bar head" }, el("h3", {}, name), copier(get)), body);
    return { node, redraw };
  };

  /* plotly makes links of the tags in a name: in what it is given, only the tags that are ours stay tags. */
  const tame = (value) =>
    typeof value === "string" ? value.replace(/<(?!\/?(?:b|br|extra)>)/g, "&lt;")
      : Array.isArray(value) ? (typeof value[0] === "number" ? value : value.map(tame))
        : value && Object.getPrototypeOf(value) === Object.prototype ? Object.fromEntries(Object.entries(value).map(([key, each]) => [key, tame(each)]))
          : value;

  const figures = [];
  /* A chart with its switches, its legend and its button; `make` gives data and layout. */
  const chartPanel = (id, name, make, { controls = [], legend = null, note = null } = {}) => {
    const chart = el("div", { class: "chart", id, role: "img", "aria-label": name });
    const foot = el("p", { class: "note" });
    const config = { displayModeBar: false, responsive: true, doubleClick: "reset" };
    const redraw = () => {
      const { data, layout } = make();
      Plotly.react(chart, tame(data), tame(styled(layout)), config);
      foot.textContent = note ? note() : "";
      foot.hidden = !foot.textContent;
    };
    const save = async () => {
      const { data, layout } = make();
      const whole = { data, layout: { ...styled(layout), showlegend: layout.saveLegend !== false, title: { text: name, font: { size: 16 } }, margin: { t: 60, l: 80, r: 30, b: 60 } }, config };
      const address = await Plotly.toImage(tame(whole), { format: "svg", width: 900, height: Math.max(420, chart.clientHeight), imageDataOnly: true });
      const url = URL.createObjectURL(new Blob([address], { type: "image/svg+xml" }));
      el("a", { href: url, download: `${D.title}-${id}.svg`.replace(/[^\w.-]+/g, "-") }).click();
      setTimeout(() => URL.revokeObjectURL(url), 1000);
      say("The figure is saved as SVG.");
    };
    const button = el("button", { type: "button", class: "quiet", onclick: save }, "Save SVG");
    const node = el("div", { class: "panel" },
      el("div", { class: "bar head" }, el("h3", {}, name), button),
      controls.length ? el("div", { class: "bar" }, ...controls) : "", legend, chart, foot);
    figures.push(redraw);
    return { node, redraw };
  };
  const styled = (layout) => {
    const axis = (more = {}) => ({ gridcolor: token("grid"), linecolor: token("line"), tickcolor: token("line"), zeroline: false, automargin: true,
      ...more, title: { font: { size: 12.5, color: token("muted") }, standoff: 10, ...(more.title || {}) }, tickfont: { size: 12, color: token("muted") } });
    const { xaxis, yaxis, saveLegend, ...rest } = layout;
    return {
      height: narrow() ? 320 : 400, margin: { t: 8, l: 8, r: 12, b: 8 }, showlegend: false, hovermode: "closest",
      dragmode: window.matchMedia("(pointer: coarse)").matches || narrow() ? false : "zoom",
      font: { family: token("sans"), size: 13, color: token("ink") }, paper_bgcolor: token("surface"), plot_bgcolor: token("surface"),
      hoverlabel: { bgcolor: token("surface"), bordercolor: token("line"), font: { color: token("ink"), family: token("sans"), size: 13 }, align: "left" },
      bargap: 0.35, ...rest, xaxis: axis(xaxis), yaxis: axis(yaxis),
      ...(rest.yaxis2 ? { yaxis2: axis(rest.yaxis2) } : {}),
    };
  };
  const open = (id, title, why, short = title) => {
    $(id).append(el("h2", {}, title), why ? el("p", { class: "why" }, why) : "");
    $("nav").append(el("a", { href: `#${id}` }, short));
    return $(id);
  };

  /* What is switched; a legend hides an arm in every chart. */
  const S = { protocol: Object.keys(D.protocols)[0], metric: null, x: "rounds", spread: "band", scale: "linear", hidden: new Set() };
  const arms = D.arms.map((arm, index) => index);
  const visible = (i) => !S.hidden.has(i);
  const swatch = (i) => {
    const ns = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(ns, "svg");
    svg.setAttribute("viewBox", "0 0 34 14");
    svg.setAttribute("aria-hidden", "true");
    const line = document.createElementNS(ns, "line");
    for (const [key, value] of Object.entries({ x1: 0, x2: 34, y1: 7, y2: 7, stroke: colour(i), "stroke-width": 2.5, "stroke-dasharray": STROKES[dash(i)] })) line.setAttribute(key, value);
    const text = document.createElementNS(ns, "text");
    for (const [key, value] of Object.entries({ x: 17, y: 11, "text-anchor": "middle", "font-size": 11, fill: colour(i) })) text.setAttribute(key, value);
    text.textContent = GLYPHS[i % 8];
    svg.append(line, text);
    return svg;
  };
  const legends = [];
  const legendOf = (redraw, has) => {
    const list = el("ul", { class: "legend", "aria-label": "Methods shown" });
    const fill = () => list.replaceChildren(...arms.filter(has).map((i) => el("li", {}, el("button", { type: "button", "data-arm": i, "aria-pressed": String(visible(i)), onclick: (event) => {
      if (visible(i)) S.hidden.add(i); else S.hidden.delete(i);
      event.currentTarget.setAttribute("aria-pressed", String(visible(i)));
      redraw();
    } }, swatch(i), D.arms[i].label))));
    fill();
    legends.push(fill);
    return list;
  };
  const lineOf = (i, x, y, more = {}) => ({
    type: "scatter", mode: "lines+markers", x, y, name: D.arms[i].label, connectgaps: true,
    line: { color: colour(i), width: 2.3, dash: dash(i) }, marker: { color: colour(i), size: 7, symbol: SYMBOLS[i % 8], maxdisplayed: 9 }, ...more });
  const bandOf = (i, x, low, high) => {
    const at = x.map((_, k) => k).filter((k) => low[k] !== null);
    const edge = { type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
    return [{ ...edge, x: at.map((k) => x[k]), y: at.map((k) => low[k]) },
      { ...edge, x: at.map((k) => x[k]), y: at.map((k) => high[k]), fill: "tonexty", fillcolor: faint(colour(i), dark() ? 0.22 : 0.15) }];
  };

  /* Headline */
  const headline = () => {
    const known = D.protocols[S.protocol];
    $("headline").replaceChildren(
      el("div", { class: "bar" }, choose("Measured under", Object.keys(D.protocols).map((p) => [p, p]), S.protocol, switchProtocol, "protocol"),
        known.what ? el("p", { class: "why" }, `${known.what[0].toUpperCase()}${known.what.slice(1)}.`) : ""),
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
      const bands = [], lines = [];
      for (const i of all) {
        const x = D.axes[i][S.x], curve = found[i], last = curve.mean.findLast((v) => v !== null);
        if (S.x === "bytes" && x[0] === x.at(-1)) {
          lines.push(lineOf(i, S.scale === "log" ? [reach / 1000 || 1, reach || 10] : [0, reach || 1], [last, last], { line: { color: colour(i), width: 2, dash: "dot" }, hovertemplate: `<b>${D.arms[i].label}</b><br>sends nothing in its rounds<br>last: ${shown(last, S.metric)}<extra></extra>` }));
          continue;
        }
        if (S.spread === "band" && curve.seeds.length > 1) bands.push(...bandOf(i, x, curve.low, curve.high));
        if (S.spread === "seeds") curve.seeds.forEach((seed, k) => lines.push(lineOf(i, x, seed, { mode: "lines", opacity: 0.75, line: { color: colour(i), width: 1.2, dash: dash(i) }, showlegend: false, hovertemplate: `${D.arms[i].label}, seed ${D.arms[i].seeds[k]}<br>%{y}<extra></extra>` })));
        const text = curve.mean.map((v, k) => v === null ? "" : `round ${D.axes[i].rounds[k]} · ${bytes(D.axes[i].bytes[k])} · ${D.axes[i].seconds[k].toFixed(1)} s<br>${shown(v, S.metric)}${curve.seeds.length > 1 ? ` (${shown(curve.low[k], S.metric)} to ${shown(curve.high[k], S.metric)})` : ""}`);
        lines.push(lineOf(i, x, curve.mean, { text, hovertemplate: `<b>${D.arms[i].label}</b><br>%{text}<extra></extra>` }));
      }
      const axis = { title: { text: AXES[S.x] }, type: S.scale, ...(S.x === "bytes" ? { tickformat: "~s", ticksuffix: "B" } : {}) };
      if (S.scale === "linear") axis.rangemode = "tozero";
      if (S.scale === "log") axis.dtick = 1;
      return { data: [...bands, ...lines], layout: { xaxis: axis, yaxis: { title: { text: `${D.metrics[S.metric] || S.metric}, ${S.protocol}` }, ...(isShare(S.metric) ? { tickformat: ".1~%" } : {}) } } };
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
    const scores = tablePanel("table-scores", "Scores, mean ± standard deviation over seeds", () => D.scores[S.protocol][S.metric]);
    const fill = () => metricBox.replaceChildren(choose("Metric", D.protocols[S.protocol].metrics.map((m) => [m, D.metrics[m] || m]), S.metric, (v) => { S.metric = v; redraw(); }, "metric"));
    fill();
    onProtocol.push(() => { fill(); redraw(); });
    section.append(chart.node, scores.node);
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
      const axis = T.what === "bytes" ? { tickformat: "~s", ticksuffix: "B" } : {};
      return { data, layout: { ...lying(list, T.what === "bytes" ? "sent, up and down" : T.what, { range: [0, longest * (narrow() ? 1.75 : 1.3)], ...axis, visible: list.some((i) => found.bars[i][T.what] !== null) }), saveLegend: false } };
    };
    const empty = { columns: ["method"], rows: [], numeric: [false], csv: "", note: "Nothing was measured for this." };
    const redraw = () => { chart.redraw(); table.redraw(); };
    const chart = chartPanel("chart-targets", "What the target cost", make, { controls: [
      choose("Target", names.map((n) => [n, n]), T.target, (v) => { T.target = v; redraw(); }, "target"),
      choose("Counts when", [["first_crossing", "first crossing"], ["running_mean", "running mean of five"]], T.rule, (v) => { T.rule = v; redraw(); }, "rule"),
      press("Cost in", [["rounds", "Rounds"], ["bytes", "Bytes"], ["seconds", "Time"]], T.what, (v) => { T.what = v; chart.redraw(); }, "cost")] });
    const table = tablePanel("table-targets", "Cost of the target, mean over the seeds that got there", () => get()?.table || empty);
    onProtocol.push(redraw);
    section.append(chart.node, table.node);
  };

  const clients = () => {
    const names = Object.keys(D.clients);
    if (!names.length) return;
    const section = open("clients", "Clients", "A mean hides who is left behind. Every dot is a client as it was last measured; the box holds the middle half.");
    let under = names.includes(S.protocol) ? S.protocol : names[0];
    const make = () => {
      const list = arms.filter((i) => D.clients[under].dots[i].length && visible(i));
      const data = list.map((i) => {
        const dots = D.clients[under].dots[i];
        return { type: "box", orientation: "h", x: dots.map((d) => d[0]), y: dots.map(() => D.arms[i].label), name: D.arms[i].label, boxpoints: "all", jitter: 0.75, pointpos: 0, width: 0.62,
          marker: { color: colour(i), size: 5, opacity: 0.65, symbol: SYMBOLS[i % 8] }, line: { color: colour(i), width: 1.6 }, fillcolor: faint(colour(i), 0.13),
          text: dots.map((d) => `seed ${d[1]}, client ${d[2]}`), hoveron: "points", hovertemplate: `<b>${D.arms[i].label}</b><br>%{text}<br>%{x:.2%}<extra></extra>` };
      });
      return { data, layout: { ...lying(list, `accuracy, ${under}`, { tickformat: ".1~%", rangemode: "normal" }), height: 90 + Math.max(2, list.length) * 78, saveLegend: false } };
    };
    const redraw = () => { chart.redraw(); summary.redraw(); worst.redraw(); };
    const chart = chartPanel("chart-clients", "Accuracy client by client", make, {
      controls: [choose("Measured under", names.map((n) => [n, n]), under, (v) => { under = v; redraw(); }, "clients-protocol")],
      note: () => [D.protocols[under]?.what ? `${under}: ${D.protocols[under].what.replace("; mean over clients", "")}.` : "", D.clients[under].cut].filter(Boolean).join(" ") });
    const summary = tablePanel("table-clients", "Spread over clients", () => D.clients[under].summary);
    const worst = tablePanel("table-worst", "Worst clients", () => D.clients[under].worst);
    section.append(chart.node, summary.node, worst.node);
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
    const table = tablePanel("table-partition", "Samples by client and class", () => D.partitions[at].table, true);
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
      return { data, layout: { ...lying(list, "bytes a run", { tickformat: "~s", ticksuffix: "B" }), ...key, height: 120 + Math.max(2, list.length) * 44 } };
    };
    const chart = chartPanel("chart-traffic", "Bytes by kind of content", make, { controls: [press("Direction", [["both", "Both"], ["up", "Up"], ["down", "Down"]], way, (v) => { way = v; chart.redraw(); }, "way")] });
    section.append(chart.node, tablePanel("table-traffic", "Bytes by kind and direction", () => D.traffic.table).node);
  };

  const newClients = () => {
    if (!D.new_clients) return;
    const section = open("new-clients", "New clients", "Clients kept out of the training that join at the end: how well they do on arrival, and after epochs of their own training.");
    const make = () => {
      const list = arms.filter((i) => D.new_clients.curves[i] && visible(i));
      const epochs = (i) => D.new_clients.curves[i].mean.map((_, k) => k);
      const data = [...list.flatMap((i) => bandOf(i, epochs(i), D.new_clients.curves[i].low, D.new_clients.curves[i].high)),
        ...list.map((i) => lineOf(i, epochs(i), D.new_clients.curves[i].mean, { hovertemplate: `<b>${D.arms[i].label}</b><br>epoch %{x}: %{y:.2%}<extra></extra>` }))];
      return { data, layout: { xaxis: { title: { text: "epochs of own training" } }, yaxis: { title: { text: "accuracy of new clients" }, tickformat: ".1~%" } } };
    };
    const chart = chartPanel("chart-new-clients", "Accuracy of new clients", make, { legend: legendOf(() => figures.forEach((each) => each()), (i) => D.new_clients.curves[i]), note: () => "Lines are means over new clients and seeds; bands reach from the lowest to the highest." });
    section.append(chart.node, tablePanel("table-new-clients", "New clients one by one", () => D.new_clients.table, true).node);
  };

  const exhibits = () => {
    if (!D.exhibits.length) return;
    const section = open("exhibits", "Exhibits", "What the methods put on show of their inner workings.");
    const groups = new Map();
    for (const each of D.exhibits) {
      const name = `${each.title} · ${D.arms[each.arm].label}`;
      groups.set(name, [...(groups.get(name) || []), each]);
    }
    [...groups].forEach(([name, list], number) => {
      let at = 0;
      const many = list.length > 1;
      const chart = chartPanel(`chart-exhibit-${number}`, name, () => exhibit(list[at]), {
        controls: many ? [choose("Whose", list.map((e, k) => [String(k), `${e.who}, seed ${e.seed}`]), "0", (v) => { at = +v; chart.redraw(); }, `exhibit-${number}`)] : [],
        note: () => [`${list[at].draw === "lines" ? "Up to" : "In"} round ${list[at].round}, ${list[at].who}, seed ${list[at].seed}`, list[at].note].filter(Boolean).join("; ") + "." });
      section.append(chart.node);
    });
  };
  const exhibit = (e) => {
    const axes = (x, y, more = {}) => ({ xaxis: { title: { text: e.x || x } }, yaxis: { title: { text: e.y || y } }, ...more });
    if (e.draw === "lines") {
      const data = e.values.map((y, k) => ({ type: "scatter", mode: "lines+markers", x: e.rounds, y, name: String(k), line: { color: colour(k), width: 1.9, dash: dash(Math.floor(k / 8)) }, marker: { size: 6, color: colour(k), symbol: SYMBOLS[k % 8], maxdisplayed: 6 }, hovertemplate: `entry ${k}<br>round %{x}: %{y:.4g}<extra></extra>` }));
      return { data, layout: { ...axes("round", "value"), showlegend: e.values.length > 1 && !narrow(), legend: { title: { text: "entry", font: { size: 12 } }, font: { size: 12 } } } };
    }
    if (e.draw === "bars") return { data: [{ type: "bar", x: e.values.map((_, k) => k), y: e.values, marker: { color: colour(0) }, hovertemplate: "entry %{x}: %{y:.4g}<extra></extra>" }], layout: { ...axes("entry", "value"), saveLegend: false } };
    if (e.draw === "heatmap") {
      const flat = e.values.flat().filter((v) => v !== null), signed = Math.min(...flat) < 0;
      const scale = signed ? [[0, "#D55E00"], [0.5, dark() ? "#20272e" : "#f7f7f7"], [1, "#0072B2"]] : (dark() ? [[0, "#16222c"], [1, "#8fd0f7"]] : [[0, "#f1f6fa"], [1, "#00406b"]]);
      const most = Math.max(...flat.map(Math.abs), 1e-12);
      const square = e.values.length === e.values[0].length && !e.columns;
      return { data: [{ type: "heatmap", z: e.values, colorscale: scale, ...(signed ? { zmin: -most, zmax: most } : {}), colorbar: { thickness: 10, outlinewidth: 0 }, hovertemplate: "row %{y}, column %{x}: %{z:.4g}<extra></extra>", ...(e.columns ? { x: e.columns, y: e.rows, texttemplate: "%{z:.1f}" } : {}) }],
        layout: { ...axes("column", "row"), ...(square ? { height: narrow() ? 320 : 480 } : {}), xaxis: { title: { text: e.x || "column" }, showgrid: false, constrain: "domain" }, yaxis: { title: { text: e.y || "row" }, autorange: "reversed", showgrid: false, ...(square ? { scaleanchor: "x", constrain: "domain" } : {}) }, saveLegend: false } };
    }
    return { data: [{ type: "image", source: e.values, hoverinfo: "skip", zsmooth: false }], layout: { height: Math.max(120, Math.min(480, (Math.min(1050, window.innerWidth - 60) * e.shape[0]) / e.shape[1])), xaxis: { visible: false }, yaxis: { visible: false }, saveLegend: false } };
  };

  const rejected = () => {
    const total = D.rejected.counts.reduce((a, b) => a + b, 0);
    const section = open("rejected", "Rejected replies and faults", total ? `${total} replies were dropped or clients failed; the rounds went on without them.` : "Every reply was admitted and no client failed.", "Faults");
    if (D.rejected.stops.length) section.append(el("div", { class: "panel" }, el("h3", {}, "Stopped and resumed"), el("ul", {}, ...D.rejected.stops.map((text) => el("li", {}, text)))));
    if (total) section.append(tablePanel("table-reasons", "Reasons", () => D.rejected.reasons).node, tablePanel("table-rejected", "One by one", () => D.rejected.table, true).node);
  };

  const seconds = () => {
    const section = open("seconds", "Seconds", "Where the time of a run went on the machine it ran on; other work on that machine counts too.");
    const make = () => {
      const { list, data } = stacked(D.seconds.places, D.seconds.bars);
      data.forEach((trace) => { trace.hovertemplate = `<b>%{y}</b><br>${trace.name}: %{x:.1f} s<extra></extra>`; });
      return { data, layout: { ...lying(list, "seconds a run"), ...key, height: 120 + Math.max(2, list.length) * 44 } };
    };
    section.append(chartPanel("chart-seconds", "Where the seconds went", make).node, tablePanel("table-seconds", "Seconds by place", () => D.seconds.table).node);
  };

  const experiment = () => {
    const section = open("experiment", "Experiment", "What was run, as it was resolved: with this and the seeds, the same bits come out.");
    section.append(tablePanel("table-runs", "Runs", () => D.runs).node, tablePanel("table-settings", "Resolved settings", () => D.settings, true).node, tablePanel("table-versions", "Versions", () => D.versions, true).node);
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
  let chosen = false;
  $("theme").addEventListener("click", () => { chosen = true; wear(dark() ? "light" : "dark"); });
  system.addEventListener("change", () => { if (!chosen) wear(system.matches ? "dark" : "light"); });

  root.dataset.theme = system.matches ? "dark" : "light";
  $("title").textContent = D.title;
  $("subtitle").textContent = D.subtitle;
  if (D.notices.length) $("notices").append(el("div", { class: "notice" }, el("strong", {}, "Please note"), el("ul", {}, ...D.notices.map((text) => el("li", {}, text)))));
  if (D.thinned) $("notices").append(el("p", { class: "notice calm" }, D.thinned));
  if (S.protocol) {
    S.metric = D.protocols[S.protocol].metrics[0];
    headline();
    curves();
    targets();
  } else $("notices").append(el("p", { class: "notice" }, "No model was measured in these runs, so there is no accuracy to show."));
  clients();
  partition();
  traffic();
  newClients();
  exhibits();
  rejected();
  seconds();
  experiment();
  wear(root.dataset.theme);
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if ((width < 620) !== narrow()) { width = window.innerWidth; figures.forEach((redraw) => redraw()); } });
  root.dataset.ready = "yes";
})();
