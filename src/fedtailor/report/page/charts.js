"use strict";
/* The frame around every chart, and charts of curves. */

const SMALL = 520; // pixels; below it is a phone

/* A figure with title, sentence, controls, picture, numbers and downloads.
   draw(width) gives an SVG element or null; rows() what is in it. */
function figure({ id, title, says, controls = [], draw, rows, below = [] }) {
  const chart = el("div", { class: "chart" });
  const caption = el("figcaption", {}, el("h3", {}, title), says ? el("p", { class: "says" }, says) : null);
  const numbers = el("details", {}, el("summary", {}, "Numbers"));
  numbers.addEventListener("toggle", () => {
    if (numbers.open && numbers.children.length === 1) numbers.append(plainTable(rows().slice(0, 500)));
  });
  const picture = () => chart.querySelector("svg");
  const button = (text, label, onclick) => el("button", { type: "button", "aria-label": `${title}: ${label}`, onclick }, text);
  const actions = el("div", { class: "actions" }, numbers,
    button("SVG", "download as SVG", () => download(`${id}.svg`, serialise(picture()), "image/svg+xml")),
    button("PNG", "download as PNG", () => downloadPng(picture(), id)),
    button("CSV", "download the numbers", () => download(`${id}.csv`, toCsv(rows()), "text/csv")));
  const frame = el("figure", { id }, caption, controls.length ? el("div", { class: "controls" }, controls) : null, chart, below, actions);
  let last = 0;
  const redraw = () => {
    const width = Math.floor(chart.clientWidth);
    if (!width) return;
    last = width;
    const svg = draw(width);
    if (svg) {
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", says ? `${title}. ${says}` : title);
    }
    chart.replaceChildren(svg || el("p", { class: "missing" }, "Every series is switched off."));
    if (numbers.open) numbers.replaceChildren(numbers.firstChild, plainTable(rows().slice(0, 500)));
  };
  new ResizeObserver(() => {
    if (Math.floor(chart.clientWidth) !== last) redraw();
  }).observe(chart);
  redraws.push(redraw);
  frame.redraw = redraw;
  return frame;
}

/* One of several: a row of buttons. */
function choice(label, options, chosen, onchange) {
  const group = el("div", { class: "switch", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    const button = el("button", {
      type: "button",
      "aria-pressed": String(value === chosen),
      onclick: () => {
        group.querySelectorAll("button").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
        onchange(value);
      },
    }, text);
    group.append(button);
  }
  return group;
}

const TIP = { fill: "var(--card)", stroke: "var(--line)", fontSize: 12, pathFilter: "none" };
const plain = { style: { fontSize: "12px", background: "none", color: "inherit", overflow: "visible" } };

/* A tick without a tail of digits. */
const tick = (x) => String(Number(x.toPrecision(6))).replace("-", MINUS);

function roundAxis(width, last) {
  return Plot.axisX({ label: "round →", labelArrow: "none", labelOffset: 34, ticks: Math.max(2, Math.min(Math.floor(width / 70), last)), tickFormat: (t) => (Number.isInteger(t) ? String(t) : "") });
}

/* Curves over rounds with the spread of seeds. */
function drawCurves(series, events, measure, width) {
  const shown = series.filter((one) => isShown(one.method));
  if (!shown.length) return null;
  const scale = measure.scale;
  const tips = [];
  const last = Math.max(...shown.flatMap((one) => one.points.map((point) => point[0])));
  const means = shown.flatMap((one) => one.points.map((point) => point[1]));
  const isLog = measure.unit !== "%" && Math.min(...means) > 0 && Math.max(...means) > 12 * Math.min(...means);
  const marks = [Plot.gridY({ stroke: "var(--line)", strokeOpacity: 1, ticks: isLog ? 4 : 6 }), ...drawEvents(events.filter((one) => isShown(one.method)))];
  for (const one of shown) {
    const look = METHODS.get(one.method);
    const points = one.points.map(([t, mean, low, high]) => ({ t, mean: mean * scale, low: low * scale, high: high * scale }));
    if (one.points[0].length > 2) marks.push(Plot.areaY(isLog ? points.map((point) => ({ ...point, low: Math.max(point.low, Math.min(...means) * scale) })) : points, { x: "t", y1: "low", y2: "high", fill: look.colour, fillOpacity: 0.13 }));
    marks.push(Plot.lineY(points, { x: "t", y: "mean", stroke: look.colour, strokeWidth: 2, strokeDasharray: look.dash || undefined, className: "curve" }));
    if (points.length <= 30) marks.push(Plot.dot(points, { x: "t", y: "mean", fill: look.colour, symbol: look.mark, r: points.length === 1 ? 5 : 2.6 }));
    for (const point of points) {
      const value = number(point.mean, measure.unit === "%" ? 1 : 3);
      const spread = Number.isFinite(point.low) ? ` ± ${number(point.high - point.mean, measure.unit === "%" ? 1 : 3)}` : "";
      tips.push({ t: point.t, mean: point.mean, colour: look.colour, text: `${look.name}\nround ${point.t}: ${value}${spread} ${measure.unit}` });
    }
  }
  marks.push(Plot.tip(tips, Plot.pointer({ x: "t", y: "mean", title: "text", ...TIP })));
  marks.push(Plot.dot(tips, Plot.pointer({ x: "t", y: "mean", stroke: "colour", r: 5, strokeWidth: 2 })));
  return Plot.plot({
    ...plain, width, height: width < SMALL ? 260 : 310, marginLeft: 46, marginRight: 14, marginTop: 26, marginBottom: 38,
    x: { domain: last === 1 ? [0, 2] : [1, last] },
    y: { type: isLog ? "log" : "linear", nice: true },
    marks: [...marks, roundAxis(width, last), Plot.axisY({ label: `↑ ${measure.axis}${isLog ? ", logarithmic" : ""}`, labelArrow: "none", ticks: isLog ? 4 : 6, tickFormat: tick })],
  });
}

/* Rounds at which clients came or left, and rounds that were skipped. */
function drawEvents(events) {
  if (!events.length) return [];
  const members = events.filter((one) => one.kind === "members");
  const skipped = events.filter((one) => one.kind === "skipped");
  const text = (one) => `round ${one.t}: ${one.text}\n${nameOf(one.method)}`;
  return [
    Plot.ruleX(members, { x: "t", stroke: "var(--soft)", strokeDasharray: "3 3", title: text }),
    Plot.text(members.slice(0, 6), { x: "t", text: "text", frameAnchor: "top", dy: -12, fontSize: 10.5, fill: "var(--soft)" }),
    Plot.tickX(skipped, { x: "t", stroke: "var(--bad)", strokeWidth: 1.5, strokeOpacity: 0.5, title: text }),
  ];
}

function curveFigures() {
  const phases = new Map(DATA.curves.map((one) => [one.phase, one.label]));
  const bands = DATA.leaderboard.some((row) => row.seeds > 1);
  const figures = [];
  const measures = [...new Set(DATA.curves.map((one) => one.measure))];
  for (const name of measures) {
    const measure = DATA.measures[name];
    const parts = DATA.curves.filter((one) => one.measure === name);
    let phase = parts[0].phase;
    const chosen = () => parts.find((one) => one.phase === phase);
    const frame = figure({
      id: `curves-${name}`,
      title: `${capital(measure.label)} over the rounds`,
      says: bands ? "Lines are means over seeds, bands one standard deviation." : "One seed: there is no band.",
      controls: parts.length > 1 ? [choice(`Which data and models: ${measure.label}`, parts.map((one) => [one.phase, shortPhase(one.phase)]), phase, (value) => { phase = value; frame.redraw(); })] : [],
      draw: (width) => drawCurves(chosen().series, DATA.events, measure, width),
      rows: () => chosen().series.filter((one) => isShown(one.method)).flatMap((one) => one.points.map(([round, mean, low, high]) => ({ method: one.method, on: phases.get(phase), round, mean, low, high }))),
    });
    figures.push(frame);
  }
  return figures;
}

function shortPhase(phase) {
  const names = { before: "before training", after: "after training", global: "global model", validation: "validation", training: "while training" };
  return names[phase] || phase;
}

/* The result against what it cost so far. */
function costFigure(id, title, says, label, column) {
  const named = DATA.cost.map((one) => ({ ...one, name: nameOf(one.method) }));
  const rows = () => named.filter((one) => isShown(one.method)).flatMap((one) => one.points.map(([round, mb, seconds, value]) => ({ method: one.method, seed: one.seed, round, megabytes: mb, seconds, value })));
  const draw = (width) => {
    const shown = named.filter((one) => isShown(one.method));
    if (!shown.length) return null;
    const points = shown.flatMap((one) => one.points.map((point) => ({ run: `${one.method} ${one.seed}`, colour: colourOf(one.method), x: point[column], y: point[3] * MEASURE.scale, text: `${one.name}, seed ${one.seed}\nround ${point[0]}: ${show(point[3])}\n${showBytes(point[1] * 1e6)}, ${number(point[2], 2)} s` })));
    const ends = shown.map((one) => ({ x: one.points.at(-1)[column], y: one.points.at(-1)[3] * MEASURE.scale, colour: colourOf(one.method), mark: METHODS.get(one.method).mark }));
    return Plot.plot({
      ...plain, width, height: width < SMALL ? 250 : 290, marginLeft: 46, marginRight: 16, marginTop: 26, marginBottom: 38,
      x: { label: `${label} →`, labelArrow: "none", labelOffset: 34, nice: true, zero: true, ticks: Math.floor(width / 80) },
      y: { label: `↑ ${MEASURE.axis}`, labelArrow: "none", nice: true },
      marks: [
        Plot.gridY({ stroke: "var(--line)", strokeOpacity: 1 }),
        ...shown.map((one) => Plot.line(one.points.map((point) => [point[column], point[3] * MEASURE.scale]), { stroke: colourOf(one.method), strokeDasharray: METHODS.get(one.method).dash || undefined, strokeWidth: 1.7, strokeOpacity: 0.85 })),
        ...ends.map((end) => Plot.dot([end], { x: "x", y: "y", fill: end.colour, symbol: end.mark, r: 4.5 })),
        Plot.tip(points, Plot.pointer({ x: "x", y: "y", title: "text", ...TIP })),
      ],
    });
  };
  return figure({ id, title, says, draw, rows });
}
