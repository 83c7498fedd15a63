/* Building blocks of the page. Every number and sentence comes from the data, made in Python; text is only ever set as text. */
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
const LONG = 15;
const PERCENT = { tickformat: ".1~%", minallowed: -0.03, maxallowed: 1.03 };  // around one value plotly would draw 100 points more and less
const AXES = { rounds: "round", bytes: "sent so far, up and down", seconds: "seconds" };

const dark = () => root.dataset.theme === "dark";
const token = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
const colour = (i) => COLOURS[dark() ? "dark" : "light"][i % 8];
const dash = (i) => DASHES[i % DASHES.length];
const faint = (hex, alpha) => `rgba(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(",")},${alpha})`;
const narrow = () => window.innerWidth < 660;  // below this a square map of 560 pixels does not fit
const isShare = (metric) => metric !== "loss" && metric in D.metrics;
const shown = (value, metric) => (isShare(metric) ? `${(100 * value).toFixed(2)}%` : value.toFixed(4));
const bytes = (size) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (size >= 1000 && at < 4) { size /= 1000; at += 1; }
  return `${at ? size.toFixed(2) : Math.round(size)} ${units[at]}`;
};
const spent = { rounds: (v) => `${Math.round(10 * v) / 10} ${v === 1 ? "round" : "rounds"}`, bytes, seconds: (v) => `${v.toFixed(1)} s` };

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
  const long = rows.length > LONG;
  const region = el("div", { class: long ? "scroll tall" : "scroll", tabindex: "0", role: "region", "aria-label": name },
    el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
  return long ? el("div", {}, finder(name, rows), region) : region;
};
/* A long table has a box to find rows in: those stay that hold every word. */
const finder = (name, rows) => {
  const found = el("span", { class: "count", role: "status" });
  const box = el("input", { type: "search", placeholder: "Find rows", "aria-label": `Find rows in ${name}`, oninput: () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    found.textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows` : "";
  } });
  return el("div", { class: "bar find" }, box, found);
};
/* A table with its heading and its button; `get` is asked again whenever `redraw` is called. */
const tablePanel = (id, name, get, { folded = false, controls = [] } = {}) => {
  const body = el("div", { id });
  const redraw = () => {
    const table = get();
    body.replaceChildren(tableOf(name, table), table.note ? el("p", { class: "note" }, table.note) : "");
  };
  redraw();
  const node = folded
    ? el("div", { class: "panel folded" }, el("details", {}, el("summary", {}, name, el("span", { class: "count" }, ` ${get().rows.length} row${get().rows.length === 1 ? "" : "s"}`)), body), copier(get))
    : el("div", { class: "panel" }, el("div", { class: "bar head" }, el("h3", {}, name), copier(get)), controls.length ? el("div", { class: "bar" }, ...controls) : "", body);
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
    const { data, layout } = make(), whole = styled(layout);
    chart.style.height = `${whole.height}px`;  // a window that changes makes plotly forget its layout's height and ask its place for one
    Plotly.react(chart, tame(data), tame(whole), config);
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

