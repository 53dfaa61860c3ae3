"use strict";
/* Tables that sort, and the cells in them. */

/* columns: {title, text?, value(row) to sort by, cell(row) to show, hint?} */
function sortableTable(label, columns, rows, { method = (row) => row.method } = {}) {
  const body = el("tbody");
  const heads = columns.map((column) => el("th", { scope: "col", class: column.text ? "text" : null, title: column.hint || null }));
  let sortedBy = null;
  let descending = true;
  const fill = () => {
    const shown = rows.filter((row) => !method(row) || isShown(method(row)));
    if (sortedBy !== null) shown.sort((a, b) => compare(columns[sortedBy].value(a), columns[sortedBy].value(b)) * (descending ? -1 : 1));
    body.replaceChildren(...shown.map((row) => el("tr", {}, columns.map((column) => el("td", { class: [column.text ? "text" : "", column.prose ? "prose" : ""].join(" ").trim() || null }, column.cell(row))))));
  };
  columns.forEach((column, i) => {
    const sort = () => {
      descending = sortedBy === i ? !descending : !column.text;
      sortedBy = i;
      heads.forEach((head, j) => (j === i ? head.setAttribute("aria-sort", descending ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
      fill();
    };
    heads[i].append(el("button", { type: "button", onclick: sort }, column.title));
  });
  redraws.push(fill);
  fill();
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body));
}

function compare(a, b) {
  const nothing = (x) => x === null || x === undefined;
  if (nothing(a) || nothing(b)) return nothing(a) - nothing(b);
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}

function plainTable(rows) {
  if (!rows.length) return el("p", { class: "missing" }, "Nothing is shown.");
  const columns = Object.keys(rows[0]);
  const cell = (value) => (typeof value === "number" && !Number.isInteger(value) ? number(value, 4) : value === null || value === undefined ? "–" : String(value));
  return el("div", { class: "wide", style: "max-height:19rem;overflow:auto", tabindex: "0", role: "region", "aria-label": "Numbers" }, el("table", {},
    el("thead", {}, el("tr", {}, columns.map((name) => el("th", { scope: "col" }, name.replaceAll("_", " "))))),
    el("tbody", {}, rows.map((row) => el("tr", {}, columns.map((name) => el("td", {}, cell(row[name]))))))));
}

/* A method's name with its mark. */
function methodCell(id) {
  return el("span", { class: "method" }, swatch(id), nameOf(id));
}

function swatch(id) {
  const look = METHODS.get(id);
  const line = svg("line", { x1: 0, x2: 22, y1: 6, y2: 6, stroke: look.colour, "stroke-width": 2.2, "stroke-dasharray": look.dash });
  const shapes = { circle: d3.symbolCircle, square: d3.symbolSquare, triangle: d3.symbolTriangle, diamond: d3.symbolDiamond, star: d3.symbolStar, cross: d3.symbolCross };
  const mark = svg("path", { d: d3.symbol(shapes[look.mark], 38)(), transform: "translate(11 6)", fill: look.colour });
  return svg("svg", { width: 22, height: 12, "aria-hidden": "true" }, line, mark);
}

function gainCell(gain) {
  if (!gain) return "–";
  const certain = gain.low > 0 ? "up" : gain.high < 0 ? "down" : "";
  const s = MEASURE.scale;
  return el("span", {}, el("b", { class: certain }, showDifference(gain.mean)), el("small", {}, `  (${number(gain.low * s, 1)} to ${number(gain.high * s, 1)})`));
}

/* A result on a common scale: a dot and its interval. */
function trackCell(row, [low, high]) {
  const place = (value) => `${(100 * (Math.max(low, Math.min(high, value)) - low)) / (high - low || 1)}%`;
  const colour = colourOf(row.method);
  const track = el("span", { class: "track", "aria-hidden": "true" });
  if (row.low !== null) track.append(el("i", { style: `left:${place(row.low)};right:calc(100% - ${place(row.high)});background:${colour}` }));
  track.append(el("b", { style: `left:${place(row.value)};background:${colour}` }));
  return track;
}

function leaderboardTable() {
  const rows = DATA.leaderboard.filter((row) => row.value !== null);
  const ends = rows.flatMap((row) => [row.low ?? row.value, row.high ?? row.value]);
  const limits = [Math.min(...ends), Math.max(...ends)];
  const seeds = rows.some((row) => row.seeds > 1);
  const columns = [
    { title: "method", text: true, value: (row) => nameOf(row.method), cell: (row) => methodCell(row.method) },
    { title: MEASURE.axis, value: (row) => row.value, cell: (row) => el("span", {}, el("b", {}, bare(row.value)), row.std === null ? "" : el("small", {}, ` ± ${bare(row.std)}`)), hint: seeds ? "mean over seeds ± standard deviation over seeds" : "at the round that validation data chose" },
    { title: "95 % interval", value: (row) => row.low, cell: (row) => (row.low === null ? "–" : `${number(row.low * MEASURE.scale, digitsOf(MEASURE))} to ${number(row.high * MEASURE.scale, digitsOf(MEASURE))}`) },
    { title: " ", value: (row) => row.value, cell: (row) => trackCell(row, limits) },
  ];
  const gain = (key, title) => {
    if (rows.some((row) => row[key])) columns.push({ title, value: (row) => (row[key] ? row[key].mean : null), cell: (row) => gainCell(row[key]) });
  };
  gain("over_local", "over training alone");
  gain("over_fedavg", "over one model for all");
  columns.push(
    { title: "worst tenth", value: (row) => row.worst, cell: (row) => bare(row.worst), hint: "mean of the worst tenth of the clients, at least one" },
    { title: "sent per round", value: (row) => row.bytes, cell: (row) => showBytes(row.bytes) },
    { title: "seconds per round", value: (row) => row.seconds, cell: (row) => number(row.seconds, 2) },
    { title: "best on test", value: (row) => row.on_test, cell: (row) => bare(row.on_test), hint: "the best round by test data, as many papers print it: flattered" });
  for (const name of Object.keys(rows[0].measures)) {
    const measure = DATA.measures[name];
    if (name !== DATA.measure) columns.push({ title: measure.axis, value: (row) => row.measures[name], cell: (row) => bare(row.measures[name], measure) });
  }
  return sortableTable("Leaderboard", columns, rows);
}

function differenceTable() {
  const first = DATA.leaderboard[0].method;
  return sortableTable("Paired differences", [
    { title: "method", text: true, value: (row) => nameOf(row.method), cell: (row) => methodCell(row.method) },
    { title: `against ${nameOf(first)}`, value: (row) => row.mean, cell: gainCell },
    { title: "p (Holm)", value: (row) => row.corrected, cell: (row) => (row.corrected < 0.001 ? "< 0.001" : number(row.corrected, 3)), hint: "chance of so large a difference where there is none, corrected for the number of methods" },
    { title: "clients better off", value: (row) => row.better / row.count, cell: (row) => `${row.better} of ${row.count}` },
    { title: "what it says", text: true, value: (row) => row.corrected, cell: (row) => (row.corrected >= 0.05 ? "may be chance" : row.mean < 0 ? "worse" : "better") },
  ], DATA.differences);
}

function viewsTable() {
  const { columns, rows } = DATA.views;
  return sortableTable("Further views", [
    { title: "method", text: true, value: (row) => nameOf(row.method), cell: (row) => methodCell(row.method) },
    ...columns.map((title, i) => ({ title, value: (row) => row.values[i], cell: (row) => bare(row.values[i]) })),
  ], rows);
}

function fairnessTable() {
  const share = (value) => (value === null ? "–" : number(100 * value, 1));
  return sortableTable("Fairness", [
    { title: "method", text: true, value: (row) => nameOf(row.method), cell: (row) => methodCell(row.method) },
    { title: `spread over clients${MEASURE.unit ? ` (${MEASURE.points})` : ""}`, value: (row) => row.std, cell: (row) => bare(row.std), hint: "standard deviation over clients, mean over seeds" },
    { title: "spread / result (%)", value: (row) => row.cv, cell: (row) => share(row.cv) },
    { title: `worst tenth${MEASURE.unit ? ` (${MEASURE.unit})` : ""}`, value: (row) => row.worst_decile, cell: (row) => bare(row.worst_decile), hint: "mean of the worst tenth of the clients, at least one" },
    { title: "Jain's index", value: (row) => row.jain, cell: (row) => number(row.jain, 3), hint: "1 where all clients are equal" },
  ], DATA.fairness);
}

function lossTable() {
  return sortableTable("Lost replies", [
    { title: "method", text: true, value: (row) => nameOf(row.method), cell: (row) => methodCell(row.method) },
    { title: "seed", value: (row) => row.seed, cell: (row) => String(row.seed) },
    { title: "lost replies", value: (row) => row.replies, cell: (row) => String(row.replies) },
    { title: "rounds without any reply", value: (row) => row.skipped, cell: (row) => String(row.skipped) },
    { title: "of clients", text: true, prose: true, value: (row) => row.clients.length, cell: (row) => row.clients.join(", ") },
    { title: "why", text: true, prose: true, value: (row) => row.reasons.join(), cell: (row) => row.reasons.join("; ") },
  ], DATA.losses);
}
