"""The server's page: what can be asked, and a form to try it. It loads nothing from elsewhere."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>FedTailor models</title>
<link rel="icon" href="data:,">
<style>
 body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto;
  padding: 0 1rem; color: #1b2733; background: #fff; }
 h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
 table { border-collapse: collapse; width: 100%; }
 th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d7dde3;
  vertical-align: top; }
 code, textarea, pre { font: 14px/1.4 ui-monospace, monospace; }
 textarea { width: 100%; height: 9rem; box-sizing: border-box; padding: .5rem; }
 pre { background: #f3f5f7; padding: .8rem; overflow: auto; min-height: 1.4rem; }
 button, select { font: inherit; padding: .3rem .8rem; }
</style>
</head>
<body>
<h1>Models of a FedTailor run</h1>
<table>
 <tr><th>Request</th><th>Answer</th></tr>
 <tr><td><code>GET /models</code></td><td>whose models there are, what they take</td></tr>
 <tr><td><code>POST /predict</code></td><td>a label for every input</td></tr>
 <tr><td><code>POST /predict_proba</code></td><td>the probability of every class</td></tr>
 <tr><td><code>GET /healthz</code></td><td>whether the server answers</td></tr>
 <tr><td><a href="openapi.json"><code>GET /openapi.json</code></a></td>
  <td>all of it for programs (OpenAPI)</td></tr>
</table>
<h2>Models</h2>
<table id="models"></table>
<h2>Try</h2>
<p><label for="question">A request's body; the model is named by <code>client</code>.</label></p>
<textarea id="question" spellcheck="false"></textarea>
<p><select id="path" aria-label="Request"><option>/predict</option>
 <option>/predict_proba</option></select>
 <button id="ask">Ask</button></p>
<pre id="answer" aria-live="polite"></pre>
<script>
"use strict";
const make = (tag, text) => {
  const node = document.createElement(tag);
  node.textContent = text;
  return node;
};
const nest = shape => shape.length
  ? Array.from({length: shape[0]}, () => nest(shape.slice(1))) : 0;
const example = model => {
  if (model.columns.length) {
    return {records: [Object.fromEntries(model.columns.map(name => [name, 0]))]};
  }
  return {inputs: [nest(model.shape)]};
};
const show = model => {
  const body = {client: model.client, ...example(model)};
  document.getElementById("question").value = JSON.stringify(body);
};
const fill = models => {
  const table = document.getElementById("models");
  const head = table.insertRow();
  for (const title of ["client", "inputs", "classes"]) head.append(make("th", title));
  for (const model of models) {
    const row = table.insertRow();
    const button = make("button", model.client);
    button.onclick = () => show(model);
    row.insertCell().append(button);
    const columns = model.columns.join(", ");
    const size = `${model.kind}, ${model.dtype} (${model.shape.join(" x ")})`;
    row.append(make("td", columns ? `${size}: ${columns}` : size));
    row.append(make("td", model.labels.join(", ")));
  }
  if (models.length) show(models[0]);
};
document.getElementById("ask").onclick = async () => {
  const answer = document.getElementById("answer");
  const path = document.getElementById("path").value;
  const body = document.getElementById("question").value;
  try {
    const headers = {"Content-Type": "application/json"};
    const reply = await fetch(path.slice(1), {method: "POST", headers, body});
    answer.textContent = `${reply.status} ${await reply.text()}`;
  } catch (error) {
    answer.textContent = `no answer: ${error.message}`;
  }
};
fetch("models").then(reply => reply.json()).then(fill);
</script>
</body>
</html>
"""
