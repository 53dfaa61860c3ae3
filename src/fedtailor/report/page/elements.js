"use strict";
/* Small tools: elements, numbers as people read them, files to download, the theme. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const METHODS = new Map(DATA.methods.map((method) => [method.id, method]));
const MEASURE = DATA.measures[DATA.measure];
const hidden = new Set(); // ids of methods that are switched off
const redraws = []; // what is drawn again when a series or the theme is switched

const isShown = (id) => !hidden.has(id);
const nameOf = (id) => (METHODS.has(id) ? METHODS.get(id).name : id);
const colourOf = (id) => (METHODS.has(id) ? METHODS.get(id).colour : "currentColor");

/* An element. Children that are texts stay texts: nothing is read as HTML. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/* ---------------------------------------------------------------- numbers */
const MINUS = "−";

function number(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value.toFixed(digits).replace("-", MINUS);
}

function digitsOf(measure) {
  return measure.unit === "%" ? 1 : 3;
}

function show(value, measure = MEASURE, digits = digitsOf(measure)) {
  if (value === null || value === undefined) return "–";
  const text = number(value * measure.scale, digits);
  return measure.unit ? `${text} ${measure.unit}` : text;
}

/* Without the unit, for columns whose heading has it. */
function bare(value, measure = MEASURE) {
  if (value === null || value === undefined) return "–";
  return number(value * measure.scale, digitsOf(measure));
}

function showDifference(value, measure = MEASURE, digits = digitsOf(measure)) {
  if (value === null || value === undefined) return "–";
  const text = number(value * measure.scale, digits);
  return value > 0 ? `+${text}` : text;
}

function showBytes(bytes) {
  const steps = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
  for (const [size, unit] of steps) {
    if (bytes >= size) return `${number(bytes / size, bytes >= 100 * size ? 0 : 2)} ${unit}`;
  }
  return `${number(bytes, 0)} B`;
}

/* ---------------------------------------------------------------- downloads */
function download(name, content, type) {
  const link = el("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function toCsv(rows) {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = rows.map((row) => columns.map((name) => cell(row[name])).join(","));
  return [columns.map(cell).join(","), ...lines].join("\n") + "\n";
}

/* The picture as it stands, with its colours written into it. */
function serialise(svg) {
  const style = getComputedStyle(document.documentElement);
  const copy = svg.cloneNode(true);
  copy.querySelectorAll('[aria-label="tip"]').forEach((tip) => tip.remove());
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("style", `background:${style.getPropertyValue("--card")};color:${style.getPropertyValue("--ink")};font-family:sans-serif`);
  return new XMLSerializer().serializeToString(copy).replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim() || "currentColor");
}

function downloadPng(svg, name) {
  const image = new Image();
  const box = svg.getBoundingClientRect();
  image.onload = () => {
    const canvas = el("canvas", { width: 2 * box.width, height: 2 * box.height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => download(`${name}.png`, blob, "image/png"));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(serialise(svg))}`;
}

/* ---------------------------------------------------------------- light and dark */
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

function prepareTheme() {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(system.matches ? "dark" : "light");
  system.addEventListener("change", () => setTheme(system.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  });
}
