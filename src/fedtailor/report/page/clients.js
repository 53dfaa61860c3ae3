"use strict";
/* Charts with a mark for every client: gains, results over rounds, fairness, who has which data. */

const LABEL_SPACE = () => 22 + 7.2 * Math.max(...DATA.methods.map((method) => Math.min(method.name.length, 22)));
const shorten = (text, length = 22) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

/* A swarm of clients a row, at rest where they do not collide; of very many, spread evenly. */
function swarm(options, count) {
  if (count <= 500) return Plot.dodgeY({ ...options, anchor: "middle", padding: 0.4 });
  return { ...options, y: (_, i) => ((i * 0.618034) % 1) - 0.5 };
}

/* ---------------------------------------------------------------- gains */
function gainFigure(part, index) {
  const groups = () => part.groups.filter((group) => isShown(group.method));
  const rows = () => groups().flatMap((group) => group.clients.map(([seed, client, n, gain]) => ({ method: group.method, reference: part.reference, seed, client, test_examples: n, gain })));
  const draw = (width) => {
    const shown = groups();
    if (!shown.length) return null;
    const scale = MEASURE.scale;
    const small = width < SMALL;
    const count = Math.max(...shown.map((group) => group.clients.length));
    const dots = shown.flatMap((group) => group.clients.map(([seed, client, n, gain]) => ({
      method: nameOf(group.method), colour: colourOf(group.method), gain: gain * scale,
      text: `${nameOf(group.method)}: client ${client}, seed ${seed}\n${showDifference(gain)} ${MEASURE.points}\n${n} test examples`,
    })));
    const means = shown.map((group) => ({
      method: nameOf(group.method), colour: colourOf(group.method), mean: group.mean * scale, low: group.low * scale, high: group.high * scale,
      told: `${group.better} of ${group.count} gain`,
      text: `${nameOf(group.method)}, mean\n${showDifference(group.mean)} ${MEASURE.points}\n95 % interval ${number(group.low * scale, 1)} to ${number(group.high * scale, 1)}`,
    }));
    const order = means.map((one) => one.method);
    const reach = d3.extent([...dots.map((one) => one.gain), ...means.map((one) => one.mean), 0]);
    const room = 0.06 * (reach[1] - reach[0] || 1);
    const radius = count > 300 ? 1.6 : small ? 2.4 : 3.2;
    return Plot.plot({
      ...plain, width, height: 52 + shown.length * (small ? 50 : 58), marginLeft: Math.min(LABEL_SPACE(), width * 0.32), marginRight: small ? 12 : 104, marginTop: 26, marginBottom: 38,
      x: { label: `${MEASURE.points ? `${MEASURE.points} ` : ""}better than ${part.name} →`, labelArrow: "none", labelOffset: 34, domain: [reach[0] - room, reach[1] + room], ticks: Math.floor(width / 90), tickFormat: (x) => (x > 0 ? `+${x}` : String(x).replace("-", MINUS)) },
      y: { axis: null, domain: count > 500 ? [-1, 1] : undefined },
      fy: { domain: order, axis: null, padding: 0.12 },
      marks: [
        Plot.frame({ fill: "var(--faint)", fillOpacity: 0.55, stroke: null, rx: 6 }),
        Plot.gridX({ stroke: "var(--line)", strokeOpacity: 1 }),
        Plot.ruleX([0], { stroke: "currentColor", strokeWidth: 1.2 }),
        Plot.dot(dots, swarm({ x: "gain", fy: "method", fill: "colour", r: radius, fillOpacity: 0.5, className: "client" }, count)),
        Plot.ruleY(means, { fy: "method", y: null, x1: (one) => Math.max(one.low, reach[0] - room), x2: (one) => Math.min(one.high, reach[1] + room), stroke: "currentColor", strokeWidth: 2.4 }),
        Plot.dot(means, { fy: "method", x: "mean", fill: "colour", stroke: "currentColor", strokeWidth: 1.6, r: 5.5, symbol: "diamond" }),
        Plot.text(order, { fy: (d) => d, text: (d) => shorten(d), frameAnchor: "left", textAnchor: "end", dx: -10, fontWeight: 550, fontSize: 12.5 }),
        small ? null : Plot.text(means, { fy: "method", text: "told", frameAnchor: "right", textAnchor: "start", dx: 10, fill: "var(--soft)", fontSize: 11.5 }),
        Plot.tip(dots, Plot.pointer({ x: "gain", fy: "method", title: "text", ...TIP, maxRadius: 18 })),
        Plot.tip(means, Plot.pointer({ x: "mean", fy: "method", title: "text", ...TIP, maxRadius: 10 })),
      ],
    });
  };
  return figure({
    id: `gains-${index}`, title: `Against ${part.name}`,
    says: "A dot is a client; right of the line it is better off. The diamond is the mean over all test examples, the bar its 95 % interval.",
    draw, rows,
  });
}

/* ---------------------------------------------------------------- heat maps */
const RAMP = ["#3b1c52", "#3d4f8a", "#2f7f93", "#5bab72", "#c5cf4e", "#fbe723"];

function heatFigure() {
  let place = 0;
  let sorted = "client";
  const maps = DATA.heat;
  const values = maps.flatMap((map) => map.rows.flat()).filter((value) => value !== null).map((value) => value * MEASURE.scale);
  const domain = MEASURE.unit === "%" ? [Math.max(0, 10 * Math.floor(d3.min(values) / 10)), 10 * Math.ceil(d3.max(values) / 10)] : d3.extent(values);
  const flip = MEASURE.higher_is_better ? RAMP : [...RAMP].reverse();
  const select = el("select", { "aria-label": "Whose clients" }, maps.map((map, i) => el("option", { value: i }, `${nameOf(map.method)}, seed ${map.seed}`)));
  const rows = () => maps[place].rows.flatMap((row, i) => row.map((value, j) => ({ method: maps[place].method, seed: maps[place].seed, client: maps[place].clients[i], round: maps[place].rounds[j], value })));
  const draw = (width) => drawHeat(maps[place], sorted, width, domain, flip);
  const below = el("div", { class: "scale" }, show(domain[0] / MEASURE.scale, MEASURE, 0), el("span", { class: "ramp", style: `background:linear-gradient(90deg,${flip.join(",")})` }), show(domain[1] / MEASURE.scale, MEASURE, 0), el("span", { class: "hatch" }), "not evaluated", " · the frame is the round that validation data chose");
  const frame = figure({
    id: "heat", title: "Every client over the rounds",
    says: `Each row is a client, each column a round; the colour is its ${MEASURE.label} on its own test data.`,
    controls: [select, choice("Order of the clients", [["client", "by number"], ["result", "by result"]], sorted, (value) => { sorted = value; frame.redraw(); })],
    draw, rows, below,
  });
  select.addEventListener("change", () => { place = Number(select.value); frame.redraw(); });
  return frame;
}

function drawHeat(map, sorted, width, domain, ramp) {
  const j = Math.max(0, map.rounds.findLastIndex((t) => t <= map.chosen));
  const order = map.clients.map((client, i) => ({ client, i, value: map.rows[i][j] }));
  if (sorted === "result") order.sort((a, b) => (b.value ?? -1) - (a.value ?? -1));
  const cells = order.flatMap(({ client, i }) => map.rows[i].map((value, k) => ({ client, round: map.rounds[k], value: value === null ? null : value * MEASURE.scale, text: `client ${client}, round ${map.rounds[k]}\n${value === null ? "not evaluated" : show(value)}` })));
  const height = Math.max(5, Math.min(26, 560 / order.length));
  const every = Math.ceil(13 / height);
  const step = Math.ceil(map.rounds.length / Math.max(3, Math.floor(width / 44)));
  const pattern = "hatch-pattern";
  return Plot.plot({
    ...plain, width, height: order.length * height + 62, marginLeft: 46, marginRight: 8, marginTop: 22, marginBottom: 36,
    x: { type: "band", domain: map.rounds, label: "round →", labelArrow: "none", labelOffset: 34, padding: map.rounds.length > 30 ? 0 : 0.04, ticks: map.rounds.filter((_, k) => k % step === 0), tickSize: 0 },
    y: { type: "band", domain: order.map((one) => one.client), label: "client", labelAnchor: "top", labelArrow: "none", padding: height < 8 ? 0 : 0.06, tickSize: 0, tickFormat: (k, i) => (i % every ? "" : String(k)) },
    color: { domain, range: ramp, interpolate: "rgb", type: "linear" },
    marks: [
      () => patternOf(pattern),
      Plot.cell(cells.filter((one) => one.value === null), { x: "round", y: "client", fill: `url(#${pattern})`, title: "text" }),
      Plot.cell(cells.filter((one) => one.value !== null), { x: "round", y: "client", fill: (one) => heatColour(one.value, domain, ramp), className: "cell" }),
      Plot.tip(cells, Plot.pointer({ x: "round", y: "client", title: "text", ...TIP })),
      (index, scales, _, dimensions) => frameColumn(map.rounds[j], scales, dimensions),
    ],
  });
}

function heatColour(value, [low, high], ramp) {
  const share = high > low ? (value - low) / (high - low) : 0.5;
  return d3.interpolateRgbBasis(ramp)(Math.max(0, Math.min(1, share)));
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function patternOf(id) {
  const line = svg("path", { d: "M-1 7 7 -1M2 10 10 2", stroke: "var(--soft)", "stroke-width": 1, "stroke-opacity": 0.45 });
  return svg("defs", {}, svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, line));
}

function frameColumn(round, scales, { height, marginTop, marginBottom }) {
  const x = scales.x(round);
  return svg("rect", { x: x - 1, y: marginTop - 1, width: scales.x.bandwidth() + 2, height: height - marginTop - marginBottom + 2, fill: "none", stroke: "currentColor", "stroke-width": 1.8, rx: 2 });
}

/* ---------------------------------------------------------------- fairness */
function fairnessFigure() {
  const shownParts = () => DATA.fairness.filter((part) => isShown(part.method));
  const rows = () => shownParts().flatMap((part) => part.clients.map(([seed, client, value]) => ({ method: part.method, seed, client, value })));
  const draw = (width) => {
    const parts = shownParts();
    if (!parts.length) return null;
    const small = width < SMALL;
    const count = Math.max(...parts.map((part) => part.clients.length));
    const dots = parts.flatMap((part) => part.clients.map(([seed, client, value]) => ({ method: nameOf(part.method), colour: colourOf(part.method), value: value * MEASURE.scale, text: `${nameOf(part.method)}: client ${client}, seed ${seed}\n${show(value)}` })));
    const spans = parts.map((part) => {
      const sorted = part.clients.map((one) => one[2] * MEASURE.scale).sort(d3.ascending);
      return { method: nameOf(part.method), low: d3.quantile(sorted, 0.25), middle: d3.quantile(sorted, 0.5), high: d3.quantile(sorted, 0.75) };
    });
    return Plot.plot({
      ...plain, width, height: 48 + parts.length * (small ? 44 : 50), marginLeft: Math.min(LABEL_SPACE(), width * 0.32), marginRight: 14, marginTop: 16, marginBottom: 38,
      x: { label: `${MEASURE.axis} of single clients →`, labelArrow: "none", labelOffset: 34, nice: true, inset: 6, ticks: Math.floor(width / 90) },
      y: { axis: null, domain: count > 500 ? [-1, 1] : undefined },
      fy: { domain: spans.map((one) => one.method), axis: null, padding: 0.12 },
      marks: [
        Plot.frame({ fill: "var(--faint)", fillOpacity: 0.55, stroke: null, rx: 6 }),
        Plot.gridX({ stroke: "var(--line)", strokeOpacity: 1 }),
        Plot.dot(dots, swarm({ x: "value", fy: "method", fill: "colour", r: count > 300 ? 1.6 : small ? 2.3 : 3, fillOpacity: 0.55 }, count)),
        Plot.ruleY(spans, { fy: "method", y: null, x1: "low", x2: "high", stroke: "currentColor", strokeWidth: 2 }),
        Plot.tickX(spans, { fy: "method", x: "middle", stroke: "currentColor", strokeWidth: 2.6, insetTop: 12, insetBottom: 12 }),
        Plot.text(spans, { fy: "method", text: (d) => shorten(d.method), frameAnchor: "left", textAnchor: "end", dx: -10, fontWeight: 550, fontSize: 12.5 }),
        Plot.tip(dots, Plot.pointer({ x: "value", fy: "method", title: "text", ...TIP })),
      ],
    });
  };
  return figure({ id: "fairness-clients", title: "How evenly clients are served", says: "A dot is a client at the chosen round, of all seeds. The tick is the median client, the bar the middle half.", draw, rows });
}

/* ---------------------------------------------------------------- partition */
function partitionFigure() {
  let place = 0;
  const parts = DATA.partitions;
  const select = el("select", { "aria-label": "Which division" }, parts.map((part, i) => el("option", { value: i }, `${part.name}, seed ${part.seeds.join(", ")}`)));
  const cellsOf = (part) => part.counts.flatMap((counts, k) => counts.map((count, c) => ({ client: k, owner: part.owners[k] || String(k), label: part.labels[c] || String(c), c, count })).filter((one) => one.count));
  const rows = () => cellsOf(parts[place]).map(({ client, owner, label, count }) => ({ client, owner, class: label, samples: count }));
  const below = el("div", { class: "scale" });
  const draw = (width) => {
    const part = parts[place];
    const cells = cellsOf(part);
    const most = d3.max(cells, (one) => one.count);
    const classes = part.counts[0].length;
    const inner = width - 70;
    const cell = Math.min(inner / part.counts.length, Math.max(9, Math.min(26, 420 / classes)));
    const largest = Math.max(2, Math.min(cell * 0.62, 15));
    const radius = (count) => largest * Math.sqrt(count / most);
    below.replaceChildren("training samples:", ...legendSizes(most).flatMap((size) => [bubble(radius(size)), size.toLocaleString("en")]));
    const step = Math.ceil(part.counts.length / Math.max(3, Math.floor(inner / 26)));
    const every = Math.ceil(12 / Math.max(9, Math.min(26, 420 / classes)));
    return Plot.plot({
      ...plain, width, height: classes * Math.max(9, Math.min(26, 420 / classes)) + 62, marginLeft: 12 + 6.6 * Math.max(2, Math.min(14, d3.max(cells, (one) => one.label.length))), marginRight: 12, marginTop: 22, marginBottom: 36,
      x: { type: "point", domain: d3.range(part.counts.length), label: "client →", labelArrow: "none", labelOffset: 34, padding: 0.7, ticks: d3.range(0, part.counts.length, step), tickSize: 0 },
      y: { type: "point", domain: d3.range(classes), label: "class", labelAnchor: "top", labelArrow: "none", padding: 0.7, tickSize: 0, reverse: true, tickFormat: (c) => (c % every ? "" : shorten(part.labels[c] || String(c), 14)) },
      r: { type: "identity" },
      marks: [
        Plot.gridX(d3.range(0, part.counts.length), { stroke: "var(--line)", strokeOpacity: 0.7 }),
        Plot.gridY({ stroke: "var(--line)", strokeOpacity: 0.7 }),
        Plot.dot(cells, { x: "client", y: "c", r: (one) => radius(one.count), fill: "var(--accent)", fillOpacity: 0.85, className: "bubble" }),
        Plot.tip(cells, Plot.pointer({ x: "client", y: "c", title: (one) => `client ${one.owner}, class ${one.label}\n${one.count.toLocaleString("en")} training samples`, ...TIP })),
      ],
    });
  };
  const how = parts[0].how ? ` Divided by ${parts[0].how}.` : "";
  const frame = figure({ id: "partition", title: "Who has which data", says: `The area of a bubble is the number of training samples of a class that a client has.${how}`, controls: parts.length > 1 ? [select] : [], draw, rows, below });
  select.addEventListener("change", () => { place = Number(select.value); frame.redraw(); });
  return frame;
}

/* The largest bubble of all, and two round numbers below it. */
function legendSizes(most) {
  const nice = (x) => { const power = 10 ** Math.floor(Math.log10(x)); return power * [5, 2, 1].find((f) => f * power <= x); };
  return [...new Set([most, most > 4 ? nice(most / 3) : null, most > 20 ? nice(most / 12) : null])].filter(Boolean);
}

function bubble(radius) {
  const size = 2 * radius + 2;
  return svg("svg", { width: size, height: size, "aria-hidden": "true" }, svg("circle", { cx: size / 2, cy: size / 2, r: radius, fill: "var(--accent)", "fill-opacity": 0.85 }));
}
