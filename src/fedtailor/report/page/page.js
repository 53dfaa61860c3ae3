"use strict";
/* The page: its sections in order. A part without data is left out, or said in one line. */

function section(id, title, lead, ...content) {
  const node = el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), lead ? el("p", { class: "lead" }, lead) : null, content);
  document.getElementById("sections").append(node);
  document.getElementById("contents").append(el("a", { href: `#${id}` }, title));
  return node;
}

const missing = (text) => el("p", { class: "missing" }, text);
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const pair = (...figures) => el("div", { class: "pair" }, figures);

/* Text with `commands` set as code; still only text. */
function withCode(text) {
  return text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));
}

function fillTop() {
  document.getElementById("eyebrow").append(el("b", {}, DATA.title), ` · ${DATA.subtitle}`);
  document.getElementById("headline").textContent = DATA.headline.sentence;
  document.getElementById("remarks").append(...DATA.headline.remarks.map((text) => el("li", {}, withCode(text))));
  document.getElementById("print").addEventListener("click", () => window.print());
  document.getElementById("all-data").setAttribute("aria-label", "Download all data of this page");
  document.getElementById("all-data").addEventListener("click", () => download("report.json", JSON.stringify(DATA, null, 1), "application/json"));
}

function tile(what, value, beside) {
  return el("div", { class: "tile" }, el("div", { class: "what" }, what), el("div", { class: "value" }, value), el("div", { class: "beside" }, beside));
}

function fillTiles() {
  const rows = DATA.leaderboard.filter((row) => row.value !== null);
  const row = rows.find((one) => one.method !== "local") || rows[0];
  if (!row) return;
  const tiles = document.getElementById("tiles");
  const interval = row.low === null ? "" : `95 % interval ${number(row.low * MEASURE.scale, digitsOf(MEASURE))} to ${number(row.high * MEASURE.scale, digitsOf(MEASURE))}`;
  tiles.append(tile(`${MEASURE.label}, ${nameOf(row.method)}`, show(row.value), interval));
  const gain = (key, what) => {
    const found = row[key];
    if (!found) return;
    const certain = found.low > 0 || found.high < 0;
    tiles.append(tile(what, `${showDifference(found.mean)}`, `${MEASURE.points}${certain ? "" : ", may be chance"}; ${found.better} of ${found.count} clients gain`));
  };
  gain("over_local", "over training alone");
  gain("over_fedavg", "over one model for all");
  tiles.append(tile("worst tenth of clients", show(row.worst), "mean of the worst-served clients"));
  tiles.append(tile("sent per round", showBytes(row.bytes), "by all clients, up and down"));
}

/* One legend for all charts: what is switched off is gone everywhere. */
function fillLegend() {
  if (DATA.methods.length < 2) return;
  const legend = document.getElementById("legend");
  for (const { id, name } of DATA.methods) {
    const button = el("button", {
      type: "button", class: "series", "aria-pressed": "true", "data-method": id,
      onclick: () => {
        if (hidden.has(id)) hidden.delete(id);
        else hidden.add(id);
        button.setAttribute("aria-pressed", String(isShown(id)));
        redraws.forEach((redraw) => redraw());
      },
    }, swatch(id), name);
    legend.append(button);
  }
}

/* ---------------------------------------------------------------- sections */
function fillSections() {
  if (DATA.gains.length) {
    section("gains", "What each client gains", "Every client's result set against what it would have otherwise, on the same test data of the same seed.", DATA.gains.map(gainFigure));
  }
  const several = DATA.leaderboard.length > 1;
  section("leaderboard", several ? "Leaderboard" : "Result", `Personal models on their clients' own test data, at the round that validation data chose. A heading sorts.`,
    leaderboardTable(),
    DATA.differences.length ? [el("h3", {}, `Paired differences to ${nameOf(DATA.leaderboard[0].method)}`), el("p", { class: "lead" }, "The same client of the same seed in both; intervals of 95 % from the larger of what seeds and what clients show."), differenceTable()] : null,
    DATA.views ? [el("h3", {}, `Other models and other data${MEASURE.unit ? ` (${MEASURE.unit})` : ""}`), el("p", { class: "lead" }, "At the last round."), viewsTable()] : null);
  if (DATA.curves.length) {
    const hasAfter = DATA.curves.some((one) => one.phase === "after");
    const notes = hasAfter ? null : el("p", { class: "missing" }, "How good models are right after local training was not measured; ", el("code", {}, "--views after"), " does.");
    const marked = DATA.events.length ? missing("Dashed upright lines: clients came or left. Red ticks: rounds without any reply.") : null;
    section("curves", "While training", null, pair(...curveFigures()), notes, marked);
  }
  if (DATA.heat.length) section("clients", "Client by client", null, heatFigure());
  else section("clients", "Client by client", null, missing("There are too many clients, rounds or runs for a picture of each; rounds.jsonl of every run has them."));
  if (DATA.fairness.length) section("fairness", "Fairness", null, fairnessFigure(), fairnessTable());
  section("data", "The data", null, DATA.partitions.length ? partitionFigure() : missing("Who has which classes stays at the sites, or has no classes, and is not drawn."));
  if (DATA.cost.length) {
    section("cost", "What it costs", "Without start-up and evaluation; seconds are those of the machine that ran it.", pair(
      costFigure("cost-bytes", `${capital(MEASURE.label)} against data sent`, "All clients, up and down, so far. Methods that send nothing rise at zero.", "megabytes", 1),
      costFigure("cost-seconds", `${capital(MEASURE.label)} against time`, "Seconds of training, so far.", "seconds", 2)));
  }
  fillDiagnostics();
  fillPrivacy();
  fillSettings();
}

function fillDiagnostics() {
  if (!DATA.diagnostics.length) return;
  const parts = DATA.diagnostics.map((part, i) => {
    if (part.kind === "groups") return groupCard(part);
    return part.kind === "distribution" ? distributionFigure(part, i) : diagnosticFigure(part, i);
  });
  section("diagnostics", "Inside the methods", "What methods report about themselves, of their first seed.", pair(...parts));
}

function groupCard(part) {
  return el("figure", {}, el("figcaption", {}, el("h3", {}, methodCell(part.method), ` · ${part.title}`), el("p", { class: "says" }, part.sentence)), el("div", { class: "chips" }, part.groups.map((members) => el("span", { class: "chip" }, `clients ${members.join(", ")}`))));
}

const diagnosticTitle = (part) => `${nameOf(part.method)} · ${part.title}`;

function diagnosticFigure(part, i) {
  const scale = part.unit === "%" ? 100 : 1;
  const looks = { "test examples": ["", colourOf(part.method), 2.2], "training examples": ["5 3", "var(--soft)", 1.6], "having learnt nothing": ["1.5 3.5", "currentColor", 1.6] };
  const rows = () => part.series.flatMap((one) => one.points.map(([round, mean, low, high]) => ({ of: one.label, round, mean, low, high })));
  const draw = (width) => {
    if (!isShown(part.method)) return null;
    const last = Math.max(...part.series.flatMap((one) => one.points.map((point) => point[0])));
    const marks = [Plot.gridY({ stroke: "var(--line)", strokeOpacity: 1 })];
    const tips = [];
    for (const one of part.series) {
      const [dash, colour, strokeWidth] = looks[one.label];
      const points = one.points.map(([t, mean, low, high]) => ({ t, mean: mean * scale, low: low * scale, high: high * scale, text: `${one.label}\nround ${t}: ${number(mean * scale, scale === 100 ? 1 : 3)} ${part.unit}` }));
      if (one.label === "test examples") marks.push(Plot.areaY(points, { x: "t", y1: "low", y2: "high", fill: colour, fillOpacity: 0.14 }));
      marks.push(Plot.lineY(points, { x: "t", y: "mean", stroke: colour, strokeWidth, strokeDasharray: dash || undefined }));
      if (points.length === 1) marks.push(Plot.dot(points, { x: "t", y: "mean", fill: colour, r: 4 }));
      tips.push(...points);
    }
    marks.push(Plot.tip(tips, Plot.pointer({ x: "t", y: "mean", title: "text", ...TIP })));
    const ends = d3.extent(part.series.flatMap((one) => one.points.flatMap((point) => point.slice(1))), (x) => x * scale);
    const isFlat = ends[1] - ends[0] < 1e-9;
    return Plot.plot({
      ...plain, width, height: 236, marginLeft: 44, marginTop: 24, marginBottom: 38,
      x: { domain: last === 1 ? [0, 2] : [1, last] },
      y: { nice: !isFlat, domain: isFlat ? [ends[0] - 1, ends[1] + 1] : undefined },
      marks: [...marks, roundAxis(width, last), Plot.axisY({ label: part.unit ? `↑ ${part.unit}` : null, labelArrow: "none", ticks: 5, tickFormat: tick })],
    });
  };
  const told = part.series.map((one) => one.label);
  const legend = el("div", { class: "scale" }, told.map((label) => el("span", {}, svg("svg", { width: 24, height: 8, "aria-hidden": "true" }, svg("line", { x1: 0, x2: 24, y1: 4, y2: 4, stroke: looks[label][1], "stroke-width": looks[label][2], "stroke-dasharray": looks[label][0] })), ` ${label}`)), " · band: clients without the lowest and highest tenth");
  return figure({ id: `diagnostic-${i}`, title: diagnosticTitle(part), says: part.sentence, draw, rows, below: legend });
}

function distributionFigure(part, i) {
  const bins = part.rows[0].length;
  const cells = part.rows.flatMap((row, k) => row.map((share, b) => ({ client: part.clients[k], from: b / bins, to: (b + 1) / bins, share })));
  const most = d3.max(cells, (one) => one.share) || 1;
  const height = Math.max(5, Math.min(20, 220 / part.rows.length));
  const draw = (width) => (isShown(part.method) ? Plot.plot({
    ...plain, width, height: part.rows.length * height + 56, marginLeft: 44, marginTop: 22, marginBottom: 38,
    x: { label: `${part.name} →`, labelArrow: "none", labelOffset: 34, domain: [0, 1] },
    y: { type: "band", label: "client", labelAnchor: "top", labelArrow: "none", tickSize: 0, padding: 0.05, tickFormat: (k, j) => (j % Math.ceil(12 / height) ? "" : String(k)) },
    marks: [
      Plot.barX(cells, { x1: "from", x2: "to", y: "client", fill: colourOf(part.method), fillOpacity: (one) => one.share / most, inset: 0.3 }),
      Plot.tip(cells, Plot.pointer({ x: (one) => (one.from + one.to) / 2, y: "client", title: (one) => `client ${one.client}, ${number(one.from, 2)} to ${number(one.to, 2)}\n${number(100 * one.share, 1)} % of the values`, ...TIP })),
    ],
  }) : null);
  return figure({ id: `diagnostic-${i}`, title: `${diagnosticTitle(part)}, round ${part.round}`, says: part.sentence, draw, rows: () => cells });
}

/* ---------------------------------------------------------------- privacy */
function fillPrivacy() {
  const bullets = (texts) => (texts && texts.length ? el("ul", {}, texts.map((text) => el("li", {}, withCode(text.replaceAll("``", "`"))))) : "nothing");
  const cards = DATA.privacy.map((part) => {
    const facts = [];
    const fact = (name, value) => facts.push(el("dt", {}, name), el("dd", {}, value));
    fact("left the clients", part.left === null ? "a method of your own: see its class Up" : bullets(part.left));
    fact("never left", part.kept === null ? "see its class Keep" : bullets(part.kept));
    fact("sent by clients", `${showBytes(part.bytes_up)} in ${part.runs} ${part.runs === 1 ? "run" : "runs"}`);
    fact("protections on", part.protections.length ? el("ul", {}, part.protections.map(([name, value, what]) => el("li", {}, el("code", {}, `${name} ${value}`), ` ${what.split(":")[0]}`))) : "none beyond data staying at home");
    if (part.spent) fact("privacy spent", `ε = ${number(part.spent.epsilon, 2)} at δ = ${part.spent.delta} (${part.spent.level} level, ${part.spent.accountant} accountant)`);
    if (part.attack) fact("attack", `${part.attack.kind} by clients ${part.attack.attackers.join(", ")}`);
    return el("div", { class: "card" }, el("h3", {}, methodCell(part.method)), el("dl", {}, facts));
  });
  const spent = DATA.privacy.filter((part) => part.epsilon.length > 1).map((part) => ({ method: part.method, points: part.epsilon }));
  const chart = spent.length ? figure({
    id: "epsilon", title: "Privacy spent over the rounds", says: "ε of the whole run so far: the smaller, the less an observer can learn of any one client or sample.",
    draw: (width) => drawCurves(spent, [], { scale: 1, unit: "", axis: "ε" }, width),
    rows: () => spent.flatMap((one) => one.points.map(([round, epsilon]) => ({ method: one.method, round, epsilon }))),
  }) : null;
  const lead = "Raw data stay with the clients. What methods send, and what was done to protect it. Sums over test data (examples, hits, losses) also reach the server.";
  section("privacy", "Privacy", lead, chart, el("div", { class: "cards" }, cards));
}

/* ---------------------------------------------------------------- how it was made */
function fillSettings() {
  const { common, own, seeds } = DATA.settings;
  const lines = [["seeds", seeds.join(", ")], ...common];
  const table = el("dl", { class: "facts" }, lines.map(([name, value]) => el("div", {}, el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, value))));
  const different = Object.entries(own).filter(([, lines]) => lines.length);
  const differs = different.length ? [el("h3", {}, "What only some have"), el("div", { class: "cards" }, different.map(([id, lines]) => el("div", { class: "card" }, el("h3", {}, methodCell(id)), el("div", { class: "chips" }, lines.map((line) => el("code", {}, line))))))] : [];
  const { warnings, remarks } = DATA.messages;
  const list = (texts) => el("ul", { class: "notes" }, texts.map((text) => el("li", {}, text)));
  section("warnings", "Warnings and losses", null,
    warnings.length ? [el("h3", {}, "Warnings"), list(warnings)] : missing("No warnings."),
    remarks.length ? [el("h3", {}, "What the methods remarked"), list(remarks)] : null,
    DATA.losses.length ? [el("h3", {}, "Lost replies"), lossTable()] : missing("No reply of any client was lost."));
  section("settings", "How it was made", null,
    el("details", { open: "" }, el("summary", {}, "Settings of all runs"), table, differs),
    el("details", {}, el("summary", {}, `Commands that make these ${DATA.commands.length} runs again`), el("pre", {}, DATA.commands.join("\n"))),
    el("details", {}, el("summary", {}, "Versions"), DATA.versions.map(({ runs, versions }) => el("p", { class: "missing" }, Object.keys(versions).length ? `${Object.entries(versions).map(([name, value]) => `${name} ${value}`).join(", ")}` : "not noted by the version that ran", `: ${runs} ${runs === 1 ? "run" : "runs"}`))),
    el("details", {}, el("summary", {}, "Folders"), el("pre", {}, DATA.folders.join("\n"))));
  document.getElementById("footer").append(`Written by FedTailor ${DATA.version}. Charts: Observable Plot and D3 (ISC licence, in the source of this page). This page asks nothing of any network.`);
}

/* Where the reader is, in the contents. */
function followReader() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.getAttribute("href").slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link) => link.classList.remove("here"));
      links.get(entry.target.id).classList.add("here");
    }
  }, { rootMargin: "-12% 0px -70% 0px" });
  document.querySelectorAll("section").forEach((node) => seen.observe(node));
}

prepareTheme();
fillTop();
fillTiles();
fillLegend();
fillSections();
followReader();
